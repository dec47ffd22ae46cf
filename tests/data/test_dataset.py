"""A data set and its manifest stay in step, whatever was killed, torn, copied by halves or deleted."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from small_jobs import T, enter_many, tiny

from kinema4d.data import manifest as manifest_module
from kinema4d.data.dataset import Dataset, open_dataset, row_of, write_episode
from kinema4d.data.jobs import writing
from kinema4d.data.store import save


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three episodes; not to be changed."""
    root = tmp_path_factory.mktemp("made") / "set"
    dataset = open_dataset(root, create=True)
    for number, id in enumerate(["b", "a", "c+1=x.y_z-0"]):
        dataset.add(id, tiny(number), {"command": "test"})
    return root


@pytest.fixture
def root(made: Path, tmp_path: Path) -> Path:
    """A copy to break."""
    return Path(shutil.copytree(made, tmp_path / "set"))


def lines(root: Path) -> list[str]:
    return (root / "manifest.jsonl").read_text().splitlines()


# ------------------------------------------------------------------ reading and writing


def test_what_is_added_is_listed_and_loaded(made: Path) -> None:
    dataset = open_dataset(made)
    assert len(dataset) == 3
    assert dataset.ids == ["a", "b", "c+1=x.y_z-0"]
    assert [row.id for row in dataset.rows] == dataset.ids
    assert "a" in dataset
    assert "z" not in dataset
    row, truth = dataset.row("a"), tiny(1)
    assert row == dataset.row(0) == dataset.row("0")
    assert (row.frames, row.height, row.width, row.fps) == (T, 16, 24, 10.0)
    for name in ("source", "task", "group", "view", "outcome", "text", "camera_from", "metric", "facts"):
        assert getattr(row, name) == getattr(truth, name), name
    assert (row.robots, row.dataset) == (("k4arm",), "test")
    assert row.bytes == sum(file.stat().st_size for file in dataset.folder("a").iterdir())
    loaded = dataset.load("a")
    assert loaded.text == truth.text
    assert np.array_equal(loaded.arms[0].trajectory.q, truth.arms[0].trajectory.q)
    window = dataset.load(0, frames=slice(1, 3))
    assert len(window) == 2
    assert window.labels is not None
    assert truth.labels is not None
    assert np.array_equal(window.labels, truth.labels[1:3])
    assert all(dataset.verify(id) == [] for id in dataset.ids)


def test_what_is_not_there_is_refused(made: Path, tmp_path: Path) -> None:
    dataset = open_dataset(made)
    for wrong, message in [
        (3, "has 3 episodes, 0 to 2; got 3"),
        (-1, "got -1"),
        ("17", "got 17"),
        ("1=x", "did you mean c+1=x.y_z-0"),
        ("nothing", "its first ids are a, b"),
        ("²", "has no episode '²'"),
    ]:
        with pytest.raises(ValueError, match=message.replace("+", r"\+")):
            dataset.row(wrong)
    with pytest.raises(ValueError, match="has no episodes yet"):
        open_dataset(tmp_path / "new", create=True).row(0)


@pytest.mark.parametrize("id", ["", ".a", "..", "a/b", "a b", "-a", "é", "a\n", "x" * 300])
def test_ids_that_are_no_file_names_are_refused(made: Path, id: str) -> None:
    with pytest.raises(ValueError, match="an episode id|cannot write"):
        open_dataset(made).add(id, tiny())
    assert sorted(f.name for f in (made / "episodes").iterdir()) == ["a", "b", "c+1=x.y_z-0"]


def test_an_id_is_given_once(root: Path) -> None:
    first, second = open_dataset(root), open_dataset(root)
    first.add("new", tiny(9))
    with pytest.raises(ValueError, match="has an episode 'new' already"):
        second.add("new", tiny(8))  # although it was opened before
    assert second.load("new").text == "lift cup 9"


