"""``kinema4d data export``: clips and data sets for other programs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

if TYPE_CHECKING:
    from kinema4d.data.store import Storable


def export(
    path: Annotated[Path, tyro.conf.Positional],
    /,
    *,
    format: Literal["pointmap-mp4", "ply", "rrd", "lerobot", "robo4d"],
    out: Path,
    episode: str | None = None,
    ids: tuple[str, ...] = (),
    height: int = 480,
    width: int = 720,
    frames: int = 49,
    overwrite: bool = False,
) -> None:
    """Convert a clip, or a whole data set, for other programs.

    Args:
        path: Clip folder that another command wrote, or a data set.
        format: Of a clip: the paper's pseudo-RGB pointmap video, a PLY file per frame, or a rerun recording.
            Of a data set: LeRobot v3, or the official Robo4D layout.
        out: File (pointmap-mp4, rrd) or folder to write.
        episode: Which clip of a data set: its id or its number.
        ids: Only these episodes of a data set.
        height: Image rows of the official layout.
        width: Image columns of the official layout.
        frames: Frames of the official layout.
        overwrite: Replace what is there.
    """
    from kinema4d.data.dataset import open_dataset
    from kinema4d.data.export import export as write

    whole = (path / "dataset.json").is_file()
    if format in ("lerobot", "robo4d"):
        if not whole:
            raise ValueError(f"--format {format} converts a data set; {path} is not one (it has no dataset.json)")
        if episode is not None:
            raise ValueError(f"--episode chooses a clip; for --format {format} choose with --ids")
        from kinema4d.data.export_lerobot import export_lerobot
        from kinema4d.data.export_robo4d import export_robo4d

        dataset, chosen = open_dataset(path), list(ids) or None
        if format == "lerobot":
            folder = export_lerobot(dataset, out, ids=chosen, overwrite=overwrite)
        else:
            folder = export_robo4d(
                dataset, out, ids=chosen, height=height, width=width, frames=frames, overwrite=overwrite
            )
        print(f"wrote {len(chosen or dataset)} episodes: {folder}")
        return
    thing = load_thing(path, episode)
    written = write(getattr(thing, "clip", thing), format, out, overwrite=overwrite)
    print(
        f"wrote {len(written)} file{'s' if len(written) > 1 else ''}: {written[0]}{' ...' if len(written) > 1 else ''}"
    )


def load_thing(path: Path, episode: str | None) -> Storable:
    """A clip folder, or an episode of a data set."""
    from kinema4d.data.dataset import open_dataset
    from kinema4d.data.store import load

    if (path / "dataset.json").is_file():
        return open_dataset(path).load(episode if episode is not None else 0)
    if episode is not None:
        raise ValueError(f"--episode chooses from a data set; {path} is not one (it has no dataset.json)")
    return load(path)
