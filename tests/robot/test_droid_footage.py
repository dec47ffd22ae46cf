"""Real footage: recorded joints, our kinematics and the estimated cameras must agree with what the video shows.

Thresholds sit between what the right and the wrong camera reach; measured figures are in the comments. The
cameras are estimates (MANIFEST.md), so "back to the published camera" means within its stated repeatability.
"""

from __future__ import annotations

import json
import os
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from kinema4d.data.video import read_footage
from kinema4d.geometry.camera import T_camera_world, load_camera, project
from kinema4d.geometry.se3 import apply, difference
from kinema4d.robot.actions import Actions, drive
from kinema4d.robot.calibrate import calibrate, refine, turned
from kinema4d.robot.kinematics import forward_kinematics
from kinema4d.robot.pnp import Pick, intrinsics
from kinema4d.robot.silhouette import contour_error, find_edges, robot_scene
from kinema4d.robot.zoo import load_robot

DATA = Path(os.environ.get("KINEMA4D_DATA") or Path(__file__).parents[3] / "shared" / "data")
pytestmark = pytest.mark.skipif(
    not (DATA / "droid/calib").is_dir(), reason=f"no DROID footage in {DATA}; set KINEMA4D_DATA to the data folder"
)
VIEWS = ("train_4_view1", "train_5_view0", "train_5_view1")
OVAL = (0.0084, 0.0009, 0.0538)
"""Centre of the white oval on panda_link6, metres: what the published landmark projections of the two views that show
it triangulate to (they agree within 2 mm)."""


@cache
def panda():
    return load_robot("panda_robotiq", assets=DATA / "robots")


@cache
def view(name):
    """Published calibration, camera, frames and the robot state of every frame."""
    about = json.loads((DATA / f"droid/calib/{name}.json").read_text())
    rows = json.loads((DATA / f"droid/annotation/{about['episode']}.json").read_text())
    states = Actions(
        space="joint_position",
        values=np.array(rows["observation.state.joint_position"]),
        gripper=np.ravel(rows["observation.state.gripper_position"]),
        fps=15.0,
        convention="droid",
    )
    q = drive(panda(), states).trajectory.q[::3]  # rows are 15 Hz, frames 5 Hz
    return about, load_camera(DATA / f"droid/calib/{name}.json"), read_footage(DATA / "droid" / about["video"]), q


def frames_of(name, frames):
    _, camera, images, q = view(name)
    return find_edges(images[frames]), robot_scene(panda(), q[frames]), camera


def spread(name, n):
    _, camera, images, q = view(name)
    frames = np.linspace(0, len(images) - 1, n).astype(int)
    return camera, images[frames], q[frames]


def distance(a, b):
    metres, radians = difference(a.T_world_camera, b.T_world_camera)
    return 1e3 * float(metres), float(np.degrees(radians))


@pytest.mark.parametrize("name", VIEWS)
def test_the_published_cameras_put_the_robot_on_the_robot(name):
    """Held-out frames of the manifest. Measured here 1.44, 1.29, 1.24 px; the manifest, with its own edge detector,
    has 1.24, 1.57, 1.14."""
    about, *_ = view(name)
    evidence, scene, camera = frames_of(name, np.array(about["heldout_frames"][::3]))
    right = contour_error(evidence, scene, camera)
    assert right.mean_px < 1.6
    assert right.median_px < 1.0
    assert right.below_2px > 0.8
    assert abs(right.mean_px - about["contour_residual_px_heldout"]["mean"]) < 0.4
    for axis in range(3):
        for sign in (1, -1):
            step = sign * np.eye(3)[axis]
            # A turn about the optical axis moves the image centre least, so it shows least.
            wrong = contour_error(evidence, scene, turned(camera, 2 * step))
            assert wrong.mean_px > (1.1 if axis == 2 else 1.3) * right.mean_px, ("2 degrees", step)
            wrong = contour_error(evidence, scene, turned(camera, (0, 0, 0), 0.03 * step))
            assert wrong.mean_px > 1.3 * right.mean_px, ("3 cm", step)


def test_square_pixels_fit_worse():
    """The video is squashed from 16:9, so fy = fx * 192/180; the outline can tell."""
    about, *_ = view("train_4_view1")
    evidence, scene, camera = frames_of("train_4_view1", np.array(about["fit_frames"][::3]))
    held_evidence, held_scene, _ = frames_of("train_4_view1", np.array(about["heldout_frames"][::3]))
    errors = []
    for ratio in (192 / 180, 1.0):
        K = intrinsics(131.0, height=192, width=320, fy_over_fx=ratio)
        fitted = refine(evidence, scene, replace(camera, K=K), fx_prior=131.0, fx_sigma=0.015)
        errors.append(contour_error(held_evidence, held_scene, fitted).mean_px)
    assert errors[1] > 1.1 * errors[0], errors  # measured 1.68 against 1.35 px


@pytest.mark.parametrize(("name", "frames"), [("train_4_view1", 12), ("train_5_view0", 21), ("train_5_view1", 12)])
def test_a_camera_two_degrees_and_three_centimetres_off_comes_back(name, frames):
    """Measured 4, 5, 5 mm and 0.3, 0.7, 0.6 degrees from the published cameras. train_5/0 shows little of the arm
    and needs more frames: with 12 its halves disagree and it is refused."""
    camera, images, q = spread(name, frames)
    found = calibrate(panda(), q, images, initial=turned(camera, (1.2, -1.3, 0.9), (0.02, 0.015, -0.017)))
    mm, deg = distance(found.camera, camera)
    assert found.good, found.reasons
    assert mm < 10
    assert deg < 1
    assert found.heldout.mean_px < 1.6


def test_wrong_states_are_refused():
    camera, images, q = spread("train_5_view1", 9)
    found = calibrate(panda(), q[::-1].copy(), images, initial=camera)
    assert not found.good
    assert any("shuffled" in reason for reason in found.reasons)


def test_pixels_read_by_eye_give_the_camera():
    """From eight published readings of one landmark, with no camera given: PnP is 18 mm and 2.3 degrees off, the
    outline brings it within 7 mm, and the landmark, which that fit never sees, ends within a pixel on average."""
    about, camera, images, q = view("train_5_view1")
    marks = about["landmark_check"]["points"]
    picks = [Pick(frame=m["frame"], link="panda_link6", xyz=OVAL, uv=tuple(m["measured_px"])) for m in marks]
    K = intrinsics(131.0, height=192, width=320, fy_over_fx=192 / 180)
    found = calibrate(panda(), q, images, picks=picks, K=K, max_frames=12)
    mm, deg = distance(found.camera, camera)
    assert found.good, found.reasons
    assert mm < 12
    assert deg < 1
    Ts = forward_kinematics(panda(), q[[m["frame"] for m in marks]])[:, panda().link_index("panda_link6")]
    points = apply(T_camera_world(found.camera, 1) @ Ts, np.tile(OVAL, (len(marks), 1, 1)))[:, 0]
    error = np.linalg.norm(project(found.camera.K, points) - [m["measured_px"] for m in marks], axis=-1)
    assert error.mean() < 1.0
    assert error.max() < 2.5
