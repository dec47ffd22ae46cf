from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from scipy.ndimage import binary_dilation, binary_erosion

from kinema4d.geometry.camera import rays
from kinema4d.robot.control import project as project_robot
from kinema4d.robot.zoo import load_robot
from kinema4d.scenes.episode import Wish, perform, record, set_stage
from kinema4d.types import Control, Episode, Solid
from kinema4d.world.small import shadow_kernels
from kinema4d.world.small.casters import Casters, casters
from kinema4d.world.small.parts import Part
from kinema4d.world.small.prior import render
from kinema4d.world.small.shadow import Shade, find_sun, move_shadows, on_things, sunlit

H, W, F = 90, 120, 110.0
SUN = np.array([0.5, -0.3])
DARK = np.array([0.5, 0.55, 0.6])
EYE = np.array([0.0, -0.9, 0.9])
FACES = np.array(
    [f for a, b, c, d in ((0, 2, 3, 1), (4, 5, 7, 6), (0, 1, 5, 4), (2, 6, 7, 3), (0, 4, 6, 2), (1, 3, 7, 5))
     for f in ((a, b, c), (a, c, d))], np.int32,
)  # fmt: skip


def a_box(low: tuple[float, float, float], high: tuple[float, float, float]) -> np.ndarray:
    """Corners that go with ``FACES``."""
    return np.array(
        [[(low, high)[i][0], (low, high)[j][1], (low, high)[k][2]] for k in (0, 1) for j in (0, 1) for i in (0, 1)]
    )


def a_table() -> np.ndarray:
    """World points of the plane z = 0, seen from before and above."""
    forward = -EYE / np.linalg.norm(EYE)
    right = np.array([1.0, 0, 0])
    R = np.stack([right, np.cross(forward, right), forward], axis=1)
    K = np.array([[F, 0, (W - 1) / 2], [0, F, (H - 1) / 2], [0, 0, 1]])
    direction = rays(K, H, W) @ R.T
    return (EYE - direction * (EYE[2] / direction[..., 2:])).astype(np.float32)


def an_arm(frames: int = 3) -> Casters:
    """An upright post that stays, and a bar over the table that moves away along x."""
    post, bar = a_box((-0.3, 0.1, 0.0), (-0.24, 0.16, 0.3)), a_box((-0.1, -0.05, 0.2), (0.15, 0.0, 0.25))
    way = np.zeros((frames, 1, 3))
    way[:, 0, 0] = np.arange(frames) * 0.15
    return Casters(
        vertices=np.concatenate([np.tile(post, (frames, 1, 1)), bar + way], axis=1),
        faces=np.concatenate([FACES, FACES + 8]).astype(np.int32),
    )


def in_shadow(points: np.ndarray, corners: np.ndarray, shift: np.ndarray) -> np.ndarray:
    """Slow and obvious: does the ray from a point of the table towards the sun meet this box?"""
    low, high = corners.min(axis=0), corners.max(axis=0)
    direction = np.append(shift, 1.0)
    with np.errstate(divide="ignore"):
        a, b = (low - points) / direction, (high - points) / direction
    return np.minimum(a, b).max(axis=-1) < np.maximum(a, b).min(axis=-1)


def a_picture(cast: Casters, t: int = 0, *, dark: np.ndarray = DARK) -> np.ndarray:
    """A striped table in the sun."""
    points = a_table()
    stripes = np.where((np.floor(points[..., 0] / 0.07) % 2)[..., None] > 0, (200, 170, 140), (150, 150, 130))
    shaded = in_shadow(points, cast.vertices[t, :8], SUN) | in_shadow(points, cast.vertices[t, 8:], SUN)
    grain = np.random.default_rng(0).normal(0, 3, (H, W, 1))
    return np.where(shaded[..., None], stripes * dark, stripes + grain).round().clip(0, 255).astype(np.uint8)