def test_an_episode_that_is_written_again_is_listed_as_it_is_now(root: Path) -> None:
    dataset = open_dataset(root)
    dataset.enter(row_of(root / "episodes" / "a"))
    assert len(lines(root)) == 3  # the same is not listed twice
    dataset.enter(write_episode(root, "a", tiny(7)))
    again = open_dataset(root)
    assert (len(again), again.row("a").text) == (3, "lift cup 7")
    assert again.verify("a") == []


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "has no dataset.json"),
        ("{", "not readable as JSON"),
        ('{"format": "other"}', "must say"),
        ('{"format": "kinema4d dataset", "version": 9}', "has version 9, this kinema4d reads 1"),
    ],
)
@pytest.mark.parametrize("create", [False, True])
def test_other_folders_are_refused(tmp_path: Path, content: str | None, message: str, create: bool) -> None:
    (tmp_path / "file.txt").write_text("mine")
    if content is not None:
        (tmp_path / "dataset.json").write_text(content)
    elif create:
        message = "exists and is not a kinema4d data set"
    with pytest.raises(ValueError, match=message):
        open_dataset(tmp_path, create=create)
    assert not (tmp_path / "episodes").exists()


@pytest.mark.parametrize("there", [[], [".lock"], [".lock", ".dataset.tmp-1.json"]])
def test_a_kill_before_the_first_file_does_no_harm(tmp_path: Path, there: list[str]) -> None:
    root = tmp_path / "set"
    root.mkdir()
    for name in there:
        (root / name).write_text("")
    assert len(open_dataset(root, create=True)) == 0


# ------------------------------------------------------------------ damage


def test_verify_names_what_is_wrong(root: Path) -> None:
    folder = root / "episodes" / "a"
    hashed = {f.name for f in folder.iterdir()} - {"meta.json"}
    assert {"camera.json", "trajectory.npz", "commands.npz", "tracks.npz", "rgb.mp4", "depth.mkv"} <= hashed
    dataset = open_dataset(root)
    for name in hashed:
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        assert len(dataset.verify("a")) == 1
        assert f"{name} was changed" in dataset.verify("a")[0]
        (folder / name).unlink()
        assert f"{name} is missing" in dataset.verify("a")[0]
        (folder / name).mkdir()
        assert f"{name} is not readable" in dataset.verify("a")[0]
        (folder / name).rmdir()
        (folder / name).write_bytes(content)
    assert dataset.verify("a") == []
    meta = folder / "meta.json"
    meta.write_text(meta.read_text().replace("lift cup", "drop cup"))
    assert "is not the one in the manifest" in dataset.verify("a")[0]
    shutil.rmtree(folder)
    assert "is missing" in dataset.verify("a")[0]


@pytest.mark.parametrize(
    "line", ["{", "[]", "null", "{}", '{"id": "a"}', '{"robots": 3}', "\x00\x00", '{"id": "a", "robots": []}']
)
def test_a_damaged_line_is_named(root: Path, line: str) -> None:
    kept = lines(root)
    (root / "manifest.jsonl").write_text("\n".join([kept[0], line, *kept[1:]]) + "\n")
    for create in (False, True):
        with pytest.raises(ValueError, match=r"manifest.jsonl, line 2 is damaged .*delete the manifest"):
            open_dataset(root, create=create)
    (root / "manifest.jsonl").unlink()
    assert sorted(lines(open_dataset(root, create=True).root)) == sorted(kept)  # the remedy works


@pytest.mark.parametrize("kept", [0.0, 0.3, 0.999])
def test_a_torn_last_line_is_dropped_and_its_episode_listed_again(root: Path, kept: float) -> None:
    whole = (root / "manifest.jsonl").read_bytes()
    last = whole[:-1].rfind(b"\n") + 1
    cut = last + int(kept * (len(whole) - last - 1))
    (root / "manifest.jsonl").write_bytes(whole[:cut])
    assert len(open_dataset(root)) == 2  # a reader takes it for a line in the making
    assert (root / "manifest.jsonl").stat().st_size == cut
    dataset = open_dataset(root, create=True)
    assert (root / "manifest.jsonl").read_bytes() == whole
    assert (len(dataset), dataset.mended) == (3, ())


def test_appending_after_a_torn_line_does_not_glue(root: Path) -> None:
    whole = (root / "manifest.jsonl").read_bytes()
    (root / "manifest.jsonl").write_bytes(whole[:-20])
    open_dataset(root).add("late", tiny(5))  # nobody mended it
    assert sorted(open_dataset(root).ids) == ["a", "b", "late"]
    assert len(open_dataset(root, create=True)) == 4


