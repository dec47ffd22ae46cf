"""Calibration on synthetic views with a known camera: it must come back, or be refused."""

from __future__ import annotations

import builtins
import json
from dataclasses import replace

import numpy as np
import pytest
from scipy import ndimage

from kinema4d.geometry.camera import T_camera_world, load_camera, project
from kinema4d.geometry.raster import rasterize
from kinema4d.geometry.se3 import apply, difference, look_at, transform
from kinema4d.robot import calibrate as calibrate_module
from kinema4d.robot.calibrate import calibrate, calibration_to_dict, turned
from kinema4d.robot.kinematics import forward_kinematics
from kinema4d.robot.pnp import Pick, camera_from_picks, intrinsics
from kinema4d.robot.silhouette import Outline, contour_error, draw_outline, find_edges, robot_scene, search_edges
from kinema4d.robot.urdf import load_urdf
from kinema4d.types import Camera

HEIGHT, WIDTH = 192, 320
URDF = """<robot name="toy">
  <link name="base"><visual><origin xyz="0 0 0.05"/><geometry><box size="0.18 0.14 0.1"/></geometry>
    <material name="a"><color rgba="0.9 0.9 0.85 1"/></material></visual></link>
  <link name="upper"><visual><origin xyz="0 0 0.15"/><geometry><cylinder radius="0.05" length="0.3"/></geometry>
    <material name="b"><color rgba="0.95 0.6 0.2 1"/></material></visual></link>
  <link name="lower"><visual><origin xyz="0 0 0.13"/><geometry><box size="0.07 0.09 0.26"/></geometry>
    <material name="c"><color rgba="0.9 0.9 0.9 1"/></material></visual></link>
  <link name="hand"><visual><origin xyz="0.02 0 0.07"/><geometry><box size="0.12 0.04 0.14"/></geometry>
    <material name="d"><color rgba="0.2 0.4 0.9 1"/></material></visual></link>
  <joint name="turn" type="revolute"><parent link="base"/><child link="upper"/><origin xyz="0 0 0.1"/>
    <axis xyz="0 0 1"/><limit lower="-3" upper="3"/></joint>
  <joint name="bend" type="revolute"><parent link="upper"/><child link="lower"/><origin xyz="0.02 0 0.3"/>
    <axis xyz="0 1 0"/><limit lower="-3" upper="3"/></joint>
  <joint name="wrist" type="revolute"><parent link="lower"/><child link="hand"/><origin xyz="0 0 0.26"/>
    <axis xyz="1 0 0"/><limit lower="-3" upper="3"/></joint>
</robot>"""


@pytest.fixture(scope="module")
def robot(tmp_path_factory):
    path = tmp_path_factory.mktemp("robot") / "toy.urdf"
    path.write_text(URDF)
    return load_urdf(path)


@pytest.fixture(scope="module")
def q():
    t = np.linspace(0, 1, 9)[:, None]
    return np.concatenate([2.2 * t - 1.2, 0.4 + 1.1 * np.sin(3 * t), 1.5 * np.cos(4 * t)], axis=1)


@pytest.fixture(scope="module")
def camera():
    T = look_at(np.array([0.9, -0.75, 0.7]), np.array([0.05, 0, 0.35]))
    K = intrinsics(230.0, height=HEIGHT, width=WIDTH, fy_over_fx=192 / 180)
    return Camera(K=K, T_world_camera=T, height=HEIGHT, width=WIDTH)


def photograph(robot, q, camera, T_world_base=None):
    """Masks, and shaded images in front of a textured wall with sensor noise."""
    scene = robot_scene(robot, q, T_world_base)
    Ts = T_camera_world(camera, len(q))[:, None] @ scene.Ts_world_link
    # Three times the resolution, averaged: real edges are not aligned with pixels.
    big = camera.resized(3 * HEIGHT, 3 * WIDTH)
    fine = rasterize(scene.surfaces, Ts, big, rgb=True)
    assert fine.rgb is not None
    rng = np.random.default_rng(0)
    wall = ndimage.gaussian_filter(rng.normal(size=(3 * HEIGHT, 3 * WIDTH, 3)), (6, 6, 0))
    wall = 110 + 45 * wall / wall.std()
    picture = np.where(fine.valid[..., None], fine.rgb, np.clip(wall, 0, 255))
    small = picture.reshape(len(q), HEIGHT, 3, WIDTH, 3, 3).mean(axis=(2, 4))
    images = np.clip(small + rng.normal(size=small.shape) * 3, 0, 255).astype(np.uint8)
    return rasterize(scene.surfaces, Ts, camera).valid, images


