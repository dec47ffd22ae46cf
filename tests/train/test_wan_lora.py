"""LoRA training of a tiny Wan on latents: any number of processes, killed and gone on, saved and loaded."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("diffusers", reason="the full-scale model needs diffusers: pip install 'kinema4d[wan]'")
pytest.importorskip("peft", reason="training the full-scale model needs peft: pip install 'kinema4d[wan]'")
import torch
from safetensors.torch import load_file
from wan_cases import an_input, overfit, some_latents, tiny_rollouts

from kinema4d.evaluate.decoded import decoded_scores
from kinema4d.train.wan import drawn, split_of, train_wan, trained, with_lora
from kinema4d.train.wan_plan import WanPlan, rate_at
from kinema4d.train.wan_rollouts import shown
from kinema4d.world.wan import cache, tiny, weights
from kinema4d.world.wan.latents import KINEMA4D
from kinema4d.world.wan.tiny import TOKENS, transformer, write_base

PLAN = WanPlan(steps=4, batch=2, rank=2, alpha=1.0, rate=1e-2, warmup=2, save_every=2, log_every=1, checkpointing=False)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Sums in another order would differ in the last digit, and Adam makes steps of gradients that are nothing else."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


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


def test_what_is_trained_is_wide_beside_a_base_of_another_type(latents: Path, tmp_path: Path):
    write_base(tmp_path / "base")
    model, _ = weights.load(tmp_path / "base", dtype=torch.float64, image_tokens=TOKENS, arm=(3, 2, 2, 3, 8))
    model = with_lora(model, PLAN)
    assert {p.dtype for p in trained(model).values()} == {torch.float32}
    assert model.proj_out.weight.dtype == torch.float64
    plan = replace(PLAN, held_out=1)
    train_wan(model, latents, tmp_path / "out", plan, dtype=torch.float64, validate=tiny_rollouts(latents, plan))
    assert (tmp_path / "out" / weights.LORA).is_file()


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


def test_a_lora_learns_one_episode_until_it_draws_it_from_noise(tmp_path: Path):
    before, after = overfit(tmp_path, episodes=4, heads=8, base_steps=250, steps=250)
    lines = [json.loads(line)["loss"] for line in (tmp_path / "run" / "log.jsonl").open()]
    assert lines[-1] < lines[0]
    assert after > 31, (before, after)
    assert after > before + 1.5, (before, after)  # a base that knows other episodes of this camera


SCRIPT = """
import sys
sys.path.insert(0, sys.argv[1])
import torch
from kinema4d.world.wan.tiny import transformer
from kinema4d.train.wan import train_wan, with_lora
from kinema4d.train.wan_plan import WanPlan
from wan_cases import tiny_rollouts
shard = sys.argv[4] == "shard"
plan = WanPlan(steps=4, batch=2, rank=2, alpha=1.0, rate=1e-2, warmup=2, save_every=2, log_every=1, checkpointing=False, ema=0.5, held_out=1, shard=shard)
torch.set_num_threads(1)
check = tiny_rollouts(sys.argv[2], plan)
train_wan(with_lora(transformer("act"), plan), sys.argv[2], sys.argv[3], plan, dtype=torch.float32, validate=check)
"""


@pytest.mark.parametrize("how", ["whole", "shard"])
def test_two_processes_take_the_steps_of_one(how: str, latents: Path, tmp_path: Path):
    """Each with all weights, or with its share of them; half of the run by both, the rest by one that goes on alone."""
    plan = replace(PLAN, ema=0.5, held_out=1)
    train_wan(
        with_lora(transformer("act"), plan),
        latents,
        tmp_path / "one",
        plan,
        dtype=torch.float32,
        validate=tiny_rollouts(latents, plan),
    )
    script = tmp_path / "run.py"
    script.write_text(SCRIPT)
    command = [
        sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--master-port=0", "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0",
        str(script), str(Path(__file__).parents[1]), str(latents), str(tmp_path / "two"), how,
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
    logs = [[json.loads(line) for line in (tmp_path / n / "log.jsonl").open()] for n in ("one", "two")]
    for key in ("loss", "val/psnr_db", "val/ssim", "val/points_m", "val/cd_l1_m"):
        found = [[line[key] for line in log if key in line] for log in logs]
        assert len(found[0]) == (4 if key == "loss" else 2), key
        assert found[0] == pytest.approx(found[1], rel=1e-3), key
    states = [torch.load(tmp_path / n / "state.pt", weights_only=True) for n in ("one", "two")]
    for part in ("trained", "average"):
        for name, value in states[0][part].items():
            torch.testing.assert_close(states[1][part][name], value, rtol=1e-4, atol=1e-6, msg=name)
    longer = replace(plan, steps=5)  # whoever began it, one process goes on
    for name in ("one", "two"):
        train_wan(with_lora(transformer("act"), longer), latents, tmp_path / name, longer, dtype=torch.float32)
    one, two = (load_file(tmp_path / n / weights.LORA) for n in ("one", "two"))
    for name in one:
        torch.testing.assert_close(two[name], one[name], rtol=1e-3, atol=1e-5, msg=name)


def test_clips_held_out_are_never_learned_from(latents: Path):
    paths = cache.listed(latents)
    learned, held = split_of(paths, replace(PLAN, held_out=2))
    assert (len(learned), len(held)) == (1, 2)
    assert set(learned) | set(held) == set(paths)
    with pytest.raises(ValueError, match="3 of 3 clips held out leave none"):
        split_of(paths, replace(PLAN, held_out=3))


def test_rollouts_are_scored_against_what_happened(latents: Path):
    path = cache.listed(latents)[0]
    truth = cache.read(path).target(KINEMA4D)
    look = lambda z: shown(z, tiny.vae(), KINEMA4D, cache.extent(path))  # noqa: E731
    (rgb, points), (blank, nothing) = look(truth), look(torch.zeros_like(truth))
    found, other = decoded_scores(rgb, rgb, points, points), decoded_scores(blank, rgb, nothing, points)
    assert (found["points_m"], found["cd_l1_m"]) == (0, 0)
    assert other["psnr_db"] < found["psnr_db"]
    assert other["ssim"] < found["ssim"] == pytest.approx(1)
    assert other["points_m"] > other["cd_l1_m"] > 0
