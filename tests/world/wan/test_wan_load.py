"""The options of the full-scale world on tiny weights: what saves memory changes nothing, and what cannot work is said early."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("diffusers", reason="the full-scale model needs diffusers: pip install 'kinema4d[wan]'")
pytest.importorskip("transformers", reason="the full-scale model needs transformers: pip install 'kinema4d[wan]'")
import torch
from diffusion_cases import a_control
from safetensors.torch import save_file

from kinema4d.world.wan import memory, tiny, weights
from kinema4d.world.wan.latents import device_of
from kinema4d.world.wan.load import load_wan
from kinema4d.world.wan.options import Sampling, Setup
from kinema4d.world.wan.world import WanWorld

SIZE: dict[str, Any] = {"frames": 9, "height": 48, "width": 48}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Weights and an adapter that tells of the robot."""
    root = tmp_path_factory.mktemp("wan")
    tiny.write_weights(root / "base")
    model = tiny.transformer("act", 5)
    added = {k: v for k, v in model.state_dict().items() if weights.is_added(k)}
    (root / "adapter").mkdir()
    save_file(added, root / "adapter" / weights.ADDED)
    return root / "base", root / "adapter"


@pytest.fixture(scope="module")
def plain(folders: tuple[Path, Path]) -> np.ndarray:
    return drawn(world_of(folders))


def world_of(folders: tuple[Path, Path], **options: Any) -> WanWorld:
    return load_wan(*folders, setup=Setup(**{**SIZE, **options}), sampling=Sampling(steps=2))


@cache
def asked() -> tuple[np.ndarray, Any]:
    return a_control()


def drawn(world: WanWorld) -> np.ndarray:
    return world.simulate(*asked(), seed=3).clip.rgb.astype(int)


@pytest.mark.parametrize(
    "options", [{"offload": "model"}, {"offload": "sequential"}, {"tiling": True}, {"attention": "native"}], ids=str
)
def test_options_that_save_memory_change_nothing(
    options: dict[str, Any], folders: tuple[Path, Path], plain: np.ndarray
):
    np.testing.assert_array_equal(drawn(world_of(folders, **options)), plain)


def test_what_waits_in_memory_computes_elsewhere_and_sends_off_the_one_before(folders: tuple[Path, Path]):
    world = world_of(folders, offload="model")
    gone: list[str] = []
    every = {"vae": world.vae, "clip": world.clip, "model": world.model}
    for name, part in every.items():
        hook = part._hf_hook
        assert device_of(part) == torch.device("cpu")
        before = (
            next(n for n, p in every.items() if p is hook.prev_module_hook.model) if hook.prev_module_hook else None
        )
        gone.append(f"{name} after {before}")
        hook.execution_device = "meta"  # another device than that of its weights
        assert device_of(part) == torch.device("meta")
    assert gone == ["vae after model", "clip after vae", "model after clip"]


def test_weights_in_eight_bits_are_kept_so_and_draw_nearly_the_same(folders: tuple[Path, Path], plain: np.ndarray):
    world = world_of(folders, quantise="fp8")
    kinds = {p.dtype for n, p in world.model.named_parameters() if n.endswith(("to_q.weight", "to_v.weight"))}
    assert kinds == {torch.float8_e4m3fn}
    made = drawn(world)
    assert 0 < np.abs(made - plain).mean() < 8


def test_compiled_blocks_draw_the_same(folders: tuple[Path, Path], plain: np.ndarray):
    if shutil.which("g++") is None:
        pytest.skip("torch.compile needs a C++ compiler: install g++")
    assert np.abs(drawn(world_of(folders, compile=True)) - plain).max() <= 1


def test_weights_in_integers_are_kept_so_and_draw_nearly_the_same(folders: tuple[Path, Path], plain: np.ndarray):
    pytest.importorskip("torchao", reason="8-bit integers need torchao: pip install 'kinema4d[wan]'")
    world = world_of(folders, quantise="int8")
    kinds = {type(m.weight).__name__ for n, m in world.model.named_modules() if n.endswith(("to_q", "ffn.net.2"))}
    assert len(kinds) == 1
    assert kinds != {"Parameter"}
    assert np.abs(drawn(world) - plain).mean() < 4


