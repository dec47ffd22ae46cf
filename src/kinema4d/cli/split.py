"""``kinema4d data split``: train, validation and test without leaks."""

from __future__ import annotations

import json as json_module
from pathlib import Path
from typing import Annotated

import tyro

from kinema4d.cli.console import warn
from kinema4d.cli.progress import bar


def split(
    dataset: Annotated[Path, tyro.conf.Positional],
    /,
    *,
    fractions: tuple[float, float, float] = (0.96, 0.02, 0.02),
    seed: int = 0,
    all: bool = False,
    fresh: bool = False,
    workers: int = 2,
    json: bool = False,
) -> None:
    """Divide a data set by source, task and outcome; no scene, recording or video is in two parts.

    Writes splits/train.txt, val.txt, test.txt and splits.json. Groups that an earlier split placed stay where they are.

    Args:
        dataset: Folder that 'data generate' or 'data ingest' wrote.
        fractions: Shares of train, val and test.
        seed: Draws the order of groups.
        all: Divide every episode, not only those that 'data curate' keeps.
        fresh: Forget an earlier split.
        workers: Processes.
        json: Print one JSON object instead of a table.
    """
    from kinema4d.data.split import SPLITS, split_to_dict
    from kinema4d.data.split import split as divide

    with bar("reading", quiet=json) as progress:
        result = divide(dataset, fractions, seed=seed, every=all, fresh=fresh, workers=workers, progress=progress)
    if json:
        summary = split_to_dict(result)
        del summary["groups"]
        print(json_module.dumps(summary))
    else:
        from rich.console import Console
        from rich.table import Table

        table = Table(box=None, pad_edge=False)
        for column in ("source", "task", "outcome"):
            table.add_column(column)
        for column in (*SPLITS, "off by"):
            table.add_column(column, justify="right")
        for s in result.strata:
            table.add_row(s.source, s.task, s.outcome, *(str(n) for n in s.counts), f"{s.deviation:.1f}")
        table.add_row("all", "", "", *(str(len(result.ids[part])) for part in SPLITS), "")
        Console(soft_wrap=True).print(table)
        print(f"wrote {dataset / 'splits'}; no group, video or first frame is in two parts")
    empty = [part for part, share in zip(SPLITS, fractions, strict=True) if share and not result.ids[part]]
    if empty:
        warn(
            f"{' and '.join(empty)} got no episode: there are too few groups for such fractions (--fractions 0.8 0.1 0.1)"
        )
    if result.unjudged:
        warn(
            f"{len(result.unjudged)} episodes are left out because curation has not judged them; run 'data curate' again"
        )
    if result.left_out:
        warn(f"{len(result.left_out)} new episodes are left out because they look like episodes of two parts at once")
