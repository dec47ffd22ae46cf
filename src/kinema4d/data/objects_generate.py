"""Make a data set of objects in 4D: drawn by chance, moved by MuJoCo. Killed runs go on where they stopped."""

from __future__ import annotations

import fcntl
import hashlib
import json
import shutil
import time
from collections.abc import Callable, Iterator
from concurrent.futures import as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kinema4d.data.jobs import Summary
from kinema4d.data.mend import sweep
from kinema4d.data.objects4d import FORMAT, SPLITS, VERSION, read_manifest, read_row, write_object
from kinema4d.data.objects_make import JOINTED, SOFT, make_content
from kinema4d.data.pool import process_pool
from kinema4d.files import whole_file
from kinema4d.scenes.assets import ASSETS, find

KINDS = (*JOINTED, *SOFT)
"""Every kind that is drawn by chance; ``real-...`` ones are those of :data:`kinema4d.scenes.assets.ASSETS`."""
MANY = 1000
"""Instances of one kind before their seeds meet those of the next recipe seed."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What to generate. The same recipe gives the same objects, whatever the number of workers."""

    objects: int = 200
    """How many. Real ones come first, each once; then the other kinds take turns."""
    kinds: tuple[str, ...] = KINDS
    """Kinds that take turns, and real ones."""
    poses: int = 64
    """Of each object."""
    motions: int = 2
    """Free motions of each object, where its limits allow."""
    held_out: tuple[str, ...] = ("faucet", "scissors")
    """Kinds that are all ``test-category``; their real counterparts too."""
    seed: int = 0
    """Of everything random."""

    def __post_init__(self) -> None:
        strangers = [k for k in self.kinds if k not in KINDS and k not in ASSETS]
        if strangers or not self.kinds or len(set(self.kinds)) < len(self.kinds):
            raise ValueError(f"unknown or repeated kinds {', '.join(strangers or self.kinds) or '(none)'}; known are {', '.join((*KINDS, *ASSETS))}")  # fmt: skip
        if outside := [k for k in self.held_out if k not in KINDS and k not in ASSETS]:
            raise ValueError(f"unknown held-out kinds {', '.join(outside)}; known are {', '.join((*KINDS, *ASSETS))}")
        if self.objects < 1 or self.poses < 1 or self.motions < 0 or self.seed < 0:
            raise ValueError(
                f"objects and poses must be at least 1, motions and seed at least 0; got {self.objects}, {self.poses}, {self.motions}, {self.seed}"
            )
        most = sum(MANY if k in KINDS else 1 for k in self.kinds)
        if self.objects > most:
            raise ValueError(
                f"these kinds give at most {most} objects, {MANY} of each and one of a real one; got {self.objects}"
            )


@dataclass(frozen=True, kw_only=True)
class Order:
    """One object to make."""

    row: dict[str, str]
    """Its ``object.json``."""
    seed: int
    """Of its shape and motion."""
    poses: int
    """How many."""
    motions: int
    """How many at most."""
    assets: str | None
    """Folder of real objects."""


def split_of(id: str, kind: str, held_out: tuple[str, ...]) -> str:
    """By kind where it is held out; else by a hash of the id, 80/10/10."""
    if kind in held_out or kind.removeprefix("real-") in held_out:
        return "test-category"
    share = int(hashlib.sha256(id.encode()).hexdigest(), 16) % 10
    return "train" if share < 8 else "val" if share == 8 else "test-instance"


