from __future__ import annotations

import numpy as np
import pytest

from kinema4d.geometry.camera import rays
from kinema4d.geometry.se3 import look_at
from kinema4d.types import Camera
from kinema4d.world.small.behind import Sheet, continued, find_planes, patterned, plane_through, repeats
from kinema4d.world.small.membrane import membrane

H, W, F = 120, 180, 150.0
K = np.array([[F, 0, (W - 1) / 2], [0, F, (H - 1) / 2], [0, 0, 1]])
CAMERA = Camera(K=K, T_world_camera=look_at(np.array([0.9, 0.2, 0.8]), np.zeros(3)), height=H, width=W)
EYE = np.array([0.9, 0.2, 0.8])
RAYS = rays(K, H, W) @ CAMERA.T_world_camera[:3, :3].T
TABLE = (-0.35, -0.45, 0.6, 0.5)
"""x0, y0, x1, y1 of a table at z = 0; below it a floor, behind it a wall."""
FLOOR, WALL = -0.7, -1.6


def a_room() -> tuple[np.ndarray, np.ndarray]:
    """World points of every pixel, and which surface it shows: 0 table, 1 floor, 2 wall."""
    with np.errstate(divide="ignore"):
        table, floor = -EYE[2] / RAYS[..., 2], (FLOOR - EYE[2]) / RAYS[..., 2]
        wall = (WALL - EYE[0]) / RAYS[..., 0]
    depth = np.stack([table, np.where(floor > 0, floor, np.inf), np.where(wall > 0, wall, np.inf)])
    x, y = (EYE[:2] + RAYS[..., :2] * table[..., None]).transpose(2, 0, 1)
    on = (table > 0) & (x > TABLE[0]) & (x < TABLE[2]) & (y > TABLE[1]) & (y < TABLE[3])
    depth[0] = np.where(on, table, np.inf)
    which = depth.argmin(axis=0)
    return (EYE + RAYS * depth.min(axis=0)[..., None]).astype(np.float64), which


