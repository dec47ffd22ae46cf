"""Laws of the physics proposal: who moves, who does not, and along what. How well is measured by benchmarks."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from kinema4d.types import Solid
from kinema4d.world.small import rigid
from kinema4d.world.small.parts import Part
from kinema4d.world.small.pieces import decompose

pytest.importorskip("mujoco", reason="the small world needs MuJoCo: pip install 'kinema4d[world]'")

FPS, FRAMES = 15.0, 16
SIDES = np.array([[1, 3, 7, 5], [2, 0, 4, 6], [3, 2, 6, 7], [0, 1, 5, 4], [4, 5, 7, 6], [2, 3, 1, 0]])
FACES = np.concatenate([SIDES[:, [0, 1, 2]], SIDES[:, [0, 2, 3]]]).astype(np.int32)


def box(half: tuple[float, float, float], centre: tuple[float, float, float] = (0, 0, 0)) -> np.ndarray:
    corners = np.array([[1 if n >> k & 1 else -1 for k in range(3)] for n in range(8)], np.float64)
    return corners * half + centre


def part(vertices: np.ndarray, joint: str = "free", **options: object) -> Part:
    mask = np.zeros((1, 1), bool)
    return Part(name="p", joint=joint, mask=mask, vertices=vertices, faces=FACES, **options)  # pyright: ignore[reportArgumentType]


def solid(way: np.ndarray, half: tuple[float, float, float] = (0.01, 0.03, 0.02), role: str = "arm") -> Solid:
    Ts = np.tile(np.eye(4), (len(way), 1, 1))
    Ts[:, :3, 3] = way
    return Solid(name=f"{role} at {way[0]}", role=role, vertices=box(half), faces=FACES, Ts_world_link=Ts)


def sweep(start: tuple[float, float, float], end: tuple[float, float, float]) -> np.ndarray:
    return np.linspace(start, end, FRAMES)


BLOCK = box((0.02, 0.03, 0.025), (0.0, 0.0, 0.025))
PUSH = sweep((-0.08, 0.0, 0.025), (0.03, 0.0, 0.025))  # its face ends 4 cm beyond where the block's began to be


def test_a_push_moves_what_it_meets_and_nothing_else():
    aside = box((0.02, 0.03, 0.025), (0.0, 0.2, 0.025))
    motions = rigid.answer(
        [part(BLOCK), part(aside), part(BLOCK + np.array([0, -0.2, 0]), "fixed")], [solid(PUSH)], fps=FPS
    )
    assert motions.shape == (3, FRAMES, 4, 4)
    assert (motions[:, 0] == np.eye(4)).all()
    assert abs(motions[0, -1, 0, 3] - 0.06) < 0.01
    assert np.abs(motions[0, -1, 1:3, 3]).max() < 0.01
    assert (motions[1:] == np.eye(4)).all()


def test_the_same_question_has_the_same_answer():
    first, second = (rigid.answer([part(BLOCK)], [solid(PUSH)], fps=FPS) for _ in range(2))
    assert first.tobytes() == second.tobytes()


def test_what_is_fixed_stays_though_the_robot_goes_through_it():
    assert (rigid.answer([part(BLOCK, "fixed")], [solid(PUSH)], fps=FPS) == np.eye(4)).all()


def test_a_robot_far_away_moves_nothing():
    far = solid(sweep((1, 1, 1), (1, 1.2, 1)))
    assert (rigid.answer([part(BLOCK)], [far], fps=FPS) == np.eye(4)).all()


def test_things_stand_on_the_support():
    lifted = part(BLOCK + np.array([0, 0, 0.3]))
    motions = rigid.answer([lifted], [solid(PUSH + np.array([0, 0, 0.3]))], fps=FPS, support=0.3)
    assert abs(motions[0, -1, 2, 3]) < 0.005


def hand(*, palm: bool) -> list[Solid]:
    """Two fingers that come together about the block by 2 cm each, then rise by 10 cm."""
    close = np.interp(np.arange(FRAMES), [1, 5], [0.05, 0.029])
    rise = np.interp(np.arange(FRAMES), [7, 14], [0.03, 0.13])
    zero = np.zeros(FRAMES)
    fingers = [solid(np.stack([s * close, zero, rise], axis=1), role="finger") for s in (-1.0, 1.0)]
    return [solid(np.stack([zero, zero, rise + 0.1], axis=1), role="palm" if palm else "arm"), *fingers]


def test_fingers_that_close_on_a_block_lift_it():
    motions = rigid.answer([part(BLOCK)], hand(palm=True), fps=FPS)
    assert abs(motions[0, -1, 2, 3] - 0.1) < 0.015


def test_fingers_of_a_hand_whose_palm_has_no_surface_press_too():
    """wx250s: its fingers hang on a link without a surface, so that no solid is a palm."""
    loose = [s for s in hand(palm=False) if s.role == "finger"]
    for s in loose:  # just apart from the block: only what presses holds it
        s.Ts_world_link[:, 0, 3] += np.sign(s.Ts_world_link[0, 0, 3]) * 0.0015
    arm = hand(palm=False)[0]
    motions = rigid.answer([part(BLOCK)], [arm, *loose], fps=FPS, physics=rigid.Physics(squeeze=0.003))
    assert abs(motions[0, -1, 2, 3] - 0.1) < 0.02


def test_a_slide_goes_along_its_axis_only():
    drawer = part(BLOCK, "slide", axis=np.array([1.0, 0.0, 0.0]), room=(-0.01, 0.1))
    motions = rigid.answer([drawer], [solid(PUSH)], fps=FPS)[0]
    assert np.allclose(motions[:, :3, :3], np.eye(3), atol=1e-6)
    assert np.abs(motions[:, 1:3, 3]).max() < 1e-6
    assert abs(motions[-1, 0, 3] - 0.06) < 0.01


def test_a_hinge_turns_about_its_pivot():
    pivot = np.array([0.0, -0.03, 0.0])
    door = part(BLOCK, "hinge", axis=np.array([0.0, 0.0, 1.0]), pivot=pivot, room=(-1.5, 1.5))
    motions = rigid.answer([door], [solid(PUSH + np.array([0, 0.02, 0]))], fps=FPS)[0]
    moved = motions[:, :3, :3] @ pivot + motions[:, :3, 3]
    assert np.abs(moved - pivot).max() < 1e-6
    assert motions[-1, 1, 0] < -0.3  # the push is along +x at +y of the pivot: clockwise seen from above


def test_a_near_cube_is_no_ball():
    """The corners of a box's hull are all equally far from its middle, as those of a ball are."""
    assert decompose(box((0.02, 0.021, 0.022)), FACES, "free")[0].radius is None


