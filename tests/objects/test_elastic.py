"""Elastic energy by its laws: none at rest, none for what turns, that of a stretch by formula; and a bar that swings as fast as it should."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch", reason="objects need torch: pip install 'kinema4d[world]'")
import torch
import trimesh

from kinema4d.objects.body import rotation
from kinema4d.objects.elastic import THICK, Elements, Inside, Material, closed, density_of, elastic
from kinema4d.objects.fit import Fitted
from kinema4d.objects.reduce import Freedom
from kinema4d.objects.solid import Mesh, quadrature
from kinema4d.simulate.object_wish import Wish
from kinema4d.simulate.objects import simulate_object

RUBBER = Material(young=2e5, poisson=0.3, thickness=0.001)
MU, LAM = 2e5 / 2.6, 2e5 * 0.3 / (1.3 * 0.4)


def beam(counts: tuple[int, int, int] = (12, 3, 3), size: tuple[float, float, float] = (0.4, 0.06, 0.05)) -> Mesh:
    """A bar along x from 0, its surface in squares that are cut in two."""
    axes = [np.arange(n) for n in counts]
    known = np.stack(np.meshgrid(*axes, indexing="ij"), -1).reshape(-1, 3)
    index, faces = {tuple(p): i for i, p in enumerate(known)}, []
    for axis in range(3):
        u, v = (axis + 1) % 3, (axis + 2) % 3
        for end in (0, counts[axis] - 1):
            for i in range(counts[u] - 1):
                for j in range(counts[v] - 1):
                    square = []
                    for a, b in ((0, 0), (1, 0), (1, 1), (0, 1)):
                        p = np.zeros(3, int)
                        p[axis], p[u], p[v] = end, i + a, j + b
                        square.append(index[tuple(p)])
                    square = square if end else square[::-1]
                    faces += [square[:3], [square[0], square[2], square[3]]]
    used, back = np.unique(np.array(faces), return_inverse=True)
    at = known[used] / (np.array(counts) - 1) - [0, 0.5, 0.5]
    return Mesh(vertices=at * size, faces=back.reshape(-1, 3).astype(np.int64))


def cloth(n: int = 9, size: float = 0.3) -> Mesh:
    """A sheet in the plane y = 0."""
    i, j = (x.ravel() for x in np.mgrid[:n, :n])
    at = np.arange(n * n).reshape(n, n)
    a, b, c, d = (x.ravel() for x in (at[:-1, :-1], at[1:, :-1], at[1:, 1:], at[:-1, 1:]))
    faces = np.concatenate([np.stack([a, b, c], 1), np.stack([a, c, d], 1)])
    return Mesh(vertices=np.stack([i, 0 * i, j], 1) / (n - 1) * size, faces=faces.astype(np.int64))


def ball() -> Mesh:
    made = trimesh.creation.icosphere(2, radius=0.1)
    bumps = 1 + 0.1 * np.sin(30 * made.vertices).sum(axis=1, keepdims=True)
    return Mesh(vertices=np.asarray(made.vertices * bumps, np.float64), faces=np.asarray(made.faces, np.int64))


def two() -> Mesh:
    """A solid and a sheet above it, which do not touch."""
    a, b = beam(), cloth()
    return Mesh(vertices=np.concatenate([a.vertices, b.vertices + np.array([0, 0, 0.2])]), faces=np.concatenate([a.faces, b.faces + len(a.vertices)]))  # fmt: skip


def bent(mesh: Mesh) -> torch.Tensor:
    """Something that is no stretch and no turn, curved as well."""
    x = torch.from_numpy(mesh.vertices)
    return x + 0.1 * torch.stack([x[:, 1] - x[:, 0] * x[:, 2], (4 * x[:, 0]).sin() * 0.1, 3 * x[:, 0].square()], 1)


THINGS = {"beam": beam, "ball": ball, "cloth": cloth, "two": two}


@pytest.mark.parametrize("elements", ["mesh", "smooth"])
@pytest.mark.parametrize("name", THINGS)
def test_rest_and_rigid_motions_cost_nothing(name: str, elements: Elements):
    mesh = THINGS[name]()
    energy = elastic(mesh, RUBBER, elements=elements).energy
    x = torch.from_numpy(mesh.vertices)[None]
    way = torch.func.grad(lambda v: energy(v).sum())
    much = float(energy(bent(mesh)[None]))
    force = float(way(bent(mesh)[None]).abs().max())
    assert much > 1e-6
    assert float(energy(x)) < 1e-12 * much
    assert float(way(x).abs().max()) < 1e-6 * force
    turn = rotation(torch.tensor([[0.3, -2.0, 1.1], [3.0, 0.1, 0.0]], dtype=torch.float64))
    moved = lambda v: v @ turn.mT + torch.tensor([0.5, -2.0, 1.0], dtype=torch.float64)  # noqa: E731
    assert float(energy(moved(x)).max()) < 1e-10 * much
    assert float(way(moved(x)).abs().max()) < 1e-6 * force
    np.testing.assert_allclose(energy(moved(bent(mesh)[None])).numpy(), much, rtol=1e-8)


@pytest.mark.parametrize("elements", ["mesh", "smooth"])
def test_a_stretched_bar_has_the_energy_of_the_formula(elements: Elements):
    mesh = beam()
    energy, volume = elastic(mesh, RUBBER, elements=elements).energy, 0.4 * 0.06 * 0.05
    stretch = torch.tensor([1.2, 0.95, 1.0], dtype=torch.float64)
    e = (stretch.square() - 1) / 2
    want = volume * (MU * e.square().sum() + LAM / 2 * e.sum().square())
    got = energy(torch.from_numpy(mesh.vertices)[None] * stretch)
    np.testing.assert_allclose(got.numpy(), float(want), rtol=1e-9)
    shear = torch.eye(3, dtype=torch.float64)
    shear[0, 1] = 0.3
    strain = (shear.mT @ shear - torch.eye(3)) / 2
    want = volume * (MU * strain.square().sum() + LAM / 2 * strain.trace().square())
    np.testing.assert_allclose(energy(torch.from_numpy(mesh.vertices)[None] @ shear.mT).numpy(), float(want), rtol=1e-9)


def test_a_stretched_sheet_is_in_plane_stress_and_a_rolled_one_bends():
    mesh = cloth(13)
    energy = elastic(mesh, RUBBER).energy
    x = torch.from_numpy(mesh.vertices)
    e = (np.array([1.1, 1.05]) ** 2 - 1) / 2
    plane = 2e5 * 0.3 / (1 - 0.3**2)
    want = 0.3**2 * 0.001 * (MU * (e**2).sum() + plane / 2 * e.sum() ** 2)
    np.testing.assert_allclose(
        energy(x[None] * torch.tensor([1.1, 1, 1.05], dtype=torch.float64)).numpy(), want, rtol=1e-9
    )
    radius = 0.2
    angle = x[:, 0] / radius
    rolled = torch.stack([radius * angle.sin(), radius - radius * angle.cos(), x[:, 2]], 1)
    thin = elastic(mesh, Material(young=2e5, poisson=0.3, thickness=0.03)).energy(rolled[None])  # bending counts here
    bending = 2e5 * 0.03**3 / (12 * (1 - 0.3**2)) / 2 * 0.3**2 / radius**2
    assert float(thin) == pytest.approx(bending, rel=0.1)


@pytest.mark.parametrize("name", ["beam", "two"])
def test_the_gradient_is_that_of_finite_differences(name: str):
    mesh = THINGS[name]()
    energy = elastic(mesh, RUBBER).energy
    x, way = bent(mesh), torch.from_numpy(np.random.default_rng(0).normal(size=mesh.vertices.shape))
    force = torch.func.grad(lambda v: energy(v[None])[0])
    h = 1e-6
    slope = (energy((x + h * way)[None]) - energy((x - h * way)[None])) / (2 * h)
    assert float((force(x) * way).sum()) == pytest.approx(float(slope), rel=1e-6)
    second = torch.func.jvp(force, (x,), (way,))[1]  # type: ignore[misc]
    np.testing.assert_allclose(second.numpy(), ((force(x + h * way) - force(x - h * way)) / (2 * h)).numpy(), rtol=1e-4, atol=1e-4 * float(second.abs().max()))  # fmt: skip
    both = energy(torch.stack([x, torch.from_numpy(mesh.vertices), x]))
    assert both.shape == (3,)
    assert float(both[0]) == pytest.approx(float(both[2]))


@pytest.mark.parametrize("name", ["beam", "ball", "two"])
def test_masses_have_the_moments_of_the_whole(name: str):
    mesh = THINGS[name]()
    weighed = elastic(mesh, RUBBER, density=500.0).weighed
    exact = quadrature(mesh, density=500.0, thick=RUBBER.thickness)
    at, mass = weighed.points(mesh.vertices), weighed.mass
    assert (mass > 0).all()
    assert mass.sum() == pytest.approx(exact.mass.sum(), rel=1e-9)
    for power in (1, 2):
        want = (exact.mass[:, None] * exact.points(mesh.vertices) ** power).sum(axis=0)
        np.testing.assert_allclose((mass[:, None] * at**power).sum(axis=0), want, atol=0.01 * mass.sum() * mesh.size**power)  # fmt: skip
    assert density_of(mesh, quadrature(mesh, density=700.0, thick=THICK)) == pytest.approx(700.0)
    arc = mesh.vertices.copy()
    arc[:, 2] += arc[:, 0] ** 2  # points inside bend with it: they lie on the arc, not on a chord
    np.testing.assert_allclose(weighed.points(arc)[:, 2], at[:, 2] + at[:, 0] ** 2, atol=0.01 * mesh.size)


def rod(count: int = 12, long: float = 0.05, thick: float = 0.01, sides: int = 6) -> Mesh:
    """A closed tube of rings along x, with a tip at each end."""
    turn = 2 * np.pi * np.arange(sides) / sides
    ring = np.stack([0 * turn, thick * np.cos(turn), thick * np.sin(turn)], axis=1)
    tips = np.array([[-thick, 0, 0], [count * long + thick, 0, 0]])
    vertices = np.concatenate([*(ring + np.array([i * long, 0, 0]) for i in range(count + 1)), tips])
    k, n, last = np.arange(sides), (np.arange(sides) + 1) % sides, count * sides
    faces = [np.stack([i * sides + np.stack(f) for f in ((k, n, sides + n), (k, sides + n, sides + k))]).swapaxes(1, 2).reshape(-1, 3) for i in range(count)]  # fmt: skip
    faces += [np.stack([np.full(sides, last + sides), n, k], 1), np.stack([np.full(sides, last + sides + 1), last + k, last + n], 1)]  # fmt: skip
    faces = np.concatenate(faces)
    return Mesh(vertices=vertices, faces=faces)


def test_a_rope_bends_twists_and_stretches_as_a_rod():
    mesh, thick, step = rod(), 0.01, 0.05
    x = mesh.vertices
    thing = elastic(mesh, Material(young=2e5, poisson=0.3))
    inertia, area, long = np.pi * thick**4 / 4, np.pi * thick**2, 12 * step
    energy = lambda y: float(thing.energy(torch.from_numpy(y)[None]))  # noqa: E731
    assert energy(x) < 1e-20
    assert energy(x * [1.1, 1, 1]) == pytest.approx(2e5 * area * long * 0.1**2 / 2, rel=0.01)
    turn = 0.5 * x[:, 0]  # radians per metre
    twisted = np.stack([x[:, 0], x[:, 1] * np.cos(turn) - x[:, 2] * np.sin(turn), x[:, 1] * np.sin(turn) + x[:, 2] * np.cos(turn)], 1)  # fmt: skip
    assert energy(twisted) == pytest.approx(2e5 / 2.6 * 2 * inertia * long * 0.5**2 / 2, rel=0.01)
    angle, radius = 3.0 * x[:, 0], 1 / 3  # eleven kinks of 3 * step each, along an arc whose chords are a little short
    arc = np.stack([(radius - x[:, 2]) * np.sin(angle), x[:, 1], radius - (radius - x[:, 2]) * np.cos(angle)], 1)
    chord = np.sin(3 * step / 2) / (3 * step / 2)
    want = 2e5 * (inertia * 11 * step * 3**2 + area * long * (1 - chord) ** 2) / 2
    assert energy(arc) == pytest.approx(want, rel=0.01)
    at, mass = thing.weighed.points(x), thing.weighed.mass
    assert mass.sum() == pytest.approx(1000 * np.sqrt(27) / 2 * thick**2 * (long + 2 * thick / 3), rel=1e-9)
    about = (mass * (at[:, 1:] ** 2).sum(axis=1)).sum() / mass.sum()
    assert about == pytest.approx(thick**2 / 2, rel=0.05)  # of a cylinder; tips are nearer to the axis


@pytest.mark.parametrize("name", ["beam", "cloth", "two"])
def test_forces_are_slopes_of_the_energy_and_damping_only_takes(name: str):
    mesh = THINGS[name]()
    x, rng = bent(mesh)[None], np.random.default_rng(0)
    fast = torch.from_numpy(rng.normal(size=(1, *mesh.vertices.shape)))
    for elements in ("mesh", "smooth"):
        made = elastic(mesh, RUBBER, elements=elements)
        slope = torch.func.grad(lambda y: made.energy(y).sum())(x)  # noqa: B023
        scale = float(slope.abs().max())
        torch.testing.assert_close(made.force(x, fast), slope, atol=1e-9 * scale, rtol=0)
        damped = elastic(mesh, Material(young=2e5, poisson=0.3, thickness=0.001, damping=1e-3), elements=elements)
        more = damped.force(x, fast) - slope
        assert float((more * fast).sum()) > 0
        turns = torch.linalg.cross(torch.tensor([0.4, -1.0, 2.0]).double().expand_as(x), x)
        torch.testing.assert_close(damped.force(x, turns), slope, atol=1e-9 * scale, rtol=0)
    # Along a way from the rest, damping is stiffness times its seconds.
    rest, h = torch.from_numpy(mesh.vertices)[None], 1e-6
    stiff = (made.force(rest + h * fast, 0 * fast) - made.force(rest - h * fast, 0 * fast)) / (2 * h)
    torch.testing.assert_close(damped.force(rest, fast), 1e-3 * stiff, atol=1e-5 * float(stiff.abs().max()) * 1e-3, rtol=0)  # fmt: skip


def test_vertices_may_weigh_the_same_and_known_tetrahedra_are_taken():
    sheet = elastic(cloth(), Material(young=2e5, thickness=0.001, even=True))
    assert np.ptp(sheet.weighed.mass) == 0
    assert sheet.weighed.mass.sum() == pytest.approx(1000 * 0.3**2 * 0.001)
    corners = np.array([[0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1.0]]) * 0.1
    mesh = Mesh(vertices=corners, faces=np.array([[0, 2, 1], [0, 1, 3], [1, 2, 3], [2, 0, 3]]))
    middle = corners.mean(axis=0, keepdims=True)
    cells = np.array([[4, *face] for face in mesh.faces.tolist()])
    x = corners[None] * [1.2, 0.95, 1.0]
    size = np.linalg.det(np.concatenate([corners, middle])[cells][:, 1:] - middle)
    cells = np.where(size[:, None] < 0, cells[:, [0, 2, 1, 3]], cells)
    known = elastic(mesh, RUBBER, inside=Inside(nodes=middle, cells=cells))
    e = (np.array([1.2, 0.95, 1.0]) ** 2 - 1) / 2
    want = 1e-3 / 6 * (MU * (e**2).sum() + LAM / 2 * e.sum() ** 2)
    assert float(known.energy(torch.from_numpy(x))) == pytest.approx(want)
    pair = Mesh(vertices=np.concatenate([corners, corners + 1]), faces=np.concatenate([mesh.faces, mesh.faces + 4]))
    held = elastic(pair, RUBBER, inside=Inside(nodes=middle, cells=cells), stiff=np.arange(8) >= 4)
    both = np.concatenate([x, corners[None] + 1], axis=1)
    assert float(held.energy(torch.from_numpy(both))) == pytest.approx(want)
    with pytest.raises(ValueError, match="of one solid that bends, and 2 parts of this mesh bend"):
        elastic(pair, RUBBER, inside=Inside(nodes=middle, cells=cells))


def test_what_is_closed_is_solid_and_stiff_parts_cost_nothing():
    mesh = two()
    solid, count = len(beam().faces), len(beam().vertices)
    assert closed(mesh, mesh.faces[:solid])
    assert not closed(mesh, mesh.faces[solid:])
    stiff = np.arange(len(mesh.vertices)) < count
    only = elastic(mesh, RUBBER, stiff=stiff)
    x = bent(mesh)[None]
    sheet = elastic(cloth(), RUBBER).energy(x[:, count:] - torch.tensor([0, 0, 0.2], dtype=torch.float64))
    np.testing.assert_allclose(only.energy(x).numpy(), sheet.numpy(), rtol=1e-9)
    assert only.weighed.mass.sum() == pytest.approx(elastic(mesh, RUBBER).weighed.mass.sum())
    assert float(elastic(mesh, RUBBER, stiff=np.ones(len(mesh.vertices), bool)).energy(x)) == 0


def test_materials_that_are_none_are_named():
    for given, says in (
        ({"young": 0.0}, "young .* must be positive, got 0"),
        ({"young": float("nan")}, "young .* must be positive, got nan"),
        ({"young": 1e5, "poisson": 0.5}, "poisson .* below 0.5, got 0.5"),
        ({"young": 1e5, "thickness": -1.0}, "thickness .* must be positive, got -1"),
        ({"young": 1e5, "damping": -1.0}, "damping .* must not be negative, got -1"),
    ):
        with pytest.raises(ValueError, match=says):
            Material(**given)  # pyright: ignore[reportArgumentType]


# ---------------------------------------------------------------------- swinging


def swings(mesh: Mesh, held: np.ndarray, mode: np.ndarray, young: float, poisson: float) -> float:
    """Radians per second of an object whose only motion is a small part of ``mode`` [v,3], simulated with its elasticity."""
    twists = np.zeros((len(mesh.vertices), 1, 6))
    twists[:, 0, 3:] = mode / np.abs(mode).max() * mesh.size
    assert np.abs(twists[held]).max() < 1e-12
    thing = Fitted(
        mesh=mesh, weighed=quadrature(mesh), piece=np.arange(len(mesh.vertices)), twists=twists, reach=np.array([[-0.1, 0.1]]),
        freedom=Freedom(count=1, errors=(1e-5,), ratios=(), why=""), errors=np.array([1e-5]),
    )  # fmt: skip
    motion = simulate_object(thing, Wish(gravity=(0, 0, 0), start=(0.01,), seconds=0.5, young=young, poisson=poisson))
    assert motion.stopped is None
    assert not any("elasticity" in f for f in motion.flags)
    assert motion.about["energy_drift"] < 0.02
    assert motion.potential[0] > 0.9 * motion.energy.max()  # at its turn all energy is elastic
    return rate(motion.q[:, 0], motion.step)


def rate(q: np.ndarray, step: float) -> float:
    """Radians per second of an oscillation, by the times at which it passes zero."""
    i = np.flatnonzero(np.sign(q[1:]) != np.sign(q[:-1]))
    times = (i + q[i] / (q[i] - q[i + 1])) * step
    assert len(times) >= 2
    return float(np.pi / np.diff(times).mean())


def test_a_bar_swings_as_fast_as_a_beam():
    mesh, length, high = beam(), 0.4, 0.05
    x, z = mesh.vertices[:, 0] / length, mesh.vertices[:, 2]
    k = 1.8751040687
    share = (np.cosh(k) + np.cos(k)) / (np.sinh(k) + np.sin(k))
    form = np.cosh(k * x) - np.cos(k * x) - share * (np.sinh(k * x) - np.sin(k * x))
    slope = k / length * (np.sinh(k * x) + np.sin(k * x) - share * (np.cosh(k * x) - np.cos(k * x)))
    mode = np.stack([-z * slope, 0 * x, form], 1)
    young = 2e6
    want = k**2 * np.sqrt(young * high**2 / (12 * 1000)) / length**2
    # With tetrahedra as coarse as its mesh it is stiffer: they cannot bend.
    got = swings(mesh, mesh.vertices[:, 0] == 0, mode, young, 0.0)
    assert want < got < 1.6 * want
    thing = elastic(mesh, Material(young=young, poisson=0.0), elements="smooth")
    way = torch.from_numpy(mode)
    curve = torch.func.hessian(lambda s: thing.energy(torch.from_numpy(mesh.vertices)[None] + s * way)[0])(torch.zeros(()).double())  # fmt: skip
    inertia = float((thing.weighed.mass[:, None] * (thing.weighed.rows @ mode) ** 2).sum())
    assert np.sqrt(float(curve) / inertia) == pytest.approx(want, rel=0.05)


def test_a_bar_swings_nearly_as_fast_as_in_mujoco():
    pytest.importorskip("mujoco", reason="soft objects are moved by MuJoCo: pip install 'kinema4d[mjcf]'")
    from kinema4d.scenes.soft import Start, run
    from kinema4d.scenes.soft_kinds import draw

    thing = draw("bar", 0)
    mesh = Mesh(vertices=thing.vertices, faces=thing.faces)
    away = run(thing, Start(stir=0.0, gravity=(0.0, 0.0, -0.5)), seconds=0.6, every=0.005).vertices - mesh.vertices
    mean = away.mean(axis=0)
    mode = np.linalg.svd((away - mean).reshape(len(away), -1), full_matrices=False)[2][0].reshape(-1, 3)
    mode[thing.pinned] = 0
    true = rate(((away - mean) * mode).sum((1, 2)), 0.005)
    got = swings(mesh, thing.pinned, mode, thing.material["young"], 0.3)
    assert got == pytest.approx(true, rel=0.2)  # other tetrahedra, and MuJoCo weighs all nodes the same
