"""``kinema4d evaluate``: how good are rollouts, beside the static world and the truth itself."""

from __future__ import annotations

import json as json_module
import os
from pathlib import Path
from typing import Annotated

import tyro

from kinema4d.cli.progress import bar


def evaluate(
    rollouts: Annotated[Path | None, tyro.conf.Positional] = None,
    /,
    *,
    truth: Path | None = None,
    report: Path | None = None,
    compare: tuple[Path, Path] | None = None,
    metrics: tuple[str, ...] = (),
    tau: float = 0.01,
    vae: Path | None = None,
    weights: Path | None = None,
    assets: Path | None = None,
    workers: int = 2,
    json: bool = False,
) -> None:
    """Judge rollouts: video, geometry, action following and interaction, with 95 % intervals.

    Writes report.json, report.html and episodes.parquet to --report. A run that was interrupted goes on when it is
    started again with the same --report.

    Args:
        rollouts: Folder of rollouts, or a data set whose episodes are taken as predictions.
        truth: Data set with what really happened.
        report: Folder for the report; without it only the table is printed.
        compare: Two report folders: paired differences instead.
        metrics: Any of video, lpips_alex, lpips_vgg, l2_latent, fvd, fid, fd_alexnet, geometry, following,
            interaction, or all. Default: video, lpips_alex, geometry, following, interaction.
        tau: Threshold of the F-score, metres.
        vae: Folder of the VAE for l2_latent, as diffusers saves it.
        weights: Folder of the metrics' networks (kinema4d weights).
        assets: Folder of robots, searched before KINEMA4D_ASSETS and pip packages.
        workers: Processes.
        json: Print one JSON object instead of tables.
    """
    if compare is not None:
        if rollouts is not None or truth is not None:
            raise ValueError("--compare takes two report folders and neither rollouts nor --truth")
        _compare(*compare, json=json)
        return
    if rollouts is None or truth is None:
        raise ValueError("give a folder of rollouts and --truth DATASET, or --compare REPORT_A REPORT_B")
    from kinema4d.evaluate.judge import GROUPS, USUAL, Settings, judge, pictures
    from kinema4d.evaluate.report import ready, summary_table, summary_to_dict, write

    chosen = GROUPS if metrics == ("all",) else metrics or USUAL
    if metrics == ("all",) and vae is None:
        chosen = tuple(m for m in chosen if m != "l2_latent")
    settings = Settings(
        metrics=tuple(chosen),
        tau=tau,
        vae=str(vae) if vae else "",
        weights=str(weights) if weights else "",
    )
    if assets is not None:  # worker processes find robots by it too
        os.environ["KINEMA4D_ASSETS"] = str(assets)
    if report is not None:
        ready(report)
    keep = report / ".scores" if report is not None else None
    with bar("judging", quiet=json) as progress:
        found = judge(rollouts, truth, settings=settings, keep=keep, workers=workers, progress=progress)
    if report is not None:
        write(found, report, pictures=pictures(rollouts, truth))
    if json:
        print(json_module.dumps(summary_to_dict(found), indent=1, sort_keys=True))
        return
    from rich.console import Console

    console = Console(soft_wrap=True)
    console.print(summary_table(found), highlight=False)
    if report is not None:
        console.print(f"report: {report / 'report.html'}", highlight=False)


def _compare(a: Path, b: Path, *, json: bool) -> None:
    from rich.console import Console

    from kinema4d.evaluate.compare import compare, comparison_table, comparison_to_dict

    found = compare(a, b)
    if json:
        print(json_module.dumps(comparison_to_dict(found), indent=1, sort_keys=True))
    else:
        Console(soft_wrap=True).print(comparison_table(found), highlight=False)
