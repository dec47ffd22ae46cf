"""Jointed objects: our poses and masses are MuJoCo's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kinema4d.objects.solid import Mesh, checked, quadrature
from kinema4d.scenes.jointed import KINDS, RODS, Jointed, draw, some_poses, swing

mujoco: Any = pytest.importorskip("mujoco", reason="jointed objects are moved by MuJoCo: pip install 'kinema4d[mjcf]'")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", [0, 1])
def test_poses_and_masses_are_those_of_the_simulator(kind: str, seed: int):
    thing = draw(kind, seed)
    model = mujoco.MjModel.from_xml_string(thing.xml())
    assert model.nv == thing.freedom
    data = mujoco.MjData(model)
    for q in some_poses(thing, 3, seed):
        data.qpos[:] = q
        mujoco.mj_kinematics(model, data)
        want = np.zeros_like(thing.vertices)
        order = _bodies(thing)
        for i in range(len(thing.parts)):
            mine, body = thing.part_of == i, order[i]
            want[mine] = thing.vertices[mine] @ data.xmat[body].reshape(3, 3).T + data.xpos[body]
        np.testing.assert_allclose(thing.posed(q), want, atol=1e-9)
    mesh = Mesh(vertices=thing.posed(np.zeros(thing.freedom)), faces=thing.faces)
    checked(mesh)
    weighed = quadrature(mesh)
    round_parts = any(k in RODS for p in thing.parts for k, _, _ in p.solids)  # of ten sides each
    assert weighed.mass.sum() == pytest.approx(model.body_mass.sum(), rel=0.08 if round_parts else 1e-6)
    assert (weighed.mass > 0).all()


def _bodies(thing: Jointed) -> dict[int, int]:
    """MuJoCo's number of each part: depth first."""
    out: dict[int, int] = {}

    def visit(i: int) -> None:
        out[i] = len(out) + 1
        for j, p in enumerate(thing.parts):
            if p.on == i:
                visit(j)

    for i, p in enumerate(thing.parts):
        if p.on is None:
            visit(i)
    return out


def test_they_swing_and_are_the_same_for_a_seed():
    for kind in KINDS:
        a, b = draw(kind, 3), draw(kind, 3)
        np.testing.assert_array_equal(a.vertices, b.vertices)
        low, high = a.limits.T
        way = swing(a, 0.7 * low + 0.3 * high, np.zeros(a.freedom), seconds=0.3, gravity=(1.0, -2.0, -9.5))
        assert way.shape == (31, a.freedom)
        assert np.abs(way[-1] - way[0]).max() > 1e-3, kind
    with pytest.raises(ValueError, match="unknown kind of object 'boat'; known are door"):
        draw("boat", 0)
