"""``kinema4d control``: drive robots and write what cameras see of them."""

from __future__ import annotations

import json as json_module
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from kinema4d.cli.console import Clock, warn
from kinema4d.cli.console import provenance as record

if TYPE_CHECKING:
    from kinema4d.robot.model import Robot
    from kinema4d.types import Control


def control(
    *,
    robot: tuple[str, ...],
    actions: tuple[Path, ...],
    camera: tuple[Path, ...],
    out: Path,
    base: tuple[str, ...] = (),
    space: Literal["joint_position", "joint_velocity", "ee_pose", "ee_delta"] | None = None,
    convention: str | None = None,
    fps: float | None = None,
    tool_link: str | None = None,
    gripper: tuple[str, ...] = (),
    height: int | None = None,
    width: int | None = None,
    rgb: bool = True,
    assets: Path | None = None,
    packages: tuple[Path, ...] = (),
    overwrite: bool = False,
    json: bool = False,
) -> None:
    """Drive robots with actions and write the 4D control clip that a camera sees.

    Args:
        robot: Zoo name, or path to a URDF or MJCF file; several for several arms.
        actions: npz, json, csv or parquet; one per robot.
        camera: Camera json; with several, each gets a folder inside OUT named after its file.
        out: Folder to write.
        base: Where each robot stands, "x,y,z,yaw" in metres and degrees; overrides the action file.
        space: Action space, where the file does not say it.
        convention: Source convention (kinema4d, droid, bridge, rt1, libero, ...), where the file does not say it.
        fps: Rate of the actions, where the file does not say it.
        tool_link: Link that end-effector actions speak about; default is the convention's or the robot's own.
        gripper: Fingers of a robot that is not in the zoo, "joint:open:closed" each, e.g. finger_joint:0:0.8.
        height: Render at this height instead of the camera's.
        width: Render at this width instead of the camera's.
        rgb: Also render shaded colour.
        assets: Folder of robots, searched before KINEMA4D_ASSETS and pip packages.
        packages: Folders in which package:// paths are looked up.
        overwrite: Replace an earlier clip at OUT.
        json: Print one JSON object instead of a table.
    """
    from dataclasses import replace

    from kinema4d.data.store import save
    from kinema4d.geometry.camera import load_camera
    from kinema4d.robot.action_files import load_actions
    from kinema4d.robot.actions import drive
    from kinema4d.robot.control import project, robot_surfaces
    from kinema4d.robot.zoo import load_robot

    if len(actions) != len(robot) or (base and len(base) != len(robot)):
        raise ValueError(
            f"{len(robot)} robots need as many action files (got {len(actions)}) and bases (got {len(base)})"
        )
    if len({c.stem for c in camera}) != len(camera):
        raise ValueError(f"camera files must have different names, got {', '.join(c.name for c in camera)}")
    folders = [out] if len(camera) == 1 else [out / c.stem for c in camera]
    for folder in folders:
        if folder.exists() and not overwrite:  # before any work, and before any of several folders is written
            raise ValueError(f"{folder} exists; pass --overwrite to replace it, or choose another path")
    with Clock(quiet=json) as clock:
        clock.say("loading robots")
        fingers = _gripper(gripper)
        robots = [load_robot(r, assets=assets, packages=packages, tool_link=tool_link, gripper=fingers) for r in robot]
        cameras = [load_camera(c) for c in camera]
        if height or width:
            cameras = [c.resized(height or c.height, width or c.width) for c in cameras]
        options = {"space": space, "convention": convention, "fps": fps, "tool_link": tool_link}
        sequences = [load_actions(a, **options) for a in actions]
        sequences = (
            [replace(s, T_world_base=_base(b)) for s, b in zip(sequences, base, strict=True)] if base else sequences
        )
        clock.lap("load")
        clock.say("driving robots (the first run on a machine compiles for about 20 s)")
        arms = [drive(r, s) for r, s in zip(robots, sequences, strict=True)]
        clock.lap("kinematics")
        surfaces = robot_surfaces(robots)
        clock.lap("load")
        provenance = record(
            "control",
            locals(),
            ("robot", "actions", "camera", "base", "space", "convention", "fps", "tool_link", "gripper"),
        )
        clock.say("rasterising")
        signals = [project(robots, arms, seen, rgb=rgb, surfaces=surfaces) for seen in cameras]
        clock.lap("raster")
        clock.say("writing")
        for signal, folder in zip(signals, folders, strict=True):
            save(signal, folder, provenance=provenance, overwrite=overwrite)
        clock.lap("write")
    _report(_summary(robots, signals, folders, clock), json)


