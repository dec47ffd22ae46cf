"""Splits: balanced, stable, and without leaks."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from doctored import episode
from hypothesis import given, settings
from hypothesis import strategies as st

from kinema4d.cli.split import split as command
from kinema4d.data import leaks as leaks_module
from kinema4d.data.curate import curate
from kinema4d.data.dataset import Row, open_dataset
from kinema4d.data.leaks import Look, looks_of, same_content
from kinema4d.data.split import SPLITS, _place, leaks, read_split, split
from kinema4d.types import Clip, Episode, Pointmap

FRACTIONS = (0.6, 0.2, 0.2)


def still(number: int, *, group: str, task: str = "push", outcome: str = "success", tint: int = 0) -> Episode:
    """A tiny episode whose pictures differ from all others."""
    truth = episode()
    rng = np.random.default_rng(number)
    rgb = np.kron(rng.integers(0, 256, (2, 8, 12, 3)), np.ones((1, 4, 4, 1))).astype(np.uint8)
    rgb = np.clip(rgb.astype(int) + tint, 0, 255).astype(np.uint8)
    camera = truth.clip.camera.resized(32, 48)
    pointmap = Pointmap(points=np.zeros((2, 32, 48, 3), np.float32), valid=np.zeros((2, 32, 48), bool))
    return Episode(
        clip=Clip(camera=camera, rgb=rgb, pointmap=pointmap, fps=5.0), source=f"tiny/{group}", task=task,
        outcome=outcome, group=group, view=str(number),
    )  # fmt: skip


def fill(root: Path, numbers: range) -> None:
    dataset = open_dataset(root, create=True)
    for n in numbers:
        group = f"scene{n // 2}"
        outcome = "success" if n % 2 else "failure"
        dataset.add(f"ep{n:03d}", still(n, group=group, task=["push", "stack"][n // 2 % 2], outcome=outcome))


def placed(root: Path) -> dict[str, str]:
    return {id: part for part in SPLITS for id in read_split(root, part)}


def test_groups_stay_together_and_strata_are_balanced(tmp_path):
    root = tmp_path / "set"
    fill(root, range(40))
    result = split(root, FRACTIONS, workers=1)
    where = placed(root)
    assert len(where) == 40
    for n in range(0, 40, 2):
        assert where[f"ep{n:03d}"] == where[f"ep{n + 1:03d}"]
    assert {part: len(result.ids[part]) for part in SPLITS} == {"train": 24, "val": 8, "test": 8}
    assert len(result.strata) == 4
    assert max(s.deviation for s in result.strata) <= 1
    content = json.loads((root / "splits" / "splits.json").read_text())
    assert content["counts"] == {"train": 24, "val": 8, "test": 8}
    assert leaks(root, workers=1) == []


def test_the_same_again_and_another_seed(tmp_path):
    root = tmp_path / "set"
    fill(root, range(20))
    split(root, FRACTIONS, workers=1)
    first, content = placed(root), (root / "splits" / "splits.json").read_bytes()
    split(root, FRACTIONS, workers=1)
    assert (root / "splits" / "splits.json").read_bytes() == content
    split(root, FRACTIONS, workers=1, fresh=True)
    assert placed(root) == first
    with pytest.raises(ValueError, match="was made with seed 0"):
        split(root, FRACTIONS, seed=1, workers=1)
    split(root, FRACTIONS, seed=1, workers=1, fresh=True)
    assert placed(root) != first


def test_what_was_placed_stays_when_the_set_grows(tmp_path):
    root = tmp_path / "set"
    fill(root, range(20))
    split(root, FRACTIONS, workers=1)
    before = placed(root)
    fill(root, range(20, 60))
    open_dataset(root).add("late_view", still(99, group="scene3"))
    split(root, FRACTIONS, workers=1)
    after = placed(root)
    assert {id: after[id] for id in before} == before
    assert after["late_view"] == before["ep006"]
    assert abs(Counter(after.values())["val"] - 0.2 * 61) <= 2


def test_shared_pictures_keep_groups_together(tmp_path):
    root = tmp_path / "set"
    fill(root, range(24))
    dataset = open_dataset(root)
    for n in range(0, 24, 4):
        dataset.add(f"twin{n}", still(n, group=f"twin{n}"))  # the same video
        dataset.add(f"near{n}", still(n, group=f"near{n}", tint=1))  # the same to the eye
    result = split(root, FRACTIONS, workers=1)
    where = placed(root)
    for n in range(0, 24, 4):
        assert where[f"ep{n:03d}"] == where[f"twin{n}"] == where[f"near{n}"]
    assert result.joined == 12


def test_leaks_are_found(tmp_path):
    root = tmp_path / "set"
    fill(root, range(12))
    dataset = open_dataset(root)
    dataset.add("twin", still(0, group="twin"))
    dataset.add("near", still(4, group="near", tint=1))
    split(root, FRACTIONS, workers=1)
    parts = {part: set(read_split(root, part)) for part in SPLITS}
    for id in ("twin", "near", "ep006"):
        home = next(part for part in SPLITS if id in parts[part])
        parts[home].discard(id)
        parts["test" if home != "test" else "val"].add(id)
    parts["val"].add("ep011")
    parts["test"].add("ep011")
    for part in SPLITS:
        (root / "splits" / f"{part}.txt").write_text("\n".join(sorted(parts[part])))
    text = "\n".join(leaks(root, workers=1))
    for expected in ("have the same video", "have the same first frame", "group 'scene3' is in", "episode ep011 is in"):
        assert expected in text
    with pytest.raises(ValueError, match="train, val, test, got 'dev'"):
        read_split(root, "dev")


def test_a_newcomer_that_joins_two_parts_is_left_out(tmp_path):
    root = tmp_path / "set"
    dataset = open_dataset(root, create=True)
    for n in range(10):
        dataset.add(f"ep{n}", still(n, group=f"g{n}"))
    split(root, FRACTIONS, workers=1)
    before = placed(root)
    one, other = (next(id for id in sorted(before) if before[id] == part) for part in ("train", "val"))
    number, second = int(one[2:]), int(other[2:])
    dataset.add("new_a", still(number, group="new"))
    dataset.add("new_b", still(second, group="new"))
    result = split(root, FRACTIONS, workers=1)
    assert set(result.left_out) == {"new_a", "new_b"}
    assert placed(root) == before


def test_only_what_curation_keeps(tmp_path, capsys):
    root = tmp_path / "set"
    fill(root, range(10))
    bad = still(50, group="bad")
    bad = replace(bad, clip=replace(bad.clip, rgb=bad.clip.rgb[:1], pointmap=_first(bad.clip.pointmap)))
    open_dataset(root).add("short", bad)
    curate(root, workers=1)
    open_dataset(root).add("unjudged", still(51, group="late"))
    command(root, fractions=FRACTIONS, workers=1, json=True)
    out = capsys.readouterr()
    assert json.loads(out.out)["unjudged"] == ["unjudged"]
    assert "curation has not judged" in out.err
    assert not {"short", "unjudged"} & set(placed(root))
    command(root, fractions=FRACTIONS, workers=1, all=True)
    assert {"short", "unjudged"} <= set(placed(root))
    assert "no group, video or first frame is in two parts" in capsys.readouterr().out


def _first(pointmap: Pointmap) -> Pointmap:
    return Pointmap(points=pointmap.points[:1], valid=pointmap.valid[:1])


def test_bad_fractions_and_empty_sets(tmp_path):
    root = tmp_path / "set"
    open_dataset(root, create=True)
    with pytest.raises(ValueError, match="sum to 1"):
        split(root, (0.5, 0.2, 0.2))
    with pytest.raises(ValueError, match="no episode to divide"):
        split(root)
    fill(root, range(2))
    (root / "episodes" / "ep000" / "rgb.mp4").unlink()
    with pytest.raises(ValueError, match="rgb.mp4.*data curate"):
        split(root, workers=1)


def _row(n: int, group: str, task: str, outcome: str) -> Row:
    return Row(
        id=f"e{n}", sha256="", frames=2, height=1, width=1, fps=1.0, source="a/b", task=task, group=group, view="",
        outcome=outcome, robots=(), text="", camera_from="exact", metric=True, bytes=0,
    )  # fmt: skip


@settings(max_examples=8, deadline=None)
@given(st.integers(0, 10**6), st.lists(st.integers(1, 10), min_size=60, max_size=200))
def test_balance_of_many_small_strata(seed, sizes):
    """Each part gets its share to within about the largest group, overall and per task, however groups are sized."""
    rng, rows, n = np.random.default_rng(seed), defaultdict(list), 0
    for group, size in enumerate(sizes):
        task = f"t{rng.integers(5)}"
        for _ in range(size):
            rows[group].append(_row(n, f"g{group}", task, ["success", "failure"][int(rng.integers(2))]))
            n += 1
    where, _ = _place(list(rows.values()), {}, (0.8, 0.1, 0.1), seed)
    counts = Counter(where.values())
    assert len(where) == n
    for part, share in zip(SPLITS, (0.8, 0.1, 0.1), strict=True):
        assert abs(counts[part] - share * n) <= 10


def test_first_frames_that_are_nearly_the_same(tmp_path):
    rng = np.random.default_rng(0)
    base = rng.integers(30, 220, (32, 48)).astype(np.uint8)
    moved = base.copy()
    moved[10:12, 20:22] += 30
    noisy = (base + rng.integers(-4, 5, base.shape)).astype(np.uint8)
    other = rng.integers(30, 220, (32, 48)).astype(np.uint8)
    looks = [Look(video=str(i), thumbnail=t) for i, t in enumerate((base, moved, noisy, other, base))]
    looks.append(Look(video="1", thumbnail=255 - other))
    assert same_content(looks) == [(0, 2), (0, 4), (1, 5)]
    many = [Look(video=f"v{i}", thumbnail=(base + np.uint8(i))) for i in range(9)]
    assert len(same_content(many)) == 8, "a chain is connected by as few pairs as it takes"
    assert same_content(looks[:1]) == []
    root = tmp_path / "set"
    open_dataset(root, create=True).add("a", still(0, group="a"))
    assert looks_of(root, "a").thumbnail.shape == leaks_module.THUMBNAIL[::-1]
