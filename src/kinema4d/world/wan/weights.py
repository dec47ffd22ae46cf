"""Weights of others in our model: Wan2.1's base, 4DNeX's and Kinema4D's adapters, and our own.

Kinema4D's LoRA was continued from 4DNeX's and contains it: the two are never added up. Its file says nothing of its scale, which in
training was alpha / rank = 32 / 64; it is applied at that, whatever a header says. Names and sizes are checked key for key
before anything is loaded, and what does not belong is refused by name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from kinema4d.world.wan import files
from kinema4d.world.wan.latents import KINEMA4D, PLAIN_4DNEX, PointStats
from kinema4d.world.wan.model import LATENT, MASK, RobotWan, SharedRope, Variant

LORA, ADDED, DOMAINS = "pytorch_lora_weights.safetensors", "added_weights.safetensors", "learnable_domain_embeddings"
FORMAT = "kinema4d wan 1"
"""What our own adapters say they are."""
SCALE = 0.5
"""Effective scale of the released LoRAs: 32 / 64."""
TARGETS = ("to_q", "to_k", "to_v", "to_out.0")
"""Layers of both attentions that have a LoRA."""
LEFT_OUT = ("condition_embedder.text_embedder.", "norm_added_q")
"""Tensors of the base that are not used: there is no text."""
ADDITIONS = ("learnable_domain_embeddings", "patch_embedding_arm", "arm_")
"""How the names of added parameters begin."""
_PAIR = re.compile(
    r"^(?:transformer\.|base_model\.model\.|diffusion_model\.)?(.+?)\.(lora_A|lora_B|lora_down|lora_up)\.(?:default\.)?weight$"
)


@dataclass(frozen=True, kw_only=True, eq=False)
class Adapter:
    """What is added to the base."""

    folder: Path
    """Where it is."""
    kind: Literal["kinema4d", "4dnex", "ours"]
    """Who made it."""
    variant: Variant
    """How it is told of the robot."""
    rank: int
    """Of its LoRA; 0 for none."""
    scale: float
    """At which its LoRA is applied."""
    stats: PointStats
    """Of latents of pointmaps."""
    added: Mapping[str, tuple[int, ...]]
    """Added parameters that it has, and their sizes."""


def is_added(name: str) -> bool:
    """Whether a parameter is one that Wan does not have."""
    return name.startswith(ADDITIONS)


def read_adapter(folder: str | Path) -> Adapter:
    """Look at an adapter's folder: which release it is, its variant and rank. Nothing is loaded."""
    folder = Path(folder)
    if not folder.is_dir():
        raise ValueError(f"there is no adapter at {folder}: give the folder with {LORA}")
    pairs = {}
    if (folder / LORA).is_file():
        pairs = pairs_of(files.header(folder / LORA)[0], folder / LORA)
    elif bad := sorted(p.name for p in folder.iterdir() if p.suffix in files.UNSAFE):
        raise ValueError(
            f"{folder / bad[0]} is a pickle, which may run any code when it is read: convert it to safetensors"
        )
    ranks = {a.shape[0] for a, _ in pairs.values()}
    if len(ranks) > 1:
        raise ValueError(f"{folder / LORA} has LoRAs of ranks {sorted(ranks)}: one adapter has one rank")
    rank = ranks.pop() if ranks else 0
    if (folder / ADDED).is_file():
        found, own = files.header(folder / ADDED)
        added = {n: t.shape for n, t in found.items()}
        variant: Variant = "act" if "arm_domain_emb" in added else "pmcond"
        if own.get("format") == FORMAT:
            said = json.loads(own["about"])
            stats = PointStats(**said["stats"])
            return Adapter(
                folder=folder,
                kind="ours",
                variant=variant,
                rank=rank,
                scale=said["alpha"] / max(rank, 1),
                stats=stats,
                added=added,
            )
        return Adapter(
            folder=folder, kind="kinema4d", variant=variant, rank=rank, scale=SCALE, stats=KINEMA4D, added=added
        )
    if domains := [p for p in (folder / f"{DOMAINS}.safetensors", folder / f"{DOMAINS}.pt") if p.is_file()]:
        shape = tuple(_domains(domains[0]).shape)
        return Adapter(
            folder=folder,
            kind="4dnex",
            variant="act",
            rank=rank,
            scale=SCALE,
            stats=PLAIN_4DNEX,
            added={DOMAINS: shape},
        )
    raise ValueError(f"{folder} holds neither {ADDED} (Kinema4D) nor {DOMAINS}.pt (4DNeX): it is no adapter of ours")


def pairs_of(found: Mapping[str, Any], where: Path) -> dict[str, tuple[Any, Any]]:
    """Both factors of every LoRA, by the name of the layer; anything else in the file is refused but alphas."""
    halves: dict[str, dict[str, Any]] = {}
    for name, tensor in found.items():
        if name.endswith(".alpha"):
            continue
        match = _PAIR.match(name)
        if match is None:
            raise ValueError(f"{where} has {name!r}, which is no part of a LoRA")
        side = "A" if match[2] in ("lora_A", "lora_down") else "B"
        halves.setdefault(match[1], {})[side] = tensor
    if odd := sorted(n for n, h in halves.items() if len(h) != 2):
        raise ValueError(f"{where} has only one factor of {odd[0]!r}")
    return {n: (h["A"], h["B"]) for n, h in halves.items()}


