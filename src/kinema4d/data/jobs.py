"""Many jobs that write episodes: on local processes or a Ray cluster, with nothing lost or doubled by a kill.

A job writes whole episode folders under ids that follow from the job alone; the process that hands jobs out lists them in
the manifest. So a job that is run again writes the same folders, and a data set that is opened again lists what a
killed run had finished. A worker that dies takes its job with it, and the job is handed out again.
"""

from __future__ import annotations

import os
import socket
import time
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kinema4d.data.dataset import Dataset
from kinema4d.data.manifest import Row
from kinema4d.data.mend import alone, mend, sweep
from kinema4d.data.pool import process_pool

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
    mended: tuple[str, ...] = ()
    """What was wrong with the data set before, and what became of it."""
    seconds: float = 0.0
    """Wall time."""


@contextmanager
def writing(root: Path) -> Iterator[Dataset]:
    """Open a data set to write, alone: a second writer is refused until this one ends or dies."""
    root = Path(root)
    with alone(root):
        manifest, mended = mend(root)
        try:
            yield Dataset(root, manifest=manifest, mended=mended)
        finally:
            sweep(root)  # what killed workers left


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
    summary, start = Summary(mended=dataset.mended), time.monotonic()
    start_jobs = {"local": _local, "ray": _ray}[engine]
    with closing(start_jobs(str(dataset.root), jobs, work, workers, address)) as results:
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
Results = Generator[Result, None, None]
"""One after the other, as they come in."""


def _attempt(work: Work, root: str, content: Any) -> list[Row] | str:
    """What a worker does: a user's bad file is a reason, everything else a bug that must be seen."""
    try:
        return work(root, content)
    except ValueError as error:
        return str(error)


def _local(root: str, jobs: Sequence[Job], work: Work, workers: int, address: str | None) -> Results:
    if workers == 1:
        for job in jobs:
            with _named(job):
                result = _attempt(work, root, job.work)
            yield job, result
        return
    waiting, deaths, stillborn = deque(jobs), Counter[str](), 0
    idle: list[_Lane] = []
    running: dict[Future[list[Row] | str], tuple[_Lane, Job]] = {}
    try:
        while waiting or running:
            while waiting and len(running) < workers:
                lane, job = idle.pop() if idle else _Lane(), waiting.popleft()
                running[lane.submit(work, root, job.work)] = lane, job
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                lane, job = running.pop(future)
                try:
                    with _named(job):
                        result = future.result()
                    idle.append(lane)
                    stillborn = 0
                except BrokenProcessPool:
                    lane.close()
                    if lane.started:
                        deaths[job.name], stillborn = deaths[job.name] + 1, 0
                    else:  # nothing can be said about the job
                        stillborn += 1
                        if stillborn >= TRIES * workers:
                            raise ValueError(_NO_START) from None
                    if deaths[job.name] < TRIES:
                        waiting.append(job)
                        continue
                    result = f"its worker died {TRIES} times (out of memory?): run it alone with --workers 1"
                yield job, result
    finally:
        for lane in [*idle, *(lane for lane, _ in running.values())]:
            lane.close()


_NO_START = (
    "worker processes do not start (their own message is above); a script that uses more than one worker needs "
    "\"if __name__ == '__main__':\" around what it does"
)


class _Lane:
    """One worker process with one job at a time, so that a death is that job's and disturbs no other."""

    def __init__(self) -> None:
        self.pool = process_pool(1)
        self.first = self.pool.submit(os.getpid)

    @property
    def started(self) -> bool:
        """Whether the process came as far as taking work."""
        return self.first.done() and self.first.exception() is None

    def submit(self, work: Work, root: str, content: Any) -> Future[list[Row] | str]:
        """Give it a job. A process that died while idle makes a future that says so."""
        try:
            return self.pool.submit(_attempt, work, root, content)
        except BrokenProcessPool as error:
            broken: Future[list[Row] | str] = Future()
            broken.set_exception(error)
            return broken

    def close(self) -> None:
        """End the process after what it is doing."""
        self.pool.shutdown(cancel_futures=True)


@contextmanager
def _named(job: Job) -> Iterator[None]:
    """Say which job it was when a bug surfaces."""
    try:
        yield
    except BrokenProcessPool:
        raise
    except BaseException as error:
        error.add_note(f"in job {job.name}")
        raise


def _ray(root: str, jobs: Sequence[Job], work: Work, workers: int, address: str | None) -> Results:
    try:
        import ray
        import ray.exceptions
    except ImportError:
        raise ValueError("--engine ray needs Ray: pip install 'kinema4d[ray]'") from None
    root = str(Path(root).resolve())  # workers on other machines see it through a shared file system
    mine = not ray.is_initialized()
    if mine:
        _start_ray(ray, workers, address)
    lost = (ray.exceptions.WorkerCrashedError, ray.exceptions.OutOfMemoryError, ray.exceptions.NodeDiedError)
    try:
        remote = ray.remote(num_cpus=1, max_retries=TRIES - 1, retry_exceptions=False)(_attempt)
        waiting, running = deque(jobs), {}
        while waiting or running:
            while waiting and len(running) < 2 * workers:
                job = waiting.popleft()
                running[remote.remote(work, root, job.work)] = job
            ready, _ = ray.wait(list(running), num_returns=1)
            job = running.pop(ready[0])
            try:
                with _named(job):
                    result = ray.get(ready[0])
            except lost as error:
                result = f"its worker died {TRIES} times: {type(error).__name__}"
            yield job, result
    finally:
        if mine:
            ray.shutdown()


def _start_ray(ray: Any, workers: int, address: str | None) -> None:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # Ray would report its use over the network
    own = {"address": "local", "num_cpus": workers, "include_dashboard": False, "object_store_memory": 100_000_000}
    host, _, port = (address or "").removeprefix("ray://").rpartition(":")
    try:
        if port.isdecimal():  # Ray itself would try for minutes
            socket.create_connection((host, int(port)), timeout=5).close()
        ray.init(log_to_driver=False, **({"address": address} if address else own))
    except (ConnectionError, TimeoutError, socket.gaierror) as error:
        raise ValueError(
            f"no Ray cluster answers at {address}: {error}; start one with 'ray start --head', or give no address"
        ) from None