def test_a_ball_is_a_ball():
    n = np.arange(400) + 0.5
    polar, turn = np.arccos(1 - n / 200), np.pi * (1 + 5**0.5) * n
    points = np.stack([np.cos(turn) * np.sin(polar), np.sin(turn) * np.sin(polar), np.cos(polar)], axis=1)
    (piece,) = decompose(0.02 * points, FACES, "free")
    assert piece.radius is not None
    assert abs(piece.radius - 0.02) < 1e-3


def test_draws_are_from_the_range_of_what_is_possible():
    rng = np.random.default_rng(0)
    draws = [rigid.draw(rng) for _ in range(200)]
    assert all(250 <= d.density <= 700 and 0.7 <= d.friction <= 1.2 and 0.001 <= d.squeeze <= 0.003 for d in draws)
    assert 0.01 < np.std([d.scale for d in draws]) < 0.04
    assert rigid.draw(np.random.default_rng(1)) == rigid.draw(np.random.default_rng(1))


def test_without_a_robot_there_is_no_answer():
    with pytest.raises(ValueError, match="solids"):
        rigid.answer([part(BLOCK)], [], fps=FPS)


def test_without_mujoco_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "mujoco", None)
    with pytest.raises(ValueError, match=r"pip install 'kinema4d\[world\]'"):
        rigid.answer([part(BLOCK)], [solid(PUSH)], fps=FPS)
