"""Batches for a trainer: an order that follows from a seed, read ahead in threads, resumed exactly where it stopped.

Which episodes and windows a batch holds is a function of seed, epoch and its number in the epoch alone. So the state of
training is two numbers, and neither threads nor an interruption change what comes next.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from kinema4d.data.shards import PARTS, Sample, Shards

GEOMETRIES = ("depth", "points", "codes")
"""Metres along the axis, points in the camera frame, or stored codes with their scale and offset."""
SHORT = ("refuse", "skip")
"""What to do with episodes that have too few frames."""
Batch = dict[str, Any]
"""Stacked arrays and lists, by name."""


@dataclass(frozen=True, kw_only=True)
class State:
    """Where in training the next batch is."""

    epoch: int = 0
    """How many times all episodes were seen."""
    batch: int = 0
    """Its number in the epoch."""


@dataclass(frozen=True, kw_only=True)
class Order:
    """Which batches there are: everything but the reading."""

    seed: int = 0
    """Of the order of episodes and of the windows."""
    batch: int = 8
    """Episodes in a batch. What is left at the end of an epoch is left out; another order leaves out others."""
    frames: int | None = None
    """Frames in a window; None takes whole episodes, which must then have one length."""
    shuffle: bool = True
    """Random order and windows. Otherwise the order of packing, and windows from the first frame."""
    epochs: int | None = None
    """How many; None goes on for ever."""
    parts: tuple[str, ...] = PARTS
    """What to read."""
    geometry: str = "depth"
    """One of ``GEOMETRIES``."""
    short: str = "refuse"
    """One of ``SHORT``."""


class Batches(Iterator[Batch]):
    """An endless or finite iterator of batches. ``state`` says where it is; give it as ``start`` to go on from there."""

    def __init__(self, shards: Shards, order: Order, *, start: State, threads: int, ahead: int) -> None:
        self.shards, self.order, self.state = shards, order, start
        self._numbers, self._length = _usable(shards, order)
        self.per_epoch = len(self._numbers) // order.batch
        """Batches in an epoch."""
        if self.per_epoch == 0:
            raise ValueError(
                f"a batch of {order.batch} needs as many episodes, {shards.path} has {len(self._numbers)} of enough frames"
            )
        if not 0 <= start.batch < self.per_epoch or start.epoch < 0:
            raise ValueError(f"cannot start at {start}: an epoch has {self.per_epoch} batches, counted from 0")
        self._next = start
        self._ahead, self._pending = ahead, deque[Future[Batch]]()
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="batches")
        self._plan: tuple[int, np.ndarray, np.ndarray] | None = None

    def __next__(self) -> Batch:
        while len(self._pending) < self._ahead:
            job = self._take()
            if job is None:
                break
            self._pending.append(self._pool.submit(self._read, *job))
        if not self._pending:
            self.close()
            raise StopIteration
        try:
            batch = self._pending.popleft().result()
        except BaseException:
            self.close()  # what was read ahead must not pass for the batch that failed
            raise
        self.state = self._after(self.state)
        return batch

    def close(self) -> None:
        """Stop reading ahead."""
        for future in self._pending:
            future.cancel()
        self._pending.clear()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def __enter__(self) -> Batches:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _after(self, state: State) -> State:
        last = state.batch + 1 >= self.per_epoch
        return State(epoch=state.epoch + 1, batch=0) if last else State(epoch=state.epoch, batch=state.batch + 1)

    def _take(self) -> tuple[np.ndarray, np.ndarray] | None:
        """Episodes and first frames of the next batch to read."""
        now = self._next
        if self.order.epochs is not None and now.epoch >= self.order.epochs:
            return None
        if self._plan is None or self._plan[0] != now.epoch:
            self._plan = (now.epoch, *self._epoch(now.epoch))
        _, numbers, firsts = self._plan
        chosen = slice(now.batch * self.order.batch, (now.batch + 1) * self.order.batch)
        self._next = self._after(now)
        return numbers[chosen], firsts[chosen]

    def _epoch(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        if not self.order.shuffle:
            return self._numbers, np.zeros(len(self._numbers), int)
        rng = np.random.default_rng([self.order.seed, epoch])
        numbers = rng.permutation(self._numbers)
        return numbers, rng.integers(0, self.shards.frames[numbers] - self._length + 1)

    def _read(self, numbers: np.ndarray, firsts: np.ndarray) -> Batch:
        order, shards = self.order, self.shards
        pixels = (len(numbers), self._length, shards.height, shards.width)
        batch: Batch = {}
        if "rgb" in order.parts:
            batch["rgb"] = np.empty((*pixels, 3), np.uint8)
        if "depth" in order.parts:
            dtype = np.uint16 if order.geometry == "codes" else np.float32
            batch[order.geometry] = np.empty((*pixels, 3) if order.geometry == "points" else pixels, dtype)
            batch["valid"] = np.empty(pixels, bool)
        samples = []
        for i, (number, first) in enumerate(zip(numbers, firsts, strict=True)):
            out = {"rgb": batch["rgb"][i]} if "rgb" in batch else {}
            sample = shards.read_into(int(number), slice(int(first), int(first) + self._length), order.parts, out)
            if "depth" in order.parts:
                self._geometry(sample, batch, i)
            samples.append(sample)
        if "labels" in order.parts:
            batch["labels"] = _labels(samples, pixels)
        return batch | _rest(samples, order)

    def _geometry(self, sample: Sample, batch: Batch, i: int) -> None:
        batch["valid"][i] = sample.valid
        if self.order.geometry == "depth":
            sample.depth(out=batch["depth"][i])
        elif self.order.geometry == "points":
            batch["points"][i] = sample.points()
        else:
            if sample.codes is None or sample.codes.ndim != 3:
                raise ValueError(
                    f"episode {sample.id!r} has points off the rays of its pixels, which one code per pixel cannot tell; "
                    "ask for geometry='points'"
                )
            batch["codes"][i] = sample.codes


def batches(
    shards: Shards,
    batch: int = 8,
    frames: int | None = None,
    *,
    seed: int = 0,
    shuffle: bool = True,
    epochs: int | None = None,
    parts: Sequence[str] = PARTS,
    geometry: str = "depth",
    short: str = "refuse",
    start: State | None = None,
    threads: int = 1,
    ahead: int = 2,
) -> Batches:
    """Batches of windows of ``frames`` frames, see :class:`Order`; ``ahead`` of them are read by ``threads`` threads
    while the trainer works. Go on where another iterator was with ``start=its.state``."""
    for name, value, allowed in (("geometry", geometry, GEOMETRIES), ("short", short, SHORT)):
        if value not in allowed:
            raise ValueError(f"{name} must be one of {', '.join(allowed)}, got {value!r}")
    if min(batch, threads, ahead) < 1 or (frames is not None and frames < 1):
        raise ValueError(
            f"batch, frames, threads and ahead must be positive, got {batch}, {frames}, {threads}, {ahead}"
        )
    strangers = [part for part in parts if part not in PARTS]
    if strangers:
        raise ValueError(f"unknown part {', '.join(map(repr, strangers))}; there are {', '.join(PARTS)}")
    wanted = tuple(parts) if geometry != "points" or "camera" in parts else (*parts, "camera")
    order = Order(
        seed=seed,
        batch=batch,
        frames=frames,
        shuffle=shuffle,
        epochs=epochs,
        parts=wanted,
        geometry=geometry,
        short=short,
    )
    return Batches(shards, order, start=start or State(), threads=threads, ahead=ahead)


def _usable(shards: Shards, order: Order) -> tuple[np.ndarray, int]:
    """Numbers of the episodes that have enough frames, and how many frames a window has."""
    length = int(shards.frames.max()) if order.frames is None else order.frames
    enough = shards.frames >= length
    if not enough.all() and order.short == "refuse":
        few = np.flatnonzero(~enough)
        raise ValueError(
            f"{len(few)} of {len(shards)} episodes have fewer than {length} frames, e.g. {shards.ids[few[0]]!r} with "
            f"{shards.frames[few[0]]}; ask for at most {shards.frames.min()} frames, or leave them out with short='skip'"
        )
    return np.flatnonzero(enough), length


def _labels(samples: Sequence[Sample], shape: tuple[int, ...]) -> np.ndarray:
    dtype = np.result_type(np.uint8, *(s.labels for s in samples if s.labels is not None))
    out = np.zeros(shape, dtype)
    for i, sample in enumerate(samples):
        if sample.labels is not None:
            out[i] = sample.labels
    return out


def _rest(samples: Sequence[Sample], order: Order) -> Batch:
    rest: Batch = {
        "id": [s.id for s in samples],
        "frames": np.stack([s.frames for s in samples]),
        "fps": np.array([s.fps for s in samples], np.float32),
        "has_depth": np.array([s.has_depth for s in samples]),
        "metric": np.array([s.metric for s in samples]),
        "words": [s.words for s in samples],
        "facts": [s.facts for s in samples],
    }
    cameras = [s.camera for s in samples if s.camera is not None]
    if "camera" in order.parts:
        length = len(samples[0])
        rest["K"] = np.stack([camera.K for camera in cameras]).astype(np.float32)
        rest["T_world_camera"] = np.stack([camera.poses(length) for camera in cameras]).astype(np.float32)
    if "labels" in order.parts:
        rest["labelled"] = np.array([s.labels is not None for s in samples])
        rest["label_names"] = [s.label_names for s in samples]
    if "depth" in order.parts and order.geometry == "codes":
        rest |= {key: np.array([getattr(s, key) for s in samples]) for key in ("scale", "offset")}
    return rest | {
        key: [getattr(s, key) for s in samples] for key in ("arms", "commands", "tracks") if key in order.parts
    }
