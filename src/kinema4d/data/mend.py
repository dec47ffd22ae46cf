"""Opening a data set to write: alone, and with what killed runs left behind put right.

The folders under ``episodes/`` are the truth and the manifest is their index. A kill can leave a temporary folder, a
torn line, and a finished episode that is not listed: these are mended without a word, because nothing is lost. What a
kill of ours cannot do (an episode that lacks a file, a listed one whose folder is gone) is mended too, but said.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kinema4d.data.manifest import Manifest, Row
from kinema4d.data.meta_file import get, plain, sha256, version, wrong_files
from kinema4d.data.store import read_meta
from kinema4d.files import whole_file

FORMAT = "kinema4d dataset"
"""What ``dataset.json`` says it is."""
VERSION = 1
"""Layout version this module writes and reads."""
ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._=+-]{0,199}")
"""What an episode id looks like."""
_LEFTOVER = re.compile(r"\.(?P<name>.+)\.(?P<kind>tmp|old)-(?P<process>\d+)(\.\w+)?")
"""Names that :mod:`kinema4d.files` gives to what is not finished."""


@contextmanager
def alone(root: Path) -> Iterator[None]:
    """Make the data set where it is missing and keep other writers out; the lock ends with this process, however."""
    _check_creatable(root)
    root.mkdir(parents=True, exist_ok=True)
    with (root / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(f"another process is writing to {root}: wait for it, or write elsewhere") from None
        except OSError as error:
            raise ValueError(
                f"the file system of {root} cannot lock files ({error.strerror}); write elsewhere"
            ) from None
        if not (root / "dataset.json").exists():
            content = plain({"format": FORMAT, "version": VERSION, "kinema4d_version": version()}, "dataset.json")
            with whole_file(root / "dataset.json", overwrite=True) as temporary:
                temporary.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
        yield


def check_format(root: Path) -> None:
    """Refuse a folder that is not a data set that we can read."""
    file = root / "dataset.json"
    if not file.is_file():
        raise ValueError(
            f"{root} is not a kinema4d data set: it has no dataset.json; make one with 'kinema4d data generate' or 'ingest'"
        )
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{file} is not readable as JSON: {error}") from None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise ValueError(f'{file} is not of a kinema4d data set: it must say "format": "{FORMAT}"')
    if content.get("version") != VERSION:
        raise ValueError(f"{file} has version {content.get('version')!r}, this kinema4d reads {VERSION}")


def mend(root: Path) -> tuple[Manifest, tuple[str, ...]]:
    """Bring the manifest in step with the folders, and say what no kill of ours explains; :func:`alone` only.

    A folder that is no whole episode is moved to ``rejected/``. What was said is also kept in ``mended.txt``.
    """
    check_format(root)
    episodes = root / "episodes"
    episodes.mkdir(exist_ok=True)
    sweep(root)
    manifest, said = Manifest(root / "manifest.jsonl"), list[str]()
    manifest.cut_torn_line()
    lost = {id for id in manifest.rows if not (episodes / id / "meta.json").is_file()}
    if lost and len(lost) == len(manifest.rows):
        raise ValueError(
            f"{episodes} has none of the {len(lost)} listed episodes: is its disk mounted? If they were deleted on "
            f"purpose, delete {manifest.file} too"
        )
    for folder in sorted(episodes.iterdir()):
        if folder.name.startswith(".") or (folder.name in manifest.rows and folder.name not in lost):
            continue
        why = _why_not_an_episode(folder)
        if why:
            place = _reject(root, folder)
            said.append(f"{folder.name} is no whole episode ({why}): moved to {place.relative_to(root)}")
        else:
            manifest.append(row_of(folder))
    if lost:
        manifest.drop(lost)
        said += [f"{id} was listed but is no longer there: listed no more" for id in sorted(lost)]
    if said:
        with (root / "mended.txt").open("a", encoding="utf-8") as stream:
            stream.writelines(line + "\n" for line in said)
    return manifest, tuple(said)


def row_of(folder: Path) -> Row:
    """The manifest row of an episode's folder."""
    meta = read_meta(folder)
    if meta["kind"] != "episode":
        raise ValueError(f"{folder} holds a {meta['kind']}, a data set holds episodes")
    texts = ("source", "task", "group", "view", "outcome", "text", "camera_from")
    same: dict[str, Any] = {key: str(meta.get(key, "")) for key in texts}
    same |= {key: meta[key] for key in ("frames", "height", "width", "fps")}
    return Row(
        id=folder.name,
        sha256=sha256(folder / "meta.json"),
        robots=tuple(get(folder, arm, "robot", str) for arm in get(folder, meta, "arms", list)),
        metric=meta.get("metric", True) is not False,
        bytes=sum(file.stat().st_size for file in folder.iterdir()),
        facts=get(folder, {"facts": {}} | meta, "facts", dict),
        **same,
    )


def sweep(root: Path) -> None:
    """Remove what dead processes left unfinished."""
    for leftover in [*root.glob(".*-*"), *root.glob("episodes/.*-*")]:
        found = _LEFTOVER.fullmatch(leftover.name)
        if found is None or _is_at_work(int(found["process"]), leftover):
            continue
        home = leftover.with_name(found["name"])
        if found["kind"] == "old" and not home.exists():
            leftover.rename(home)  # killed between the two renames that stand for an exchange
        elif leftover.is_dir():
            shutil.rmtree(leftover, ignore_errors=True)
        else:
            leftover.unlink(missing_ok=True)


def _check_creatable(root: Path) -> None:
    if not root.exists() or (root / "dataset.json").exists():
        return
    # A kill may have come before dataset.json.
    if not root.is_dir() or any(f.name != ".lock" and not f.name.startswith(".dataset.tmp-") for f in root.iterdir()):
        raise ValueError(f"{root} exists and is not a kinema4d data set; choose another folder")


def _why_not_an_episode(folder: Path) -> str:
    if not ID.fullmatch(folder.name):
        return "its name is no episode id"
    try:
        row_of(folder)
        return "; ".join(wrong_files(folder, read_meta(folder)))
    except ValueError as error:
        return str(error)


def _reject(root: Path, folder: Path) -> Path:
    (root / "rejected").mkdir(exist_ok=True)
    place, number = root / "rejected" / folder.name, 1
    while place.exists():
        number += 1
        place = place.with_name(f"{folder.name}.{number}")
    return folder.rename(place)


def _is_at_work(process: int, leftover: Path) -> bool:
    """Whether the process that made a temporary folder still runs on this machine."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    try:
        # Containers reuse process ids: one that began after the folder was last touched did not make it.
        ticks = int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[19])
        began = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + ticks / os.sysconf("SC_CLK_TCK")
        return began < leftover.stat().st_mtime + 1
    except (OSError, AttributeError):  # no /proc, or gone meanwhile
        return leftover.exists()
