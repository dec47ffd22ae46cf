"""The same function on many episodes, in a few processes."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys
import threading
import time
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


def process_pool(workers: int) -> ProcessPoolExecutor:
    """Processes that end with this one, however it ends, with a core each."""
    # Fresh interpreters: threads of this one (Numba, video decoders) do not survive a fork.
    context = multiprocessing.get_context("spawn")
    for variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):  # more threads than cores only wait for each other
        os.environ.setdefault(variable, "1")
    return ProcessPoolExecutor(workers, mp_context=context, initializer=_end_with, initargs=(os.getpid(),))


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
    try:
        with process_pool(min(workers, len(items))) as pool:
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


def _end_with(parent: int) -> None:
    """End with the process that started this one, however that ends, even before this began."""
    if sys.platform == "linux":  # at once, also in the middle of compiled code
        set_death_signal = 1  # PR_SET_PDEATHSIG of linux/prctl.h
        ctypes.CDLL(None).prctl(set_death_signal, signal.SIGKILL)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