@pytest.fixture(scope="module")
def views(robot, q, camera):
    return photograph(robot, q, camera)


def off(camera, fx=1.05):
    """A start that is wrong by 3 degrees, 4 cm and 5 % focal length."""
    start = turned(camera, (1.8, -2.0, 1.3), (0.025, -0.02, 0.024))
    return replace(start, K=camera.K * [[fx, 1, 1], [1, fx, 1], [1, 1, 1]])


def distance(a, b):
    metres, radians = difference(a.T_world_camera, b.T_world_camera)
    return 1e3 * float(metres), float(np.degrees(radians))


def test_masks_give_the_camera_back(robot, q, camera, views):
    found = calibrate(robot, q, views[0], initial=off(camera), fx_sigma=0.2)
    mm, deg = distance(found.camera, camera)
    assert found.good, found.reasons
    assert mm < 2  # measured 1.2
    assert deg < 0.1  # measured 0.03
    assert abs(found.camera.K[0, 0] / camera.K[0, 0] - 1) < 0.005
    assert found.camera.K[1, 1] / found.camera.K[0, 0] == pytest.approx(192 / 180)
    assert found.heldout.mean_px < 0.1


def test_masks_with_a_known_focal_length_are_sharper(robot, q, camera, views):
    found = calibrate(robot, q, views[0], initial=off(camera, fx=1.0), fx_sigma=0)
    mm, deg = distance(found.camera, camera)
    assert found.good, found.reasons
    assert mm < 1  # measured 0.7
    assert deg < 0.05  # measured 0.02
    assert found.camera.K[0, 0] == camera.K[0, 0]


def test_edges_in_front_of_texture_give_the_camera_back(robot, q, camera, views):
    found = calibrate(robot, q, views[1], initial=off(camera, fx=1.01))
    mm, deg = distance(found.camera, camera)
    assert found.good, found.reasons
    assert mm < 8  # measured 4.8, mostly along the optical axis, traded with fx
    assert deg < 0.3  # measured 0.11


def test_the_base_may_stand_anywhere(robot, q, camera):
    T = transform(np.array([0.4, -1.0, 0.7]), np.array([[0.0, -1, 0], [1, 0, 0], [0, 0, 1]]))
    moved = Camera(K=camera.K, T_world_camera=T @ camera.T_world_camera, height=HEIGHT, width=WIDTH)
    masks, _ = photograph(robot, q, moved, T_world_base=T)
    found = calibrate(robot, q, masks, initial=turned(moved, (1, 1, 0)), T_world_base=T, fx_sigma=0)
    assert found.good
    assert distance(found.camera, moved)[0] < 2


def test_wrong_states_are_refused(robot, q, camera, views):
    found = calibrate(robot, q[::-1].copy(), views[1], initial=camera)
    assert not found.good
    assert any("shuffled" in r for r in found.reasons), found.reasons


def test_clutter_alone_is_refused(robot, q, camera):
    rng = np.random.default_rng(3)
    noise = ndimage.gaussian_filter(rng.normal(size=(len(q), HEIGHT, WIDTH, 3)), (0, 1.2, 1.2, 0))
    images = np.clip(128 + 60 * noise / noise.std(), 0, 255).astype(np.uint8)
    found = calibrate(robot, q, images, initial=camera)
    assert found.heldout.found > 0.95 * found.heldout.points  # edges everywhere, and still:
    assert not found.good
    assert any("clutter" in r for r in found.reasons)


def test_what_cannot_be_judged_is_refused(robot, q, camera, views):
    few = calibrate(robot, q[:3], views[0][:3], initial=camera)
    assert any("too few frames" in r for r in few.reasons)
    still = calibrate(robot, q[[0] * 8], views[0][[0] * 8], initial=camera)
    assert any("hardly moves" in r for r in still.reasons)
    away = turned(camera, (0, 150, 0))
    unseen = calibrate(robot, q, views[0], initial=away)
    assert any("not visible" in r for r in unseen.reasons)
    long = calibrate(robot, q, views[0], initial=off(camera, fx=1.3), fx_sigma=0.9)
    assert any("bound" in r for r in long.reasons), long.reasons


def test_a_calibration_is_a_camera_file(robot, q, camera, views, tmp_path):
    found = calibrate(robot, q[:3], views[0][:3], initial=camera)
    path = tmp_path / "camera.json"
    path.write_text(json.dumps(calibration_to_dict(found), allow_nan=False))
    again = load_camera(path)
    assert np.array_equal(again.K, found.camera.K)
    assert np.array_equal(again.T_world_camera, found.camera.T_world_camera)
    report = json.loads(path.read_text())["calibration"]
    assert report["good"] is False
    assert report["reasons"] == list(found.reasons)


