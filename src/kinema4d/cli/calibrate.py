"""``kinema4d calibrate``: find a camera from footage of a moving robot."""

from __future__ import annotations

import json as json_module
from pathlib import Path
from typing import Literal


def calibrate(
    *,
    robot: str,
    actions: Path,
    video: Path,
    out: Path,
    camera: Path | None = None,
    picks: Path | None = None,
    fx: float | None = None,
    fy_over_fx: float = 1.0,
    masks: bool = False,
    row_step: int = 1,
    frames: int = 21,
    fx_sigma: float = 0.02,
    space: Literal["joint_position"] | None = None,
    convention: str | None = None,
    fps: float | None = None,
    assets: Path | None = None,
    packages: tuple[Path, ...] = (),
    accept_bad: bool = False,
    overwrite: bool = False,
    json: bool = False,
) -> None:
    """Find a fixed camera from footage of a moving robot and its recorded joint positions.

    Starts from a rough camera, or from points picked on the robot; then moves the camera until the robot's outline
    lies on image edges, and judges the result on frames it has not seen. A bad fit is not written.

    Args:
        robot: Zoo name, or path to a URDF or MJCF file.
        actions: File with the recorded joint_position (npz, json, csv, parquet).
        video: The footage: a video file or a folder of images.
        out: Camera file to write.
        camera: Rough camera to start from, within about 3 degrees and 5 cm.
        picks: JSON list of picks instead: {"frame": 0, "link": "hand", "xyz": [0, 0, 0.1], "uv": [120, 80]}.
        fx: Focal length in px to start from, with picks.
        fy_over_fx: fy/fx; not 1 where the video was squashed (DROID at 320x192: 1.0667).
        masks: The footage shows robot masks (white on black), not pictures.
        row_step: Rows of joint positions per frame of video (DROID: 3).
        frames: How many frames to use, evenly spaced; every third is held out for judging.
        fx_sigma: Relative uncertainty of the starting focal length; 0 keeps it.
        space: Action space, where the file does not say it.
        convention: Source convention of the gripper, where the file does not say it.
        fps: Rate of the joint positions, where the file does not say it.
        assets: Folder of robots, searched before KINEMA4D_ASSETS and pip packages.
        packages: Folders in which package:// paths are looked up.
        accept_bad: Write the camera even if the fit is not good; the file says so.
        overwrite: Replace an earlier file at OUT.
        json: Print one JSON object instead of a table.
    """
    from kinema4d.data.video import read_footage
    from kinema4d.files import whole_file
    from kinema4d.geometry.camera import load_camera
    from kinema4d.robot.action_files import load_actions
    from kinema4d.robot.actions import drive
    from kinema4d.robot.calibrate import calibrate as fit
    from kinema4d.robot.calibrate import calibration_to_dict
    from kinema4d.robot.pnp import intrinsics, load_picks
    from kinema4d.robot.zoo import load_robot

    if out.exists() and not overwrite:
        raise ValueError(f"{out} exists; pass --overwrite to replace it, or choose another path")
    if row_step < 1:
        raise ValueError(f"--row-step must be at least 1, got {row_step}")
    arm = load_robot(robot, assets=assets, packages=packages)
    moved = drive(arm, load_actions(actions, space=space, convention=convention, fps=fps)).trajectory
    images = read_footage(video)
    q = moved.q[::row_step]
    if len(q) != len(images):
        raise ValueError(
            f"{video} has {len(images)} frames, but {actions} gives {len(q)} states at --row-step {row_step} "
            f"({len(moved.q)} rows); they must agree"
        )
    height, width = images.shape[1:3]
    result = fit(
        arm,
        q,
        images[..., 0] > 127 if masks else images,
        initial=load_camera(camera) if camera else None,
        picks=load_picks(picks) if picks else None,
        K=intrinsics(fx, height=height, width=width, fy_over_fx=fy_over_fx) if fx else None,
        T_world_base=moved.T_world_base,
        fx_sigma=fx_sigma,
        max_frames=frames,
    )
    content = calibration_to_dict(result)
    if json:
        print(json_module.dumps(content))
    else:
        print(
            f"contour error  {result.fit.mean_px:.2f} px on {len(result.fit_frames)} fitted frames, {result.heldout.mean_px:.2f} px on {len(result.heldout_frames)} unseen ones ({result.heldout.below_2px:.0%} within 2 px)"
        )
        print(
            f"wrong states   {result.shuffled_px:.2f} px with states shuffled in time, {result.nudged_px:.2f} px with the camera turned by a few pixels"
        )
        print(
            f"repeatability  {result.split_mm:.1f} mm and {result.split_deg:.2f} degrees between two halves of the frames"
        )
        print(f"focal length   fx {result.camera.K[0, 0]:.1f} px, fy {result.camera.K[1, 1]:.1f} px")
    if not result.good and not accept_bad:
        raise ValueError(f"this fit is not good, and {out} was not written: {'; '.join(result.reasons)}")
    with whole_file(out, overwrite=overwrite) as part:
        part.write_text(json_module.dumps(content, indent=1))
    if not json:
        print(f"{'good' if result.good else 'NOT good'}: wrote {out}")