def tiles(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """A pattern that repeats every 0.2 by 0.14 metres."""
    u, v = (a / 0.2) % 1, (b / 0.14) % 1
    return np.stack([120 + 90 * (u < 0.3), 100 + 100 * (v < 0.5), 80 + 60 * (u + v)], axis=-1)


def a_picture(points: np.ndarray, which: np.ndarray) -> np.ndarray:
    x, y, z = points.transpose(2, 0, 1)
    table, floor, wall = tiles(x + 0.3 * y, y - 0.3 * x), tiles(x / 2, y / 2)[..., ::-1], np.full((H, W, 3), 90.0)
    wall[..., 0] += 30 * z
    return np.choose(which[..., None], [table, floor, wall]).clip(0, 255).astype(np.uint8)


def a_hole(rows: slice, columns: slice) -> np.ndarray:
    hole = np.zeros((H, W), bool)
    hole[rows, columns] = True
    return hole


HOLES = a_hole(slice(55, 85), slice(60, 100)) | a_hole(slice(0, 40), slice(40, 62))


def test_the_large_planes_of_a_room_are_found():
    points, which = a_room()
    planes, labels = find_planes(points, ~HOLES, EYE)
    assert len(planes) == 3
    for k, normal in enumerate(([0.0, 0, 1], [0.0, 0, 1], [1.0, 0, 0])):
        own = labels[(which == k) & ~HOLES]
        mine = np.bincount(own[own >= 0]).argmax()
        assert (own == mine).mean() > 0.93  # not at the very rim
        assert abs(planes[mine].normal @ normal) > 0.9999
    assert (labels[HOLES] == -1).all()


def test_a_hole_shows_the_plane_behind_it_and_goes_on_with_its_pattern():
    points, which = a_room()
    image = a_picture(points, which)
    holed = np.where(HOLES[..., None], 255, image).astype(np.uint8)  # what stood there must not leak
    rgb, depth, found = continued(holed, points, ~HOLES, HOLES, RAYS, CAMERA)
    assert found.mean() > 0.99
    true = ((points - EYE) @ CAMERA.T_world_camera[:3, 2])[HOLES]
    assert (np.abs(depth - true) < 0.01).mean() > 0.95  # the hole at the top goes over the table's rim
    error = np.mean((rgb.astype(float) - image[HOLES]) ** 2)
    smooth = np.mean((membrane(holed, ~HOLES)[HOLES] - image[HOLES]) ** 2)
    assert error < 0.15 * smooth


def test_shifts_are_the_pattern_s_own():
    rng = np.random.default_rng(0)
    places = rng.uniform(0, 1, (40000, 2))
    found = repeats(places, tiles(*places.T), 0.005)
    assert len(found) >= 4
    for shift in found[:4]:
        steps = shift / (0.2, 0.14)
        np.testing.assert_allclose(steps, steps.round(), atol=0.03)
        assert np.abs(steps.round()).sum() > 0


def test_what_does_not_repeat_has_no_pattern():
    points, which = a_room()
    own = (which == 0) & ~HOLES
    plane = plane_through(points[own], EYE)
    _, places = plane.seen_by(RAYS, EYE)
    rng = np.random.default_rng(1)
    coarse = rng.uniform(60, 200, (H // 6, W // 6, 3)).repeat(6, 0).repeat(6, 1).astype(np.uint8)
    for image in (coarse, np.full((H, W, 3), 90, np.uint8)):
        sheet = Sheet(plane=plane, image=image, own=own.astype(np.float32), camera=CAMERA)
        assert patterned(sheet, own, own, image, places, places[HOLES & (which == 0)]) is None


def test_a_reading_is_the_picture_itself():
    points, which = a_room()
    own = which == 0
    plane = plane_through(points[own], EYE)
    depth, places = plane.seen_by(RAYS, EYE)
    np.testing.assert_allclose(depth[own], ((points - EYE) @ CAMERA.T_world_camera[:3, 2])[own], atol=1e-6)
    image = a_picture(points, which)
    sheet = Sheet(plane=plane, image=image, own=own.astype(np.float32), camera=CAMERA)
    inner = a_hole(slice(60, 80), slice(60, 90))
    colours, there = sheet.read(places[inner])
    assert there.all()
    np.testing.assert_allclose(colours, image[inner], atol=0.5)
    _, there = sheet.read(np.array([[50.0, 50.0]]))
    assert not there.any()


def test_clutter_without_planes_is_left_alone():
    rng = np.random.default_rng(2)
    points = EYE + RAYS * rng.uniform(0.5, 2.0, (H, W, 1))
    image = rng.integers(0, 255, (H, W, 3)).astype(np.uint8)
    rgb, _, found = continued(image, points, ~HOLES, HOLES, RAYS, CAMERA)
    assert not found.any()
    np.testing.assert_array_equal(rgb, image[HOLES])


@pytest.mark.parametrize("noise", [0.0, 0.003])
def test_a_noisy_sensor_still_shows_planes(noise: float):
    points, which = a_room()
    points = points + np.random.default_rng(3).normal(0, noise, (H, W, 1)) * RAYS
    planes, labels = find_planes(points, ~HOLES, EYE)
    assert 1 <= len(planes) <= 6
    table = labels[(which == 0) & ~HOLES]
    assert (table == np.bincount(table[table >= 0]).argmax()).mean() > 0.5


def test_a_larger_picture_is_continued_at_its_own_resolution():
    points, which = (a.repeat(3, 0).repeat(3, 1) for a in a_room())
    big = Camera(
        K=np.array([[3 * F, 0, (3 * W - 1) / 2], [0, 3 * F, (3 * H - 1) / 2], [0, 0, 1]]),
        T_world_camera=CAMERA.T_world_camera, height=3 * H, width=3 * W,
    )  # fmt: skip
    R = rays(big.K, big.height, big.width) @ CAMERA.T_world_camera[:3, :3].T
    points = EYE + R * ((points - EYE) @ CAMERA.T_world_camera[:3, 2])[..., None]  # a table of small steps
    flat = EYE + R * (-EYE[2] / R[..., 2])[..., None]
    points = np.where((which == 0)[..., None], flat, points)
    x, y, _ = points.transpose(2, 0, 1)
    image = np.where((which == 0)[..., None], tiles(x + 0.3 * y, y - 0.3 * x), 90).clip(0, 255).astype(np.uint8)
    hole = a_hole(slice(60, 80), slice(70, 100)).repeat(3, 0).repeat(3, 1)
    rgb, _, found = continued(image, points, ~hole, hole, R, big)
    assert found.mean() > 0.99
    assert np.mean((rgb.astype(float) - image[hole]) ** 2) < 0.15 * np.var(image[hole].astype(float))
