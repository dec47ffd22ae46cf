"""Pack a data set into shards for training. A kill loses at most the shard in the making.

Worker processes decode and compress episodes, this one writes them in order, so that the bytes do not depend on the
number of workers. A shard appears whole, says how and from which versions of which episodes it was packed, and holds
the hash of its own bytes: packing again keeps those that are right. ``index.json`` comes last.
"""

from __future__ import annotations

import fcntl
import itertools
import json
import re
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

from kinema4d.data.dataset import Dataset, Row, open_dataset
from kinema4d.data.meta_file import sha256, version
from kinema4d.data.pool import process_pool
from kinema4d.data.shard_episode import encode
from kinema4d.data.shard_file import BLOCK, LEVEL, Packed, Shard, write_shard
from kinema4d.data.shards import FORMAT, VERSION, read_index
from kinema4d.data.split import SPLITS, read_split
from kinema4d.files import whole_file

PER_SHARD = 64
"""Episodes in a shard: about 50 MB at 96x144."""
_SHARD = re.compile(r"shard-\d{5,}\.k4s")
_OURS = re.compile(r"index\.json|\.lock|shard-\d{5,}\.k4s|\.(shard-\d{5,}|index)\.tmp-\d+\.(k4s|json)")


@dataclass(frozen=True, kw_only=True)
class Packing:
    """What was packed."""

    path: Path
    """The folder of shards."""
    shards: int
    """Files in it."""
    kept: int
    """Files of an earlier run that were found to be right."""
    episodes: int
    """Episodes in it."""
    frames: int
    """Frames in it."""
    bytes: int
    """Size of the shards."""
    folder_bytes: int
    """Size of the clip folders of the same episodes."""
    seconds: float
    """Wall time."""


def pack(
    dataset: Dataset | str | Path,
    out: str | Path | None = None,
    *,
    ids: Sequence[str] | str | None = None,
    height: int | None = None,
    width: int | None = None,
    frames: int | None = 49,
    episodes_per_shard: int = PER_SHARD,
    workers: int = 2,
    overwrite: bool = False,
    progress: Callable[[int, int], Any] | None = None,
) -> Packing:
    """Pack all episodes, those of ``ids``, or a part of the split (``"train"``), at another size where one is given, and
    at most ``frames`` frames of each, evenly spaced (None keeps all). What an earlier run finished is kept; finished
    shards of something else in ``out`` are replaced with ``overwrite`` only. By default ``out`` lies in the data set, and
    is named like ``shards/all`` or ``shards/train-96x144``."""
    start = time.monotonic()
    dataset = dataset if isinstance(dataset, Dataset) else open_dataset(dataset)
    if workers < 1 or episodes_per_shard < 1:
        raise ValueError(f"workers and episodes per shard must be at least 1, got {workers} and {episodes_per_shard}")
    if frames is not None and frames < 2:
        raise ValueError(f"frames must be at least 2, or None for all, got {frames}")
    rows = _rows(dataset, ids)
    size = _size(rows, height, width)
    config = {
        "height": size[0],
        "width": size[1],
        "frames": frames,
        "episodes_per_shard": episodes_per_shard,
        "block": BLOCK,
        "level": LEVEL,
    }
    part = ids if isinstance(ids, str) else "all" if ids is None else "chosen"
    name = part if height is None else f"{part}-{size[0]}x{size[1]}"
    path = Path(out) if out is not None else dataset.root / "shards" / name
    groups = [rows[i : i + episodes_per_shard] for i in range(0, len(rows), episodes_per_shard)]
    files = [path / f"shard-{i:05d}.k4s" for i in range(len(groups))]
    with _alone(path):
        _check_replaceable(path, config, rows, overwrite)
        kept = [_is_right(file, config, group) for file, group in zip(files, groups, strict=True)]
        if overwrite or not all(kept) or len(_shards(path)) != len(files):
            (path / "index.json").unlink(missing_ok=True)  # until all is right again
        todo = [(file, group) for file, group, right in zip(files, groups, kept, strict=True) if not right]
        told = progress and partial(_tell, progress, len(rows) - sum(len(group) for _, group in todo), len(rows))
        _write_shards(todo, config, partial(encode, dataset.root, size, frames), workers, told)
        for stray in _shards(path) - set(files):
            stray.unlink()
        shards = [_entry(file) for file in files]
        _write_index(path, {"part": part, **config}, shards)
    return Packing(
        path=path,
        shards=len(files),
        kept=sum(kept),
        episodes=len(rows),
        frames=sum(sum(shard["frames"]) for shard in shards),
        bytes=sum(shard["bytes"] for shard in shards),
        folder_bytes=sum(row.bytes for row in rows),
        seconds=time.monotonic() - start,
    )


