"""An object that is pushed: energy in the books, places on the surface, and everything that cannot be simulated by its name."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("torch", reason="objects need torch: pip install 'kinema4d[world]'")
pytest.importorskip("mujoco", reason="what bends is moved by MuJoCo: pip install 'kinema4d[mjcf]'")
import trimesh

from kinema4d.objects.fit import Fitted, fit
from kinema4d.objects.reduce import Freedom
from kinema4d.objects.solid import Mesh, quadrature
from kinema4d.scenes import soft, soft_kinds
from kinema4d.simulate.object_wish import PushAt, Wish, parse_push
from kinema4d.simulate.objects import simulate_object

NONE = (0.0, 0.0, 0.0)
EDGE = (0.55, -0.02, 0.0)
"""The far edge of the leaf."""


def door(why: str = "one hinge", count: int | None = 1, *, bends: bool = False) -> Fitted:
    """A leaf on a post, on a hinge about z."""
    post, leaf = trimesh.creation.box([0.1, 0.1, 1.0]), trimesh.creation.box([0.5, 0.04, 0.9])
    vertices = np.concatenate([post.vertices, leaf.vertices + np.array([0.3, 0.0, 0.0])])
    mesh = Mesh(vertices=np.asarray(vertices, np.float64), faces=np.concatenate([post.faces, leaf.faces + 8]).astype(np.int64))  # fmt: skip
    twists = np.zeros((2, 1, 6))
    twists[1, 0, 2] = 1.0
    return Fitted(
        mesh=mesh, weighed=quadrature(mesh), piece=np.repeat([0, 1], 8), twists=twists, reach=np.array([[-1.5, 1.5]]),
        freedom=Freedom(count=count, errors=(1e-5,), ratios=(), why=why, bends=bends), errors=np.array([1e-5]),
    )  # fmt: skip


def bar() -> Fitted:
    """It bends upwards, and is held at x = 0."""
    made = trimesh.creation.box([0.4, 0.06, 0.05]).subdivide().subdivide()
    vertices = np.asarray(made.vertices, np.float64) + np.array([0.2, 0.0, 0.0])
    mesh = Mesh(vertices=vertices, faces=np.asarray(made.faces, np.int64))
    twists = np.zeros((len(vertices), 1, 6))
    twists[:, 0, 3] = -2 * vertices[:, 0] * vertices[:, 2] / 0.4  # so that sections stay upright on the curve
    twists[:, 0, 5] = vertices[:, 0] ** 2 / 0.4
    why = "1 coordinates reconstruct to 0.1 % of the size; it bends, and more of them would say more"
    return Fitted(
        mesh=mesh, weighed=quadrature(mesh), piece=np.arange(len(vertices)), twists=twists, reach=np.array([[-0.02, 0.02]]),
        freedom=Freedom(count=None, errors=(1e-3,), ratios=(), why=why, bends=True), errors=np.array([1e-3]),
    )  # fmt: skip


def about_hinge() -> float:
    """Moment of inertia of the leaf, kg m2."""
    mass = 1000 * 0.5 * 0.04 * 0.9
    return mass * (0.3**2 + (0.5**2 + 0.04**2) / 12)


def test_words_become_pushes():
    got = parse_push("0.4,0,1.1: 5,0,0 @0-0.2s")
    assert got == PushAt(place=(0.4, 0, 1.1), force=(5, 0, 0), begin=0, end=0.2)
    assert parse_push(" -.4 , 1e-2,1:+5,-0,0 @ 1 - 2.5 s").end == 2.5
    assert parse_push("0,0,0:1,0,0").end == float("inf")
    for text, says in {
        "0,0,0 1,0,0": "has no colon",
        "0,0: 1,0,0": "its place must be three numbers",
        "0,0,nan: 1,0,0": "must be numbers with commas",
        "0,0,0: 1,x,0": "its force must be numbers",
        "0,0,0: 1,0,0 @2": "is no time",
        "0,0,0: 1,0,0 @2-1s": "ends before it begins",
    }.items():
        with pytest.raises(ValueError, match=says) as told:
            parse_push(text)
        assert "0.4,0,1.1: 5,0,0 @0-0.2s" in str(told.value)  # the right form is shown


@pytest.mark.parametrize("begin", [0.0, 0.1])
def test_a_push_gives_its_impulse_and_its_work(begin: float):
    push = PushAt(place=EDGE, force=(0.0, 20.0, 0.0), begin=begin, end=begin + 0.2)
    motion = simulate_object(door(), Wish(gravity=NONE, pushes=(push,), seconds=0.5))
    assert motion.stopped is None
    assert motion.about["energy_drift"] < 0.02
    assert motion.energy[-1] - motion.energy[0] == pytest.approx(motion.work[-1], rel=0.02)
    spin = (motion.q[-1, 0] - motion.q[-2, 0]) / motion.step
    assert about_hinge() * spin == pytest.approx(20 * 0.55 * 0.2, rel=0.01)  # the lever turns by little meanwhile
    assert motion.force.sum(axis=(0, 1))[1] * motion.step == pytest.approx(4.0 if begin else 4.1, rel=1e-6)
    turned = motion.vertices[:, 8:] - motion.rest[8:]
    assert np.linalg.norm(turned, axis=-1).max() > 0.05
    np.testing.assert_allclose(motion.vertices[:, :8], np.broadcast_to(motion.rest[:8], (51, 8, 3)), atol=1e-6)
    np.testing.assert_allclose(motion.force_at[0, 0], EDGE, atol=1e-9)
    np.testing.assert_allclose(np.linalg.norm(motion.force_at[:, 0, :2], axis=-1), np.hypot(0.55, 0.02), rtol=1e-6)
    assert motion.sliders.shape == (1, 17, 16, 3)
    assert len(motion) == 51


def test_short_and_twin_pushes_keep_their_impulse():
    twins = tuple(PushAt(place=EDGE, force=(0.0, 500.0, 0.0), begin=0.1, end=0.102) for _ in range(2))
    motion = simulate_object(door(), Wish(gravity=NONE, pushes=twins, seconds=0.2))
    spin = (motion.q[-1, 0] - motion.q[-2, 0]) / motion.step
    assert about_hinge() * spin == pytest.approx(2 * 500 * 0.55 * 0.002, rel=0.01)
    assert motion.force.shape == (21, 2, 3)


def test_start_speed_damping_and_pins():
    motion = simulate_object(door(), Wish(gravity=NONE, start=(0.3,), speed=(1.0,), seconds=0.3))
    np.testing.assert_allclose(motion.q[:, 0], 0.3 + motion.seconds, atol=1e-5)
    slow = simulate_object(door(), Wish(gravity=NONE, speed=(1.0,), damping=2.0, seconds=0.5))
    assert slow.kinetic[-1] / slow.kinetic[0] == pytest.approx(np.exp(-2 * 2.0 * 0.5), rel=0.05)
    held = simulate_object(door(), Wish(gravity=(0, 9.81, 0), pins=(EDGE, (0.0, 0.05, 0.3)), seconds=0.2))
    assert np.abs(held.q).max() < 1e-3
    assert any("the pin at 0,0.05,0.3 m is on what stands still" in f for f in held.flags)


def test_what_is_free_falls_onto_the_ground():
    motion = simulate_object(door(), Wish(free=True, ground=-0.55, seconds=0.5))
    assert motion.stopped is None
    assert motion.vertices[5, :, 2].min() == pytest.approx(-0.5 - 9.81 / 2 * 0.05**2, abs=1e-4)
    assert motion.vertices[-1, :, 2].min() == pytest.approx(-0.55, abs=2e-3)
    assert motion.penetration.max() < 1e-3
    below = simulate_object(door(), Wish(free=True, ground=-0.3, seconds=0.05))
    assert any("it begins 0.2 m deep in the ground" in f for f in below.flags)


def test_what_is_strange_is_flagged():
    motion = simulate_object(door(), Wish(gravity=(0, 9.81, 0), pushes=(PushAt(place=(0, 0, 0.5), force=(1, 0, 0)),), seconds=1.0))  # fmt: skip
    said = " ".join(motion.flags)
    assert "2 parts that do not touch" in said
    assert "the push at 0,0,0.5 m is on what stands still" in said
    assert "coordinate 1 came to the end of the range" in said
    assert motion.q.max() < 1.7  # the wall held it
    far = simulate_object(door(), Wish(start=(2.0,), seconds=0.05))
    assert any("begins outside the range" in f for f in far.flags)
    odd = door()
    odd = replace(odd, mesh=Mesh(vertices=odd.mesh.vertices, faces=np.concatenate([odd.mesh.faces, odd.mesh.faces[:1, ::-1]])))  # fmt: skip
    flags = " ".join(simulate_object(odd, Wish(seconds=0.02)).flags)
    assert "not a manifold" in flags
    assert "look the other way" in flags


def test_coordinates_that_are_not_minimal_are_refused():
    doubtful = door("not minimal: 8 coordinates reconstruct to 3 % only", None)
    with pytest.raises(ValueError, match="not minimal: 8 coordinates .* --anyway"):
        simulate_object(doubtful)
    assert any("all the same" in f for f in simulate_object(doubtful, Wish(anyway=True, seconds=0.02)).flags)
    bends = simulate_object(
        door("1 coordinates reconstruct to 0.1 %; it bends, and more", None, bends=True), Wish(seconds=0.02)
    )
    assert any("it bends, and more" in f for f in bends.flags)


def test_what_is_elastic_swings_back_and_its_energy_is_in_the_books(monkeypatch: pytest.MonkeyPatch):
    thing = bar()
    soft = simulate_object(thing, Wish(gravity=NONE, start=(0.01,), seconds=0.2, young=2e6))
    assert soft.stopped is None
    assert not any("elasticity" in f for f in soft.flags)
    assert len(soft) == 21
    assert soft.q.min() < -0.0098
    assert soft.about["energy_drift"] < 0.02
    kappa = 2 * 0.01 / 0.4
    beam = 2e6 * 0.06 * 0.05**3 / 12 * kappa**2 * 0.4 / 2
    assert beam < soft.potential[0] < 1.5 * beam  # its sections cannot widen, and its mesh is coarse
    assert soft.kinetic.max() == pytest.approx(soft.potential[0], rel=0.03)
    four = simulate_object(thing, Wish(gravity=NONE, start=(0.01,), seconds=0.02, young=8e6))
    assert four.potential[0] == pytest.approx(4 * soft.potential[0], rel=1e-9)
    push = PushAt(place=(0.4, 0.0, 0.025), force=(0.0, 0.0, 0.5), begin=0.02, end=0.06)
    pushed = simulate_object(thing, Wish(gravity=NONE, pushes=(push,), seconds=0.1, young=2e6))
    assert pushed.energy[-1] == pytest.approx(pushed.work[-1], rel=0.01)
    assert pushed.force[:, 0, 2].sum() * pushed.step == pytest.approx(0.5 * 0.04, rel=1e-6)
    monkeypatch.setattr("kinema4d.simulate.object_elastic.PARTS", 4)
    stiff = simulate_object(thing, Wish(gravity=NONE, start=(1e-4,), seconds=0.02, young=1e12))
    assert stiff.stopped is None  # too stiff to be followed: its vibration dies out
    assert stiff.energy[-1] < 0.1 * stiff.energy[0]
    assert not any("nothing explains" in f for f in stiff.flags)


def test_what_keeps_its_form_needs_no_elasticity():
    plain, said = (simulate_object(door(), Wish(seconds=0.05, young=young)) for young in (None, 1e5))
    np.testing.assert_array_equal(plain.q, said.q)
    assert any("keeps its form: --young does nothing" in f for f in said.flags)


def test_a_lost_simulation_keeps_its_frames_and_says_why():
    push = PushAt(place=EDGE, force=(0.0, 1e9, 0.0), begin=0.1, end=1.0)
    motion = simulate_object(door(), Wish(pushes=(push,), seconds=1.0))
    assert motion.stopped is not None
    assert "the step has no answer" in motion.stopped
    assert 10 <= len(motion) < 15
    push = PushAt(place=EDGE, force=(0.0, 1e6, 0.0))
    assert len(simulate_object(door(), Wish(pushes=(push,), seconds=1.0))) == 1
    # Turned so far in a step that it seems to stay near; and further than a step can follow.
    for fast, why in ((150.0, "coordinate 1 leapt"), (1e6, "the step has no answer")):
        motion = simulate_object(door(), Wish(speed=(fast,), seconds=0.3))
        assert why in str(motion.stopped)
        assert len(motion) == 1
    twice = replace(
        door(), twists=np.repeat(door().twists, 2, axis=1), reach=np.array([[-1.5, 1.5]] * 2), errors=np.zeros(2)
    )
    motion = simulate_object(twice, Wish(seconds=0.1))
    assert "not independent" in str(motion.stopped)


def test_bad_wishes_are_named():
    thing = door()
    with pytest.raises(ValueError, match=r"push at 0.4,1,1.1 m is .* m off the surface.* nearest point on it is"):
        simulate_object(thing, Wish(pushes=(PushAt(place=(0.4, 1, 1.1), force=(5, 0, 0)),)))
    with pytest.raises(ValueError, match="the pin at .* off the surface"):
        simulate_object(thing, Wish(pins=((0, 0, 9),)))
    with pytest.raises(ValueError, match="has 1 coordinates, --start gives 2"):
        simulate_object(thing, Wish(start=(0, 0)))
    with pytest.raises(ValueError, match="too many"):
        simulate_object(thing, Wish(seconds=1e6))
    nan = float("nan")
    for wish, says in (
        ({"seconds": 0}, "seconds must be positive"),
        ({"step": nan}, "step must be positive"),
        ({"damping": -1}, "damping must not be negative"),
        ({"young": 0.0}, "young .* must be positive, got 0"),
        ({"young": nan}, "young .* must be positive, got nan"),
        ({"young": 1e5, "poisson": 0.5}, "poisson .* must be above -1 and below 0.5, got 0.5"),
        ({"young": 1e5, "thickness": 0.0}, "thickness .* must be positive, got 0"),
        ({"thickness": 0.001}, "thickness says how .* got 0.001 without young"),
        ({"poisson": 0.4}, "poisson says how .* got 0.4 without young"),
        ({"gravity": (0, 0, nan)}, "no numbers"),
        ({"pushes": (PushAt(place=EDGE, force=(nan, 0, 0)),)}, "no numbers"),
        ({"pushes": (PushAt(place=EDGE, force=NONE, begin=2, end=1),)}, "ends after that"),
        ({"pushes": (PushAt(place=EDGE, force=NONE, begin=5, end=6),)}, "begins at 5 s, the simulation ends at 3 s"),
    ):
        with pytest.raises(ValueError, match=says):
            Wish(**wish)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("kind", ["rope", "bar"])
def test_what_bends_is_taken_for_a_foam_where_nothing_is_said_of_it(kind: str):
    thing = soft_kinds.draw(kind, 1)
    mesh = Mesh(vertices=thing.vertices, faces=thing.faces)
    got = fit(mesh, soft.some_poses(thing, 32, 1))
    silent = simulate_object(got, Wish(seconds=0.1, gravity=(3.0, 0.0, -9.0)))
    assert silent.stopped is None
    assert any(
        "it bends, its elasticity was not said, and is taken for a soft foam's (--young 100000)" in f
        for f in silent.flags
    )
    assert float(np.linalg.norm(silent.vertices[-1] - silent.vertices[0], axis=-1).max()) > 1e-3 * mesh.size
    said = simulate_object(got, Wish(seconds=0.1, gravity=(3.0, 0.0, -9.0), young=1e5))
    np.testing.assert_array_equal(said.vertices, silent.vertices)
    assert not any("elasticity" in f for f in said.flags)
