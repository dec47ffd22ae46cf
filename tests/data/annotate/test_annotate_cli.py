"""``kinema4d data annotate`` on a data set on disk: same ids, resumable, failures counted with reasons."""

from __future__ import annotations

import json
import shlex
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from kinema4d.cli.annotate import annotate
from kinema4d.data.annotate.stages import RECORD
from kinema4d.data.dataset import open_dataset


@pytest.fixture
def dataset(truth, tmp_path):
    """Two episodes that can be annotated from kinematics, and one that cannot."""
    root = tmp_path / "raw"
    made = open_dataset(root, create=True)
    made.add("a", truth.episode)
    made.add("b", replace(truth.episode, camera_from="guessed"))
    made.add("c", truth.episode)
    return root


def test_kinematic_masks_for_all_that_can_have_them(dataset, truth, tmp_path, capsys):
    out = tmp_path / "annotated"
    annotate(dataset, out=out, mask="kinematic", json=True)
    summary = json.loads(capsys.readouterr().out)
    assert (summary["written"], summary["skipped"]) == (2, 0)
    assert [f["id"] for f in summary["failed"]] == ["b"]
    assert "only guessed" in summary["failed"][0]["reason"]
    made = open_dataset(out)
    assert [row.id for row in made.rows] == ["a", "c"]
    assert made.verify("a") == []
    np.testing.assert_array_equal(made.load("c").robot_mask, truth.mask)
    assert made.row("a").facts[RECORD]["mask"]["stage"] == "KinematicMask"

    annotate(dataset, out=out, mask="kinematic")
    said = capsys.readouterr()
    assert "annotated 0 episodes" in said.out
    assert "2 were there already, 1 failed" in said.out
    assert "1 failed, such as b: the camera is only guessed" in said.err


def test_a_resumed_run_goes_on_where_it_was_killed(dataset, tmp_path, truth, capsys):
    marks = tmp_path / "marks"
    marks.mkdir()
    np.save(tmp_path / "depth.npy", truth.depth * 0.5)
    code = (
        "import sys, pathlib, uuid, numpy as np;"
        f"marks = pathlib.Path({str(marks)!r});"
        "(marks / uuid.uuid4().hex).touch();"
        "first = len(list(marks.iterdir())) == 1 or (marks.parent / 'go').exists();"
        f"np.savez(sys.argv[2], depth=np.load({str(tmp_path / 'depth.npy')!r})) if first else sys.exit('killed')"
    )
    command = f"{shlex.quote(sys.executable)} -c {shlex.quote(code)} {{frames}} {{out}}"
    options: dict[str, Any] = {"out": tmp_path / "annotated", "pointmap": "command", "json": True}
    options["pointmap_command"] = command
    annotate(dataset, **options)
    first = json.loads(capsys.readouterr().out)
    assert first["written"] == 1
    assert [f["id"] for f in first["failed"]] == ["b", "c"]
    assert all("killed" in f["reason"] for f in first["failed"])
    (tmp_path / "go").touch()
    annotate(dataset, **options)
    second = json.loads(capsys.readouterr().out)
    assert (second["written"], second["skipped"]) == (1, 1)
    assert [f["id"] for f in second["failed"]] == ["b"], "no camera, no scale"
    made = open_dataset(options["out"])
    assert [row.id for row in made.rows] == ["a", "c"]
    episode = made.load("c")
    seen = episode.clip.pointmap.valid
    assert np.abs(episode.clip.pointmap.depth[seen] / truth.depth[seen] - 1).max() < 0.01
    assert made.row("c").metric
    assert abs(made.row("c").facts[RECORD]["pointmap"]["alignment"]["scale"][0] - 2) < 0.02
    with pytest.raises(ValueError, match=r"annotated with other settings \(pointmap\)"):
        annotate(dataset, **options, align="none")


def test_unaligned_depth_serves_guessed_cameras(dataset, tmp_path, truth, capsys):
    np.save(tmp_path / "depth.npy", truth.depth)
    code = f"import sys, numpy as np; np.savez(sys.argv[2], depth=np.load({str(tmp_path / 'depth.npy')!r}))"
    command = f"{shlex.quote(sys.executable)} -c {shlex.quote(code)} {{frames}} {{out}}"
    options: dict[str, Any] = {"pointmap": "command", "pointmap_command": command}
    annotate(dataset, out=tmp_path / "loose", **options, align="none", json=True)
    annotate(dataset, out=tmp_path / "metric", **options, pointmap_metric=True, json=True)
    assert [json.loads(line)["written"] for line in capsys.readouterr().out.splitlines()] == [3, 3]
    assert [row.metric for row in open_dataset(tmp_path / "loose").rows] == [False] * 3
    assert [row.metric for row in open_dataset(tmp_path / "metric").rows] == [True] * 3


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "nothing to do"),
        ({"mask": "command"}, "--mask command needs --mask-command"),
        ({"mask": "sam2", "sam2_config": "a.yaml"}, "--mask sam2 needs --sam2-checkpoint"),
        ({"mask": "kinematic", "mask_command": "x {frames} {out}"}, "--mask-command means nothing without"),
        ({"mask": "kinematic", "align": "scale"}, "--align means nothing without --pointmap"),
        ({"pointmap": "vggt"}, "--pointmap vggt needs --vggt-weights"),
        ({"captions_url": "http://localhost/v1"}, "--captions-url needs --captions-model"),
        ({"mask": "kinematic", "captions_key_env": "KEY"}, "--captions-key-env means nothing without"),
        (
            {"captions_url": "http://localhost/v1", "captions_model": "m", "captions_key_env": "NO_SUCH_KEY"},
            "NO_SUCH_KEY holds no API key",
        ),
    ],
)
def test_options_that_do_not_fit_are_refused_before_any_work(dataset, tmp_path, options, said):
    with pytest.raises(ValueError, match=said):
        annotate(dataset, out=tmp_path / "annotated", **options)
    assert not (tmp_path / "annotated").exists()


def test_in_and_out_must_differ_and_exist(dataset, tmp_path):
    with pytest.raises(ValueError, match="another folder"):
        annotate(dataset, out=dataset, mask="kinematic")
    with pytest.raises(ValueError, match="not a kinema4d data set"):
        annotate(tmp_path / "missing", out=tmp_path / "annotated", mask="kinematic")


def test_a_run_in_which_all_fails_ends_with_an_error(truth, tmp_path, capsys):
    made = open_dataset(tmp_path / "raw", create=True)
    made.add("a", replace(truth.episode, camera_from="guessed"))
    with pytest.raises(SystemExit) as end:
        annotate(tmp_path / "raw", out=tmp_path / "annotated", mask="kinematic")
    assert end.value.code == 1
    assert "1 failed" in capsys.readouterr().out
