"""What fingers hold, where a hinge is that a hand leads round, and how jointed parts are cut."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.spatial import Delaunay

from kinema4d.types import Solid
from kinema4d.world.small.complete import _include
from kinema4d.world.small.grip import grips, holds, pulled
from kinema4d.world.small.group import agreeing
from kinema4d.world.small.parts import Part
from kinema4d.world.small.pieces import decompose, hull, tray
from kinema4d.world.small.surface import settled

FRAMES = 24
SIDES = np.array([[1, 3, 7, 5], [2, 0, 4, 6], [3, 2, 6, 7], [0, 1, 5, 4], [4, 5, 7, 6], [2, 3, 1, 0]])
FACES = np.concatenate([SIDES[:, [0, 1, 2]], SIDES[:, [0, 2, 3]]]).astype(np.int32)


def box(half: tuple[float, float, float], centre: tuple[float, float, float] = (0, 0, 0)) -> np.ndarray:
    corners = np.array([[1 if n >> k & 1 else -1 for k in range(3)] for n in range(8)], np.float64)
    return corners * half + centre


def part(vertices: np.ndarray, joint: str = "free", **options: object) -> Part:
    mask = np.zeros((1, 1), bool)
    return Part(name="p", joint=joint, mask=mask, vertices=vertices, faces=FACES, **options)  # pyright: ignore[reportArgumentType]


def moving(way: np.ndarray, role: str, half: tuple[float, float, float] = (0.01, 0.02, 0.03)) -> Solid:
    Ts = np.tile(np.eye(4), (len(way), 1, 1))
    Ts[:, :3, 3] = way
    return Solid(name=f"{role} {way[0, 0]:.3f}", role=role, vertices=box(half), faces=FACES, Ts_world_link=Ts)


def hand(inner: np.ndarray, path: np.ndarray) -> list[Solid]:
    """Fingers whose inner sides are ``inner`` from the middle of the hand, which goes along ``path``."""
    sides = [path + np.stack([s * (inner + 0.01), 0 * inner, 0 * inner], axis=1) for s in (-1.0, 1.0)]
    return [moving(path + np.array([0, 0, 0.1]), "palm"), *(moving(way, "finger") for way in sides)]


def closes(end: float, wobble: float = 0.0) -> np.ndarray:
    inner = np.interp(np.arange(FRAMES), [2, 6], [0.04, end])
    return inner + np.where(np.arange(FRAMES) > 9, wobble * np.sin(np.arange(FRAMES) / 3), 0)


REST = np.tile([0.0, 0.0, 0.03], (FRAMES, 1))
BLOCK = box((0.015, 0.02, 0.03), (0, 0, 0.03))


def test_fingers_that_stop_hold_what_is_between_them():
    (hold,) = holds([part(BLOCK + np.array([0.2, 0, 0])), part(BLOCK)], hand(closes(0.015), REST))
    assert hold.part == 1
    assert hold.way is None
    assert 5 <= hold.first <= 7
    assert hold.last == FRAMES - 1


def test_fingers_that_close_fully_hold_nothing():
    assert holds([part(BLOCK)], hand(closes(0.0), REST)) == []


def test_fingers_that_give_way_a_little_hold_on():
    (hold,) = holds([part(BLOCK)], hand(closes(0.015, wobble=0.001), REST))
    assert hold.last == FRAMES - 1


def test_fingers_that_lose_what_they_held_let_go():
    inner = closes(0.015)
    inner[14:] = 0.001
    (hold,) = holds([part(BLOCK)], hand(inner, REST))
    assert 12 <= hold.last <= 14


def test_what_is_elsewhere_is_not_held():
    assert len(grips(hand(closes(0.015), REST))) == 1
    assert holds([part(BLOCK + np.array([0, 0.06, 0]))], hand(closes(0.015), REST)) == []


@pytest.mark.parametrize("off", [(0.0, 0.0), (0.012, -0.009), (-0.015, 0.01)])
def test_a_hand_that_leads_a_door_round_tells_where_its_hinge_is(off):
    angle = np.interp(np.arange(FRAMES), [8, FRAMES - 1], [0, 1.1])
    pivot = np.array([0.0, 0.12, 0.0])
    path = np.stack([0.12 * np.sin(angle), 0.12 - 0.12 * np.cos(angle), np.full(FRAMES, 0.03)], axis=1)
    door = part(
        box((0.004, 0.06, 0.03), (0, 0.06, 0.03)),
        "hinge",
        axis=np.array([0, 0, 1.0]),
        pivot=pivot + np.array([*off, 0]),
    )
    (found,) = pulled([door], hand(closes(0.005), path))
    assert found.pivot is not None
    assert np.linalg.norm((found.pivot - pivot)[:2]) < 0.004
    (hold,) = holds([found], hand(closes(0.005), path))
    assert hold.way is not None
    assert abs(hold.way[-1] - hold.way[hold.first] - 1.1) < 0.05


def test_a_drawer_is_cut_into_board_arm_and_handle():
    shapes = [
        box((0.004, 0.06, 0.03)),
        box((0.02, 0.006, 0.006), (-0.024, 0, 0)),
        box((0.006, 0.01, 0.025), (-0.05, 0, 0)),
    ]
    vertices = np.concatenate(shapes)
    faces = np.concatenate([FACES + 8 * i for i in range(3)]).astype(np.int32)
    pieces = decompose(vertices, faces, "slide", np.array([-1.0, 0, 0]))
    assert len(pieces) >= 3
    inside = lambda x: any(Delaunay(p.vertices).find_simplex(x) >= 0 for p in pieces)  # noqa: E731
    assert inside(np.array([-0.05, 0, 0.02]))  # the handle
    assert inside(np.array([-0.025, 0, 0.0]))  # its arm
    assert not inside(np.array([-0.025, 0, 0.02]))  # where fingers hook in


def test_pieces_that_vote_for_one_middle_are_one_part():
    labels = np.array([[1, 1, 2, 3]], np.int32)
    votes = np.array([[[0, 0, 0], [0.01, 0, 0], [0.02, 0, 0], [0.3, 0, 0]]], np.float64)
    found, count = agreeing(labels, 3, votes)
    assert found.tolist() == [[1, 1, 1, 2]]
    assert count == 2


def test_seen_points_that_the_network_leaves_out_are_put_in():
    field = np.full((20, 20, 20), 0.02, np.float32)
    handle = np.stack([np.linspace(0.02, 0.05, 40), np.full(40, 0.03), np.full(40, 0.03)], axis=1)
    _include(field, handle, np.zeros(3), 0.004, eye=np.array([0.035, 0.03, 1.0]))
    assert field[8, 7, 7] < 0  # (0.032, 0.028, 0.028), just behind what is seen
    assert field[8, 7, 8] > 0  # (0.032, 0.028, 0.032), before it
    assert field[8, 14, 7] == np.float32(0.02)


def test_a_part_with_hidden_feet_reaches_the_support():
    lifted = box((0.02, 0.02, 0.02), (0, 0, 0.05))
    assert settled(lifted, "free")[:, 2].min() == pytest.approx(0.03)
    stretched = settled(lifted, "free", 0.06)
    assert stretched[:, 2].min() == 0
    assert stretched[:, 2].max() == pytest.approx(0.07)


@pytest.mark.parametrize("open_by", [0.0, 0.05])
def test_a_drawer_has_a_tray_as_deep_as_its_chest_and_open_above(open_by):
    chest = box((0.08, 0.09, 0.05), (0, 0, 0.05))
    front = hull(box((0.004, 0.08, 0.04), (-0.08 - open_by, 0, 0.05)))
    assert front is not None
    found = tray([front], np.array([-1.0, 0, 0]), chest, open_by)
    assert len(found) == 4
    corners = np.concatenate([p.vertices for p in found])
    assert corners[:, 0].min() == pytest.approx(-0.076 - open_by)
    assert 0.06 < corners[:, 0].max() + open_by < 0.08
    middle = np.array([-0.02 - open_by, 0, 0.06])
    assert not any(Delaunay(p.vertices).find_simplex(middle) >= 0 for p in found)


def test_a_handle_alone_has_no_tray():
    handle = hull(box((0.008, 0.009, 0.02), (-0.13, 0, 0.05)))
    assert handle is not None
    assert tray([handle], np.array([-1.0, 0, 0]), box((0.08, 0.09, 0.05), (0, 0, 0.05)), 0.0) == []
