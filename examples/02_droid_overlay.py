"""Does the projected robot sit on the real one? Overlays on DROID footage for the calibrated views.

    python examples/02_droid_overlay.py [--out out/droid_overlay] [--data FOLDER]

Writes, per view, an mp4 of the whole episode and a contact sheet, and prints the contour error. With --refit it
first refines the published camera on the footage and writes the result as a camera file with its report.
"""

from __future__ import annotations

import argparse
import colorsys
import json
import os
import sys
from fractions import Fraction
from pathlib import Path

import numpy as np
from PIL import Image

import kinema4d as k4d
from kinema4d.data.video import read_footage, write_h264
from kinema4d.geometry.camera import T_camera_world, load_camera
from kinema4d.geometry.raster import rasterize
from kinema4d.robot.calibrate import calibrate, calibration_to_dict
from kinema4d.robot.silhouette import Scene, contour_error, draw_outline, find_edges, robot_scene
from kinema4d.types import Camera

REPO = Path(__file__).resolve().parents[1]
SHEET = 6
"""Frames on a contact sheet."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("out/droid_overlay"))
    data = Path(os.environ.get("KINEMA4D_DATA") or REPO.parent / "shared/data")
    parser.add_argument("--data", type=Path, default=data)
    parser.add_argument("--refit", action="store_true", help="refine each camera on the footage first")
    args = parser.parse_args()
    calibrations = sorted((args.data / "droid/calib").glob("*.json"))
    if not calibrations:
        sys.exit(f"no calibrated DROID views in {args.data}/droid/calib; set KINEMA4D_DATA or --data to the data")
    args.out.mkdir(parents=True, exist_ok=True)
    robot = k4d.load_robot("panda_robotiq", assets=args.data / "robots")
    for path in calibrations:
        about, camera = json.loads(path.read_text()), load_camera(path)
        images, q = read_view(robot, args.data / "droid", about)
        held = np.array(about["heldout_frames"])
        if args.refit:
            result = calibrate(robot, q, images, initial=camera)
            camera, held = result.camera, np.array(result.heldout_frames)
            (args.out / f"{path.stem}.json").write_text(json.dumps(calibration_to_dict(result), indent=1))
            print(f"{path.stem}: refit {'good' if result.good else 'NOT good: ' + '; '.join(result.reasons)}")
        scene = robot_scene(robot, q)
        error = contour_error(find_edges(images[held]), scene.take(held), camera)
        print(
            f"{path.stem}: contour error {error.mean_px:.2f} px (median {error.median_px:.2f}, "
            f"{error.below_2px:.0%} below 2 px) on {len(held)} held-out frames"
        )
        frames = overlay(images, scene, camera)
        write_h264(args.out / f"{path.stem}.mp4", frames, Fraction(5))
        chosen = frames[held[np.linspace(0, len(held) - 1, SHEET).astype(int)]]
        sheet = np.concatenate([np.concatenate(list(chosen[i : i + 3]), axis=1) for i in range(0, SHEET, 3)])
        Image.fromarray(sheet).save(args.out / f"{path.stem}.png")
    print(f"wrote {args.out}/*.mp4 and *.png")


def read_view(robot: k4d.Robot, folder: Path, about: dict) -> tuple[np.ndarray, np.ndarray]:
    """Frames of one video and the robot state of each: rows are 15 Hz, frames 5 Hz."""
    images = read_footage(folder / about["video"])
    rows = json.loads((folder / f"annotation/{about['episode']}.json").read_text())
    states = k4d.Actions(
        space="joint_position",
        values=np.array(rows["observation.state.joint_position"]),
        gripper=np.ravel(rows["observation.state.gripper_position"]),
        fps=15.0,
        convention="droid",
    )
    return images, k4d.drive(robot, states).trajectory.q[::3]


def overlay(images: np.ndarray, scene: Scene, camera: Camera, scale: int = 2) -> np.ndarray:
    """The links in their colours over the (enlarged) video, and the outline in yellow."""
    images = images.repeat(scale, axis=1).repeat(scale, axis=2)
    camera = camera.resized(scale * camera.height, scale * camera.width)
    seen = rasterize(scene.surfaces, T_camera_world(camera, len(images))[:, None] @ scene.Ts_world_link, camera)
    links = scene.Ts_world_link.shape[1]
    palette = np.array([(0, 0, 0), *(colorsys.hsv_to_rgb(0.381966 * i % 1, 0.85, 1) for i in range(links))]) * 255
    out = np.where(seen.valid[..., None], 0.6 * images + 0.4 * palette[seen.ids], images).astype(np.uint8)
    outline = draw_outline(scene, camera, max_points=camera.height * camera.width)
    u, v = np.clip(outline.uv.round().astype(int), 0, [camera.width - 1, camera.height - 1]).T
    out[outline.frame, v, u] = (255, 255, 0)
    return out


if __name__ == "__main__":
    main()
