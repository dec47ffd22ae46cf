"""RLDS data sets by recording: names of all episodes without opening a shard, and one episode without the others.

Names are ``split/number``, such as ``train/00012``, counted as ``dataset_info.json`` promises them, so that an episode
of a missing shard has a name and fails with the reason when it is read. Old data sets do not say how many episodes a
shard has; their names are ``split/shard.record``, and whatever cannot be found of a shard is one more name.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Sequence
from itertools import accumulate
from pathlib import Path

from kinema4d.data.ingest.rlds import RldsEpisode, Split, dataset_info, features, parse_episode
from kinema4d.data.ingest.tfrecord import index_records, parse_example, read_record


def rlds_folder(root: str | Path) -> Path:
    """The folder with ``dataset_info.json``: ``root``, or the only one up to two folders below it."""
    root = Path(root)
    if (root / "dataset_info.json").is_file():
        return root
    found = sorted(p.parent for level in ("*", "*/*") for p in root.glob(f"{level}/dataset_info.json"))
    if len(found) != 1:
        what = f"several: give one of {[str(p) for p in found]}" if found else "none"
        raise ValueError(
            f"expected one RLDS data set (a folder with dataset_info.json, such as bridge_dataset/1.0.0) in {root}, "
            f"found {what}"
        )
    return found[0]


def is_rlds(root: str | Path) -> bool:
    """Whether there is any RLDS data set in ``root``."""
    return any(any(Path(root).glob(f"{level}dataset_info.json")) for level in ("", "*/", "*/*/"))


def rlds_recordings(root: str | Path, *, source: str, needs: Collection[str]) -> list[str]:
    """Names of all recordings of the data set in ``root``; ``needs`` are the features that make it a ``source``."""
    folder = rlds_folder(root)
    info = dataset_info(folder)
    _check_schema(folder, source, needs)
    if not info.splits:
        raise ValueError(f"{folder / 'dataset_info.json'} lists no split; download the data set again")
    names: list[str] = []
    for split in info.splits.values():
        if not split.shards:
            raise ValueError(f"{folder} has no shard of split {split.name!r}, or those of several data sets")
        if split.lengths is not None:
            names += [f"{split.name}/{i:05d}" for i in range(sum(split.lengths))]
            continue
        for shard, file in enumerate(split.shards):
            names += [f"{split.name}/{shard:05d}.{i:05d}" for i in range(_found(folder / file))]
    return names


def read_recording(
    root: str | Path, recording: str, *, source: str, needs: Collection[str], wants: Sequence[str] = ()
) -> RldsEpisode:
    """One recording: the features ``needs``, and those of ``wants`` that the data set has."""
    folder = rlds_folder(root)
    info, declared = dataset_info(folder), features(folder)
    _check_schema(folder, source, needs)
    split, shard, record = _place(folder, info.splits, recording)
    path = folder / split.shards[shard]
    if not path.is_file():
        raise ValueError(f"recording {recording}: its shard {path} is missing; download it")
    index = index_records(path)
    promised = None if split.lengths is None else split.lengths[shard]
    if promised is not None and not index.damage and len(index.offsets) > promised:
        raise ValueError(
            f"recording {recording}: {path} holds {len(index.offsets)} records, but dataset_info.json says {promised}, so "
            "they are of different versions; download both again"
        )
    wanted = {name: f for name, f in declared.items() if name in needs or name in wants}
    try:
        example = parse_example(read_record(index, record))
    except ValueError as error:
        raise ValueError(f"recording {recording}: {error}") from None
    try:
        episode = parse_episode(example, declared, wanted, record, str(path))
    except ValueError as error:
        raise ValueError(f"recording {recording}, {path}, record {record}: {error}") from None
    if episode.length == 0:
        raise ValueError(f"recording {recording}, {path}, record {record}: it has no steps; leave it out")
    return episode


def _check_schema(folder: Path, source: str, needs: Collection[str]) -> None:
    declared = features(folder)
    lacking = sorted(set(needs) - set(declared))
    if lacking:
        raise ValueError(
            f"{folder} is not a {source} data set of a known schema: features.json lacks {lacking}; it has "
            f"{sorted(declared)}"
        )


def _found(path: Path) -> int:
    """How many names a shard of unknown length gets: its records, and one for what is damaged or missing."""
    if not path.is_file():
        return 1
    index = index_records(path)
    return len(index.offsets) + bool(index.damage)


def _place(folder: Path, splits: dict[str, Split], recording: str) -> tuple[Split, int, int]:
    """Split, shard and record of a recording."""
    name, _, number = recording.rpartition("/")
    known = splits.get(name)
    parts = number.split(".")
    if known is not None and all(part.isascii() and part.isdigit() for part in parts):
        numbers = [int(part) for part in parts]
        if known.lengths is None and len(numbers) == 2 and numbers[0] < len(known.shards):
            return known, numbers[0], numbers[1]
        if known.lengths is not None and len(numbers) == 1 and numbers[0] < sum(known.lengths):
            ends = list(accumulate(known.lengths))
            shard = bisect_right(ends, numbers[0])
            return known, shard, numbers[0] - (ends[shard] - known.lengths[shard])
    raise ValueError(
        f"{folder} has no recording {recording!r}; recordings are named like train/00012, see recordings()"
    )
