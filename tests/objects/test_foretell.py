"""The weights that come with the package: meshes that they never saw, foretold and moved."""

from __future__ import annotations

import re

import numpy as np
import pytest

pytest.importorskip("torch", reason="objects need torch: pip install 'kinema4d[world]'")
pytest.importorskip("mujoco", reason="jointed objects are moved by MuJoCo: pip install 'kinema4d[mjcf]'")
import trimesh
from scipy.spatial.transform import Rotation

from kinema4d.objects.fit import Fitted
from kinema4d.objects.foretell import kinematics, load_foreteller, shipped
from kinema4d.objects.solid import Mesh
from kinema4d.scenes import soft_kinds
from kinema4d.scenes.jointed import KINDS, Jointed, draw, some_poses
from kinema4d.scenes.soft import some_poses as some_soft_poses
from kinema4d.simulate.object_wish import Wish
from kinema4d.simulate.objects import simulate_object

SEED = 88_000
"""Objects that nothing was learned from."""
NEVER_LEARNED = ("faucet", "scissors")


def foretold(mesh: Mesh) -> Fitted:
    weights = shipped()
    assert weights is not None, "the package has no weights of objects"
    return kinematics(mesh, weights)


def at_rest(thing: Jointed) -> Mesh:
    return Mesh(vertices=thing.posed(np.zeros(thing.freedom)), faces=thing.faces)


def missed(thing: Jointed, got: Fitted, way: np.ndarray | None = None) -> float:
    """Share of how far vertices go."""
    way = np.eye(4) if way is None else way
    goals = thing.posed(some_poses(thing, 5, 3)) @ way[:3, :3].T + way[:3, 3]
    off = np.linalg.norm(got.vertices(got.coordinates(goals)).numpy() - goals, axis=-1).mean()
    return float(off / np.linalg.norm(got.mesh.vertices - goals, axis=-1).mean())


@pytest.mark.parametrize("kind", [k for k in KINDS if k not in NEVER_LEARNED])
def test_unseen_objects_are_put_on_their_joints(kind: str):
    for seed in range(3):
        thing = draw(kind, SEED + seed)
        got = foretold(at_rest(thing))
        assert got.freedom.count == thing.freedom
        assert missed(thing, got) < 0.05


def test_faucets_which_it_never_saw_turn_about_their_stems():
    right, wrong = 0, 0
    for seed in range(8):
        thing = draw("faucet", SEED + seed)
        try:
            off = missed(thing, foretold(at_rest(thing)))
        except ValueError as error:
            assert "unlike those that the model learned from" in str(error)  # noqa: PT017
        else:
            right, wrong = right + (off < 0.05), wrong + (off >= 0.05)
    assert right >= 6
    assert wrong == 0


def test_stones_in_a_heap_are_refused():
    rng = np.random.default_rng(0)
    stone, every = trimesh.creation.icosphere(subdivisions=2, radius=0.1), []
    for _ in range(7):
        turn = Rotation.from_rotvec(rng.normal(size=3)).as_matrix()
        every.append((np.asarray(stone.vertices) * rng.uniform(0.3, 1.5, 3)) @ turn.T + rng.uniform(-0.3, 0.3, 3))
    faces = np.concatenate([stone.faces + i * len(stone.vertices) for i in range(7)]).astype(np.int64)
    with pytest.raises(ValueError, match="unlike those that the model learned from: looked at 6 times"):
        foretold(Mesh(vertices=np.concatenate(every), faces=faces))


def test_where_an_object_stands_and_how_large_it_is_does_not_matter():
    thing = draw("lamp", SEED)
    mesh = at_rest(thing)
    way = np.eye(4)
    way[:3, :3], way[:3, 3] = 2.5 * Rotation.from_euler("z", 1.1).as_matrix(), (3.0, -2.0, 7.0)
    got = foretold(Mesh(vertices=mesh.vertices @ way[:3, :3].T + way[:3, 3], faces=mesh.faces))
    assert got.freedom.count == thing.freedom
    assert missed(thing, got, way) < 0.05


def test_a_foretold_chain_holds_together_and_keeps_its_energy():
    thing = draw("chain", SEED + 1)
    got = foretold(at_rest(thing))
    motion = simulate_object(got, Wish(seconds=0.5, gravity=(1.5, -3.0, -9.2)))
    assert motion.stopped is None
    assert motion.about["energy_drift"] < 0.02
    assert float(np.abs(np.diff(motion.vertices, axis=0)).max()) > 1e-3


@pytest.mark.parametrize(("kind", "words"), [("cloth", "1 part that bends"), ("bar", "1 part that bends"), ("rope", "1 rope that bends"), ("box-cloth", "1 hinge .* 1 part that bends")])  # fmt: skip
def test_what_bends_is_seen_and_hangs_where_it_is_held(kind: str, words: str):
    thing = soft_kinds.draw(kind, SEED)
    mesh = Mesh(vertices=thing.vertices, faces=thing.faces)
    got = foretold(mesh)
    assert got.freedom.count is None
    assert re.search(words, got.freedom.why)
    poses = some_soft_poses(thing, 6, 2)
    off = np.linalg.norm(got.vertices(got.coordinates(poses)).numpy() - poses, axis=-1).mean() / mesh.size
    went = np.linalg.norm(mesh.vertices - poses, axis=-1).mean() / mesh.size
    assert off < min(0.04, went / 5)


def test_one_solid_may_move_as_a_whole():
    thing = soft_kinds.draw("rigid", SEED)
    mesh = Mesh(vertices=thing.vertices, faces=thing.faces)
    weights = shipped()
    assert weights is not None
    with pytest.raises(ValueError, match="let it move as a whole with --free"):
        kinematics(mesh, weights, bends="none")
    got = kinematics(mesh, weights, bends="none", free=True)
    with pytest.raises(ValueError, match="no coordinates of its own: let it move as a whole with --free"):
        simulate_object(got, Wish(seconds=0.1))
    motion = simulate_object(got, Wish(seconds=0.2, free=True))
    fallen = motion.place[-1, 2] - motion.place[0, 2]
    assert fallen == pytest.approx(-9.81 * 0.2**2 / 2, rel=1e-6)


def test_the_weights_say_what_they_are():
    weights = shipped()
    assert weights is not None
    nets, about = load_foreteller(weights)
    assert nets.joints is not None
    assert nets.limp is not None
    assert about["preset"] == "small"
    assert weights.stat().st_size < 30e6
