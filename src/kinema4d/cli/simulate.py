"""``kinema4d simulate``: the first image, a robot and its actions go in, the future comes out as a 4D clip."""

from __future__ import annotations

import json as json_module
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from kinema4d.cli.console import Clock, warn
from kinema4d.cli.console import provenance as record
from kinema4d.world.wan.options import Sampling, Setup, processes

if TYPE_CHECKING:
    import numpy as np

    from kinema4d.types import Control, Episode, Rollout

SETUP, SAMPLING = Setup(), Sampling()


def simulate(
    *,
    out: Path,
    image: Path | None = None,
    depth: Path | None = None,
    depth_unit: float | None = None,
    robot: tuple[str, ...] = (),
    actions: tuple[Path, ...] = (),
    camera: Path | None = None,
    episode: Path | None = None,
    compare: bool = False,
    predict_depth: bool = False,
    parts: Path | None = None,
    support: float | None = None,
    world: str = "small",
    mover: Literal["engine", "flow"] | None = None,
    painter: Path | None = None,
    weights: Path | None = None,
    adapter: Path | None = None,
    wan: Setup = SETUP,
    sampling: Sampling = SAMPLING,
    steps: int | None = None,
    text: str | None = None,
    seed: int = 0,
    samples: int = 1,
    chunk: int | None = None,
    base: tuple[str, ...] = (),
    space: Literal["joint_position", "joint_velocity", "ee_pose", "ee_delta"] | None = None,
    convention: str | None = None,
    fps: float | None = None,
    tool_link: str | None = None,
    assets: Path | None = None,
    packages: tuple[Path, ...] = (),
    overwrite: bool = False,
    json: bool = False,
) -> None:
    """Simulate the future of an image under a robot's actions and write it as a 4D clip.

    Args:
        out: Folder to write.
        image: First image (png or jpg), as large as the camera says.
        depth: Its depth: a 16-bit png (millimetres) or an npy file (metres). Without it depth is predicted.
        depth_unit: Metres per unit of the depth file, where it is another.
        robot: Zoo name, or path to a URDF or MJCF file; several for several arms.
        actions: npz, json, csv or parquet; one per robot.
        camera: Camera json.
        episode: Instead of all that: an episode of a data set, DATASET/ID or DATASET/NUMBER.
        compare: With --episode: print metrics beside the static world, and write a contact sheet beside the truth.
        predict_depth: With --episode: do not use its depth.
        parts: Label image (png, 0 = nothing) that says which pixels are one part, e.g. from SAM.
        support: Height of the table in the world, metres, where it is known.
        world: static, small, small-motion (unpainted), small-direct (the diffusion transformer alone), wan (the paper's own model),
            or a .safetensors file of small or small-direct.
        mover: Who moves the parts: the rigid-body engine alone, or the learned flow that corrects it; default is the flow
            where the weights have one.
        painter: Network that corrects what small draws (kinema4d train --preset small-paint).
        weights: Of the world wan: the folder of Wan2.1-I2V-14B-480P as diffusers has it.
        adapter: Of the world wan: folder of a LoRA and what goes with it (Kinema4D's release, 4DNeX, or of your own training).
        wan: How the world wan is put on this machine.
        sampling: How the world wan is sampled.
        steps: Of the flow of small-direct, default 2.
        text: Instruction, for a small-direct that is told by text; default that of the episode.
        seed: Of what a picture does not tell.
        samples: More than one: draw that many futures, seeds SEED, SEED + 1, ..., into folders of their own.
        chunk: Longest piece in frames; the next goes on from its last frame.
        base: Where each robot stands, "x,y,z,yaw" in metres and degrees; overrides the action file.
        space: Action space, where the file does not say it.
        convention: Source convention, where the file does not say it.
        fps: Rate of the actions, where the file does not say it.
        tool_link: Link that end-effector actions speak about.
        assets: Folder of robots, searched before KINEMA4D_ASSETS and pip packages.
        packages: Folders in which package:// paths are looked up.
        overwrite: Replace an earlier clip at OUT.
        json: Print one JSON object instead of a table.
    """
    from kinema4d.data.store import save
    from kinema4d.simulate.long import rollout
    from kinema4d.world.load import load_world

    if out.exists() and not overwrite:
        raise ValueError(f"{out} exists; pass --overwrite to replace it, or choose another path")
    if samples < 1:
        raise ValueError(f"--samples must be at least 1, got {samples}")
    if compare and episode is None:
        raise ValueError("--compare needs a truth: give --episode DATASET/ID")
    with Clock(quiet=json) as clock:
        clock.say("loading")
        truth = None
        if episode is not None:
            if image or robot or actions or camera or depth:
                raise ValueError("--episode brings its own image, depth, robot, actions and camera: leave those out")
            truth = _episode(episode)
            picture, signal, measured = _from_episode(truth, predict_depth)
        else:
            picture, signal, measured = _from_files(
                image, depth, depth_unit, robot, actions, camera, base,
                {"space": space, "convention": convention, "fps": fps, "tool_link": tool_link}, assets, packages,
            )  # fmt: skip
        if samples > 1 and world == "static":
            raise ValueError("the static world has only one future: leave out --samples")
        maker = load_world(world, painter=painter, weights=weights, adapter=adapter, setup=wan, sampling=sampling)
        sees = hasattr(maker, "see")  # worlds of parts; the others know only pixels
        if not sees and (mover is not None or parts is not None or support is not None):
            raise ValueError(
                f"the world {maker.name} moves no parts: leave out --mover, --parts and --support, or use --world small"
            )
        flows = hasattr(maker, "net")  # worlds that are sampled by a flow
        if not flows and (steps is not None or text is not None):
            raise ValueError(
                f"--steps and --text are for small-direct, not for {maker.name} (wan has --sampling.steps)"
            )
        options: dict[str, Any] = {"support": support} if sees else {}
        if flows:
            options = {"text": text if text is not None else truth.text if truth is not None else ""}
            options |= {} if steps is None else {"steps": steps}
        if parts is not None:
            options["labels"] = _labels(parts)
        clock.lap("load")
        clock.say("simulating (the first run on a machine compiles for about 20 s)")
        names = ("image", "depth", "robot", "actions", "camera", "episode", "parts", "support", "world", "mover", "painter", "weights", "adapter", "steps", "text", "seed", "samples", "chunk")  # fmt: skip
        config = record("simulate", locals(), names)["config"]
        config = {k: str(v) if isinstance(v, Path) else v for k, v in config.items()}
        made: list[tuple[Path, Rollout]] = []
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always")
            if samples > 1 and sees:
                options["seen"] = maker.see(picture, signal, depth=measured, **options)  # pyright: ignore[reportAttributeAccessIssue]
                options.pop("labels", None)
                options.pop("support", None)
            more: dict[str, Any] = {"sample": True} if samples > 1 and sees else {}
            if mover is not None:
                more["mover"] = mover
            for n in range(samples):
                result = rollout(
                    maker, picture, signal, depth=measured, seed=seed + n, longest=chunk, **options, **more
                )
                made.append((out if samples == 1 else out / f"sample-{n:03d}", result))
        for text in dict.fromkeys(str(w.message) for w in heard if w.category.__name__ == "SmallWorldWarning"):
            warn(text)
        clock.lap("simulate")
        if processes()[0]:
            return  # under torchrun all processes share one clip; the first writes it
        clock.say("writing")
        for folder, result in made:
            said = _named(result, truth)
            save(said, folder, provenance={"config": config}, overwrite=overwrite)
        clock.lap("write")
        scores = None
        if compare and truth is not None:
            clock.say("comparing")
            scores = _compared(made[0][1], truth, out)
            clock.lap("compare")
    _report(made, clock, scores, json)


