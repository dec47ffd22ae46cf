"""Jobs are done once and listed once, whoever is killed meanwhile."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import pytest
from small_jobs import contents, mixed, tiny, write

from kinema4d.data.jobs import TRIES, Job, Summary, run, writing

HERE = Path(__file__).parent


def jobs(*ids: str, seconds: float = 0.0) -> list[Job]:
    return [Job(name=id, work=(id, seconds)) for id in ids]


def calls(root: Path) -> Counter[str]:
    return Counter(line.split()[0] for line in (root / "calls.log").read_text().splitlines())


def assert_whole(root: Path, ids: set[str]) -> None:
    """Each listed once with every hash right, and nothing else there."""
    with writing(root) as dataset:
        assert set(dataset.ids) == ids
        assert dataset.mended == ()
        assert [dataset.verify(id) for id in dataset.ids] == [[]] * len(ids)
    assert len((root / "manifest.jsonl").read_text().splitlines()) == len(ids)
    assert {f.name for f in (root / "episodes").iterdir()} == ids


@pytest.mark.parametrize("workers", [1, 2])
def test_every_job_is_done_once_and_what_is_broken_is_skipped_with_its_reason(tmp_path: Path, workers: int) -> None:
    heard: list[tuple[int, int]] = []
    finished: dict[str, list[str]] = {}
    work = jobs("a", "bad1", "b", "c", "bad2", "d")

    def done(job: Job, rows: list) -> None:
        assert all(row.id in dataset for row in rows)  # listed before it counts as done
        finished[job.name] = [row.id for row in rows]

    def tell(summary: Summary) -> None:
        heard.append((summary.jobs, len(summary.skipped)))

    with writing(tmp_path / "set") as dataset:
        summary = run(dataset, work, mixed, workers=workers, done=done, tell=tell)
    assert (summary.jobs, summary.episodes) == (4, 4)
    assert summary.skipped == {"bad1": "bad1 is broken: restore it", "bad2": "bad2 is broken: restore it"}
    assert finished == {id: [id] for id in "abcd"}
    assert sorted(map(sum, heard)) == [1, 2, 3, 4, 5, 6]
    assert calls(tmp_path / "set") == Counter("abcd")
    assert_whole(tmp_path / "set", set("abcd"))


@pytest.mark.parametrize("workers", [1, 2])
def test_a_bug_is_seen_and_what_was_done_is_kept(tmp_path: Path, workers: int) -> None:
    with writing(tmp_path / "set") as dataset, pytest.raises(KeyError, match="bug") as caught:
        run(dataset, jobs("a", "bug", "b", "c", "d"), mixed, workers=workers)
    assert caught.value.__notes__ == ["in job bug"]
    with writing(tmp_path / "set") as dataset:
        assert "a" in dataset
        assert all(dataset.verify(id) == [] for id in dataset.ids)
        assert dataset.mended == ()


def test_a_worker_killed_in_the_middle_of_writing_loses_and_doubles_nothing(tmp_path: Path) -> None:
    ids = ["a", "once1", "b", "c", "once2", "d"]
    with writing(tmp_path / "set") as dataset:
        summary = run(dataset, jobs(*ids), mixed, workers=2)
        assert (summary.jobs, summary.episodes, summary.skipped) == (6, 6, {})
    assert calls(tmp_path / "set") == Counter({id: 2 if id.startswith("once") else 1 for id in ids})
    assert_whole(tmp_path / "set", set(ids))  # in particular no half folder is left


def test_a_worker_killed_from_outside(tmp_path: Path) -> None:
    root, ids = tmp_path / "set", {"a", "b", "c", "d"}
    killed: list[int] = []

    def kill_one() -> None:
        while not (root / "calls.log").exists():
            time.sleep(0.02)
        killed.append(int((root / "calls.log").read_text().split()[1]))
        os.kill(killed[0], signal.SIGKILL)

    with writing(root) as dataset:
        killer = threading.Thread(target=kill_one)
        killer.start()
        summary = run(dataset, jobs(*sorted(ids), seconds=1.0), write, workers=2)
        killer.join()
    assert killed
    assert (summary.jobs, summary.skipped) == (4, {})
    assert sum(calls(root).values()) == 5
    assert_whole(root, ids)


def test_a_job_that_always_kills_its_worker_is_given_up_and_harms_no_other(tmp_path: Path) -> None:
    work = [*jobs("dies"), *jobs("a", "b", "c", seconds=1.0)]
    with writing(tmp_path / "set") as dataset:
        summary = run(dataset, work, mixed, workers=3)
    assert list(summary.skipped) == ["dies"]
    assert f"its worker died {TRIES} times" in summary.skipped["dies"]
    # The others were running at every death, and none was begun again.
    assert calls(tmp_path / "set") == Counter({"dies": TRIES, "a": 1, "b": 1, "c": 1})
    assert_whole(tmp_path / "set", set("abc"))


def test_wrong_settings_are_refused(tmp_path: Path) -> None:
    with writing(tmp_path / "set") as dataset:
        with pytest.raises(ValueError, match="unknown engine 'dask'; known are local, ray"):
            run(dataset, [], write, engine="dask")
        with pytest.raises(ValueError, match="workers must be at least 1, got 0"):
            run(dataset, [], write, workers=0)
        assert run(dataset, [], write, workers=2).jobs == 0


def test_what_was_mended_is_in_the_summary(tmp_path: Path) -> None:
    with writing(tmp_path / "set") as dataset:
        dataset.add("a", tiny())
    (tmp_path / "set" / "episodes" / "half").mkdir()
    with writing(tmp_path / "set") as dataset:
        summary = run(dataset, [], write)
    assert len(summary.mended) == 1
    assert "half is no whole episode" in summary.mended[0]


# ------------------------------------------------------------------ the process that hands out the jobs

SCRIPT = """
import sys
from kinema4d.data.jobs import Job, run, writing
from small_jobs import write
def main():
    with writing(sys.argv[1]) as dataset:
        print("open", flush=True)
        jobs = [Job(name=f"j{i}", work=(f"j{i}", float(sys.argv[2]))) for i in range(4)]
        print(run(dataset, jobs, write, workers=2).jobs, flush=True)
