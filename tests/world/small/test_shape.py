"""Everyday solids: laws of their surfaces and pieces, and whether they are recognised in what a camera sees of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from kinema4d.geometry.camera import rays
from kinema4d.geometry.mesh import Mesh
from kinema4d.geometry.raster import assemble, rasterize
from kinema4d.geometry.se3 import invert, look_at, rotvec_to_matrix
from kinema4d.types import Camera
from kinema4d.world.small import board, outline, shape_fit
from kinema4d.world.small.group import without_crumbs
from kinema4d.world.small.pieces import plain, shape_pieces, shifted
from kinema4d.world.small.pieces import volume as volume_of
from kinema4d.world.small.shape import Shape, mesh_of, moved, scaled
from kinema4d.world.small.shape_fit import Sight, fit
from kinema4d.world.small.skin import Lamp

ROWS, COLUMNS = 192, 288
BOX = Shape(centre=np.array([0.02, -0.03]), low=0.0, high=0.06, yaw=0.4, half=np.array([0.02, 0.03]))
CAN = Shape(centre=np.array([0.0, 0.04]), low=0.0, high=0.08, profile=np.array([[0.025, 0.0], [0.025, 0.08]]))
BOTTLE_LINE = np.array([[0.024, 0.0], [0.024, 0.1], [0.011, 0.12], [0.011, 0.15]])
BOTTLE = Shape(centre=np.array([0.01, 0.0]), low=0.0, high=0.15, profile=BOTTLE_LINE)
CUP = Shape(
    centre=np.zeros(2),
    low=0.0,
    high=0.07,
    profile=np.array([[0.027, 0.0], [0.027, 0.07]]),
    wall=0.004,
    floor=0.004,
)
BALL = Shape(centre=np.array([0.03, 0.02]), low=0.0, high=0.05, ball=0.025)
ALL = {"box": BOX, "turned": CAN, "vessel": CUP, "ball": BALL}


def camera(down: float = 35.0) -> Camera:
    a = np.radians(down)
    K = np.array([[260.0, 0, COLUMNS / 2 - 0.5], [0, 260.0, ROWS / 2 - 0.5], [0, 0, 1]])
    T = look_at(np.array([-0.6 * np.cos(a), 0.0, 0.03 + 0.6 * np.sin(a)]), np.array([0.0, 0.0, 0.03]))
    return Camera(K=K, T_world_camera=T, height=ROWS, width=COLUMNS)


def seen(*shapes: Shape, noise: float = 0.0, down: float = 35.0) -> tuple[Sight, np.ndarray]:
    """Solids on a table; the pixels of the first of them, and which solid each pixel shows."""
    eye = camera(down)
    T = eye.poses(1)[0]
    meshes = []
    for i, shape in enumerate(shapes):
        vertices, faces = mesh_of(shape)
        meshes.append((Mesh(vertices=vertices, faces=faces, colors=np.zeros((len(faces), 3), np.uint8)), i))
    made = rasterize(assemble(meshes), np.tile(invert(T), (1, len(shapes), 1, 1)), eye, threads=1)
    direction = rays(eye.K, ROWS, COLUMNS) @ T[:3, :3].T
    ground = np.where(direction[..., 2] < -1e-3, -T[2, 3] / np.minimum(direction[..., 2], -1e-3), 3.0)
    depth = np.where(made.valid[0], made.points[0, ..., 2], ground)
    depth = depth + noise * np.random.default_rng(0).standard_normal(depth.shape)
    return Sight(made.ids[0] == 1, depth, T[:3, 3] + direction * depth[..., None], eye), made.ids[0]


def volume(shape: Shape) -> float:
    return volume_of(*mesh_of(shape))


@pytest.mark.parametrize("shape", ALL.values(), ids=ALL)
def test_surfaces_are_closed_and_look_outward(shape):
    vertices, faces = mesh_of(shape)
    edges = np.sort(np.concatenate([faces[:, [0, 1]], faces[:, [1, 2]], faces[:, [2, 0]]]), axis=1)
    _, counts = np.unique(edges, axis=0, return_counts=True)
    assert (counts == 2).all()
    a, b, c = (vertices[faces[:, i]] for i in range(3))
    assert (np.cross(a, b) * c).sum() / 6 > 0  # normals outward
    assert vertices[:, 2].min() == pytest.approx(shape.low, abs=1e-9)
    assert vertices[:, 2].max() == pytest.approx(shape.high, abs=1e-9)


@pytest.mark.parametrize("shape", ALL.values(), ids=ALL)
def test_pieces_fill_the_solid(shape):
    pieces = shape_pieces(shape)
    tolerance = 0.25 if shape.kind == "vessel" else 0.02  # walls of boxes overlap at their corners
    assert sum(p.volume for p in pieces) == pytest.approx(volume(shape), rel=tolerance)


def test_volumes_are_those_of_textbooks():
    assert volume(BOX) == pytest.approx(0.04 * 0.06 * 0.06)
    assert volume(CAN) == pytest.approx(np.pi * 0.025**2 * 0.08, rel=0.01)
    assert volume(scaled(CUP, 1.5)) == pytest.approx(1.5**3 * volume(CUP))


def test_moving_a_solid_moves_its_surface():
    R, origin = rotvec_to_matrix(np.array([0.0, 0.0, 0.8])), np.array([0.3, -0.2, 0.05])
    for shape in ALL.values():
        there, here = mesh_of(moved(shape, R, origin))[0], mesh_of(shape)[0] @ R.T + origin
        assert np.ptp(there, axis=0) == pytest.approx(np.ptp(here, axis=0), abs=2e-3)  # round ones turn in themselves
        assert there.mean(axis=0) == pytest.approx(here.mean(axis=0), abs=1e-9)


@pytest.mark.parametrize("shape", [*ALL.values(), BOTTLE], ids=[*ALL, "bottle"])
def test_solids_are_recognised(shape):
    sight, _ = seen(shape)
    found = fit(sight)
    assert found is not None
    assert found.kind == shape.kind
    assert found.centre == pytest.approx(shape.centre, abs=0.001)
    assert found.high == pytest.approx(shape.high, abs=0.002)
    assert volume(found) == pytest.approx(volume(shape), rel=0.25 if shape.kind == "vessel" else 0.05)


def test_a_sensor_may_be_noisy():
    sight, _ = seen(BOX, noise=0.001)
    found = fit(sight)
    assert found is not None
    assert found.kind == "box"
    assert found.centre == pytest.approx(BOX.centre, abs=0.003)


def test_a_box_behind_a_can_is_still_a_box():
    near = replace(CAN, centre=np.array([-0.08, -0.06]))
    sight, ids = seen(BOX, near)
    assert (ids == 2).sum() > 300
    found = fit(sight)
    assert found is not None
    assert found.kind == "box"
    assert found.centre == pytest.approx(BOX.centre, abs=0.003)


def test_two_things_in_one_part_are_no_solid():
    other = replace(BOX, centre=np.array([0.03, 0.07]), yaw=1.1)
    sight, ids = seen(BOX, other)
    assert fit(replace(sight, own=ids > 0)) is None


def test_pixels_of_the_ground_do_no_harm():
    sight, _ = seen(BOX)
    grown = sight.own.copy()
    grown[1:] |= sight.own[:-1]
    grown[:, 1:] |= sight.own[:, :-1]
    found = fit(replace(sight, own=grown))
    assert found is not None
    assert found.half is not None
    assert np.sort(found.half) == pytest.approx([0.02, 0.03], abs=0.0015)


def test_too_few_pixels_are_no_solid():
    sight, _ = seen(BOX)
    few = np.zeros_like(sight.own)
    few[tuple(np.argwhere(sight.own)[:12].T)] = True
    assert fit(replace(sight, own=few)) is None


def test_a_bowl_from_above_has_a_wall():
    line = np.array([[0.04, 0.0], [0.07, 0.04]])
    bowl = Shape(centre=np.zeros(2), low=0.0, high=0.04, profile=line, wall=0.005, floor=0.005)
    sight, _ = seen(bowl, down=60.0)
    found = fit(sight)
    assert found is not None
    assert found.kind == "vessel"
    assert mesh_of(found)[0][:, :2].max() == pytest.approx(0.07, abs=0.003)


# ---------------------------------------------------------------------- without depth


@pytest.mark.parametrize("shape", [BOX, CAN, BALL], ids=["box", "can", "ball"])
def test_depth_follows_from_outline_and_ground(shape):
    sight, ids = seen(shape)
    wrong = np.where(sight.own, 1.05 * sight.depth.mean(), sight.depth)  # flat, and 3 cm off
    eye = sight.camera.poses(1)[0][:3, 3]
    points = eye + (sight.points - eye) * (wrong / sight.depth)[..., None]
    found = outline.grounded(replace(sight, depth=wrong, points=points), ids <= 1, whole=True)
    assert found is not None
    off = np.abs(found - sight.depth)[sight.own]
    assert np.median(off) < 0.004
    assert np.median(np.abs(wrong - sight.depth)[sight.own]) > 0.02


def test_parts_that_are_no_solids_come_to_stand():
    sight, ids = seen(BOX)
    far = replace(sight, depth=1.1 * sight.depth)
    found = outline.grounded(far, ids <= 1, whole=False)
    assert found is not None
    assert np.abs(found - sight.depth)[sight.own].max() < 0.01


def test_hidden_feet_tell_nothing():
    sight, _ = seen(BOX)
    assert outline.grounded(sight, np.zeros_like(sight.own), whole=False) is None


# ---------------------------------------------------------------------- boards

AXIS, PIVOT = np.array([0.0, 0, 1]), np.array([0.05, -0.05, 0.0])


def door(angle: float) -> np.ndarray:
    """Points of the near face of a door about z, 0.1 m wide and 0.09 m high, with a knob of 2 cm at its end."""
    u, v = np.meshgrid(np.linspace(0, 0.1, 50), np.linspace(0.005, 0.095, 45))
    knob = np.stack(np.meshgrid([0.08, 0.085, 0.09], np.linspace(0.04, 0.05, 4), np.linspace(0.006, 0.02, 5)), -1)
    flat = np.concatenate([np.stack([u, v, 0 * u], -1).reshape(-1, 3), knob.reshape(-1, 3)])
    along = np.array([-np.cos(angle), np.sin(angle), 0.0])
    normal = np.cross(along, AXIS)
    normal = normal if normal[0] < 0 else -normal
    return PIVOT + flat[:, :1] * along + flat[:, 1:2] * AXIS + flat[:, 2:] * normal


@pytest.mark.parametrize("angle", [0.5, 1.0, 1.5])
def test_a_door_is_a_thin_board_with_a_knob(angle):
    tilt = rotvec_to_matrix(np.array([0.06, 0.0, 0.0]))  # the axis was seen 3 degrees off
    found = board.hinged_board(
        door(angle), tilt @ AXIS, PIVOT + np.array([0.002, 0, 0]), np.array([-0.6, 0.0, 0.4]), 0.002
    )
    assert found is not None
    main, *rest = found.pieces
    assert main.plain is not None
    sides = np.sort(2 * np.array(main.plain[1]))
    assert sides[0] == pytest.approx(board.THICK)
    assert sides[1:] == pytest.approx([0.092, 0.102], abs=0.008)
    across = np.cross([-np.cos(angle), np.sin(angle), 0.0], AXIS)
    assert abs(found.axis @ across) < 0.005  # the axis lies in the board
    assert rest
    assert all(np.linalg.norm(p.vertices.mean(axis=0) - door(angle)[-30:].mean(axis=0)) < 0.03 for p in rest)


def test_a_lump_is_no_board():
    cloud = np.random.default_rng(0).uniform(-0.04, 0.04, (600, 3)) + np.array([0, 0, 0.05])
    assert board.hinged_board(cloud, AXIS, np.zeros(3), np.array([-0.6, 0, 0.4]), 0.002) is None


def test_a_shut_door_lies_on_its_cabinet():
    cabinet = Shape(centre=np.array([0.1, 0.0]), low=0.0, high=0.1, half=np.array([0.05, 0.06]))
    handle = np.random.default_rng(0).uniform([0.0, 0.04, 0.04], [0.02, 0.05, 0.06], (60, 3))
    pivot = np.array([0.05, -0.06, 0.05])
    found = board.shut_board(handle, AXIS, pivot, np.array([0.0, 0.6, 0.4]), cabinet)
    assert found is not None
    low, high = found.pieces[0].vertices.min(axis=0), found.pieces[0].vertices.max(axis=0)
    assert low == pytest.approx([0.05 - board.THICK, -0.06, 0.0], abs=1e-9)
    assert high == pytest.approx([0.05, 0.06, 0.1], abs=1e-9)
    assert board.shut_board(handle, AXIS, pivot, np.zeros(3), replace(cabinet, half=None, ball=0.1)) is None
    assert board.shut_board(handle, AXIS, np.array([0.15, -0.06, 0.05]), np.zeros(3), cabinet) is None


# ---------------------------------------------------------------------- odds and ends


def test_shifted_pieces_are_where_they_should_be():
    T = np.eye(4)
    T[:3, 3] = (0.1, 0.2, 0.3)
    piece = shifted(plain("box", (0.01, 0.02, 0.03), T), np.array([1.0, 0, 0]))
    assert piece.T is not None
    assert piece.T[:3, 3] == pytest.approx([1.1, 0.2, 0.3])
    assert piece.vertices.mean(axis=0) == pytest.approx([1.1, 0.2, 0.3])
    assert T[0, 3] == 0.1


def test_crumbs_belong_to_what_they_grow_out_of():
    labels, X = np.zeros((40, 40), np.int32), np.zeros((40, 40, 3))
    X[..., 0], X[..., 1] = np.mgrid[:40, :40] * 0.003
    labels[10:30, 10:30], labels[7:10, 18:22] = 1, 2
    assert set(np.unique(without_crumbs(labels, X))) == {0, 1}
    X[7:10, 18:22, 2] = 0.1  # far behind: another thing
    assert set(np.unique(without_crumbs(labels, X))) == {0, 1, 2}


def test_light_is_full_towards_the_sun_and_least_away_from_it():
    lamp = Lamp(direction_world=np.array([0.0, 0, 1]), gain=np.array([1.0, 2.0, 3.0]))
    assert lamp.share(np.array([0.0, 0, 1])) == pytest.approx([1, 1, 1])
    assert lamp.share(np.array([1.0, 0, 0])) == pytest.approx([1 / 2, 1 / 3, 1 / 4])
    assert lamp.share(np.array([0.0, 0, -1])) == pytest.approx([1 / 2, 1 / 3, 1 / 4])


def test_smoothing_keeps_straight_lines():
    z = np.linspace(0, 0.1, 60)
    assert shape_fit.smoother(z, z, 0.004) @ (0.3 * z + 0.01) == pytest.approx(0.3 * z + 0.01, abs=2e-5)
