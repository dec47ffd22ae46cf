"""Real objects of metaworld and gymnasium-robotics, where their files are; and meshes made simpler."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trimesh

from kinema4d.scenes.assets import ASSETS, MOST, available, find, load
from kinema4d.scenes.simpler import simpler

mujoco: Any = pytest.importorskip("mujoco", reason="real objects are read by MuJoCo: pip install 'kinema4d[mjcf]'")

SCENE = """<mujoco><compiler angle="radian"/><worldbody>
  <body name="hand"><freejoint/><geom size="0.1"/></body>
  <body name="laptop" pos="0.3 0.1 0.7" euler="0 0 0.5"><geom type="box" size="0.2 0.1 0.01"/>
    <body pos="0 0.1 0.01"><joint axis="1 0 0" range="0 1.5" damping="3"/><geom type="box" size="0.2 0.01 0.1" pos="0 0 0.1"/>
      <geom type="sphere" size="0.3" group="4"/></body></body></worldbody></mujoco>"""


def _written(folder: Path, text: str = SCENE) -> Path:
    file = folder / ASSETS["real-laptop"][0]
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return folder


def test_the_object_is_taken_out_of_its_scene(tmp_path: Path):
    thing = load("real-laptop", _written(tmp_path))
    assert (thing.freedom, thing.limits.tolist()) == (1, [[0.0, 1.5]])
    assert len(thing.vertices) == 16  # two boxes: no hand, no collision ball
    model = mujoco.MjModel.from_xml_string(SCENE)
    data = mujoco.MjData(model)
    data.qpos[7] = 0.8
    mujoco.mj_kinematics(model, data)
    mine = thing.part_of == 2
    lid = data.geom_xpos[2]
    np.testing.assert_allclose(thing.posed(np.array([0.8]))[mine].mean(axis=0), lid - [0.3, 0.1, 0.7], atol=1e-9)
    free = mujoco.MjModel.from_xml_string(thing.xml())
    assert free.dof_damping.tolist() == [0.0]
    np.testing.assert_allclose(free.body_mass[1:], model.body_mass[2:])


def test_what_is_absent_or_strange_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(ValueError, match="unknown real object 'boat'; known are real-door"):
        find("boat", tmp_path)
    with pytest.raises(ValueError, match=r"real-laptop needs metaworld/.*unzip the wheel of metaworld"):
        load("real-laptop", tmp_path)
    assert available(tmp_path) == ()
    assert available(_written(tmp_path)) == ("real-laptop",)
    monkeypatch.setenv("KINEMA4D_OBJECT_ASSETS", str(tmp_path))
    assert find("real-laptop") == tmp_path / ASSETS["real-laptop"][0]
    with pytest.raises(ValueError, match="has no body 'laptop': another version"):
        load("real-laptop", _written(tmp_path / "b", SCENE.replace('"laptop"', '"book"')))
    loose = SCENE.replace('<joint axis="1 0 0" range="0 1.5" damping="3"/>', '<joint type="ball"/>')
    with pytest.raises(ValueError, match="1 joints of which 1 are neither hinge nor slide"):
        load("real-laptop", _written(tmp_path / "c", loose))
    with pytest.raises(ValueError, match="MuJoCo cannot read"):
        load("real-laptop", _written(tmp_path / "d", "<mujoco><nonsense/></mujoco>"))


def test_simpler_meshes_keep_size_and_parts():
    ball, box = trimesh.creation.icosphere(4), trimesh.creation.box((1, 1, 0.02))
    vertices, faces, whose = simpler([(3, ball), (7, box)], 300)
    assert len(vertices) <= 300
    assert set(whose) == {3, 7}
    assert faces.max() < len(vertices)
    assert (whose[faces] == whose[faces][:, :1]).all()
    np.testing.assert_allclose(np.linalg.norm(vertices[whose == 3], axis=1), 1, atol=0.06)
    np.testing.assert_allclose(np.ptp(vertices[whose == 7], axis=0), [1, 1, 0.02])  # a thin wall keeps both sides
    few, same, _ = simpler([(0, box)], 300)
    assert (len(few), len(same)) == (8, 12)
    with pytest.raises(ValueError, match="allowed are 2"):
        simpler([(0, ball)], 2)
    with pytest.raises(ValueError, match="no mesh"):
        simpler([], 10)


@pytest.mark.parametrize("name", ASSETS)
def test_every_real_object_loads_and_moves_all_its_joints(name: str):
    try:
        find(name)
    except ValueError as error:
        pytest.skip(str(error))
    thing = load(name)
    low, high = thing.limits.T
    assert (low < high).all()
    assert len(thing.vertices) <= MOST
    rest = thing.posed(low)
    assert 0.05 < np.ptp(rest, axis=0).max() < 3
    for joint in range(thing.freedom):
        q = low.copy()
        q[joint] += 0.4 * (high - low)[joint]  # a dial's ends are the same
        assert np.abs(thing.posed(q) - rest).max() > 1e-3, f"joint {joint} moves nothing"
    edges = thing.faces[:, :2]
    posed = thing.posed(np.random.default_rng(0).uniform(low, high, (3, thing.freedom)))
    long = lambda v: np.linalg.norm(v[..., edges[:, 0], :] - v[..., edges[:, 1], :], axis=-1)  # noqa: E731
    np.testing.assert_allclose(long(posed), np.broadcast_to(long(rest), (3, len(edges))), atol=1e-9)