def _gripper(texts: Sequence[str]) -> Any:
    from kinema4d.robot.model import Gripper

    if not texts:
        return None
    try:
        parts = [text.split(":") for text in texts]
        joints, opened, closed = zip(*((j, float(a), float(b)) for j, a, b in parts), strict=True)
    except ValueError:
        raise ValueError(f'--gripper takes "joint:open:closed" for each finger joint, got {" ".join(texts)}') from None
    return Gripper(joints=joints, open=opened, closed=closed)


def _base(text: str) -> Any:
    import math

    from kinema4d.geometry.se3 import place

    try:
        x, y, z, yaw = (float(part) for part in text.split(","))
    except ValueError:
        raise ValueError(f'--base takes "x,y,z,yaw" in metres and degrees, got {text!r}') from None
    return place(x, y, z, yaw=math.radians(yaw))


def _summary(
    robots: Sequence[Robot], signals: Sequence[Control], folders: Sequence[Path], clock: Clock
) -> dict[str, Any]:
    arms = [
        {
            "robot": r.name,
            "dof": r.dof,
            "frames": len(a.converged),
            "reached": int(a.converged.sum()),
            "worst_m": float(a.residual_m.max()),
            "worst_rad": float(a.residual_rad.max()),
            "first_missed": None if a.converged.all() else int((~a.converged).argmax()),
        }
        for r, a in zip(robots, signals[0].arms, strict=True)
    ]
    clips = [
        {
            "out": str(folder),
            "frames": len(s),
            "height": s.camera.height,
            "width": s.camera.width,
            "fps": s.fps,
            "robot_share": float(s.mask.mean()),
            "frames_without_robot": int((~s.mask.any(axis=(1, 2))).sum()),
        }
        for s, folder in zip(signals, folders, strict=True)
    ]
    return {"arms": arms, "clips": clips, "seconds": {k: round(v, 3) for k, v in clock.seconds.items()}}


def _report(summary: dict[str, Any], json: bool) -> None:
    if json:
        print(json_module.dumps(summary))
    else:
        from rich.console import Console
        from rich.table import Table

        table = Table(box=None, show_header=False, pad_edge=False)
        for a in summary["arms"]:
            table.add_row("robot", f"{a['robot']}, {a['dof']} joints, reached {a['reached']} of {a['frames']} frames")
        for c in summary["clips"]:
            size = f"{c['frames']} frames of {c['height']}x{c['width']} at {c['fps']:g} fps"
            table.add_row("clip", f"{c['out']}: {size}, robot on {100 * c['robot_share']:.1f} % of pixels")
        table.add_row("time", ", ".join(f"{k} {v:.2f} s" for k, v in summary["seconds"].items()))
        table.add_row("look", f"kinema4d view {summary['clips'][0]['out']}")
        Console(soft_wrap=True).print(table, highlight=False)
    for a in summary["arms"]:
        if a["first_missed"] is not None:
            off = (
                f"worst {1e3 * a['worst_m']:.1f} mm, {a['worst_rad']:.3f} rad"
                if a["worst_m"] or a["worst_rad"]
                else "a joint limit was met"
            )
            warn(
                f"{a['robot']} did not reach {a['frames'] - a['reached']} of {a['frames']} frames ({off}), first at frame {a['first_missed']}; the nearest pose is rendered"
            )
    for c in summary["clips"]:
        if c["frames_without_robot"]:
            warn(f"{c['out']}: the robot is out of view in {c['frames_without_robot']} of {c['frames']} frames")
