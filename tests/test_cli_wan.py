"""Encode, train, simulate and check the full-scale world from the command line, on weights as small as can be."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("diffusers", reason="the full-scale model needs diffusers: pip install 'kinema4d[wan]'")
pytest.importorskip("transformers", reason="the full-scale model needs transformers: pip install 'kinema4d[wan]'")
import torch

from kinema4d.cli import main
from kinema4d.data.dataset import open_dataset
from kinema4d.data.generate import Recipe, generate
from kinema4d.data.store import load
from kinema4d.world.wan import cache, weights
from kinema4d.world.wan.tiny import write_weights

SIZE = {"frames": 9, "height": 48, "width": 48}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("wan")
    about = {"robots": ("k4arm",), "tasks": ("push",), "height": 48, "width": 80}
    generate(root / "data", Recipe(episodes=2, failures=0, seed=5, **about), workers=1)
    write_weights(root / "weights")
    return root


def test_encode_train_simulate(place: Path, capsys: pytest.CaptureFixture[str]):
    base, latents, run, out = (place / n for n in ("weights", "latents", "run", "out"))
    size = [f"--{n}={v}" for n, v in SIZE.items()]
    encode = ["data", "encode", str(place / "data"), "--vae", str(base), "--out", str(latents), *size, "--json"]
    main(encode)
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found["encoded"] == 2
    assert found["pointmap_std"] > 0
    files = cache.listed(latents)
    stamps = [f.stat().st_mtime_ns for f in files]
    main(encode)
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["kept"] == 2
    assert stamps == [f.stat().st_mtime_ns for f in files]
    with pytest.raises(SystemExit):
        main([*encode[:-1], "--frames=5"])
    assert "holds latents of (3, 6, 6) (times, rows, columns), now (2, 6, 6)" in capsys.readouterr().err
    one = cache.read(files[0])
    assert one.colour.shape == (16, 3, 6, 6)
    assert one.first.shape == (16, 3, 6, 12)
    assert one.mask.any()
    plan = ["--wan.rank=2", "--wan.batch=2", "--wan.warmup=1", "--wan.log-every=1", "--steps=2"]
    main(["train", "--preset", "wan-lora", "--weights", str(base), "--data", str(latents), "--out", str(run), *plan])
    assert "use it with kinema4d simulate" in capsys.readouterr().out
    adapter = weights.read_adapter(run)
    assert (adapter.kind, adapter.rank) == ("ours", 2)
    id = open_dataset(place / "data").ids[0]
    simulate = ["simulate", "--world", "wan", "--weights", str(base), "--adapter", str(run), "--out", str(out)]
    more = [f"--wan.{n}={v}" for n, v in SIZE.items()]
    main([*simulate, "--episode", f"{place / 'data'}/{id}", *more, "--sampling.steps=2", "--json"])
    made: Any = load(out)
    assert made.clip.rgb.shape == (49, 48, 80, 3)
    capsys.readouterr()
    main(["doctor", "--weights", str(base), "--adapter", str(run), "--json"])
    said = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert said["adapter"]["variant"] == "act"
    assert said["needs_gb"]["as it is"] > 0


def test_points_alone_from_4dnex_with_clips_held_out(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    base, latents, nex, run = place / "weights", tmp_path / "latents", tmp_path / "nex", tmp_path / "run"
    size = [f"--{n}={v}" for n, v in SIZE.items()]
    main(["data", "encode", str(place / "data"), "--vae", str(base), "--out", str(latents), *size, "--release"])
    assert len(list((latents / "release" / "pointmap_latents").glob("*.pt"))) == 2
    nex.mkdir()
    torch.save(torch.randn(2, 48), nex / "learnable_domain_embeddings.pt")
    train = ["train", "--preset", "wan-lora", "--weights", str(base), "--adapter", str(nex), "--variant", "pmcond", "--data", str(latents)]  # fmt: skip
    plan = ["--wan.rank=2", "--wan.batch=1", "--wan.warmup=1", "--wan.held-out=1", "--wan.rollout-steps=2", "--wan.ema=0.9", "--steps=2"]  # fmt: skip
    main([*train, "--out", str(run), *plan])
    said = json.loads((run / "log.jsonl").read_text().splitlines()[-1])
    assert {"val/psnr_db", "val/ssim", "val/points_m", "val/cd_l1_m"} < said.keys()
    assert weights.read_adapter(run).variant == "pmcond"
    id = open_dataset(place / "data").ids[0]
    simulate = ["simulate", "--world", "wan", "--weights", str(base), "--adapter", str(run), "--out", str(tmp_path / "out")]  # fmt: skip
    more = [f"--wan.{n}={v}" for n, v in SIZE.items()]
    main([*simulate, "--episode", f"{place / 'data'}/{id}", *more, "--sampling.steps=2", "--sampling.guidance=official", "--sampling.solver=euler"])  # fmt: skip
    made: Any = load(tmp_path / "out")
    assert np.isfinite(made.clip.pointmap.points).all()
    capsys.readouterr()
    with pytest.raises(SystemExit):
        main([*train, "--out", str(tmp_path / "other"), *plan[:-3], "--wan.held-out=2", "--steps=2"])
    assert "2 of 2 clips held out leave none to learn from" in capsys.readouterr().err


def test_what_is_missing_is_said(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    id, nowhere, base = open_dataset(place / "data").ids[0], str(tmp_path), str(place / "weights")
    episode = ["--episode", f"{place / 'data'}/{id}", "--out", str(tmp_path / "o")]
    for command, match in (
        (["simulate", "--world", "wan", *episode], "needs --weights: the folder of Wan2.1-I2V"),
        (["simulate", "--world", "wan", "--weights", nowhere, *episode], "lacks transformer, vae"),
        (["simulate", "--world", "static", "--adapter", nowhere, *episode], "are for the world wan, not for static"),
        (["train", "--preset", "wan-lora", "--data", nowhere, "--out", f"{nowhere}/r"], "wan-lora needs --weights"),
        (["train", "--preset", "small-move", "--adapter", "x", "--data", nowhere, "--out", f"{nowhere}/r"], "not for small-move"),
        (["doctor", "--adapter", nowhere], "give --weights too"),
        (["data", "encode", str(place / "data"), "--vae", base, "--out", f"{nowhere}/l", "--frames", "8"], "1 \\+ 4k frames"),
    ):  # fmt: skip
        with pytest.raises(SystemExit):
            main(command)
        assert re.search(match, capsys.readouterr().err), command
    assert not (tmp_path / "o").exists()