def _from_files(
    image: Path | None, depth: Path | None, unit: float | None, robot: tuple[str, ...], actions: tuple[Path, ...],
    camera: Path | None, base: tuple[str, ...], options: dict[str, Any], assets: Path | None, packages: tuple[Path, ...],
) -> tuple[np.ndarray, Control, np.ndarray | None]:  # fmt: skip
    from dataclasses import replace

    from kinema4d.cli.control import _base
    from kinema4d.geometry.camera import load_camera
    from kinema4d.robot.action_files import load_actions
    from kinema4d.robot.control import control
    from kinema4d.robot.zoo import load_robot

    missing = [
        n for n, v in {"--image": image, "--robot": robot, "--actions": actions, "--camera": camera}.items() if not v
    ]
    if missing:
        raise ValueError(f"give {', '.join(missing)}, or an --episode")
    assert image is not None
    assert camera is not None
    if len(actions) != len(robot) or (base and len(base) != len(robot)):
        raise ValueError(
            f"{len(robot)} robots need as many action files (got {len(actions)}) and bases (got {len(base)})"
        )
    picture = _picture(image)
    measured = None if depth is None else _depth(depth, unit)
    robots = [load_robot(r, assets=assets, packages=packages, tool_link=options["tool_link"]) for r in robot]
    sequences = [load_actions(a, **options) for a in actions]
    if base:
        sequences = [replace(s, T_world_base=_base(b)) for s, b in zip(sequences, base, strict=True)]
    seen = load_camera(camera)
    if picture.shape[:2] != (seen.height, seen.width):
        h, w = picture.shape[:2]
        same = abs(h / w - seen.height / seen.width) < 0.01
        hint = (
            f"resize the image, or the camera's K and size by {h / seen.height:.3g}"
            if same
            else "its aspect is another too: crop the image as the camera says"
        )
        raise ValueError(
            f"{image} is {h}x{w} pixels (height x width) but {camera} says {seen.height}x{seen.width}: {hint}"
        )
    return picture, control(robots, sequences, seen), measured


