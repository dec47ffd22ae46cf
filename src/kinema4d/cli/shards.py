"""``kinema4d data shards``: pack a data set for training."""

from __future__ import annotations

import json as json_module
from pathlib import Path
from typing import Annotated, Literal

import tyro

from kinema4d.cli.progress import bar


def shards(
    dataset: Annotated[Path, tyro.conf.Positional],
    /,
    *,
    name: str | None = None,
    split: Literal["train", "val", "test"] | None = None,
    height: int | None = None,
    width: int | None = None,
    frames: int | None = 49,
    episodes_per_shard: int = 64,
    workers: int = 2,
    overwrite: bool = False,
    json: bool = False,
) -> None:
    """Pack a data set into shards that a trainer reads fast; run again after a kill, it goes on.

    Args:
        dataset: Folder that 'data generate' or 'data ingest' wrote.
        name: Folder under shards/ to write; by default the split's part, or "all", with the size where one is given.
        split: Pack this part of the split only.
        height: Image rows; needed where episodes differ in size.
        width: Image columns.
        frames: Frames kept of each episode at most, evenly spaced; None keeps all.
        episodes_per_shard: Episodes in a file.
        workers: Processes.
        overwrite: Replace shards that were packed otherwise or from other episodes; unchanged ones are kept.
        json: Print one JSON object instead of text.
    """
    from kinema4d.data.pack import pack

    if name is not None and (Path(name).name != name or name.startswith(".")):
        raise ValueError(f"--name must be one plain folder name, got {name!r}")
    with bar("packing", quiet=json) as progress:
        done = pack(
            dataset,
            None if name is None else dataset / "shards" / name,
            ids=split,
            height=height,
            width=width,
            frames=frames,
            episodes_per_shard=episodes_per_shard,
            workers=workers,
            overwrite=overwrite,
            progress=progress,
        )
    if json:
        print(json_module.dumps({**vars(done), "path": str(done.path), "seconds": round(done.seconds, 3)}))
        return
    kept = f" ({done.kept} were there already)" if done.kept else ""
    print(f"packed {done.episodes} episodes, {done.frames} frames, into {done.shards} shards{kept}: {done.path}")
    each, folder = (size / done.episodes / 1e6 for size in (done.bytes, done.folder_bytes))
    print(f"{done.bytes / 1e6:.1f} MB, {each:.3f} MB per episode (clip folders {folder:.3f}), {done.seconds:.1f} s")
