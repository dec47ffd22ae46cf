"""The ablation harness on a handful of episodes: members from one start, the same episodes, a table that says who is better."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="training needs torch: pip install 'kinema4d[world]'")

from kinema4d.cli.train import train
from kinema4d.data.generate import Recipe, generate
from kinema4d.evaluate import ablation as judging
from kinema4d.evaluate.score import Pair
from kinema4d.train import ablation
from kinema4d.train.ablation import OURS, TABLES
from kinema4d.world.condition import DISTURBANCES
from kinema4d.world.small.diffusion_config import DiffusionConfig
from kinema4d.world.small.direct import load_direct, save_direct, start_from

TINY = DiffusionConfig(height=24, width=40, patch=(8, 8, 8), channels=24, layers=2, heads=2)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("ablation") / "data"
    for where, count, seed in ((root, 3, 8), (root.parent / "test", 2, 9)):
        about = {"robots": ("k4arm",), "tasks": ("push",), "height": 48, "width": 80}
        generate(where, Recipe(episodes=count, failures=0, seed=seed, **about), workers=1)
    return root


def test_the_tables_are_the_paper_s():
    named = {"text", "binary", "emb.", "RGB", "RGB+pm", "single", "2D-out", "w/o mask", "0%", "50%", "remove", "gaus.", "trans.", "rot."}  # fmt: skip
    assert {OURS, *named} <= TABLES["table4"].keys()
    assert {m.disturb for m in TABLES["table4"].values() if m.disturb} == set(DISTURBANCES)
    for table in TABLES.values():
        assert next(iter(table)) == OURS
        for member in table.values():
            replace(TINY, **member.config)  # every one is fields of a configuration
        folders = [ablation.folder_of(Path("x"), name) for name in table]
        assert len(set(folders)) == len(table)
        assert all(f.parent == Path("x") and f.name.strip(".") for f in folders)


def test_unknown_tables_and_members_are_refused():
    with pytest.raises(ValueError, match="unknown ablation 'table9'; known are table4"):
        ablation.chosen("table9")
    with pytest.raises(ValueError, match="no member 'smell'; it has ours, text"):
        ablation.chosen("table4", ("smell",))
    assert list(ablation.chosen("table4", ("rot.", "text"))) == [OURS, "text", "rot."]


def test_members_are_trained_judged_and_written_and_nothing_is_done_twice(data: Path, tmp_path: Path, capsys):
    out = tmp_path / "out"
    command = {
        "ablation": "table4", "members": ("text", "2D-out", "remove"), "data": data, "test": data.parent / "test", "test_episodes": 2, "out": out,
        "direct": TINY, "steps": 2, "base_steps": 2, "workers": 1, "threads": 1,
    }  # fmt: skip
    train(**command)
    told = capsys.readouterr().out
    table = json.loads((out / "table.json").read_text())["table"]
    assert list(table) == [OURS, "text", "2D-out", "remove"]
    assert set(table[OURS]) == set(judging.COLUMNS)
    assert table[OURS]["psnr"]["n"] == 2
    assert table["2D-out"]["cd_l1"] is not None  # reconstructed
    assert "| text |" in (out / "table.md").read_text()
    assert "| text |" in told
    assert (out / "psnr.svg").read_text().startswith("<svg")
    text = load_direct(out / "text" / "direct.safetensors").net
    assert text.config.control == "text"
    before = {f: f.stat().st_mtime_ns for f in [*out.rglob("*.safetensors"), *(out / "scores").rglob("*.json")]}
    assert len(before) == 4 + 2 * 4
    train(**command)
    assert before == {f: f.stat().st_mtime_ns for f in before}
    with pytest.raises(ValueError, match="3 episodes of --test are learned from"):
        train(**{**command, "test": data})
    with pytest.raises(ValueError, match="needs --test"):
        train(**{**command, "test": None})
    with pytest.raises(ValueError, match="either --preset or --ablation"):
        train(**{**command, "preset": "small-direct"})


def test_all_start_from_one_model_that_is_told_in_every_way(tmp_path: Path):
    from kinema4d.world.small.diffusion import DiffusionNet

    base = DiffusionNet(replace(TINY, control="mixed"))
    file = tmp_path / "base.safetensors"
    save_direct(file, base, {})
    for name, member in TABLES["table4"].items():
        net = DiffusionNet(replace(TINY, **member.config))
        assert start_from(net, file) == [], name
        np.testing.assert_allclose(net.noisy.weight.detach(), base.noisy.weight.detach().half().float())
    fresh = [f"{of}hints.embed.nothing.{n}" for of in ("", "moves.") for n in ("bias", "weight")]
    assert start_from(DiffusionNet(replace(TINY, control="none")), file) == fresh
    with pytest.raises(ValueError, match="cannot be started from: its channels is 24, here 48"):
        start_from(DiffusionNet(replace(TINY, channels=48)), file)


def test_a_model_of_colour_alone_starts_with_what_colour_is_made_of(tmp_path: Path):
    """Pixels of a 2D model are what those of the 4D one are in the domain of colour, told of the robot's points."""
    from kinema4d.world.small.diffusion import DiffusionNet

    base, file = DiffusionNet(TINY), tmp_path / "base.safetensors"
    save_direct(file, base, {})
    net = DiffusionNet(replace(TINY, output="2d"))
    assert start_from(net, file) == []
    assert base.pixels is not None
    assert net.pixels is not None
    own = base.pixels.weight.detach().half().float()
    # colour of what is noisy, known at first and moved; points of the robot; and the rest
    picks = [0, 1, 2, 6, 7, 8, 15, 16, 17, 18, 19, 20, *range(24, own.shape[1])]
    np.testing.assert_array_equal(net.pixels.weight.detach(), own[:, picks])