def make_picks(robot, q, camera, n, noise=0.5):
    rng = np.random.default_rng(1)
    corners = {"upper": (0.05, 0, 0.3), "lower": (0.035, 0.045, 0.26), "hand": (0.08, 0.02, 0.14)}
    out = []
    for i in range(n):
        link, frame = list(corners)[i % 3], int(i * (len(q) - 1) / max(n - 1, 1))
        T = forward_kinematics(robot, q[frame : frame + 1])[0, robot.link_index(link)]
        point = apply(T_camera_world(camera, 1)[0] @ T, np.array([corners[link]]))
        u, v = project(camera.K, point)[0] + rng.normal(size=2) * noise
        out.append(Pick(frame=frame, link=link, xyz=corners[link], uv=(float(u), float(v))))
    return out


def test_picks_give_a_start_despite_an_outlier(robot, q, camera, views):
    picks = make_picks(robot, q, camera, 8)
    bad = picks[3]
    picks[3] = Pick(frame=bad.frame, link=bad.link, xyz=bad.xyz, uv=(bad.uv[0] + 60, bad.uv[1] - 45))
    start = camera_from_picks(robot, q, picks, K=camera.K, height=HEIGHT, width=WIDTH)
    mm, deg = distance(start.camera, camera)
    assert start.used.tolist() == [i != 3 for i in range(8)]
    assert start.error_px[3] > 50
    assert start.error_px[start.used].max() < 3
    assert mm < 30
    assert deg < 2
    found = calibrate(robot, q, views[0], picks=picks, K=camera.K, fx_sigma=0)
    assert found.good
    assert distance(found.camera, camera)[0] < 2
    assert calibration_to_dict(found)["calibration"]["picks"]["used"][3] is False


def test_four_exact_picks_give_the_camera(robot, q, camera):
    picks = make_picks(robot, q, camera, 4, noise=0)
    start = camera_from_picks(robot, q, picks, K=camera.K, height=HEIGHT, width=WIDTH)
    mm, deg = distance(start.camera, camera)
    assert mm < 0.1
    assert deg < 0.01


def test_bad_picks_are_named(robot, q, camera):
    picks = make_picks(robot, q, camera, 8)
    solve = lambda p: camera_from_picks(robot, q, p, K=camera.K, height=HEIGHT, width=WIDTH)  # noqa: E731
    with pytest.raises(ValueError, match="at least 4 picks, got 3"):
        solve(picks[:3])
    with pytest.raises(ValueError, match="nearly the same point"):
        solve([picks[0]] * 5)
    line = [Pick(frame=0, link="upper", xyz=(0, 0, z), uv=(100 + 90 * z, 90 - 70 * z)) for z in (0, 0.1, 0.2, 0.3)]
    with pytest.raises(ValueError, match="on a line"):
        solve(line)
    corners = [(0, 0), (0, 0.2), (0.1, 0), (0.1, 0.2)]
    plane = [Pick(frame=0, link="upper", xyz=(x, 0, z), uv=(9 + 90 * x, 90 - 70 * z)) for x, z in corners]
    with pytest.raises(ValueError, match="in a plane"):
        solve(plane)
    rng = np.random.default_rng(0)
    with pytest.raises(ValueError, match="no camera explains"):
        solve([Pick(frame=p.frame, link=p.link, xyz=p.xyz, uv=tuple(rng.uniform(0, 190, 2))) for p in picks])
    with pytest.raises(ValueError, match="frame 99"):
        solve([*picks, Pick(frame=99, link="hand", xyz=(0, 0, 0), uv=(0, 0))])
    with pytest.raises(ValueError, match="no link 'nose'"):
        solve([*picks, Pick(frame=0, link="nose", xyz=(0, 0, 0), uv=(0, 0))])
    with pytest.raises(ValueError, match="non-finite"):
        solve([*picks, Pick(frame=0, link="hand", xyz=(0, 0, 0), uv=(np.nan, 0))])


def test_opencv_is_asked_for_by_name(robot, q, camera, monkeypatch):
    real = builtins.__import__
    monkeypatch.setattr(builtins, "__import__", lambda name, *a, **k: _no_cv2(name) or real(name, *a, **k))
    with pytest.raises(ValueError, match=r"pip install 'kinema4d\[calibrate\]'"):
        camera_from_picks(robot, q, make_picks(robot, q, camera, 8), K=camera.K, height=HEIGHT, width=WIDTH)


