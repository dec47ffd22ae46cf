"""The full-scale world from folders: Wan2.1 as diffusers has it, and an adapter. Everything is checked before anything is loaded."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import nn

from kinema4d.world.wan import files, weights
from kinema4d.world.wan.latents import KINEMA4D, check_size
from kinema4d.world.wan.memory import GB, load_of, refuse
from kinema4d.world.wan.model import RobotWan
from kinema4d.world.wan.options import Sampling, Setup, processes
from kinema4d.world.wan.world import WanWorld

PARTS = ("transformer", "vae", "image_encoder", "image_processor")
"""Folders of the base that are used: no text encoder, no tokenizer."""


def check(base: str | Path, adapter: str | Path | None = None, setup: Setup | None = None) -> dict[str, Any]:
    """Look at a folder of weights and an adapter without loading them: what they are, or what is wrong, also with how they are to be used."""
    base = Path(base)
    if missing := [p for p in PARTS if not (base / p).is_dir()]:
        raise ValueError(
            f"{base} lacks {', '.join(missing)}: give the folder of Wan2.1-I2V as diffusers has it ({', '.join(PARTS)})"
        )
    read = None if adapter is None else weights.read_adapter(adapter)
    model = weights.build(base / "transformer", read)
    found = weights.check_base(base / "transformer", model)
    if read is not None:
        weights.check_adapter(read, model)
    for part in ("vae", "image_encoder"):
        files.tensors_of(base / part)
    if setup is not None:
        _possible(model, setup)
    size = sum(t.bytes for t in found.values())
    return {
        "transformer": {"tensors": len(found), "gb": round(size / 1e9, 2), "layers": model.config["num_layers"]},
        "adapter": None if read is None else {"kind": read.kind, "variant": read.variant, "rank": read.rank, "scale": read.scale},
    }  # fmt: skip


def load_wan(base: str | Path, adapter: str | Path | None = None, *, setup: Setup | None = None, sampling: Sampling | None = None) -> WanWorld:  # fmt: skip
    """The world. Without an adapter the robot is told of by a projection that starts at zero: something to train from."""
    base, setup = Path(base), setup or Setup()
    found = check(base, adapter, setup)
    vae, clip, eye = _eyes(base, setup)
    tokens = (clip.config.image_size // clip.config.patch_size) ** 2 + 1
    model, read = weights.load(base / "transformer", adapter, dtype=kind_of(setup), image_tokens=tokens)
    for more in setup.lora:
        weights.add_community(model, more)
    world = WanWorld(
        model, vae, clip, eye, stats=KINEMA4D if read is None else read.stats, frames=setup.frames, height=setup.height, width=setup.width,
        sampling=sampling or Sampling(), about={"base": base.name, "adapter": None if adapter is None else Path(adapter).name, **found},
        load=setup.load,
    )  # fmt: skip
    with world.enough_memory():
        _placed(model, vae, clip, setup)
    return world


def _possible(planned: RobotWan, setup: Setup) -> None:
    """Refuse options that this model or this machine cannot take, before minutes of loading."""
    from diffusers.models.attention_dispatch import AttentionBackendName

    check_size(setup.frames, setup.height, setup.width, planned.arm_patch)
    config, many = dict(planned.config), setup.parallel
    if (place := place_of(setup)).type == "cuda":
        refuse(config, torch.cuda.get_device_properties(place).total_memory / GB, **setup.load)
    if setup.attention is not None and setup.attention not in (known := [b.value for b in AttentionBackendName]):
        raise ValueError(f"unknown attention {setup.attention!r}; diffusers knows {', '.join(known)}")
    if setup.quantise == "int8" and find_spec("torchao") is None:
        raise ValueError("--wan.quantise int8 needs torchao: pip install torchao")
    for file in setup.lora:
        weights.check_community(file)
    if many == 1:
        return
    heads, tokens = config["num_attention_heads"], load_of(config, **setup.load).tokens
    if processes()[1] != many:
        raise ValueError(f"--wan.parallel {many} needs as many processes: torchrun --nproc-per-node {many} -m kinema4d.cli simulate ...")  # fmt: skip
    if heads % many or tokens % many:
        raise ValueError(f"{heads} heads and {tokens} tokens cannot be shared by {many} processes evenly")
    if not torch.accelerator.device_count():
        raise ValueError("--wan.parallel shares a clip among GPUs, and torch sees none here")


def _eyes(base: Path, setup: Setup) -> tuple[Any, Any, Any]:
    """VAE, CLIP and its processor, in the machine's memory."""
    from diffusers.models.autoencoders.autoencoder_kl_wan import AutoencoderKLWan
    from transformers import CLIPImageProcessor, CLIPVisionModel

    if missing := [p for p in PARTS[1:] if not (base / p).is_dir()]:
        raise ValueError(f"{base} lacks {', '.join(missing)}: give the folder of Wan2.1-I2V as diffusers has it")
    for part in ("vae", "image_encoder"):
        files.tensors_of(base / part)
    vae = AutoencoderKLWan.from_pretrained(base / "vae", torch_dtype=kind_of(setup), local_files_only=True).eval()
    clip = CLIPVisionModel.from_pretrained(base / "image_encoder", dtype=torch.float32, local_files_only=True).eval()
    eye = CLIPImageProcessor.from_pretrained(base / "image_processor", local_files_only=True)
    if setup.tiling:
        vae.enable_tiling()
    return vae.requires_grad_(False), clip.requires_grad_(False), eye