def rows(values: Sequence[float | None], column: str = "psnr") -> list[dict]:
    blank = dict.fromkeys(judging.COLUMNS)
    return [{**blank, column: v, "group": str(i)} for i, v in enumerate(values)]


def test_better_worse_and_ties_are_told_by_pairs():
    rng = np.random.default_rng(0)
    ours = 20 + 5 * rng.random(12)
    table = judging.table_of(
        {OURS: rows(list(ours)), "up": rows(list(ours + 1 + 0.1 * rng.random(12))), "down": rows(list(ours - 1)),
         "same": rows(list(ours + 0.5 * rng.standard_normal(12) - 0.0))}, OURS,
    )  # fmt: skip
    assert table["up"]["psnr"]["against_ours"] == "better"
    assert table["down"]["psnr"]["against_ours"] == "worse"
    assert table["down"]["psnr"]["difference"] == pytest.approx(-1)
    assert table["up"]["cd_l1"] is None
    other = judging.table_of({OURS: rows(list(ours), "cd_l1"), "up": rows(list(ours + 1), "cd_l1")}, OURS)
    assert other["up"]["cd_l1"]["against_ours"] == "worse"  # more is worse there


def test_agreement_with_the_paper_is_said():
    ours = list(20 + np.arange(8.0))
    table = judging.table_of({OURS: rows(ours), "text": rows([v - 2 for v in ours])}, OURS)
    entries = [
        judging.Entry(name=OURS, weights="", paper=(22.5, 0.0479)),
        judging.Entry(name="text", weights="", paper=(19.89, 0.0750)),
    ]
    found = judging.agreement(table, entries, OURS)
    assert [(a["column"], a["paper"], a["here"], a["agrees"]) for a in found] == [
        ("psnr", "worse", "worse", True),
        ("cd_l1", "worse", None, False),
    ]


def test_a_lost_thing_counts_as_one_that_stood_still(data: Path):
    from kinema4d.data.dataset import open_dataset

    dataset = open_dataset(data)
    truth = dataset.load(dataset.ids[0])
    right = judging.scored(Pair(predicted=truth.clip, truth=truth))
    nothing = replace(truth.clip, rgb=np.zeros_like(truth.clip.rgb))
    lost = judging.scored(Pair(predicted=nothing, truth=truth))
    assert right["object_error_m"] is not None
    assert lost["object_error_m"] is not None
    assert right["object_error_m"] < 0.01
    assert lost["object_found"] == 0
    assert lost["object_error_m"] > 0.03


def test_what_a_model_says_of_moved_things_is_judged_by_tracks(data: Path):
    from kinema4d.data.dataset import open_dataset
    from kinema4d.data.ways import away_of

    dataset = open_dataset(data)
    truth = dataset.load(dataset.ids[0])
    rows, columns = np.arange(0, truth.clip.rgb.shape[1], 2), np.arange(0, truth.clip.rgb.shape[2], 2)
    size = (len(rows), len(columns))
    rows, columns = judging.picks(truth.clip.rgb.shape[1:3], size)
    true = away_of(truth, rows, columns)
    assert true is not None
    true, sure = true[-1].astype(np.float32), np.ones(size, np.float32)
    far = np.linalg.norm(true, axis=-1)
    assert far.max() > 0.03
    error = judging.said_error(true, sure, truth)
    assert error is not None
    assert error < 1e-4
    stood = judging.said_error(true, 0.4 * sure, truth)  # not sure enough to be gone
    assert stood is not None
    assert stood > 0.5 * far[far > 0.02].mean()
    assert judging.said_error(true, sure, replace(truth, tracks=())) is None
