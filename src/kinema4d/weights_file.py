"""Weights as files: safetensors in float16, whole or absent, with what they are and a hash that is checked."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from kinema4d.files import whole_file


def write_weights(
    path: str | Path, state: Mapping[str, Tensor], kind: str, config: dict[str, Any], about: dict[str, Any]
) -> str:
    """Write tensors in float16; returns the hash, which also stands beside the file as ``<name>.sha256``."""
    from safetensors.torch import save

    half = {k: v.half().contiguous() for k, v in state.items()}
    blob = save(half, {"format": kind, "config": json.dumps(config), "about": json.dumps(about)})
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path, overwrite=True) as temporary:
        temporary.write_bytes(blob)
    digest = hashlib.sha256(blob).hexdigest()
    with whole_file(path.with_suffix(".sha256"), overwrite=True) as temporary:
        temporary.write_text(digest + "\n")
    return digest


def read_weights(path: str | Path, kind: str, again: str) -> tuple[dict[str, Tensor], dict[str, Any], dict[str, Any]]:
    """Tensors, configuration, and what is known of them (file, hash, what made them). A file that is missing, damaged or
    of another kind is refused; ``again`` says how to get another."""
    from safetensors import SafetensorError, safe_open
    from safetensors.torch import load

    path = Path(path)
    if not path.is_file():
        raise ValueError(f"there are no weights at {path}: {again}")
    blob = path.read_bytes()
    digest = hashlib.sha256(blob).hexdigest()
    beside = path.with_suffix(".sha256")
    if beside.is_file() and beside.read_text().split()[:1] != [digest]:
        raise ValueError(f"{path} is damaged: its SHA-256 is {digest}, {beside.name} says another; {again}")
    try:
        with safe_open(path, "pt") as file:
            said = file.metadata() or {}
        state = load(blob)
    except (SafetensorError, ValueError) as error:
        raise ValueError(f"{path} is no readable safetensors file ({error}); {again}") from None
    if said.get("format") != kind:
        raise ValueError(f"{path} says it is {said.get('format')!r}, expected {kind!r}; {again}")
    about = {"file": path.name, "sha256": digest, **json.loads(said.get("about", "{}"))}
    return state, json.loads(said["config"]), about


def said_to_be(path: Path) -> str:
    """The kind that a safetensors file says it is; empty where it says nothing or cannot be read."""
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        return ""
    try:
        with safe_open(path, "pt") as file:
            return (file.metadata() or {}).get("format", "")
    except SafetensorError:
        return ""


def fill_in(networks: Mapping[str, nn.Module], state: Mapping[str, Tensor], path: str | Path, again: str) -> None:
    """Put tensors named ``network.tensor`` into their networks, which are then only used; refused where any is missing,
    strange or of another shape."""
    own = {f"{k}.{n}": v.shape for k, net in networks.items() for n, v in net.state_dict().items()}
    wrong = sorted(n for n in own.keys() | state.keys() if n not in own or n not in state or own[n] != state[n].shape)
    if wrong:
        raise ValueError(f"{path} does not fit its own configuration, first at {wrong[0]!r}; {again}")
    for name, net in networks.items():
        mine = {n.removeprefix(f"{name}."): v.float() for n, v in state.items() if n.startswith(f"{name}.")}
        net.load_state_dict(mine)
        net.eval().requires_grad_(False)
