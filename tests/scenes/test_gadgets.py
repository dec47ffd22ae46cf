"""Jointed things put together by chance: they move as MuJoCo moves them, any way up."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import trimesh

from kinema4d.scenes.gadgets import _ways
from kinema4d.scenes.jointed import DENSITY, RODS, Jointed, Part, draw, some_poses

mujoco: Any = pytest.importorskip("mujoco", reason="gadgets are moved by MuJoCo: pip install 'kinema4d[mjcf]'")


@pytest.mark.parametrize("seed", range(12))
def test_its_parts_are_where_mujoco_has_them(seed: int):
    thing = draw("gadget", seed)
    model = mujoco.MjModel.from_xml_string(thing.xml())
    assert model.njnt == thing.freedom >= 1
    data = mujoco.MjData(model)
    for q in some_poses(thing, 3, seed):
        data.qpos[:] = q
        mujoco.mj_kinematics(model, data)
        ours = thing.posed(q)
        for body, i in enumerate(_depth_first(thing), start=1):
            own = np.concatenate([x for x, _ in thing.parts[i].shapes()])
            theirs = own @ data.xmat[body].reshape(3, 3).T + data.xpos[body]
            np.testing.assert_allclose(ours[thing.part_of == i], theirs, atol=1e-9)


@pytest.mark.parametrize("seed", range(12))
def test_mujoco_weighs_what_its_surface_is_around(seed: int):
    thing = draw("gadget", seed)
    model = mujoco.MjModel.from_xml_string(thing.xml())
    for body, i in enumerate(_depth_first(thing), start=1):
        part = thing.parts[i]
        volume = sum(trimesh.Trimesh(x, f, process=False).volume for x, f in part.shapes())
        rods = any(kind in RODS for kind, _, _ in part.solids)  # of ten sides
        assert volume * DENSITY == pytest.approx(model.body_mass[body], rel=0.07 if rods else 1e-6)
        if part.welded and len([s for s in part.solids if s[0] == "box"]) > 1 and len(part.shapes()) < len(part.solids):
            assert len(part.apart) == model.body_geomnum[body]


def _depth_first(thing: Jointed) -> list[int]:
    """Parts as MuJoCo counts its bodies."""

    def below(i: int) -> list[int]:
        return [i] + [k for j, p in enumerate(thing.parts) if p.on == i for k in below(j)]

    return [k for i, p in enumerate(thing.parts) if p.on is None for k in below(i)]


def test_there_is_every_mechanism_and_every_way_up():
    axes = {tuple(np.round(np.abs(p.axis)).astype(int)) for s in range(60) for p in draw("gadget", s).parts if p.joint}
    assert axes == {(1, 0, 0), (0, 1, 0), (0, 0, 1)}
    joints = {p.joint for s in range(60) for p in draw("gadget", s).parts}
    assert joints == {None, "hinge", "slide"}
    assert {draw("gadget", s).freedom for s in range(60)} >= {1, 2, 3}
    assert len(_ways()) == 24
    assert all(np.linalg.det(w) == pytest.approx(1) for w in _ways())


@pytest.mark.parametrize(("kind", "axis"), [(k, i) for i, k in enumerate(RODS)])
def test_rods_lie_along_their_axis(kind: str, axis: int):
    thing = Jointed(name="rod", parts=(Part(solids=((kind, (0.1, 0.5, 0.0), (0.0, 0.0, 0.0)),)),))
    wide = np.ptp(thing.vertices, axis=0)
    assert wide[axis] == pytest.approx(1.0)
    assert np.delete(wide, axis).max() <= 0.2 + 1e-9
    assert trimesh.Trimesh(thing.vertices, thing.faces).volume > 0  # not turned inside out