def a_shade(cast: Casters) -> tuple[np.ndarray, Shade]:
    points, image = a_table(), a_picture(cast)
    sun = find_sun(image, points, np.ones((H, W), bool), EYE, cast)
    assert sun is not None
    return image, Shade(sun=sun, casters=cast, points=points, eye=EYE)


def test_the_map_of_heights_is_that_of_rays():
    cast, cell, low = an_arm(1), 0.01, np.array([-1.0031, -1.0017])
    heights = np.full((200, 200), shadow_kernels.NOTHING)
    shadow_kernels.fill_map(cast.vertices[0], cast.faces, SUN, low, cell, heights)
    j, i = np.mgrid[:200, :200]
    ground = np.stack([low[0] + cell * i, low[1] + cell * j, np.zeros(i.shape)], axis=-1)
    slow = in_shadow(ground, cast.vertices[0, :8], SUN) | in_shadow(ground, cast.vertices[0, 8:], SUN)
    assert ((heights > 0) != slow).sum() < 0.02 * slow.sum()
    assert heights.max() == pytest.approx(0.3, abs=1e-6)


def test_the_sun_is_found_and_how_dark_its_shadows_are():
    _, shade = a_shade(an_arm())
    true = np.append(SUN, 1) / np.linalg.norm(np.append(SUN, 1))
    assert np.degrees(np.arccos(shade.sun.direction_world @ true)) < 1.5
    np.testing.assert_allclose(shade.sun.dark, DARK, atol=0.04)


def test_without_shadows_there_is_no_sun():
    cast = an_arm()
    points, everywhere = a_table(), np.ones((H, W), bool)
    even = a_picture(cast, dark=np.ones(3))
    assert find_sun(even, points, everywhere, EYE, cast) is None
    assert find_sun(np.full_like(even, 90), points, everywhere, EYE, cast) is None
    assert find_sun(even, points, np.zeros((H, W), bool), EYE, cast) is None
    # A dark patch that is not of the robot's shape is none of its shadow.
    even[30:36, 10:100] //= 2
    assert find_sun(even, points, everywhere, EYE, cast) is None
    assert casters((), [], np.zeros((0, 2, 4, 4))) is None


def test_shadows_move_and_the_rest_stays():
    cast = an_arm()
    image, shade = a_shade(cast)
    rgb, known = np.repeat(image[None], 3, axis=0), np.ones((3, H, W), bool)
    nowhere = np.zeros((H, W), bool)
    move_shadows(rgb, known, shade, nowhere, ~nowhere, sunlit(image, shade, nowhere))
    np.testing.assert_array_equal(rgb[0], image)
    for t in (1, 2):
        truth = a_picture(cast, t)
        changed = (np.abs(truth.astype(int) - image) > 20).any(axis=-1)
        assert changed.sum() > 60
        before, after = (np.abs(x[changed].astype(int) - truth[changed]).mean() for x in (image, rgb[t]))
        assert after < 0.3 * before
        same = (in_shadow(shade.points, cast.vertices[0, :8], shade.sun.shift)) & (np.abs(shade.points[..., 0]) > 0.31)
        np.testing.assert_array_equal(rgb[t][same], image[same])  # the post and its shadow stand still
        np.testing.assert_array_equal(rgb[t][-10:], image[-10:])
    again = np.repeat(image[None], 3, axis=0)
    still = replace(cast, vertices=np.repeat(cast.vertices[:1], 3, axis=0))
    move_shadows(again, known, replace(shade, casters=still), nowhere, ~nowhere, sunlit(image, shade, nowhere))
    np.testing.assert_array_equal(again, np.repeat(image[None], 3, axis=0))


