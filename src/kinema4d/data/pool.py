"""The same function on many episodes, in a few processes."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any, TypeVar

A = TypeVar("A")
B = TypeVar("B")
Progress = Callable[[int, int], Any]
"""Called with how many are done, and of how many."""
FEW = 8
"""So few are done here: a process takes about two seconds to start."""


def spread(
    function: Callable[[A], B], items: Sequence[A], *, workers: int, progress: Progress | None = None
) -> list[B]:
    """``[function(item) for item in items]`` in ``workers`` processes. ``function`` must be importable by name."""
    if workers < 1:
        raise ValueError(f"workers must be at least 1, got {workers}")
    out: list[B] = []
    if workers == 1 or len(items) <= FEW:
        for item in items:
            out.append(function(item))
            if progress is not None:
                progress(len(out), len(items))
        return out
    # A fresh interpreter: threads of this one (Numba, video decoders) do not survive a fork.
    context = multiprocessing.get_context("spawn")
    try:
        with ProcessPoolExecutor(min(workers, len(items)), mp_context=context) as pool:
            for result in pool.map(function, items, chunksize=4):
                out.append(result)
                if progress is not None:
                    progress(len(out), len(items))
    except BrokenProcessPool:
        raise ValueError(
            f"a worker process died after {len(out)} of {len(items)} episodes, most likely for lack of memory; "
            "use fewer workers (--workers 1)"
        ) from None
    return out