def _picture(path: Path) -> np.ndarray:
    import numpy as np
    from PIL import Image, UnidentifiedImageError

    try:
        return np.asarray(Image.open(path).convert("RGB"))
    except (OSError, UnidentifiedImageError) as error:
        raise ValueError(f"{path} is no readable image: {error}") from None


def _depth(path: Path, unit: float | None) -> np.ndarray:
    """Metres from a 16-bit png in millimetres or a float array in metres."""
    import numpy as np
    from PIL import Image, UnidentifiedImageError

    try:
        if path.suffix == ".npy":
            values = np.load(path, allow_pickle=False)
        else:
            values = np.asarray(Image.open(path))
    except (OSError, ValueError, UnidentifiedImageError) as error:
        raise ValueError(f"{path} is no readable depth image: {error}") from None
    if values.ndim != 2:
        raise ValueError(f"{path} has {values.ndim} dimensions, depth needs one value per pixel")
    if values.dtype == np.uint8:
        raise ValueError(f"{path} has 8 bits per pixel: that is a picture of depth, not depth; give 16-bit png or npy")
    if unit is None:
        unit = 1.0 if values.dtype.kind == "f" else 0.001
    return np.nan_to_num(values.astype(np.float32) * unit, nan=0.0, posinf=0.0, neginf=0.0)


def _labels(path: Path) -> np.ndarray:
    import numpy as np
    from PIL import Image, UnidentifiedImageError

    try:
        values = np.asarray(Image.open(path))
    except (OSError, UnidentifiedImageError) as error:
        raise ValueError(f"{path} is no readable label image: {error}") from None
    if values.ndim != 2:
        raise ValueError(f"{path} must have one label per pixel (a grey or palette png), got shape {values.shape}")
    kinds, flat = np.unique(values, return_inverse=True)
    if len(kinds) > 256:
        raise ValueError(f"{path} has {len(kinds)} different labels, at most 255 parts are allowed")
    return (flat.reshape(values.shape) + (0 if kinds[0] == 0 else 1)).astype(np.int32)


def _episode(path: Path) -> Episode:
    """DATASET/ID or DATASET/NUMBER."""
    from kinema4d.data.dataset import open_dataset

    dataset = open_dataset(path.parent)
    ids = [row.id for row in dataset.rows]
    name = path.name
    if name not in ids and name.isdigit() and int(name) < len(ids):
        name = ids[int(name)]
    if name not in ids:
        raise ValueError(
            f"{path.parent} has no episode {path.name!r}; it has {len(ids)}, from {ids[0]} (0) to {ids[-1]}"
        )
    return dataset.load(name)