def test_holes_are_filled_with_sunlight_and_then_shaded():
    cast = an_arm()
    image, shade = a_shade(cast)
    lit, plain = sunlit(image, shade, np.zeros((H, W), bool)), a_picture(cast, dark=np.ones(3))
    shaded = in_shadow(shade.points, cast.vertices[0, 8:], SUN)
    assert (
        np.abs(lit[shaded].astype(int) - plain[shaded]).mean()
        < 0.3 * np.abs(image[shaded].astype(int) - plain[shaded]).mean()
    )
    hole = shaded.copy()
    rgb, known = (
        np.repeat(np.where(hole[..., None], 160, image)[None], 3, axis=0).astype(np.uint8),
        np.ones((3, H, W), bool),
    )
    known[1:, hole] = False
    move_shadows(rgb, known, shade, hole, np.ones((H, W), bool), lit)
    for t in (1, 2):
        now = in_shadow(shade.points, cast.vertices[t, 8:], SUN)
        np.testing.assert_array_equal(rgb[t][hole & ~now].max(), 160)
        assert np.median(rgb[t][hole & ~now]) == 160
        np.testing.assert_allclose(
            np.median(rgb[1][hole & in_shadow(shade.points, cast.vertices[1, 8:], SUN)], axis=0), 160 * DARK, atol=7
        )
    untouched = np.repeat(np.where(hole[..., None], 160, image)[None], 3, axis=0).astype(np.uint8)
    move_shadows(untouched, np.ones_like(known), shade, hole, np.ones((H, W), bool), lit)
    np.testing.assert_array_equal(untouched[:, hole], 160)  # not filled: something else is there


def test_a_solid_casts_where_it_is():
    Ts = np.tile(np.eye(4), (2, 1, 1))
    Ts[1, :3, 3] = (0.2, 0, 0.1)
    solid = Solid(
        name="link", role="arm", vertices=a_box((0.0, 0.0, 0.0), (1.0, 1.0, 1.0)), faces=FACES, Ts_world_link=Ts
    )
    part = Part(
        name="p",
        joint="free",
        mask=np.zeros((2, 2), bool),
        vertices=a_box((2.0, 2.0, 2.0), (3.0, 3.0, 3.0)),
        faces=FACES,
    )
    cast = casters([solid], [part, replace(part, faces=FACES[:0])], np.stack([Ts, Ts]))
    assert cast is not None
    assert cast.vertices.shape == (2, 16, 3)
    np.testing.assert_allclose(cast.vertices[1] - cast.vertices[0], np.tile([0.2, 0, 0.1], (16, 1)), atol=1e-12)
    np.testing.assert_array_equal(cast.faces, np.concatenate([FACES, FACES + 8]))


@cache
def an_episode() -> tuple[Episode, Control]:
    robot = load_robot("panda")
    stage = set_stage(robot, Wish(task="push", seed=1))
    truth = record(stage, perform(stage), source="test", facts={}, threads=1)
    return truth, project_robot([robot], truth.arms, truth.clip.camera)


def test_in_a_simulated_scene_it_finds_the_sun_and_comes_nearer_to_the_truth():
    truth, control = an_episode()
    clip = truth.clip
    frame = (clip.rgb[0], clip.pointmap.depth[0], clip.pointmap.valid[0])
    none = np.zeros((0, len(control), 4, 4))
    without, shaded = (render(*frame, [], none, control, shadows=s) for s in (False, True))
    T = clip.camera.poses(1)[0]
    points = (clip.pointmap.points[0] @ T[:3, :3].T + T[:3, 3]).astype(np.float32)
    cast = casters(control.solids, [], none)
    assert cast is not None
    sun = find_sun(clip.rgb[0], points, clip.pointmap.valid[0] & ~control.mask[0], T[:3, 3], cast)
    assert sun is not None
    light = truth.facts["light"]
    assert np.degrees(np.arccos(sun.direction_world @ np.array(light["direction_world"]))) < 3
    ambient = light["ambient"] / (light["ambient"] + (1 - light["ambient"]) * light["direction_world"][2])
    assert sun.dark.mean() == pytest.approx(ambient, abs=0.05)
    assert truth.robot_mask is not None
    ground = ~truth.robot_mask & ~truth.robot_mask[:1] & (np.abs(clip.rgb.astype(int) - clip.rgb[:1]).max(axis=-1) > 12)
    error = [np.mean((p.rgb[ground].astype(float) - clip.rgb[ground]) ** 2) for p in (without, shaded)]
    assert error[1] < 0.5 * error[0]
    np.testing.assert_array_equal(shaded.rgb[0], clip.rgb[0])
    np.testing.assert_array_equal(shaded.known, without.known)
    np.testing.assert_array_equal(shaded.pointmap.points, without.pointmap.points)