def _write_shards(
    todo: Sequence[tuple[Path, Sequence[Row]]],
    config: Mapping[str, Any],
    work: Callable[[Row], Packed],
    workers: int,
    told: Callable[[int], Any] | None,
) -> None:
    """Write shards one after the other, while workers are some episodes ahead."""
    packed = enumerate(_stream(work, [row for _, group in todo for row in group], workers), start=1)

    def taken(count: int) -> Iterator[Packed]:
        for done, one in itertools.islice(packed, count):
            if told is not None:
                told(done)
            yield one

    for file, group in todo:
        write_shard(file, config, taken(len(group)))


def _tell(progress: Callable[[int, int], Any], before: int, total: int, done: int) -> None:
    progress(before + done, total)


def _rows(dataset: Dataset, ids: Sequence[str] | str | None) -> list[Row]:
    if isinstance(ids, str) and ids not in SPLITS:
        raise ValueError(f"a split has the parts {', '.join(SPLITS)}, got {ids!r}; pass a list for ids of your own")
    wanted = dataset.ids if ids is None else read_split(dataset.root, ids) if isinstance(ids, str) else list(ids)
    missing = [id for id in wanted if id not in dataset]
    if missing:
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        raise ValueError(
            f"{dataset.root} has no episode {', '.join(map(repr, missing[:3]))}{more}; "
            f"{'split again (kinema4d data split)' if isinstance(ids, str) else 'Dataset.ids lists all'}"
        )
    double = [id for id, n in Counter(wanted).items() if n > 1]
    if double:
        raise ValueError(f"episode {double[0]!r} is given {wanted.count(double[0])} times; give every id once")
    if not wanted:
        raise ValueError(f"there is no episode to pack in {dataset.root}{f' ({ids})' if isinstance(ids, str) else ''}")
    return [dataset.row(id) for id in wanted]


