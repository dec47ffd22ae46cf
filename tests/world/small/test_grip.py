"""What fingers hold, where a hinge is that a hand leads round, and how jointed parts are cut."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.spatial import Delaunay

from kinema4d.geometry.camera import project
from kinema4d.geometry.se3 import invert, look_at
from kinema4d.types import Camera, Solid
from kinema4d.world.small.complete import _include
from kinema4d.world.small.felt import felt, unseen
from kinema4d.world.small.grip import grips, holds, pulled
from kinema4d.world.small.group import agreeing
from kinema4d.world.small.look import View, _built_in, _hung
from kinema4d.world.small.parts import Part
from kinema4d.world.small.pieces import decompose, hull, tray
from kinema4d.world.small.shape import Shape
from kinema4d.world.small.surface import _squared, settled

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


# ---------------------------------------------------------------------- felt


H, W = 96, 144


def seen_from(side: float = 0.0) -> Camera:
    K = np.array([[120.0, 0, 71.5], [0, 120.0, 47.5], [0, 0, 1]])
    return Camera(K=K, T_world_camera=look_at(np.array([0.7, side, 0.6]), np.array([0.0, 0, 0.03])), height=H, width=W)


def shown(p: Part, camera: Camera) -> Part:
    """The part with the pixels around its corners."""
    T = invert(camera.poses(1)[0])
    uv = project(camera.K, p.vertices @ T[:3, :3].T + T[:3, 3])
    low, high = np.floor(uv.min(axis=0)).astype(int), np.ceil(uv.max(axis=0)).astype(int)
    mask = np.zeros((H, W), bool)
    mask[low[1] : high[1] + 1, low[0] : high[0] + 1] = True
    return replace(p, mask=mask)


def looked(camera: Camera) -> View:
    plain = np.ones((H, W), np.float32)
    return View(rgb=np.zeros((H, W, 3), np.uint8), depth=plain, robot=np.zeros((H, W), bool), camera=camera)


def test_what_was_guessed_too_near_goes_between_the_fingers_that_hold_it():
    camera = seen_from()
    off, other = np.array([0.03, 0, 0]), np.array([0.0, 0.15, 0])  # towards the camera; elsewhere
    parts = [shown(part(BLOCK + off), camera), shown(part(BLOCK + other), camera)]
    view, (held, rest) = felt(looked(camera), parts, hand(closes(0.015), REST))
    np.testing.assert_allclose(held.vertices, BLOCK, atol=2e-3)
    np.testing.assert_array_equal(rest.vertices, BLOCK + other)
    farther = view.depth[parts[0].mask & ~parts[1].mask] - 1
    assert (farther > 0.015).all()
    assert (view.depth[~parts[0].mask] == 1).all()


def test_a_door_that_is_held_by_its_handle_takes_its_cabinet_along():
    camera, off = seen_from(), np.array([0.04, 0, 0])
    door = part(BLOCK + off, "hinge", axis=np.array([0.0, 0, 1]), pivot=np.array([0.1, 0.0, 0]))
    cabinet = part(BLOCK + off + [0, 0.1, 0], "fixed")
    _, (door, cabinet) = felt(looked(camera), [shown(door, camera), shown(cabinet, camera)], hand(closes(0.015), REST))
    assert door.pivot is not None
    gone = door.pivot - [0.1, 0, 0]
    assert 0.01 < -gone[0] < 0.06
    np.testing.assert_allclose(cabinet.vertices - (BLOCK + off + [0, 0.1, 0]), np.tile(gone, (8, 1)), atol=1e-9)


@pytest.mark.parametrize(
    ("end", "block"),
    [
        (0.0, BLOCK + np.array([0.03, 0, 0])),  # nothing stopped the fingers
        (0.015, BLOCK + np.array([0.0, 0.2, 0])),  # nothing is there in the picture
        (0.005, BLOCK * [4, 1, 1] + np.array([0.03, 0, 0])),  # a rim says nothing about the middle
    ],
)
def test_fingers_that_tell_nothing_move_nothing(end, block):
    camera = seen_from()
    before = looked(camera)
    view, (after,) = felt(before, [shown(part(block), camera)], hand(closes(end), REST))
    assert view is before
    np.testing.assert_array_equal(after.vertices, block)


# ---------------------------------------------------------------------- what hangs on what


def at(vertices: np.ndarray, joint: str, *, columns: slice, sure: float = 0.9, **options: object) -> Part:
    mask = np.zeros((H, W), bool)
    mask[40:50, columns] = True
    return replace(part(vertices, joint, **options), mask=mask, confidence=sure)


def test_a_joint_hangs_on_furniture_or_on_what_the_robot_hides():
    door = at(BLOCK, "hinge", columns=slice(10, 20), axis=np.array([0.0, 0, 1]), pivot=np.zeros(3))
    near, far = (at(BLOCK + np.array([x, 0, 0]), "fixed", columns=slice(60, 70)) for x in (0.06, 0.5))
    none, beside = np.zeros((H, W), bool), np.zeros((H, W), bool)
    beside[40:50, 20:25] = True
    assert _hung(door, [door, near], none).joint == "hinge"
    assert _hung(door, [door, far], none).joint == "free"
    assert _hung(door, [door, far], beside).joint == "hinge"
    assert _hung(replace(door, confidence=0.5), [door, far], beside).joint == "free"


def test_a_loose_box_with_a_door_that_touches_furniture_is_furniture():
    door = at(BLOCK, "hinge", columns=slice(10, 20), axis=np.array([0.0, 0, 1]), pivot=np.zeros(3))
    box_ = at(BLOCK + np.array([0.08, 0, 0]), "free", columns=slice(30, 50))
    piece = at(BLOCK + np.array([0.115, 0, 0]), "fixed", columns=slice(50, 54))
    assert _built_in(box_, [door, box_, piece]).joint == "fixed"
    assert _built_in(box_, [box_, piece]).joint == "free"  # no door
    assert _built_in(box_, [door, box_]).joint == "free"  # no furniture
    assert (
        _built_in(box_, [door, box_, replace(piece, vertices=piece.vertices + np.array([0.1, 0, 0]))]).joint == "free"
    )


def test_a_lever_turns_along_a_side_of_its_base():
    base = replace(
        part(BLOCK, "fixed"),
        shape=Shape(centre=np.zeros(2), low=0.0, high=0.03, yaw=0.4, half=np.array([0.03, 0.05])),
    )
    for askew, right in ((0.25, True), (-0.3, True), (0.7, False)):
        axis = np.array([np.cos(0.4 + np.pi / 2 + askew), np.sin(0.4 + np.pi / 2 + askew), 0.0])
        lever = part(BLOCK, "hinge", axis=axis, pivot=np.zeros(3))
        found = _squared(lever, [base]).axis
        assert found is not None
        wanted = np.array([-np.sin(0.4), np.cos(0.4), 0.0]) if right else axis
        np.testing.assert_allclose(found, wanted, atol=1e-9)
    upright = part(BLOCK, "hinge", axis=np.array([0.0, 0, 1]), pivot=np.zeros(3))
    assert _squared(upright, [base]) is upright


# ---------------------------------------------------------------------- what only the hand tells of


def behind_a_wall(camera: Camera) -> View:
    """A picture in which something near hides everything."""
    return replace(looked(camera), depth=np.full((H, W), 0.3, np.float32))


def led(along: np.ndarray) -> np.ndarray:
    """A hand that stands until its fingers have closed, and then goes along a way."""
    way = REST.copy()
    way[10:] += along
    return way


LINE = np.outer(np.linspace(0, 0.1, FRAMES - 10), [-1.0, 0, 0])
ANGLE = np.linspace(0, 1.0, FRAMES - 10)
ARC = 0.12 * np.stack([np.cos(ANGLE) - 1, np.sin(ANGLE), 0 * ANGLE], axis=1)
"""About an axis 12 cm beside the hand."""


def test_fingers_that_are_stopped_by_something_hidden_carry_it():
    camera, far = seen_from(), part(BLOCK + np.array([0.3, 0.3, 0]))
    (thing,) = unseen(behind_a_wall(camera), [far], hand(closes(0.015), led(LINE)))
    assert thing.joint == "free"
    assert not thing.mask.any()
    np.testing.assert_allclose(thing.vertices.mean(axis=0), [0, 0, 0.015], atol=2e-3)  # on the support
    np.testing.assert_allclose(np.ptp(thing.vertices, axis=0), 0.03, atol=2e-3)
    assert unseen(looked(camera), [far], hand(closes(0.015), led(LINE))) == []  # the place is seen to be empty
    assert unseen(behind_a_wall(camera), [far], hand(closes(0.0), led(LINE))) == []  # nothing stops the fingers
    assert unseen(behind_a_wall(camera), [far], hand(closes(0.015), REST)) == []  # nothing is led anywhere
    assert unseen(behind_a_wall(camera), [part(BLOCK)], hand(closes(0.015), led(LINE))) == []  # it is seen elsewhere


@pytest.mark.parametrize(("way", "joint"), [(LINE, "slide"), (ARC, "hinge"), (LINE + LINE[:, [1, 2, 0]], None)])
def test_a_hidden_handle_at_furniture_is_a_drawers_or_a_doors(way, joint):
    chest = part(BLOCK * [4, 2, 2] + np.array([0.1, 0, 0]), "fixed")
    found = unseen(behind_a_wall(seen_from()), [chest], hand(closes(0.015), led(way)))
    if joint is None:
        assert found == []
        return
    (handle,) = found
    assert handle.joint == joint
    assert handle.axis is not None
    assert handle.room is not None
    if joint == "slide":
        np.testing.assert_allclose(handle.axis, [-1, 0, 0], atol=1e-6)
        assert handle.room[1] == pytest.approx(0.1, abs=1e-3)
    else:
        assert handle.pivot is not None
        np.testing.assert_allclose(handle.pivot, [-0.12, 0, 0.0], atol=2e-3)
        np.testing.assert_allclose(handle.axis, [0, 0, 1], atol=1e-9)
        assert handle.room[1] == pytest.approx(1.0, abs=0.05)