def lora_layers(model: nn.Module) -> dict[str, nn.Linear]:
    """Layers that a released LoRA changes, by name."""
    return {
        n: m for n, m in model.named_modules()
        if isinstance(m, nn.Linear) and re.search(r"\.attn[12]\.", n) and n.split(".attn")[1][2:] in TARGETS
    }  # fmt: skip


def check_adapter(adapter: Adapter, model: RobotWan) -> None:
    """Refuse an adapter that does not fit, before anything is loaded."""
    wanted = {n: tuple(p.shape) for n, p in model.named_parameters() if is_added(n)}
    where = adapter.folder / ADDED
    if adapter.kind == "4dnex":
        wanted, where = {DOMAINS: wanted[DOMAINS]}, adapter.folder
    files.compare({n: files.Tensor(where, "F32", s) for n, s in adapter.added.items()}, wanted, where)
    if not adapter.rank:
        return
    where = adapter.folder / LORA
    pairs = pairs_of(files.header(where)[0], where)
    layers = lora_layers(model)
    if strange := sorted(pairs.keys() - layers.keys()):
        raise ValueError(
            f"{where} has a LoRA for {strange[0]!r}, which this model does not have, and {len(strange) - 1} more"
        )
    if missing := sorted(layers.keys() - pairs.keys()):
        raise ValueError(f"{where} has no LoRA for {missing[0]!r} and {len(missing) - 1} more of {len(layers)} layers")
    for name, (a, b) in pairs.items():
        layer = layers[name]
        want = (a.shape[0], layer.in_features), (layer.out_features, a.shape[0])
        if (a.shape, b.shape) != want:
            raise ValueError(
                f"{where}: the LoRA for {name!r} is {a.shape} and {b.shape}, expected {want[0]} and {want[1]}: it is of another base"
            )


def check_base(folder: Path, model: RobotWan) -> dict[str, files.Tensor]:
    """The tensors of a base, checked key for key against the model; nothing is loaded."""
    found = {n: t for n, t in files.tensors_of(folder).items() if not any(x in n for x in LEFT_OUT)}
    wanted = {n: tuple(p.shape) for n, p in model.state_dict().items() if not is_added(n)}
    files.compare(found, wanted, folder)
    return found


def build(base: Path, adapter: Adapter | None, *, image_tokens: int = 257, variant: Variant = "act", arm: Sequence[int] = (13, 4, 6, 15, 128)) -> RobotWan:  # fmt: skip
    """The model of a base's ``config.json``, with no memory behind its parameters yet. Without an adapter that says so, ``arm``
    are the robot's tokens along time, rows and columns, the latents that each covers, and its channels."""
    config = base / "config.json"
    if not config.is_file():
        raise ValueError(
            f"{config} is missing: give the folder of Wan2.1 as diffusers has it, with transformer/config.json"
        )
    said = json.loads(config.read_text())
    if said.get("in_channels") != 2 * LATENT + MASK or not said.get("image_dim"):
        raise ValueError(f"{config} is of no image-to-video model: it has {said.get('in_channels')} input channels, wanted {2 * LATENT + MASK}, and image_dim {said.get('image_dim')}")  # fmt: skip
    grid: dict[str, Any] = {"arm_grid": tuple(arm[:3]), "arm_patch": arm[3], "arm_channels": arm[4]}
    if adapter is not None and "arm_pos_emb" in adapter.added:
        shape, conv = adapter.added["arm_pos_emb"], adapter.added["patch_embedding_arm.weight"]
        grid = {"arm_grid": shape[2:], "arm_channels": shape[1], "arm_patch": conv[-1]}
    if adapter is not None and adapter.kind != "4dnex":  # which knows of no robot
        variant = adapter.variant
    with torch.device("meta"):
        return RobotWan(variant=variant, image_tokens=image_tokens, **grid, **{k: v for k, v in said.items() if not k.startswith("_")})  # fmt: skip


def load(base: str | Path, adapter: str | Path | None = None, *, dtype: torch.dtype = torch.bfloat16, fuse: bool = True, **options: Any) -> tuple[RobotWan, Adapter | None]:  # fmt: skip
    """The model with its weights, checked first and then read shard by shard; what Wan keeps in float32 stays so."""
    base = Path(base)
    read = None if adapter is None else read_adapter(adapter)
    model = build(base, read, **options)
    found = check_base(base, model)
    if read is not None:
        check_adapter(read, model)
    keep = model._keep_in_fp32_modules or []
    kind = lambda name: torch.float32 if is_added(name) or any(k in name for k in keep) else dtype  # noqa: E731
    for file in sorted({t.file for t in found.values()}):
        _assign(model, {n: v.to(kind(n)) for n, v in tensors_in(file).items() if n in found})
    _buffers(model)
    _assign(model, {n: torch.empty(p.shape) for n, p in model.named_parameters() if is_added(n)})
    model.start()
    if read is not None:
        _add(model, read, fuse=fuse)
    return model.eval().requires_grad_(False), read