def _no_cv2(name):
    if name == "cv2":
        raise ImportError(name)


def test_bad_input_is_named(robot, q, camera, views):
    masks, images = views
    with pytest.raises(ValueError, match="needs a start"):
        calibrate(robot, q, masks)
    with pytest.raises(ValueError, match="picks need K"):
        calibrate(robot, q, masks, picks=make_picks(robot, q, camera, 8))
    with pytest.raises(ValueError, match="9 rows and 8 images"):
        _unchecked(calibrate)(robot, q, masks[:8], initial=camera)
    with pytest.raises(ValueError, match="uint8"):
        _unchecked(calibrate)(robot, q, images.astype(float), initial=camera)
    with pytest.raises(ValueError, match="96x160 but the images are 192x320"):
        calibrate(robot, q, masks, initial=camera.resized(96, 160))
    moving = Camera(K=camera.K, T_world_camera=camera.poses(9), height=HEIGHT, width=WIDTH)
    with pytest.raises(ValueError, match="pose per frame"):
        calibrate(robot, q, masks, initial=moving)
    with pytest.raises(ValueError, match="fx_sigma"):
        calibrate(robot, q, masks, initial=camera, fx_sigma=-1.0)
    with pytest.raises(ValueError, match="max_frames"):
        calibrate(robot, q, masks, initial=camera, max_frames=0)


def _unchecked(function):
    """The function as users get it, without the type checks that the tests add."""
    return getattr(function, "__wrapped__", function)


def test_the_jacobian_is_the_derivative_of_the_projection(camera):
    rng = np.random.default_rng(0)
    points = rng.uniform([-0.3, -0.3, 0.6], [0.3, 0.3, 1.5], (20, 3))
    angle = rng.uniform(0, 6, 20)
    normal = np.stack([np.cos(angle), np.sin(angle)], axis=-1)
    J = calibrate_module._jacobian(camera, points, normal)
    world = apply(camera.T_world_camera, points)
    for i in range(7):
        ends = []
        for h in (1e-5, -1e-5):
            x = np.zeros(7)
            x[i] = h
            moved = calibrate_module._moved(camera, x, float(camera.K[0, 0]))
            uv = project(moved.K, apply(T_camera_world(moved, 1)[0], world))
            ends.append((uv * normal).sum(axis=-1))
        assert J[:, i] == pytest.approx((ends[0] - ends[1]) / 2e-5, rel=1e-5, abs=1e-4)


def test_the_outline_is_sub_pixel(robot, q, camera):
    """The blurred mask's crossing agrees with the outline of a nine times finer drawing."""
    outline = draw_outline(robot_scene(robot, q), camera)
    fine = robot_scene(robot, q)
    big = camera.resized(9 * HEIGHT, 9 * WIDTH)
    valid = rasterize(fine.surfaces, T_camera_world(big, 1)[:, None] @ fine.Ts_world_link[:1], big).valid[0]
    inside, outside = (np.asarray(ndimage.distance_transform_edt(m)) for m in (valid, ~valid))
    first = outline.frame == 0
    u, v = (9 * outline.uv[first] + 4).T.round().astype(int)
    ok = (u >= 0) & (v >= 0) & (u < 9 * WIDTH) & (v < 9 * HEIGHT)
    signed = (inside - outside)[v[ok], u[ok]] / 9
    assert abs(signed.mean()) < 0.1
    assert np.percentile(np.abs(signed), 90) < 0.5


def test_edges_are_found_sub_pixel_and_absent_ones_are_told():
    u = np.arange(WIDTH)
    step = np.clip(u - 100.2 + 0.5, 0, 1) * 200  # an edge at u = 100.2
    image = np.broadcast_to(step[None, None, :, None], (1, HEIGHT, WIDTH, 3)).astype(np.uint8)
    outline = Outline(
        frame=np.zeros(3, np.int64), uv=np.array([[97.0, 50], [103.5, 50], [200, 50]]),
        normal=np.array([[1.0, 0], [1, 0], [1, 0]]), points=np.ones((3, 3)), covered=np.ones(1), changed=0.0,
    )  # fmt: skip
    distance, found = search_edges(find_edges(image), outline, 8.0)
    assert found.tolist() == [True, True, False]
    assert distance[:2] == pytest.approx([3.2, -3.3], abs=0.15)


def test_a_robot_out_of_view_has_the_worst_error(robot, q, camera, views):
    error = contour_error(find_edges(views[1]), robot_scene(robot, q), turned(camera, (0, 150, 0)))
    assert error.points == 0
    assert error.mean_px == 8
    assert error.below_2px == 0