"""
GUARDED = SCRIPT + "if __name__ == '__main__':\n    main()\n"


def script(tmp_path: Path, text: str, *arguments: str) -> subprocess.Popen[str]:
    file = tmp_path / "script.py"
    file.write_text(text)
    return subprocess.Popen(
        [sys.executable, str(file), *arguments],
        env=os.environ | {"PYTHONPATH": str(HERE)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def living(session: int) -> list[int]:
    """Processes of a session that still run."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            state, _, _, of = (entry / "stat").read_text().rpartition(")")[2].split()[:4]
        except OSError:
            continue
        if int(of) == session and state != "Z":
            found.append(int(entry.name))
    return found


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc to see processes")
@pytest.mark.parametrize("when", ["starting", "working"])
def test_workers_end_with_the_one_that_hands_out_the_jobs(tmp_path: Path, when: str) -> None:
    process = script(tmp_path, GUARDED, str(tmp_path / "set"), "60")
    assert process.stdout is not None
    assert process.stdout.readline() == "open\n"
    end = time.monotonic() + 60
    if when == "starting":  # workers exist, but are still importing
        while len(living(process.pid)) < 3:
            assert time.monotonic() < end
    else:
        log = tmp_path / "set" / "calls.log"
        while not log.exists() or len(log.read_text().splitlines()) < 2:
            assert time.monotonic() < end
            time.sleep(0.05)
    process.kill()  # this one only
    process.wait()
    begin = time.monotonic()
    while left := living(process.pid):
        assert time.monotonic() < begin + 20, f"{left} still run"
        time.sleep(0.02)
    if when == "working":
        assert time.monotonic() < begin + 3
    with writing(tmp_path / "set") as dataset:  # the lock died too
        assert run(dataset, jobs("j0", "j1"), write, workers=1).jobs == 2
    assert_whole(tmp_path / "set", {"j0", "j1"})


def test_a_script_without_a_guard_is_told(tmp_path: Path) -> None:
    process = script(tmp_path, SCRIPT + "main()\n", str(tmp_path / "set"), "0")
    _, errors = process.communicate(timeout=100)
    assert process.returncode != 0
    assert "worker processes do not start" in errors
    assert "if __name__ == '__main__':" in errors


# ------------------------------------------------------------------ Ray


def test_ray_that_is_not_installed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with (
        writing(tmp_path / "set") as dataset,
        pytest.raises(ValueError, match=r"needs Ray: pip install 'kinema4d\[ray\]'"),
    ):
        run(dataset, jobs("a"), write, engine="ray")


@pytest.mark.parametrize("address", ["127.0.0.1:1", "ray://127.0.0.1:1", "no.such.host.invalid:6379"])
def test_a_ray_cluster_that_does_not_answer_is_named(tmp_path: Path, address: str) -> None:
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'kinema4d[ray]'")
    with (
        writing(tmp_path / "set") as dataset,
        pytest.raises(ValueError, match=f"no Ray cluster answers at {address}.*ray start --head"),
    ):
        run(dataset, jobs("a"), write, engine="ray", address=address)


def test_the_same_jobs_on_a_ray_cluster_of_two_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'kinema4d[ray]'")
    monkeypatch.setenv("PYTHONPATH", str(HERE))
    ids = ["a", "bad1", "once1", "b", "c", "d"]
    with writing(tmp_path / "local") as dataset:
        run(dataset, jobs("a", "once1", "b", "c", "d"), write, workers=1)
    with writing(tmp_path / "ray") as dataset:
        summary = run(dataset, [*jobs("dies"), *jobs(*ids)], mixed, engine="ray", workers=2)
        assert not ray.is_initialized()  # the cluster was ours, and is gone
    assert summary.jobs == 5
    assert set(summary.skipped) == {"bad1", "dies"}
    assert summary.skipped["bad1"] == "bad1 is broken: restore it"
    assert f"its worker died {TRIES} times" in summary.skipped["dies"]
    assert calls(tmp_path / "ray") == Counter({"dies": TRIES, "once1": 2, "a": 1, "b": 1, "c": 1, "d": 1})
    for name in ("local", "ray"):
        (tmp_path / name / "calls.log").unlink()
    for file in (tmp_path / "ray").glob("*.died"):
        file.unlink()
    assert contents(tmp_path / "local") == contents(tmp_path / "ray")
    assert_whole(tmp_path / "ray", {"a", "once1", "b", "c", "d"})
