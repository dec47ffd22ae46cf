"""The command line: each command is a typed function; imports happen inside, so ``--help`` is quick."""

from __future__ import annotations

import json as json_module
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

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
    with _Clock(quiet=json) as clock:
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
        provenance = _provenance(
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


def view(
    clip: Annotated[Path, tyro.conf.Positional],
    /,
    *,
    port: int = 8080,
    host: str = "127.0.0.1",
    html: Path | None = None,
    assets: Path | None = None,
) -> None:
    """Show a clip in the browser: 4D point cloud, robot, camera, image, with a time slider.

    Args:
        clip: Folder that another command wrote.
        port: Port of the web page.
        host: Address to listen on; 0.0.0.0 for other machines.
        html: Write a self-contained page to this file instead of serving.
        assets: Folder of robots, searched before KINEMA4D_ASSETS and pip packages.
    """
    from kinema4d.data.store import load
    from kinema4d.robot.zoo import load_robot
    from kinema4d.viewer.html import export_html
    from kinema4d.viewer.view import view as show

    thing = load(clip)
    robots = []
    for arm in getattr(thing, "arms", ()):
        try:
            robots.append(load_robot(arm.robot, assets=assets))
        except ValueError as error:
            _warn(f"showing points without the robot's mesh: {error}")
            robots = []
            break
    if html is not None:
        export_html(thing, html, robots=robots)
        print(f"wrote {html}: open it in a browser")
        return
    show(thing, robots=robots, port=port, host=host)


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


def doctor(*, json: bool = False) -> None:
    """Say what is installed, what is missing and how to get it.

    Args:
        json: Print one JSON object instead of a table.
    """
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from kinema4d import __version__
    from kinema4d.doctor import examine

    findings = examine()
    if json:
        print(json_module.dumps({"version": __version__, "findings": [asdict(f) for f in findings]}, indent=1))
    else:
        table = Table(title=f"kinema4d {__version__}", title_justify="left", box=None, pad_edge=False)
        for column in ("", "what", "found", "to get it"):
            table.add_column(column, overflow="fold")
        for f in findings:
            table.add_row(
                "[green]ok[/]" if f.ok else "[yellow]--[/]", f.name, f.detail, "" if f.ok else escape(f.remedy)
            )
        Console().print(table)
    if any(f.group in ("system", "core") and not f.ok for f in findings):
        raise SystemExit(1)


def export(
    clip: Annotated[Path, tyro.conf.Positional],
    /,
    *,
    format: Literal["pointmap-mp4", "ply", "rrd"],
    out: Path,
    overwrite: bool = False,
) -> None:
    """Convert a clip for other programs.

    Args:
        clip: Folder that another command wrote.
        format: The paper's pseudo-RGB pointmap video, a PLY file per frame, or a rerun recording.
        out: File (pointmap-mp4, rrd) or folder (ply) to write.
        overwrite: Replace what is there.
    """
    from kinema4d.data.export import export as write
    from kinema4d.data.store import load

    thing = load(clip)
    written = write(getattr(thing, "clip", thing), format, out, overwrite=overwrite)
    print(
        f"wrote {len(written)} file{'s' if len(written) > 1 else ''}: {written[0]}{' ...' if len(written) > 1 else ''}"
    )


COMMANDS: dict[str, Any] = {
    "control": control,
    "view": view,
    "calibrate": calibrate,
    "doctor": doctor,
    "data": {"export": export},
}
"""Every command; a dict is a group of commands."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point: errors of the user's making are one line on stderr and exit code 2."""
    try:
        _app(COMMANDS).cli(prog="kinema4d", args=arguments)
    except ValueError as error:
        print(f"kinema4d: error: {' '.join(str(error).split())}", file=sys.stderr)
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None


def _app(commands: Mapping[str, Any]) -> tyro.extras.SubcommandApp:
    app = tyro.extras.SubcommandApp()
    for name, command in commands.items():
        app.command(_app(command) if isinstance(command, dict) else command, name=name)
    return app


class _Clock:
    """Wall time by stage, and a sign of life on a terminal."""

    def __init__(self, *, quiet: bool) -> None:
        from rich.console import Console

        self.seconds: dict[str, float] = {}
        self.last = time.perf_counter()
        console = Console(stderr=True)
        self.status = None if quiet or not console.is_terminal else console.status("starting")

    def say(self, text: str) -> None:
        if self.status is not None:
            self.status.update(text)
            self.status.start()

    def __enter__(self) -> _Clock:
        return self

    def __exit__(self, *_: object) -> None:
        if self.status is not None:
            self.status.stop()

    def lap(self, stage: str) -> None:
        now = time.perf_counter()
        self.seconds[stage] = self.seconds.get(stage, 0.0) + now - self.last
        self.last = now


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


def _provenance(command: str, values: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """The configuration of a run, to lie beside its output."""
    config = {n: [str(v) for v in values[n]] if isinstance(values[n], tuple) else values[n] for n in names}
    return {"command": command, "config": config}


def _summary(
    robots: Sequence[Robot], signals: Sequence[Control], folders: Sequence[Path], clock: _Clock
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
            _warn(
                f"{a['robot']} did not reach {a['frames'] - a['reached']} of {a['frames']} frames ({off}), first at frame {a['first_missed']}; the nearest pose is rendered"
            )
    for c in summary["clips"]:
        if c["frames_without_robot"]:
            _warn(f"{c['out']}: the robot is out of view in {c['frames_without_robot']} of {c['frames']} frames")


def _warn(text: str) -> None:
    print(f"kinema4d: warning: {text}", file=sys.stderr)


if __name__ == "__main__":
    main()
