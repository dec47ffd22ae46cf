from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinema4d.geometry.camera import (
    T_camera_world,
    camera_to_dict,
    from_depth,
    load_camera,
    off_ray_px,
    project,
    rays,
    unproject,
)
from kinema4d.geometry.se3 import look_at
from kinema4d.types import Camera

K = np.array([[131.5, 0.4, 159.5], [0, 140.3, 95.5], [0, 0, 1]])


@given(st.integers(2, 40), st.integers(2, 40), st.floats(0.05, 20))
def test_unproject_then_project_is_the_pixel(height, width, z):
    points = unproject(K, np.full((height, width), z))
    uv = project(K, points)
    v, u = np.mgrid[:height, :width]
    np.testing.assert_allclose(uv, np.stack([u, v], -1), atol=1e-3)
    np.testing.assert_allclose(points[..., 2], z, rtol=1e-6)


def test_rays_start_at_the_centre_of_the_top_left_pixel():
    r = rays(K, 192, 320)
    np.testing.assert_allclose(project(K, r[0, 0]), [0, 0], atol=1e-9)
    np.testing.assert_allclose(project(K, r[-1, -1]), [319, 191], atol=1e-9)


def test_off_ray_measures_pixels():
    depth = np.full((1, 6, 8), 1.0)
    valid = np.ones((1, 6, 8), bool)
    p = from_depth(K, depth, valid)
    assert off_ray_px(K, p) < 1e-4
    p.points[0, 2, 3, 0] += 2 / K[0, 0]  # 2 px at 1 m
    assert off_ray_px(K, p) == pytest.approx(2, abs=1e-3)


def test_resizing_keeps_the_view():
    camera = Camera(K=K, T_world_camera=np.eye(4), height=192, width=320)
    small = camera.resized(96, 160)
    corner = project(camera.K, np.array([-1.2, -0.7, 1.0]))
    # pixel centres: u' + 0.5 = (u + 0.5) / 2
    np.testing.assert_allclose(project(small.K, np.array([-1.2, -0.7, 1.0])), (corner + 0.5) / 2 - 0.5, atol=1e-9)
    squashed = camera.resized(192, 160)
    assert squashed.K[1, 1] == camera.K[1, 1]
    assert squashed.K[0, 0] == camera.K[0, 0] / 2


def test_moving_cameras_have_one_pose_per_frame():
    Ts = np.stack([look_at(np.array([1.0, y, 1]), np.zeros(3)) for y in (0.0, 0.1, 0.2)])
    camera = Camera(K=K, T_world_camera=Ts, height=4, width=4)
    assert camera.moving
    np.testing.assert_allclose(T_camera_world(camera, 3) @ Ts, np.broadcast_to(np.eye(4), (3, 4, 4)), atol=1e-12)
    with pytest.raises(ValueError, match="3 poses but the sequence has 5 frames"):
        camera.poses(5)


def test_files_round_trip_and_alternatives(tmp_path):
    T = look_at(np.array([1.0, 0.2, 1]), np.zeros(3))
    camera = Camera(K=K, T_world_camera=T, height=192, width=320)
    path = tmp_path / "camera.json"
    path.write_text(json.dumps(camera_to_dict(camera)))
    again = load_camera(path)
    np.testing.assert_array_equal(again.T_world_camera, camera.T_world_camera)
    np.testing.assert_array_equal(again.K, camera.K)
    path.write_text(json.dumps({"K": K.tolist(), "image_size_wh": [320, 192], "T_cam_base": np.linalg.inv(T).tolist()}))
    np.testing.assert_allclose(load_camera(path).T_world_camera, T, atol=1e-12)
    path.write_text(
        json.dumps(
            {"fx": 100, "fy": 100, "cx": 9.5, "cy": 4.5, "height": 10, "width": 20, "T_world_camera": T.tolist()}
        )
    )
    assert load_camera(path).K[0, 2] == 9.5


GOOD = {"K": K.tolist(), "height": 192, "width": 320, "T_world_camera": np.eye(4).tolist()}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "not JSON"),
        ("[1]", "JSON object"),
        ({**GOOD, "K": [[0, 0, 1], [0, 1, 1], [0, 0, 1]]}, "focal lengths must be positive, got fx=0"),
        ({**GOOD, "K": [[1, 0], [0, 1]]}, "finite 3x3"),
        ({**GOOD, "K": "wide"}, "numeric matrix"),
        ({**GOOD, "K": [[1, 0, 0], [0, 1, 0], [1, 0, 1]]}, "last row"),
        ({**GOOD, "T_world_camera": (2 * np.eye(4)).tolist()}, "not orthonormal"),
        ({**GOOD, "T_world_camera": [1, 2, 3]}, r"must be \[4,4\]"),
        ({**GOOD, "height": 0}, "size must be positive"),
        ({k: v for k, v in GOOD.items() if k != "width"}, "'height' and 'width'"),
        ({k: v for k, v in GOOD.items() if k != "T_world_camera"}, "needs one of T_world_camera"),
        ({k: v for k, v in GOOD.items() if k != "K"}, "needs 'K'"),
    ],
)
def test_bad_camera_files_are_named(tmp_path, content, message):
    path = tmp_path / "cam.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(ValueError, match=message) as error:
        load_camera(path)
    assert "cam.json" in str(error.value)


def test_missing_camera_file():
    with pytest.raises(ValueError, match="cannot read camera file nowhere.json"):
        load_camera("nowhere.json")
