"""The whole way: rollouts on disk, a data set, and a report."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kinema4d.cli import main
from kinema4d.data.dataset import open_dataset
from kinema4d.data.generate import Recipe, generate
from kinema4d.data.store import save
from kinema4d.evaluate.judge import Settings, about, find, judge, static_rollout
from kinema4d.evaluate.score import NA
from kinema4d.types import Clip, Pointmap

QUICK = ("video", "geometry", "following", "interaction")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A data set of one scene with two episodes, and a static world's rollouts of it."""
    root = tmp_path_factory.mktemp("judge")
    generate(root / "truth", Recipe(episodes=2, failures=1, robots=("xarm7",), tasks=("push",), seed=3), workers=1)
    dataset = open_dataset(root / "truth")
    for row in dataset.rows:
        made = static_rollout(dataset.load(row.id))
        assert not isinstance(made, NA)
        save(replace(made, provenance={**made.provenance, "episode": row.id}), root / "rollouts" / row.id)
    return root / "truth", root / "rollouts"


def files(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in sorted(folder.iterdir()) if p.is_file()}


def test_a_report_from_the_command_line(world: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    truth, rollouts = world
    out = tmp_path / "out"
    command = ["evaluate", str(rollouts), "--truth", str(truth), "--metrics", *QUICK, "--workers", "1", "--report"]
    main([*command, str(out)])
    text = capsys.readouterr().out
    assert "PSNR" in text
    assert "report.html" in text
    assert {"report.json", "report.html", "episodes.parquet"} <= set(files(out))
    found = json.loads((out / "report.json").read_text())
    assert found["rows"] == {"prediction": 2, "static": 2, "truth": 2}
    summary = found["summary"]
    # The prediction is the static world itself, but for what storing rounds; truth is perfect.
    assert summary["prediction"]["psnr"]["mean"] == pytest.approx(summary["static"]["psnr"]["mean"], abs=0.3)
    assert summary["truth"]["psnr"]["mean"] == 60.0
    assert summary["truth"]["cd_l1"]["mean"] == 0.0
    assert summary["truth"]["follows"]["mean"] == 1.0
    assert summary["static"]["robot_error_m"]["mean"] < 1e-3
    assert summary["static"]["object_error_m"]["mean"] > 0.03 > summary["truth"]["object_error_m"]["mean"]
    assert found["set_scores"]["truth"]["sensitivity_world"] == pytest.approx(1.0)
    assert found["set_scores"]["static"]["sensitivity_world"] < 0.5
    # Interrupted and started again: the same bytes, from scores that were kept.
    kept = sorted((out / ".scores").iterdir())
    assert len(kept) == 6
    kept[0].unlink()
    before = files(out)
    main([*command, str(out)])
    assert files(out) == before


def test_the_same_inputs_give_the_same_bytes(
    world: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    truth, rollouts = world
    command = [
        "evaluate",
        str(rollouts),
        "--truth",
        str(truth),
        "--metrics",
        "video",
        "--workers",
        "1",
        "--json",
        "--report",
    ]
    for name in ("one", "two"):
        main([*command, str(tmp_path / name)])
        assert json.loads(capsys.readouterr().out)["rows"]["truth"] == 2
    assert files(tmp_path / "one") == files(tmp_path / "two")
    main(["evaluate", "--compare", str(tmp_path / "one"), str(tmp_path / "two")])
    assert "PSNR" in capsys.readouterr().out


def test_a_data_set_is_a_perfect_prediction_of_itself(world: tuple[Path, Path]):
    truth, _ = world
    report = judge(truth, truth, settings=Settings(metrics=("video", "geometry")), workers=1)
    mine = {r.episode: r.scores for r in report.rows if r.world == "prediction"}
    assert len(mine) == 2
    for scores in mine.values():
        assert scores["psnr"] == 60.0
        assert scores["cd_l1"] == 0.0
    assert set(report.about) == set(about(Settings(metrics=("video", "geometry"))))


def test_every_metric_says_what_it_means():
    everything = about(
        Settings(metrics=("video", "lpips_alex", "lpips_vgg", "l2_latent", "fvd", "fid", "fd_alexnet", *QUICK), vae="x")
    )
    for name, meaning in everything.items():
        assert meaning.text, name
        assert meaning.label, name
    labels = [m.label for m in everything.values()]
    assert len(set(labels)) == len(labels)


def test_bad_input_is_named(world: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    truth, rollouts = world
    dataset = open_dataset(truth)
    with pytest.raises(ValueError, match="no folder of rollouts"):
        find(tmp_path / "nothing", dataset)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="holds no rollout"):
        find(tmp_path / "empty", dataset)
    with pytest.raises(ValueError, match="unknown metrics speed; known are video"):
        Settings(metrics=("speed",))
    with pytest.raises(ValueError, match="needs the folder of a VAE"):
        Settings(metrics=("l2_latent",))
    row = dataset.rows[0]
    shutil.copytree(rollouts / row.id, tmp_path / "strange" / "a_b")
    meta = json.loads((tmp_path / "strange" / "a_b" / "meta.json").read_text())
    meta["rollout"]["episode"] = "who"
    (tmp_path / "strange" / "a_b" / "meta.json").write_text(json.dumps(meta))
    with pytest.raises(ValueError, match="1 of 1 rollouts have no truth .* such as 'who'"):
        find(tmp_path / "strange", dataset)
    clip = dataset.load(row.id).clip
    short = Clip(
        camera=clip.camera,
        rgb=clip.rgb[:5],
        pointmap=Pointmap(points=clip.pointmap.points[:5], valid=clip.pointmap.valid[:5]),
        fps=clip.fps,
    )
    save(short, tmp_path / "short" / row.id)
    with pytest.raises(ValueError, match=rf"{re.escape(row.id)}: the prediction has 5 frames and its truth 49"):
        judge(tmp_path / "short", truth, settings=Settings(metrics=("video",)), workers=1)
    for arguments in ([], ["evaluate"], ["evaluate", str(rollouts), "--compare", str(truth), str(truth)]):
        with pytest.raises(SystemExit) as error:
            main(arguments or ["evaluate", str(rollouts)])
        assert error.value.code == 2
    assert "--truth" in capsys.readouterr().err


def test_a_prediction_without_geometry_has_reasons_not_numbers(world: tuple[Path, Path], tmp_path: Path):
    truth, _ = world
    dataset = open_dataset(truth)
    row = dataset.rows[0]
    clip = dataset.load(row.id).clip
    flat = replace(clip, pointmap=Pointmap(points=clip.pointmap.points, valid=np.zeros_like(clip.pointmap.valid)))
    save(flat, tmp_path / "flat" / row.id)
    report = judge(tmp_path / "flat", truth, settings=Settings(metrics=QUICK), workers=1)
    scores = next(r.scores for r in report.rows if r.world == "prediction")
    psnr = scores["psnr"]
    assert isinstance(psnr, float)
    assert psnr > 40  # stored again, with loss
    for name in ("cd_l1", "robot_error_m", "ee_error_m", "object_error_m"):
        assert isinstance(scores[name], NA), name
