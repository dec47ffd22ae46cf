"""LoRA training of a tiny Wan on latents: any number of processes, killed and gone on, saved and loaded."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("diffusers", reason="the full-scale model needs diffusers: pip install 'kinema4d[wan]'")
pytest.importorskip("peft", reason="training the full-scale model needs peft: pip install 'kinema4d[wan]'")
import torch
from safetensors.torch import load_file
from wan_cases import an_input, some_latents

from kinema4d.train.wan import drawn, train_wan, trained, with_lora
from kinema4d.train.wan_plan import WanPlan, rate_at
from kinema4d.world.wan import weights
from kinema4d.world.wan.tiny import TOKENS, transformer, write_base

PLAN = WanPlan(steps=4, batch=2, rank=2, alpha=1.0, rate=1e-2, warmup=2, save_every=2, log_every=1, checkpointing=False)


@pytest.fixture(scope="module")
def latents(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("latents")
    some_latents(folder, 3)
    return folder


def test_every_clip_once_per_epoch_whoever_has_it():
    plan = replace(PLAN, batch=2)
    every = [i for step in range(3) for i in drawn(plan, step, 3)]
    assert sorted(every[:3]) == sorted(every[3:]) == [0, 1, 2]
    assert rate_at(PLAN, 0) == pytest.approx(PLAN.rate / 2)
    assert rate_at(PLAN, 2) == PLAN.rate
    assert rate_at(PLAN, 4) == 0


def test_only_lora_and_what_was_added_is_trained():
    model = with_lora(transformer("act"), PLAN)
    names = set(trained(model))
    assert {n for n in names if "lora_" not in n} == {
        n for n, _ in transformer("act").named_parameters() if weights.is_added(n)
    }
    assert sum("lora_A" in n for n in names) == len(weights.lora_layers(transformer("act"))) == 16
    x, time, arm, image = an_input("act")
    with torch.no_grad():  # a LoRA that has learned nothing changes nothing
        torch.testing.assert_close(model(x, time, arm, image), transformer("act")(x, time, arm, image))


def test_a_run_that_was_killed_ends_as_one_that_was_not(latents: Path, tmp_path: Path):
    def run(out: Path, steps: int) -> dict[str, torch.Tensor]:
        train_wan(with_lora(transformer("act"), PLAN), latents, out, replace(PLAN, steps=steps), dtype=torch.float32)
        return load_file(out / weights.LORA) | load_file(out / weights.ADDED)

    # The rate depends on all steps: a kill is a run that stopped at its second checkpoint.
    whole = run(tmp_path / "whole", 4)

    class KilledError(Exception):
        pass

    def kill(step: int, found: dict[str, float]) -> None:
        if step == 2:
            raise KilledError

    with pytest.raises(KilledError):
        train_wan(with_lora(transformer("act"), PLAN), latents, tmp_path / "cut", PLAN, dtype=torch.float32, tell=kill)
    again = run(tmp_path / "cut", 4)
    for name, value in whole.items():
        torch.testing.assert_close(again[name], value, rtol=0, atol=0, msg=name)
    plan = replace(PLAN, rank=4)
    with pytest.raises(ValueError, match="holds a run with rank 2, now 4"):
        train_wan(with_lora(transformer("act"), plan), latents, tmp_path / "cut", plan, dtype=torch.float32)


def test_what_was_trained_is_saved_and_loaded(latents: Path, tmp_path: Path):
    write_base(tmp_path / "base", seed=0)
    model, _ = weights.load(tmp_path / "base", dtype=torch.float32, image_tokens=TOKENS, arm=(3, 2, 2, 3, 8))
    model = with_lora(model, PLAN)
    train_wan(model, latents, tmp_path / "out", PLAN, dtype=torch.float32)
    read, adapter = weights.load(tmp_path / "base", tmp_path / "out", dtype=torch.float32, image_tokens=TOKENS)
    assert adapter is not None
    assert adapter.scale == pytest.approx(0.5)
    x, time, arm, image = an_input("act")
    with torch.no_grad():
        torch.testing.assert_close(read(x, time, arm, image), model.eval()(x, time, arm, image), rtol=1e-4, atol=1e-5)


SCRIPT = """
import sys
sys.path.insert(0, sys.argv[1])
import torch
from kinema4d.world.wan.tiny import transformer
from kinema4d.train.wan import train_wan, with_lora
from kinema4d.train.wan_plan import WanPlan
plan = WanPlan(steps=4, batch=2, rank=2, alpha=1.0, rate=1e-2, warmup=2, save_every=2, log_every=1, checkpointing=False)
torch.set_num_threads(1)
train_wan(with_lora(transformer("act"), plan), sys.argv[2], sys.argv[3], plan, dtype=torch.float32)
"""


def test_two_processes_take_the_steps_of_one(latents: Path, tmp_path: Path):
    train_wan(with_lora(transformer("act"), PLAN), latents, tmp_path / "one", PLAN, dtype=torch.float32)
    script = tmp_path / "run.py"
    script.write_text(SCRIPT)
    command = [
        sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--master-port=0", "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0",
        str(script), str(Path(__file__).parents[1]), str(latents), str(tmp_path / "two"),
    ]  # fmt: skip
    env = {**os.environ, "ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    one, two = (
        {**load_file(tmp_path / n / weights.LORA), **load_file(tmp_path / n / weights.ADDED)} for n in ("one", "two")
    )
    assert one.keys() == two.keys()
    for name in one:
        torch.testing.assert_close(two[name], one[name], rtol=1e-4, atol=1e-6, msg=name)
    logs = [[json.loads(line)["loss"] for line in (tmp_path / n / "log.jsonl").open()] for n in ("one", "two")]
    assert logs[0] == pytest.approx(logs[1], rel=1e-4)