def test_integers_without_torchao_are_refused_with_what_to_install(
    folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("kinema4d.world.wan.load.find_spec", lambda name: None)
    with pytest.raises(ValueError, match="needs torchao: pip install torchao"):
        world_of(folders, quantise="int8")


def test_a_few_step_lora_of_the_community_is_added_with_its_biases(folders: tuple[Path, Path], tmp_path: Path):
    g = torch.Generator().manual_seed(0)
    draw = lambda *shape: torch.randn(shape, generator=g)  # noqa: E731
    theirs = "diffusion_model.blocks.0.self_attn.q"
    lora = {
        f"{theirs}.lora_down.weight": draw(4, 48), f"{theirs}.lora_up.weight": draw(48, 4), f"{theirs}.diff_b": draw(48),
        "diffusion_model.blocks.1.ffn.0.lora_down.weight": draw(4, 48), "diffusion_model.blocks.1.ffn.0.lora_up.weight": draw(64, 4),
        "diffusion_model.text_embedding.0.lora_down.weight": draw(4, 32), "diffusion_model.text_embedding.0.lora_up.weight": draw(48, 4),
    }  # fmt: skip
    file = tmp_path / "few.safetensors"
    save_file(lora, file)
    before, after = (dict(world_of(folders, lora=more).model.named_parameters()) for more in ((), (file,)))
    more = {n: (after[n] - before[n]).detach() for n in before if not torch.equal(after[n], before[n])}
    assert more.keys() == {"blocks.0.attn1.to_q.weight", "blocks.0.attn1.to_q.bias", "blocks.1.ffn.net.0.proj.weight"}
    want = lora[f"{theirs}.lora_up.weight"] @ lora[f"{theirs}.lora_down.weight"]
    torch.testing.assert_close(more["blocks.0.attn1.to_q.weight"], want, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(more["blocks.0.attn1.to_q.bias"], lora[f"{theirs}.diff_b"], rtol=1e-4, atol=1e-5)
    save_file({"diffusion_model.blocks.0.self_attn.q.lora_down.weight": draw(4, 40),
               "diffusion_model.blocks.0.self_attn.q.lora_up.weight": draw(40, 4)}, file)  # fmt: skip
    with pytest.raises(ValueError, match="does not fit this model"):
        world_of(folders, lora=(file,))


def test_too_little_memory_is_answered_with_what_lowers_it(folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch):
    world = world_of(folders)

    def full(*_: Any, **__: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")

    monkeypatch.setattr(type(world.model), "forward", full)
    with pytest.raises(ValueError, match=r"too little memory \(CUDA out of memory.*--wan.offload model: \d"):
        drawn(world)
    big = {**tiny.WAN, "num_attention_heads": 40, "attention_head_dim": 128, "ffn_dim": 13824, "num_layers": 40, "image_dim": 1280, "added_kv_proj_dim": 5120}  # fmt: skip
    with pytest.raises(
        ValueError, match=r"has 24.0 GB and the weights alone take 35.5; .*--wan.offload model: 36.8 GB instead of 42.7"
    ):
        memory.refuse(big, 24.0, **Setup().load)
    memory.refuse(big, 24.0, **Setup(offload="model", quantise="fp8").load)
    with pytest.raises(ValueError, match="torch sees no GPU here"):
        world_of(folders, device="cuda")


def test_what_cannot_work_is_said_before_anything_is_loaded(
    folders: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def loaded(*_: Any, **__: Any) -> None:
        raise AssertionError("weights were loaded")

    monkeypatch.setattr(weights, "tensors_in", loaded)
    for options, match in (
        ({"height": 50}, "sides divisible by 24 .* got 9x50x48"),
        ({"frames": 8}, "1 \\+ 4k frames"),
        ({"attention": "none such"}, "unknown attention 'none such'; diffusers knows .*native"),
        ({"lora": (tmp_path / "x.safetensors",)}, "there is no LoRA at .*x.safetensors"),
        ({"lora": (tmp_path / "few.ckpt",)}, "few.ckpt is no .safetensors file"),
        ({"parallel": 2}, "--wan.parallel 2 needs as many processes: torchrun --nproc-per-node 2"),
    ):
        with pytest.raises(ValueError, match=match):
            world_of(folders, **options)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="shares a clip among GPUs, and torch sees none here"):
        world_of(folders, parallel=2)
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(ValueError, match="2 heads and 54 tokens cannot be shared by 4 processes evenly"):
        world_of(folders, parallel=4)


SCRIPT = """
import sys
sys.path.insert(0, sys.argv[1])
import torch
import torch.distributed as dist
from wan_cases import an_input
from kinema4d.world.wan.load import _shared
from kinema4d.world.wan.options import Setup
from kinema4d.world.wan.tiny import transformer
torch.set_num_threads(1)
torch.accelerator.device_count = lambda: 1  # diffusers counts cards
inputs = [v[:1] for v in an_input("act")]
with torch.no_grad():
    want = transformer("act")(*inputs)
    model = transformer("act")
    _shared(model, Setup(parallel=2, frames=9, height=48, width=48))
    lengths = []
    model.blocks[1].register_forward_pre_hook(lambda m, a: lengths.append(a[0].shape[1]))
    made = model(*inputs)
torch.testing.assert_close(made, want, rtol=1e-5, atol=1e-5)
assert lengths == [3 * 3 * 6 // 2], lengths
print("same", dist.get_rank())
"""


def test_two_processes_share_the_sequence(tmp_path: Path):
    script = tmp_path / "run.py"
    script.write_text(SCRIPT)
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--master-port=0", "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0"]  # fmt: skip
    done = subprocess.run([*command, str(script), str(Path(__file__).parents[2])], capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, timeout=300)  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("same") == 2
