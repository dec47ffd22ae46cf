"""``kinema4d data annotate``: robot masks, pointmaps and captions for episodes that came without."""

from __future__ import annotations

import json as json_module
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from kinema4d.cli.console import provenance as record
from kinema4d.cli.console import warn

if TYPE_CHECKING:
    from kinema4d.data.annotate.stages import MaskStage, PointmapStage, TextStage


def annotate(
    dataset: Annotated[Path, tyro.conf.Positional],
    /,
    *,
    out: Path,
    mask: Literal["kinematic", "command", "sam2"] | None = None,
    mask_command: str | None = None,
    sam2_config: str | None = None,
    sam2_checkpoint: Path | None = None,
    pointmap: Literal["command", "vggt"] | None = None,
    pointmap_command: str | None = None,
    pointmap_metric: bool = False,
    vggt_weights: Path | None = None,
    min_conf: float = 0.0,
    align: Literal["auto", "scale", "affine", "disparity", "none"] = "auto",
    align_per_frame: bool = False,
    captions_url: str | None = None,
    captions_model: str | None = None,
    captions_key_env: str | None = None,
    captions_frames: int = 8,
    timeout: float = 3600.0,
    json: bool = False,
) -> None:
    """Annotate every episode of a data set and write a new data set with the same ids.

    Run again to go on after an interruption: episodes that OUT has already are skipped.

    Args:
        dataset: Data set to read.
        out: Data set to write.
        mask: Robot mask from joints, URDF and camera (kinematic), from your own program (command), or from SAM2.
        mask_command: Program for --mask command, e.g. "python my_sam2.py {frames} {out}"; {prompts} is a JSON file.
        sam2_config: SAM2 configuration, e.g. configs/sam2.1/sam2.1_hiera_s.yaml.
        sam2_checkpoint: SAM2 weights.
        pointmap: Geometry from your own program (command) or from VGGT.
        pointmap_command: Program for --pointmap command, e.g. "python my_depth.py {frames} {out}"; OUT is an npz.
        pointmap_metric: The program's output is in metres.
        vggt_weights: Folder of VGGT weights.
        min_conf: Drop points of lower confidence.
        align: Fit the pointmap to the robot: scale, scale and shift of depth (affine) or of inverse depth (disparity),
            or not at all (none). Auto is scale, or none with --pointmap-metric.
        align_per_frame: One fit per frame instead of one per episode.
        captions_url: OpenAI-compatible server, e.g. http://localhost:8000/v1.
        captions_model: Model that the server knows.
        captions_key_env: Environment variable that holds the API key.
        captions_frames: Frames shown for the caption of the whole episode.
        timeout: Longest run of a program on one episode, in seconds.
        json: Print one JSON object instead of text.
    """
    from kinema4d.data.annotate.stages import Scaling, plan

    _no_stray("--mask command", mask == "command", required={"--mask-command": mask_command})
    sam2 = {"--sam2-config": sam2_config, "--sam2-checkpoint": sam2_checkpoint}
    _no_stray("--mask sam2", mask == "sam2", required=sam2)
    _no_stray("--pointmap command", pointmap == "command", required={"--pointmap-command": pointmap_command})
    _no_stray("--pointmap command", pointmap == "command", optional={"--pointmap-metric": pointmap_metric})
    _no_stray("--pointmap vggt", pointmap == "vggt", required={"--vggt-weights": vggt_weights})
    fitted = {"--align": align != "auto", "--align-per-frame": align_per_frame, "--min-conf": min_conf}
    _no_stray("--pointmap", pointmap is not None, optional=fitted)
    asked = captions_url is not None
    _no_stray("--captions-url", asked, required={"--captions-model": captions_model})
    _no_stray("--captions-url", asked, optional={"--captions-key-env": captions_key_env})
    method = align
    if method == "auto":
        method = "none" if pointmap is None or pointmap_metric else "scale"
    stages: dict[str, Any] = {
        "mask": _mask_stage(mask, mask_command, sam2_config, sam2_checkpoint, timeout),
        "pointmap": _pointmap_stage(pointmap, pointmap_command, pointmap_metric, vggt_weights, min_conf, timeout),
        "text": _text_stage(captions_url, captions_model, captions_key_env, captions_frames),
        "scaling": Scaling(method=method, per_frame=align_per_frame),
    }
    planned = plan(**stages)
    if not planned:
        raise ValueError("there is nothing to do: give at least one of --mask, --pointmap and --captions-url")
    config = {"dataset": str(dataset), "out": str(out), "stages": planned}
    summary = _run(dataset, out, stages, planned, record("data annotate", config, tuple(config)), quiet=json)
    _report(summary, out, json)