def test_the_robot_is_lit_by_the_sun_that_was_found():
    truth, control = an_episode()
    clip = truth.clip
    frame = (clip.rgb[0], clip.pointmap.depth[0], clip.pointmap.valid[0])
    none = np.zeros((0, len(control), 4, 4))
    hulls = replace(control, solids=tuple(replace(s, meshes=()) for s in control.solids))
    known, unknown = (render(*frame, [], none, c).rgb for c in (control, hulls))
    assert truth.robot_mask is not None
    own = truth.robot_mask & control.mask
    own[0] = False
    error = [np.mean((rgb[own].astype(float) - clip.rgb[own]) ** 2) for rgb in (known, unknown)]
    assert error[0] < 0.1 * error[1]  # its own meshes in this light, against its own lamp
    assert 10 * np.log10(255**2 / error[0]) > 30
    ground = ~truth.robot_mask & ~truth.robot_mask[:1] & (np.abs(clip.rgb.astype(int) - clip.rgb[:1]).max(axis=-1) > 12)
    error = [np.mean((rgb[ground].astype(float) - clip.rgb[ground]) ** 2) for rgb in (known, unknown)]
    assert error[0] < 0.7 * error[1]  # hulls throw shadows that are too wide


def test_meshes_throw_the_same_shadow_however_they_are_wound():
    cast, low = an_arm(1), np.array([-1.0031, -1.0017])
    heights = np.full((2, 200, 200), shadow_kernels.NOTHING)
    for faces, out in zip((cast.faces, cast.faces[:, ::-1].copy()), heights, strict=True):
        shadow_kernels.fill_map(cast.vertices[0], faces, SUN, low, 0.01, out)
    np.testing.assert_allclose(heights[0], heights[1], atol=1e-9)


def test_things_stand_in_the_shadow_of_others():
    cast = an_arm()
    _, shade = a_shade(cast)
    ids = np.ones((1, H, W), np.uint16)
    boxes = np.array([[0, W - 1, 0, H - 1]])
    dim = on_things(shade, ids, shade.points[None].astype(np.float32), boxes, np.eye(4))[0]
    post = in_shadow(shade.points, cast.vertices[0, :8], SUN) | in_shadow(shade.points, cast.vertices[0, 8:], SUN)
    assert dim[post].mean() > 0.85
    assert dim[~post].mean() < 0.05
    nothing = on_things(shade, 0 * ids, shade.points[None].astype(np.float32), boxes, np.eye(4))
    assert not nothing.any()


def test_no_line_is_left_where_the_edge_of_a_shadow_was():
    cast = an_arm()
    image, shade = a_shade(cast)
    plain = a_picture(cast, dark=np.ones(3))
    lit = sunlit(image, shade, np.zeros((H, W), bool))
    shaded = in_shadow(shade.points, cast.vertices[0, 8:], SUN)
    edge = np.logical_xor(binary_dilation(shaded, iterations=2), binary_erosion(shaded, iterations=2))
    before, after = (np.abs(x[edge].astype(int) - plain[edge]).mean() for x in (image, lit))
    assert after < 0.4 * before


def test_the_toy_is_what_it_says():
    """Its faces look outwards and its table is level."""
    corners = a_box((0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
    a, b, c = (corners[FACES[:, i]] for i in range(3))
    assert ((np.cross(b - a, c - a) * ((a + b + c) / 3 - 0.5)).sum(axis=1) > 0).all()
    rows, columns = np.mgrid[1 : H - 1, 1 : W - 1].reshape(2, -1)
    up = shadow_kernels.facing(a_table(), rows, columns, EYE, np.array([0.0, 0, 1]))
    np.testing.assert_allclose(up, 1, atol=1e-3)