def _size(rows: Sequence[Row], height: int | None, width: int | None) -> tuple[int, int]:
    if height is not None and width is not None:
        if height < 1 or width < 1:
            raise ValueError(f"height and width must be positive, got {height}x{width}")
        return height, width
    if height is not None or width is not None:
        raise ValueError(f"give both height and width, or neither; got height {height} and width {width}")
    sizes = Counter((row.height, row.width) for row in rows)
    if len(sizes) > 1:
        found = ", ".join(f"{h}x{w} ({n} episodes)" for (h, w), n in sizes.most_common(5))
        (h, w), _ = sizes.most_common(1)[0]
        raise ValueError(
            f"episodes differ in size (height x width): {found}; bring them to one with height and width "
            f"(--height {h} --width {w}), or pack ids of one size"
        )
    return next(iter(sizes))


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Nobody else packs into this folder meanwhile; what a killed run left behind is removed."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"cannot write to {path}: {error.strerror}; choose another folder") from None
    strangers = [f.name for f in path.iterdir() if not _OURS.fullmatch(f.name)]
    if strangers:
        raise ValueError(f"{path} holds {sorted(strangers)[0]!r}, which is no shard; choose another folder")
    with (path / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(f"another process is packing into {path}: wait for it, or pack elsewhere") from None
        except OSError as error:
            raise ValueError(
                f"the file system of {path} cannot lock files ({error.strerror}); pack elsewhere"
            ) from None
        for leftover in path.glob(".*.tmp-*"):
            leftover.unlink()
        yield


def _check_replaceable(path: Path, config: Mapping[str, Any], rows: Sequence[Row], overwrite: bool) -> None:
    """Refuse to replace finished shards of something else."""
    if overwrite or not (path / "index.json").exists():
        return
    try:
        index = read_index(path)
    except ValueError as error:
        raise ValueError(f"{error} with overwrite (--overwrite)") from None
    then, now = index["config"], dict(config)
    changed = [f"{key} {then.get(key)} (now {now[key]})" for key in now if then.get(key) != now[key]]
    before = {id: hash for shard in index["shards"] for id, hash in zip(shard["ids"], shard["episodes"], strict=True)}
    if list(before) != [row.id for row in rows]:
        changed.append(f"{len(before)} episodes, others than the {len(rows)} of now")
    elif list(before.values()) != [row.sha256 for row in rows]:
        changed.append("other versions of the same episodes")
    if changed:
        raise ValueError(
            f"{path} was packed with {'; '.join(changed)}; pass overwrite (--overwrite) to bring it up to date, or "
            "choose another folder (--name)"
        )


def _is_right(file: Path, config: Mapping[str, Any], rows: Sequence[Row]) -> bool:
    """Whether an earlier run wrote this very shard, and every byte of it is there."""
    if not file.exists():
        return False
    try:
        shard = Shard(file)
    except ValueError:  # torn or of another version: it is packed again
        return False
    same = [(e["id"], e["sha256"]) for e in shard.episodes] == [(row.id, row.sha256) for row in rows]
    return same and shard.config == dict(config) and shard.whole()


def _shards(path: Path) -> set[Path]:
    return {file for file in path.iterdir() if _SHARD.fullmatch(file.name)}


def _entry(file: Path) -> dict[str, Any]:
    found = Shard(file).episodes
    listed = {key: [e[field] for e in found] for key, field in (("ids", "id"), ("episodes", "sha256"))}
    numbers = {"bytes": file.stat().st_size, "frames": [e["frames"] for e in found]}
    return {"file": file.name, "sha256": sha256(file), **numbers, **listed}


def _write_index(path: Path, config: Mapping[str, Any], shards: Sequence[Mapping[str, Any]]) -> None:
    versions = {"kinema4d": version(), **{name: metadata.version(name) for name in ("numpy", "lz4", "pillow", "av")}}
    index = {
        "format": FORMAT,
        "version": VERSION,
        "versions": versions,
        "config": dict(config),
        "episodes": sum(len(shard["ids"]) for shard in shards),
        "frames": sum(sum(shard["frames"]) for shard in shards),
        "shards": list(shards),
    }
    if (path / "index.json").exists():  # all was there: what wrote it stays on record
        before = json.loads((path / "index.json").read_text(encoding="utf-8"))
        if {**before, "versions": versions} == index:
            return
    with whole_file(path / "index.json", overwrite=True) as temporary:
        temporary.write_text(json.dumps(index, indent=1, allow_nan=False) + "\n", encoding="utf-8")


def _stream(work: Callable[[Row], Packed], rows: Iterable[Row], workers: int) -> Iterator[Packed]:
    """``map(work, rows)`` in processes, in order, a few ahead of what is taken."""
    rows = list(rows)
    if workers == 1 or len(rows) < 2 * workers:
        yield from map(work, rows)
        return
    waiting, ahead, done = iter(rows), deque[Future[Packed]](), 0
    with process_pool(workers) as pool:
        try:
            for row in itertools.islice(waiting, 3 * workers):
                ahead.append(pool.submit(work, row))
            while ahead:
                one = ahead.popleft().result()
                for row in itertools.islice(waiting, 1):
                    ahead.append(pool.submit(work, row))
                done += 1
                yield one
        except BrokenProcessPool:
            raise ValueError(
                f"a worker process died after {done} of {len(rows)} episodes, most likely for lack of memory; "
                "pack again with fewer workers (--workers 1): finished shards are kept"
            ) from None
        finally:
            pool.shutdown(cancel_futures=True)
