"""Simulate the future: a first image, its depth, a robot and its actions go in, a 4D clip comes out.

python examples/04_simulate.py --out out/demo           # a Panda picks something up; physics knows the truth

The scene is one of our simulated ones, so that what really happens is known and can be shown beside it. The world sees
only the first frame.
"""

from __future__ import annotations

import json
import os
import sys
import time
import webbrowser
from pathlib import Path

import numpy as np
import tyro
from PIL import Image

import kinema4d as k4d
from kinema4d.evaluate.foretell import named_like
from kinema4d.evaluate.pictures import jpeg, sheet
from kinema4d.geometry.camera import camera_to_dict
from kinema4d.scenes.episode import Wish, perform, record, set_stage
from kinema4d.viewer.html import export_html
from kinema4d.world.protocol import first_depth


def main(
    robot: str = "panda",
    task: str = "stack",
    seed: int = 3,
    height: int = 480,
    width: int = 720,
    world: str = "small",
    out: Path = Path("out/demo"),
) -> None:
    out.mkdir(parents=True, exist_ok=True)
    arm = k4d.load_robot(robot)
    print(f"setting a table for {robot}: {task} (the first run on a machine compiles for about half a minute)")
    stage = set_stage(arm, Wish(task=task, seed=seed, height=height, width=width))
    truth = record(stage, perform(stage), source=f"demo/{task}", facts={})

    # What a user would bring: an image, its depth in millimetres, joint positions, a camera.
    image, depth, path = truth.clip.rgb[0], first_depth(truth.clip), truth.arms[0].trajectory
    assert depth is not None
    Image.fromarray(image).save(out / "first.png")
    Image.fromarray(np.round(1000 * depth).astype(np.uint16)).save(out / "first_depth.png")
    np.savez(out / "actions.npz", joint_position=path.q, fps=path.fps, T_world_base=path.T_world_base)
    (out / "camera.json").write_text(json.dumps(camera_to_dict(truth.clip.camera), indent=1))

    simulator = k4d.load_world(world)
    actions, camera = k4d.load_actions(out / "actions.npz"), k4d.load_camera(out / "camera.json")
    begin = time.perf_counter()
    control = k4d.control(arm, actions, camera)
    rollout = simulator.simulate(image, control, depth=depth)
    seconds = time.perf_counter() - begin
    k4d.save(rollout, out / "clip", overwrite=True)
    (out / "compare.jpg").write_bytes(jpeg(sheet(rollout.clip, truth.clip)))
    export_html(rollout, out / "view.html", control=control, robots=[arm])

    clip = rollout.clip
    print(
        f"{truth.text}: {len(clip)} frames of {clip.camera.height}x{clip.camera.width} ({len(clip) / clip.fps:.1f} s of time) in {seconds:.1f} s"
    )
    for name, true, said in _ends(truth, named_like(rollout.tracks, truth)):
        print(
            f"  the {name.split('/')[0]} went {100 * np.linalg.norm(true[-1] - true[0]):.1f} cm; foretold {100 * np.linalg.norm(said[-1] - true[-1]):.1f} cm from there"
        )
    print(f"look at    {out}/compare.jpg        (truth above, simulated below, difference)")
    print(f"open       {out}/view.html          (the 4D clip in a browser, no server needed)")
    print(f"or run     .venv/bin/kinema4d view {out}/clip")
    print(
        f"same from the shell: .venv/bin/kinema4d simulate --image {out}/first.png --depth {out}/first_depth.png "
        f"--robot {robot} --actions {out}/actions.npz --camera {out}/camera.json --out out/mine"
    )
    if sys.stdout.isatty() and (os.environ.get("DISPLAY") or sys.platform in ("darwin", "win32")):
        webbrowser.open((out / "view.html").resolve().as_uri())


def _ends(truth: k4d.Episode, tracks: tuple) -> list[tuple[str, np.ndarray, np.ndarray]]:
    """Name, true path and foretold path of the middle of everything that moved."""
    said = {t.name: t.Ts_world_object for t in tracks}
    out = []
    for track in truth.tracks:
        if track.vertices is None or track.name not in said:
            continue
        middle = track.vertices.mean(axis=0)
        true, told = (Ts[:, :3, :3] @ middle + Ts[:, :3, 3] for Ts in (track.Ts_world_object, said[track.name]))
        if np.linalg.norm(true - true[0], axis=1).max() > 0.01:
            out.append((track.name, true, told))
    return out


if __name__ == "__main__":
    tyro.cli(main)
