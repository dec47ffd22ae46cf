"""``kinema4d data export``: convert clips for other programs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import tyro


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