def eyes_of(base: str | Path, setup: Setup) -> tuple[Any, Any, Any]:
    """What encodes videos and pictures, where it computes; the transformer is not touched."""
    vae, clip, eye = _eyes(Path(base), setup)
    return vae.to(place_of(setup)), clip.to(place_of(setup)), eye


def place_of(setup: Setup) -> torch.device:
    """Where the model computes."""
    own = f"cuda:{os.environ['LOCAL_RANK']}" if "LOCAL_RANK" in os.environ else "cuda"  # as torchrun says
    name = (own if torch.cuda.is_available() else "cpu") if setup.device == "auto" else setup.device
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise ValueError(f"device {name}: torch sees no GPU here; use cpu, or install torch with CUDA")
    return torch.device(name)


def kind_of(setup: Setup) -> torch.dtype:
    """What it computes in: bfloat16 on a GPU. On a CPU float32: bf16 is slower where it works, and kills the process on some machines
    (docs/wan.md)."""
    wide = setup.dtype == "float32" or (setup.dtype == "auto" and place_of(setup).type == "cpu")
    return torch.float32 if wide else torch.bfloat16


def _placed(model: RobotWan, vae: Any, clip: Any, setup: Setup) -> None:
    place = place_of(setup)
    if setup.quantise == "fp8":
        model.enable_layerwise_casting(storage_dtype=torch.float8_e4m3fn, compute_dtype=kind_of(setup))
    elif setup.quantise == "int8":
        from torchao.quantization import Int8WeightOnlyConfig, quantize_  # pyright: ignore[reportMissingImports]

        quantize_(
            model,
            Int8WeightOnlyConfig(),
            filter_fn=lambda m, name: isinstance(m, nn.Linear) and name.startswith("blocks."),
        )
    if setup.attention is not None:
        model.set_attention_backend(setup.attention)
    if setup.offload == "none":
        every: tuple[Any, ...] = (model, vae, clip)
        for part in every:
            part.to(place)
    elif setup.offload == "sequential":
        model.enable_group_offload(
            onload_device=place, offload_device=torch.device("cpu"), offload_type="block_level", num_blocks_per_group=1
        )
        vae.to(place)
        clip.to(place)
    else:
        from accelerate import cpu_offload_with_hook

        # A ring, in the order of a clip: the VAE encodes and CLIP looks, the transformer runs, the VAE decodes; each sends off the one before.
        hooks, hook = [], None
        for part in (vae, clip, model):
            _, hook = cpu_offload_with_hook(part, place, prev_module_hook=hook)
            hooks.append(hook)
        hooks[0].hook.prev_module_hook = hooks[-1]
    if setup.parallel > 1:
        _shared(model, setup)
    if setup.compile:
        model.compile_repeated_blocks(fullgraph=True)


def _shared(model: RobotWan, setup: Setup) -> None:
    """Each process of torchrun has its part of the sequence, and its share of the heads while it attends."""
    from diffusers.models._modeling_parallel import ContextParallelConfig
    from torch import distributed

    if not distributed.is_initialized():
        distributed.init_process_group("nccl" if place_of(setup).type == "cuda" else "gloo")
    if setup.attention is None:
        model.set_attention_backend("native")
    model.enable_parallelism(config=ContextParallelConfig(ulysses_degree=setup.parallel))
