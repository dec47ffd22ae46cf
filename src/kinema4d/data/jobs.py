"""Many jobs that write episodes: on local processes or a Ray cluster, with nothing lost or doubled by a kill.

A job writes whole episode folders under ids that follow from the job alone; the process that hands jobs out lists them in
the manifest. So a job that is run again writes the same folders, and a data set that is opened again lists what a
killed run had finished. A worker that dies takes its job with it, and the job is handed out again.
"""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kinema4d.data.dataset import Dataset, Row, open_dataset

TRIES = 3
"""How often a job may take its worker down before it is given up."""
ENGINES = ("local", "ray")
"""Where jobs can run."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """One piece of work. What it holds must pickle."""

    name: str
    """For messages and reports, unique in a run."""
    work: Any
    """What the worker function gets."""


Work = Callable[[str, Any], list[Row]]
"""``(root, job.work) -> rows`` of the episodes that it wrote; a ``ValueError`` says why there are none."""


@dataclass(kw_only=True)
class Summary:
    """What became of a run."""

    jobs: int = 0
    """Jobs done now."""
    episodes: int = 0
    """Episodes written now."""
    before: int = 0
    """Jobs that an earlier run had done."""
    skipped: dict[str, str] = field(default_factory=dict)
    """Jobs that made nothing, and why."""
    seconds: float = 0.0
    """Wall time."""


@contextmanager
def writing(root: Path) -> Iterator[Dataset]:
    """Open a data set to write, alone: a second writer is refused until this one ends or dies."""
    dataset = open_dataset(root, create=True)
    with (Path(root) / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ValueError(f"another process is writing to {root}: wait for it, or write elsewhere") from None
        yield open_dataset(dataset.root, create=True)


def run(
    dataset: Dataset,
    jobs: Sequence[Job],
    work: Work,
    *,
    engine: str = "local",
    workers: int = 2,
    address: str | None = None,
    done: Callable[[Job, list[Row]], None] | None = None,
    tell: Callable[[Summary], None] | None = None,
) -> Summary:
    """Do ``jobs``, list what they wrote, and say what became of them. ``done`` is called for each finished job after
    its rows are listed, ``tell`` after every job. ``address`` is that of a Ray cluster; by default a local one."""
    if engine not in ENGINES:
        raise ValueError(f"unknown engine {engine!r}; known are {', '.join(ENGINES)}")
    if workers < 1:
        raise ValueError(f"workers must be at least 1, got {workers}")
    summary, start = Summary(), time.monotonic()
    results = {"local": _local, "ray": _ray}[engine](str(dataset.root), jobs, work, workers, address)
    for job, rows in results:
        if isinstance(rows, str):
            summary.skipped[job.name] = rows
        else:
            for row in rows:
                dataset.enter(row)
            summary.jobs, summary.episodes = summary.jobs + 1, summary.episodes + len(rows)
            if done is not None:
                done(job, rows)
        summary.seconds = time.monotonic() - start
        if tell is not None:
            tell(summary)
    return summary


Result = tuple[Job, list[Row] | str]
"""A job with its rows, or with the reason why it has none."""


def _attempt(work: Work, root: str, content: Any) -> list[Row] | str:
    """What a worker does: a user's bad file is a reason, everything else a bug that must be seen."""
    try:
        return work(root, content)
    except ValueError as error:
        return str(error)


def _local(root: str, jobs: Sequence[Job], work: Work, workers: int, address: str | None) -> Iterator[Result]:
    if workers == 1:
        for job in jobs:
            yield job, _attempt(work, root, job.work)
        return
    waiting, tries = list(reversed(jobs)), dict.fromkeys((job.name for job in jobs), 0)
    while waiting:
        running: dict[Future[list[Row] | str], Job] = {}
        context = multiprocessing.get_context("spawn")  # threads of compiled code do not survive a fork
        with ProcessPoolExecutor(workers, mp_context=context, initializer=_watch_parent) as pool:
            try:
                while waiting or running:
                    while waiting and len(running) < 2 * workers:
                        job = waiting.pop()
                        running[pool.submit(_attempt, work, root, job.work)] = job
                    for future in wait(running, return_when=FIRST_COMPLETED).done:
                        result = future.result()
                        yield running.pop(future), result
            except BrokenProcessPool:  # a worker was killed; the pool cannot say which job was its
                for job in running.values():
                    tries[job.name] += 1
                    if tries[job.name] < TRIES:
                        waiting.append(job)
                    else:
                        yield job, f"its worker died {TRIES} times (out of memory?): run it alone with --workers 1"


def _watch_parent() -> None:
    """End with the process that hands out the jobs, however that ends."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _ray(root: str, jobs: Sequence[Job], work: Work, workers: int, address: str | None) -> Iterator[Result]:
    try:
        import ray
    except ImportError:
        raise ValueError("--engine ray needs Ray: pip install 'kinema4d[ray]'") from None
    root = str(Path(root).resolve())  # workers on other machines see it through a shared file system
    mine = not ray.is_initialized()
    if mine:
        options = {"address": address} if address else {"num_cpus": workers, "include_dashboard": False}
        ray.init(log_to_driver=False, **options)
    try:
        remote = ray.remote(num_cpus=1, max_retries=TRIES, retry_exceptions=False)(_attempt)
        waiting, running = list(reversed(jobs)), {}
        while waiting or running:
            while waiting and len(running) < 2 * workers:
                job = waiting.pop()
                running[remote.remote(work, root, job.work)] = job
            ready, _ = ray.wait(list(running), num_returns=1)
            job = running.pop(ready[0])
            try:
                yield job, ray.get(ready[0])
            except (ray.exceptions.WorkerCrashedError, ray.exceptions.OutOfMemoryError) as error:
                yield job, f"its worker died {TRIES} times: {type(error).__name__}"
    finally:
        if mine:
            ray.shutdown()