def orders(recipe: Recipe, assets: Path | None = None) -> list[Order]:
    """Every object of a recipe."""
    real, drawn = [k for k in recipe.kinds if k in ASSETS], [k for k in recipe.kinds if k in KINDS]
    named = [(k, recipe.seed * MANY) for k in real]
    named += [
        (drawn[i % len(drawn)], recipe.seed * MANY + i // len(drawn))
        for i in range(recipe.objects - len(real))
        if drawn
    ]
    out = []
    for kind, seed in named[: recipe.objects]:
        id = f"{kind}-{seed:05d}"
        row = {"id": id, "kind": kind, "category": _category(kind), "split": split_of(id, kind, recipe.held_out)}
        assert row["split"] in SPLITS
        out.append(Order(row=row, seed=seed, poses=recipe.poses, motions=recipe.motions, assets=None if assets is None else str(assets)))  # fmt: skip
    return out


def _category(kind: str) -> str:
    return "real" if kind in ASSETS else "articulated" if kind in JOINTED else SOFT[kind]


def make(root: str, order: Order) -> str | None:
    """Write one object, or say why there is none; what a worker process does."""
    folder = None if order.assets is None else Path(order.assets)
    try:
        content = make_content(order.row["kind"], order.seed, poses=order.poses, motions=order.motions, assets=folder)
    except ValueError as error:  # everything else is a bug that must be seen
        return str(error)
    write_object(Path(root), order.row, content)
    return None


def generate(
    root: str | Path, recipe: Recipe, *, workers: int = 2, assets: Path | None = None, tell: Callable[[Summary, int], None] | None = None
) -> Summary:  # fmt: skip
    """Make every object of ``recipe`` that is not at ``root`` yet. ``tell`` hears of progress and of the number of jobs in all."""
    if workers < 1:
        raise ValueError(f"workers must be at least 1, got {workers}")
    for kind in recipe.kinds:
        if kind in ASSETS:
            find(kind, assets)  # a missing wheel is said at once
    wanted, start = orders(recipe, assets), time.monotonic()
    with _alone(Path(root)):
        ledger = _Ledger(Path(root), recipe)
        missing = [o for o in wanted if o.row["id"] not in ledger.rows]
        summary = Summary(mended=ledger.mended, before=len(wanted) - len(missing))
        try:
            for order, why_not in _results(ledger.root, missing, workers):
                if why_not is None:
                    ledger.enter(order.row)
                    summary.jobs, summary.episodes = summary.jobs + 1, summary.episodes + 1
                else:
                    summary.skipped[order.row["id"]] = why_not
                summary.seconds = time.monotonic() - start
                if tell is not None:
                    tell(summary, len(missing))
        finally:
            sweep(ledger.root)  # what killed workers left
        return summary


def _results(root: Path, missing: list[Order], workers: int) -> Iterator[tuple[Order, str | None]]:
    """Each order as it is done. :func:`kinema4d.data.jobs.run` is for data sets of episodes; this shares its processes."""
    if workers == 1 or len(missing) < 2:
        yield from ((order, make(str(root), order)) for order in missing)
        return
    with process_pool(min(workers, len(missing))) as pool:
        futures = {pool.submit(make, str(root), order): order for order in missing}
        try:
            for future in as_completed(futures):
                yield futures[future], future.result()
        except BrokenProcessPool:
            raise ValueError("a worker process died (out of memory?): give the same command again to go on, or use --workers 1") from None  # fmt: skip
        finally:
            pool.shutdown(cancel_futures=True)


class _Ledger:
    """The folders that are there, and the manifest that lists them."""

    def __init__(self, root: Path, recipe: Recipe) -> None:
        self.root, self.rows, mended = root, dict[str, dict[str, str]](), list[str]()
        self.recipe = _remembered(root, recipe)
        sweep(root)
        for folder in sorted(f for f in root.iterdir() if f.is_dir() and not f.name.startswith(".")):
            try:
                self.rows[folder.name] = read_row(folder)
            except ValueError as error:  # no kill of ours leaves this
                if not (folder / "object.json").is_file():
                    raise ValueError(f"{folder} is not ours: {error}; move it away") from None
                shutil.rmtree(folder)
                mended.append(f"made again, because {error}")
        self.mended = tuple(mended)
        self._write()

    def enter(self, row: dict[str, str]) -> None:
        """List an object."""
        self.rows[row["id"]] = row
        self._write()

    def _write(self) -> None:
        content = {"format": FORMAT, "version": VERSION, "recipe": self.recipe, "objects": [self.rows[id] for id in sorted(self.rows)]}  # fmt: skip
        with whole_file(self.root / "manifest.json", overwrite=True) as temporary:
            temporary.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


@contextmanager
def _alone(root: Path) -> Iterator[None]:
    """Make the folder where it is missing and keep other writers out; the lock ends with this process, however."""
    # A kill may have come before the manifest.
    if root.exists() and not (
        root.is_dir() and ((root / "manifest.json").exists() or all(f.name.startswith(".") for f in root.iterdir()))
    ):
        raise ValueError(f"{root} exists and is not a data set of objects; choose another folder")
    root.mkdir(parents=True, exist_ok=True)
    with (root / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise ValueError(f"{root} cannot be locked ({error.strerror}): is another process writing to it?") from None
        yield


def _remembered(root: Path, recipe: Recipe) -> dict[str, Any]:
    """The recipe for the manifest; another one than before is refused, only the number of objects may change."""
    now = json.loads(json.dumps(asdict(recipe)))
    if (root / "manifest.json").exists():
        before = read_manifest(root).get("recipe") or {}
        changed = [key for key in now if now[key] != before.get(key) and key != "objects"]
        if changed:
            said = ", ".join(f"{key} {before.get(key)} now {now[key]}" for key in changed)
            raise ValueError(f"{root} was generated with another recipe ({said}); use another --out")
        now["objects"] = max(now["objects"], before["objects"])
    return now