def _from_episode(truth: Episode, predict: bool) -> tuple[np.ndarray, Control, np.ndarray | None]:
    from kinema4d.evaluate.foretell import control_of
    from kinema4d.world.protocol import first_depth

    return truth.clip.rgb[0], control_of(truth), None if predict else first_depth(truth.clip)


def _named(result: Rollout, truth: Episode | None) -> Rollout:
    from dataclasses import replace

    from kinema4d.evaluate.foretell import named_like

    return result if truth is None else replace(result, tracks=named_like(result.tracks, truth))


SHOWN = ("psnr", "ssim", "changed_psnr_db", "cd_l1", "f_score", "object_error_m", "object_error_m_said", "false_motion_m", "outcome_right")  # fmt: skip
"""What --compare prints, where it applies."""


def _compared(result: Rollout, truth: Episode, out: Path) -> dict[str, dict[str, Any]]:
    from kinema4d.evaluate.judge import Settings, score, static_rollout
    from kinema4d.evaluate.pictures import jpeg, sheet
    from kinema4d.evaluate.score import NA, Pair
    from kinema4d.files import whole_file

    settings = Settings(metrics=("video", "geometry", "interaction"))
    result = _named(result, truth)
    still = static_rollout(truth)
    found: dict[str, dict[str, Any]] = {}
    for name, made in {"prediction": result, "static": still}.items():
        if isinstance(made, NA):
            continue
        scores, _, _ = score(Pair(predicted=made.clip, truth=truth, tracks=made.tracks), settings)
        found[name] = {k: v.reason if isinstance(v, NA) else round(float(v), 5) for k, v in scores.items()}
    with whole_file(out / "compare.jpg", overwrite=True) as file:
        file.write_bytes(jpeg(sheet(result.clip, truth.clip)))
    return found


def _report(
    made: list[tuple[Path, Rollout]], clock: Clock, scores: dict[str, dict[str, Any]] | None, json: bool
) -> None:
    first = made[0][1]
    clip = first.clip
    summary: dict[str, Any] = {
        "out": [str(folder) for folder, _ in made],
        "frames": len(clip),
        "height": clip.camera.height,
        "width": clip.camera.width,
        "fps": clip.fps,
        "provenance": dict(first.provenance),
        "seconds": {k: round(v, 3) for k, v in clock.seconds.items()},
    }
    if scores is not None:
        summary["scores"] = scores
    if json:
        print(json_module.dumps(summary))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_row(
        "clip", f"{made[0][0]}: {len(clip)} frames of {clip.camera.height}x{clip.camera.width} at {clip.fps:g} fps"
    )
    if len(made) > 1:
        table.add_row("samples", f"{len(made)}, {made[0][0].name} to {made[-1][0].name}")
    said = first.provenance
    if "parts" in said:
        parts = said["parts"]
        moved = [p["name"] for p in parts if p["moved"]]
        table.add_row(
            "parts", f"{len(parts)} near the robot, {len(moved)} moved" + (f": {', '.join(moved)}" if moved else "")
        )
        table.add_row("depth", f"{said['depth']}, table at {said['support_m']:g} m")
    table.add_row("time", ", ".join(f"{k} {v:.2f} s" for k, v in clock.seconds.items()))
    table.add_row("look", f"kinema4d view {made[0][0]}")
    console = Console(soft_wrap=True)
    console.print(table, highlight=False)
    if scores is not None:
        grid = Table(box=None, pad_edge=False)
        grid.add_column("")
        for name in scores:
            grid.add_column(name, justify="right")
        for key in SHOWN:
            if any(key in s for s in scores.values()):
                grid.add_row(key, *(str(s.get(key, "")) for s in scores.values()))
        console.print(grid, highlight=False)
        console.print(f"truth above, prediction below: {made[0][0] / 'compare.jpg'}", highlight=False)