def _add(model: RobotWan, adapter: Adapter, *, fuse: bool) -> None:
    folder = adapter.folder
    if adapter.kind == "4dnex":
        source = next(p for p in (folder / f"{DOMAINS}.safetensors", folder / f"{DOMAINS}.pt") if p.is_file())
        model.learnable_domain_embeddings.data.copy_(_domains(source))
    else:
        _assign(model, {n: v.float() for n, v in tensors_in(folder / ADDED).items()})
    if adapter.rank and fuse:
        add_lora(model, pairs_of(tensors_in(folder / LORA), folder / LORA), adapter.scale)


@torch.no_grad()
def add_lora(model: nn.Module, pairs: Mapping[str, tuple[Tensor, Tensor]], scale: float) -> None:
    """W += scale * B A, in float32."""
    layers = dict(model.named_modules())
    for name, (a, b) in pairs.items():
        layer = layers.get(name)
        if not isinstance(layer, nn.Linear) or layer.weight.shape != (b.shape[0], a.shape[1]):
            raise ValueError(f"a LoRA for {name!r} of {tuple(b.shape)} x {tuple(a.shape)} does not fit this model")
        more = scale * (b.float().to(layer.weight.device) @ a.float().to(layer.weight.device))
        layer.weight.data = (layer.weight.float() + more).to(layer.weight.dtype)


def check_community(file: Path) -> None:
    """Refuse a file that is no whole safetensors."""
    if not file.is_file() and file.suffix == files.SAFE:
        raise ValueError(f"there is no LoRA at {file}")
    if file.suffix != files.SAFE:
        raise ValueError(f"{file} is no {files.SAFE} file: LoRAs are read from nothing else")
    files.header(file)


def add_community(model: nn.Module, file: Path) -> None:
    """A LoRA in any of the formats that diffusers knows (few-step ones of the community), at the scale that it says, biases included;
    what it has for words is left out, for there are none."""
    from diffusers.loaders.lora_pipeline import WanLoraLoaderMixin

    check_community(file)
    said: Any = WanLoraLoaderMixin.lora_state_dict(str(file.parent), weight_name=file.name, use_safetensors=True, local_files_only=True)  # fmt: skip
    used = {n: v for n, v in said.items() if not any(x in n for x in LEFT_OUT)}
    biases = {n: v for n, v in used.items() if n.endswith(".lora_B.bias")}
    add_lora(model, pairs_of({n: v for n, v in used.items() if n not in biases}, file), 1.0)
    layers = dict(model.named_modules())
    for name, value in biases.items():
        layer = layers.get(name.removeprefix("transformer.").removesuffix(".lora_B.bias"))
        if not isinstance(layer, nn.Linear) or layer.bias is None or layer.bias.shape != value.shape:
            raise ValueError(f"{file} has {name!r} of {tuple(value.shape)}, which does not fit this model")
        layer.bias.data = (layer.bias.float() + value.float()).to(layer.bias.dtype)


def save_adapter(folder: str | Path, lora: Mapping[str, Tensor], added: Mapping[str, Tensor], *, alpha: float, stats: PointStats, about: dict[str, Any]) -> None:  # fmt: skip
    """Write our own adapter in the release's layout, with its scale; files are whole or absent."""
    from safetensors.torch import save

    from kinema4d.files import whole_file

    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    said = {
        "format": FORMAT,
        "about": json.dumps({"alpha": alpha, "stats": {"mean": stats.mean, "std": stats.std}, **about}),
    }
    for name, state in ((LORA, lora), (ADDED, added)):
        with whole_file(folder / name, overwrite=True) as file:
            file.write_bytes(save({k: v.detach().cpu().contiguous() for k, v in state.items()}, said))


def tensors_in(file: Path) -> dict[str, Tensor]:
    """All of a file."""
    from safetensors.torch import load_file

    return load_file(file)


def _domains(file: Path) -> Tensor:
    """4DNeX's embeddings: a tensor, or a dict of one."""
    found = tensors_in(file) if file.suffix == files.SAFE else torch.load(file, map_location="cpu", weights_only=True)
    if isinstance(found, Mapping):
        found = next(iter(found.values()))
    if not isinstance(found, Tensor) or found.ndim != 2 or len(found) != 2:
        raise ValueError(f"{file} holds no two embeddings")
    return found.float()


def _assign(model: nn.Module, state: Mapping[str, Tensor]) -> None:
    model.load_state_dict(state, strict=False, assign=True)


def _buffers(model: RobotWan) -> None:
    """Tables that no file has: made anew where they were only planned."""
    names = ("attention_head_dim", "patch_size", "rope_max_seq_len")
    model.rope = SharedRope(*(model.config[n] for n in names))