def test_a_full_disk_leaves_no_half_line(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset, whole = open_dataset(root), (root / "manifest.jsonl").read_bytes()
    write = os.write
    monkeypatch.setattr(manifest_module.os, "write", lambda descriptor, line: write(descriptor, line[:50]))
    with pytest.raises(ValueError, match="disk is full"):
        dataset.enter(replace(dataset.rows[0], id="new"))
    assert (root / "manifest.jsonl").read_bytes() == whole


def test_a_finished_episode_that_is_not_listed_is_listed(root: Path) -> None:
    row = write_episode(root, "finished", tiny(5))
    assert "finished" not in open_dataset(root)
    dataset = open_dataset(root, create=True)
    assert dataset.row("finished") == row
    assert dataset.mended == ()
    assert not (root / "rejected").exists()


def _half_copied(folder: Path) -> None:
    (folder / "depth.mkv").write_bytes((folder / "depth.mkv").read_bytes()[:-10])


BROKEN = {
    "lacks a file": (lambda f: (f / "rgb.mp4").unlink(), "rgb.mp4 is missing"),
    "half copied": (_half_copied, "depth.mkv was changed"),
    "no meta": (lambda f: (f / "meta.json").unlink(), "no meta.json"),
    "torn meta": (lambda f: (f / "meta.json").write_text("{"), "not readable as JSON"),
    "no arms": (lambda f: _edit(f, "arms", None), "'arms' must be a list"),
    "bad arms": (lambda f: _edit(f, "arms", [{}]), "'robot' must be a str"),
    "bad facts": (lambda f: _edit(f, "facts", 3), "'facts' must be a dict"),
    "bad name": (lambda f: f.rename(f.with_name("a copy")), "its name is no episode id"),
    "a clip": (lambda f: save(tiny().clip, f, overwrite=True), "holds a clip"),
    "a file": (lambda f: (shutil.rmtree(f), f.write_text("x")), "is a file"),
    "empty": (lambda f: (shutil.rmtree(f), f.mkdir()), "no meta.json"),
}


def _edit(folder: Path, key: str, value: object) -> None:
    meta = json.loads((folder / "meta.json").read_text())
    (folder / "meta.json").write_text(json.dumps(meta | {key: value}))


@pytest.mark.parametrize("case", BROKEN)
def test_nothing_half_written_enters_the_manifest(root: Path, case: str) -> None:
    damage, why = BROKEN[case]
    write_episode(root, "new", tiny(5))
    damage(root / "episodes" / "new")
    dataset = open_dataset(root, create=True)
    assert dataset.ids == ["a", "b", "c+1=x.y_z-0"]
    assert len(dataset.mended) == 1
    assert why in dataset.mended[0]
    assert "moved to rejected/" in dataset.mended[0]
    assert (root / "mended.txt").read_text() == dataset.mended[0] + "\n"
    assert len(list((root / "rejected").iterdir())) == 1
    # It can be made again, and be broken again, without a fight over the name.
    write_episode(root, "new", tiny(5))
    damage(root / "episodes" / "new")
    assert len(open_dataset(root, create=True).mended) == 1
    assert len(list((root / "rejected").iterdir())) == 2
    assert open_dataset(root, create=True).mended == ()


def test_a_listed_episode_that_is_gone_is_dropped_and_said(root: Path) -> None:
    shutil.rmtree(root / "episodes" / "b")
    reader = open_dataset(root)
    assert "b" in reader  # a reader is told when it asks
    with pytest.raises(ValueError, match="missing"):
        reader.load("b")
    dataset = open_dataset(root, create=True)
    assert dataset.ids == ["a", "c+1=x.y_z-0"]
    assert dataset.mended == ("b was listed but is no longer there: listed no more",)
    assert "b was listed" in (root / "mended.txt").read_text()
    assert len(lines(root)) == 2
    dataset.add("b", tiny(0))
    reader.refresh()  # another file by now
    assert reader.row("b") == dataset.row("b")
    (root / "episodes" / "a" / "meta.json").unlink()
    dataset = open_dataset(root, create=True)
    assert "a" not in dataset
    assert (root / "rejected" / "a").is_dir()


def test_a_disk_that_is_not_mounted_does_not_empty_the_manifest(root: Path) -> None:
    before = lines(root)
    shutil.move(root / "episodes", root / "elsewhere")
    with pytest.raises(ValueError, match="none of the 3 listed episodes: is its disk mounted"):
        open_dataset(root, create=True)
    assert lines(root) == before


# ------------------------------------------------------------------ leftovers


def _dead_process() -> int:
    done = subprocess.Popen([sys.executable, "-c", ""])
    done.wait()
    return done.pid


def test_leftovers_of_the_dead_are_removed_and_of_the_living_kept(root: Path) -> None:
    dead, living = _dead_process(), os.getppid()
    folders = [root / "episodes" / f".{id}.tmp-{process}" for id in ("a", "x.y") for process in (dead, living)]
    for folder in folders:
        folder.mkdir()
        (folder / "rgb.mp4").write_bytes(b"half")
    (root / f".dataset.tmp-{dead}.json").write_text("half")
    (root / f".recipe-tabletop-0.tmp-{living}.json").write_text("half")
    (root / ".mine-1").write_text("not ours")
    open_dataset(root, create=True)
    assert [folder.exists() for folder in folders] == [False, True, False, True]
    assert sorted(f.name for f in root.glob(".*-*")) == [".mine-1", f".recipe-tabletop-0.tmp-{living}.json"]


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
def test_a_process_id_that_was_given_again_does_not_keep_a_leftover(root: Path) -> None:
    leftover = root / "episodes" / f".a.tmp-{os.getpid()}"
    leftover.mkdir()
    os.utime(leftover, (1e9, 1e9))  # long before this process began
    open_dataset(root, create=True)
    assert not leftover.exists()


def test_a_kill_between_two_renames_loses_nothing(root: Path) -> None:
    # Where the file system cannot exchange folders, the old one is renamed away first.
    (root / "episodes" / "a").rename(root / "episodes" / f".a.old-{_dead_process()}")
    (root / "episodes" / f".b.old-{_dead_process()}").mkdir()
    dataset = open_dataset(root, create=True)
    assert dataset.verify("a") == []
    assert (len(dataset), dataset.mended) == (3, ())
    assert not list((root / "episodes").glob(".*"))


# ------------------------------------------------------------------ several processes


def test_one_writer_at_a_time(root: Path) -> None:
    with writing(root):
        write_episode(root, "unlisted", tiny(5))
        before = (root / "manifest.jsonl").read_bytes()
        for refused in (lambda: writing(root).__enter__(), lambda: open_dataset(root, create=True)):
            with pytest.raises(ValueError, match="another process is writing to .*: wait for it"):
                refused()
        assert (root / "manifest.jsonl").read_bytes() == before  # who is refused has not touched anything
        assert len(open_dataset(root)) == 3  # reading needs no lock
    with writing(root) as dataset:
        assert "unlisted" in dataset


def test_reading_while_two_processes_append(root: Path) -> None:
    context = multiprocessing.get_context("spawn")
    count = 300
    # Both list the middle third.
    writers = [context.Process(target=enter_many, args=(str(root), first, count)) for first in (0, count // 2)]
    dataset, seen = open_dataset(root), 3
    for process in writers:
        process.start()
    while any(process.is_alive() for process in writers):
        dataset.refresh()
        assert len(dataset) >= seen
        assert len(Dataset(root)) >= len(dataset) >= seen
        seen = len(dataset)
    assert [process.exitcode for process in writers] == [0, 0]
    dataset.refresh()
    assert len(dataset) == 3 + count * 3 // 2
    assert len(lines(root)) == len(dataset)  # none twice


def test_a_large_manifest_is_quick(root: Path) -> None:
    row, count = open_dataset(root).rows[0], 20_000
    text = json.dumps(asdict(row))
    content = [text.replace('"id": "a"', f'"id": "e{number:05d}"') + "\n" for number in range(count)]
    (root / "manifest.jsonl").write_text("".join(content))
    script = """
import sys, time
from dataclasses import replace
from kinema4d.data.dataset import open_dataset
start = time.process_time()
dataset = open_dataset(sys.argv[1])
assert dataset.row(12_345).id == "e12345"
print(time.process_time() - start)
start = time.process_time()
for number in range(500):
    dataset.enter(replace(dataset.row("e00000"), id=f"f{number}"))
print((time.process_time() - start) / 500)
"""  # in a process of its own, which does not check every annotation
    done = subprocess.run([sys.executable, "-c", script, str(root)], capture_output=True, text=True, check=True)
    opened, entered = (float(text) for text in done.stdout.split())
    assert opened < 1
    assert entered < 0.5e-3, "it must not depend on how many there are"
    assert len(lines(root)) == count + 500
