"""Drive a robot arm through a pick-like motion and write what a camera would see of it in 4D.

python examples/01_control.py --out out/demo            # a Panda; --robot takes any zoo name or URDF
"""

from __future__ import annotations

import json
import os
import sys
import webbrowser
from pathlib import Path

import numpy as np
import tyro
from PIL import Image

import kinema4d as k4d
from kinema4d.geometry.camera import camera_to_dict
from kinema4d.geometry.se3 import euler_to_matrix, matrix_to_quaternion, transform
from kinema4d.viewer.html import export_html


def main(robot: str = "panda", frames: int = 49, fps: float = 10.0, out: Path = Path("out/demo")) -> None:
    arm = k4d.load_robot(robot)
    T_base_tool = k4d.forward_kinematics(arm, arm.home[None])[0, arm.link_index(arm.tool_link)]

    # Tool poses: reach sideways and down, close, lift and turn. (x, y, z) and yaw relative to home, and closedness.
    reach = float(np.linalg.norm(T_base_tool[:3, 3]))
    keys = np.array(
        [[0, 0, 0, 0, 0], [0.1, -0.25, -0.3, 0.6, 0], [0.1, -0.25, -0.3, 0.6, 1], [0.1, 0.3, 0.05, -0.5, 1]]
    )
    at = np.array([0, 0.42, 0.55, 1.0])
    s = np.linspace(0, 1, frames)
    path = np.stack([_smooth(s, at, keys[:, i]) for i in range(5)], axis=1)
    poses = transform(
        T_base_tool[:3, 3] + reach * path[:, :3],
        euler_to_matrix(np.stack([0 * s, 0 * s, path[:, 3]], axis=1)) @ T_base_tool[:3, :3],
    )
    out.mkdir(parents=True, exist_ok=True)
    actions = {"T": poses, "gripper": path[:, 4]}
    _write_actions(out / "actions.npz", actions, fps, arm)

    # A camera in front of the robot, a little above and to the side.
    middle = T_base_tool[:3, 3] * [0.45, 0, 0.75]
    camera = k4d.Camera(
        K=np.array([[620.0, 0, 359.5], [0, 620.0, 239.5], [0, 0, 1]]),
        T_world_camera=k4d.look_at(middle + reach * np.array([1.9, -1.25, 0.75]), middle),
        height=480,
        width=720,
    )
    (out / "camera.json").write_text(json.dumps(camera_to_dict(camera), indent=1))

    control = k4d.control(arm, k4d.load_actions(out / "actions.npz"), camera)
    k4d.save(control, out / "clip", overwrite=True)
    _contact_sheet(control).save(out / "preview.png")
    export_html(control, out / "view.html", robots=[arm])

    reached = int(control.arms[0].converged.sum())
    print(
        f"{arm.name}: {len(control)} frames of {camera.height}x{camera.width}, IK reached {reached} of {len(control)} poses"
    )
    print(f"look at    {out}/preview.png        (colour, depth and links)")
    print(f"open       {out}/view.html          (the 4D clip in a browser, no server needed)")
    print(f"or run     .venv/bin/kinema4d view {out}/clip")
    if sys.stdout.isatty() and (os.environ.get("DISPLAY") or sys.platform in ("darwin", "win32")):
        webbrowser.open((out / "view.html").resolve().as_uri())
    print(
        f"same from the shell: .venv/bin/kinema4d control --robot {robot} --actions {out}/actions.npz "
        f"--camera {out}/camera.json --out out/mine"
    )


def _smooth(s: np.ndarray, at: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Values at given times, joined with zero speed at each."""
    i = np.clip(np.searchsorted(at, s, side="right") - 1, 0, len(at) - 2)
    u = (s - at[i]) / (at[i + 1] - at[i])
    return values[i] + (values[i + 1] - values[i]) * u * u * (3 - 2 * u)


def _write_actions(path: Path, actions: dict[str, np.ndarray], fps: float, arm: k4d.Robot) -> None:
    quaternion = matrix_to_quaternion(actions["T"][:, :3, :3])
    content = {"ee_pose": np.hstack([actions["T"][:, :3, 3], quaternion]), "fps": fps, "q_start": arm.home}
    if arm.gripper is not None:
        content["gripper"] = actions["gripper"]
    np.savez(path, **content)


def _contact_sheet(control: k4d.Control, columns: int = 5) -> Image.Image:
    """Rows: colour, depth, link ids; columns: moments."""
    assert control.rgb is not None
    moments = np.linspace(0, len(control) - 1, columns).astype(int)
    z = control.pointmap.depth
    near, far = z[control.mask].min(), z[control.mask].max()
    hue = np.random.default_rng(3).integers(60, 255, (len(control.link_names) + 1, 3)).astype(np.uint8)
    hue[0] = 0
    rows = []
    for t in moments:
        mask = control.mask[t][..., None]
        depth = np.where(mask, (255 - 200 * (z[t] - near) / (far - near + 1e-9))[..., None], 0).astype(np.uint8)
        rows.append(np.concatenate([control.rgb[t], depth.repeat(3, axis=2), hue[control.link_ids[t]]])[::2, ::2])
    return Image.fromarray(np.concatenate(rows, axis=1))


if __name__ == "__main__":
    tyro.cli(main)