def _no_stray(
    option: str,
    given: bool,
    *,
    required: Mapping[str, Any] | None = None,
    optional: Mapping[str, Any] | None = None,
) -> None:
    """Options that belong to another one are given with it, and only with it."""
    for name, value in (required or {}).items():
        if given and value is None:
            raise ValueError(f"{option} needs {name}")
    for name, value in {**(required or {}), **(optional or {})}.items():
        if not given and value:
            raise ValueError(f"{name} means nothing without {option}")


def _mask_stage(
    kind: str | None, command: str | None, config: str | None, checkpoint: Path | None, timeout: float
) -> MaskStage | None:
    from kinema4d.data.annotate.kinematic_mask import KinematicMask
    from kinema4d.data.annotate.segmenter import CommandSegmenter, Sam2Segmenter

    if kind == "kinematic":
        return KinematicMask()
    if kind == "command":
        return CommandSegmenter(command=str(command), timeout_s=timeout)
    if kind == "sam2":
        assert config is not None
        assert checkpoint is not None
        return Sam2Segmenter(config=config, checkpoint=checkpoint)
    return None


def _pointmap_stage(
    kind: str | None, command: str | None, metric: bool, weights: Path | None, min_conf: float, timeout: float
) -> PointmapStage | None:
    from kinema4d.data.annotate.pointmapper import CommandPointmap, VggtPointmap

    if kind == "command":
        return CommandPointmap(command=str(command), metric=metric, min_conf=min_conf, timeout_s=timeout)
    if kind == "vggt":
        assert weights is not None
        return VggtPointmap(weights=weights, min_conf=min_conf)
    return None


def _text_stage(url: str | None, model: str | None, key_env: str | None, frames: int) -> TextStage | None:
    from kinema4d.data.annotate.caption import Captioner

    if url is None:
        return None
    return Captioner(base_url=url, model=str(model), key_env=key_env or "", frames=frames)


def _run(
    dataset: Path,
    out: Path,
    stages: Mapping[str, Any],
    planned: Mapping[str, Any],
    provenance: Mapping[str, Any],
    *,
    quiet: bool,
) -> dict[str, Any]:
    from rich.console import Console
    from rich.progress import track

    from kinema4d.data.annotate.stages import annotate as annotate_episode
    from kinema4d.data.annotate.stages import differs
    from kinema4d.data.dataset import open_dataset
    from kinema4d.data.jobs import writing

    if out.resolve() == dataset.resolve():
        raise ValueError(f"--out must be another folder than the data set that is read, got {out} for both")
    source = open_dataset(dataset)
    for stage in stages.values():  # what would fail for every episode fails now
        getattr(stage, "prepare", lambda: None)()
    with writing(out) as target:
        for row in target.rows:
            other = differs(row.facts, planned)
            if other:
                raise ValueError(
                    f"{out} holds {row.id}, which was annotated with other settings ({', '.join(other)}); repeat the settings "
                    "of the first run, or choose another --out"
                )
        ids = {row.id for row in target.rows}
        todo = [row for row in source.rows if row.id not in ids]
        console = Console(stderr=True)
        shown = track(todo, "annotating", console=console, disable=quiet or not console.is_terminal)
        written, failed = 0, []
        for row in shown:
            try:
                target.add(row.id, annotate_episode(source.load(row.id), **stages), provenance)
                written += 1
            except ValueError as error:
                failed.append({"id": row.id, "reason": " ".join(str(error).split())})
    return {"out": str(out), "written": written, "skipped": len(source.rows) - len(todo), "failed": failed}


def _report(summary: dict[str, Any], out: Path, json: bool) -> None:
    failed = summary["failed"]
    if json:
        print(json_module.dumps(summary))
    else:
        print(
            f"annotated {summary['written']} episodes to {out}; {summary['skipped']} were there already, "
            f"{len(failed)} failed"
        )
        reasons: dict[str, list[str]] = {}
        for failure in failed:
            reasons.setdefault(failure["reason"], []).append(failure["id"])
        for reason, ids in sorted(reasons.items(), key=lambda item: -len(item[1])):
            warn(f"{len(ids)} failed, such as {ids[0]}: {reason}")
    if failed and not summary["written"] and not summary["skipped"]:
        raise SystemExit(1)
