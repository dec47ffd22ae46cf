"""The small world's weights: one safetensors file in float16, with its configuration and what made it."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from kinema4d.files import whole_file
from kinema4d.world.small.machine import guard

guard()

from torch import nn  # noqa: E402

from kinema4d.world.small.complete import CompleteConfig, CompleteNet  # noqa: E402
from kinema4d.world.small.look import Eyes  # noqa: E402
from kinema4d.world.small.move import MoveConfig, MoveNet  # noqa: E402
from kinema4d.world.small.see import BlindNet, SeeConfig, SegmentNet  # noqa: E402

SHIPPED = Path(__file__).parent / "weights" / "small.safetensors"
"""The weights that come with the package."""
FORMAT = "kinema4d small world 2"
"""What a file says it is."""
AGAIN = "get it again, or train one with kinema4d train"


def modules(config: dict[str, Any]) -> dict[str, nn.Module]:
    """The networks of a configuration, by name; ``move`` only where it has one."""
    see = SeeConfig(widths=tuple(config["see"]["widths"]))
    move = {"move": MoveNet(MoveConfig(**config["move"]))} if "move" in config else {}
    return {
        "segment": SegmentNet(see),
        "blind": BlindNet(see),
        "complete": CompleteNet(CompleteConfig(**config["complete"])),
        **move,
    }


def usual_config(*networks: str) -> dict[str, Any]:
    """Of the shipped size; ``move`` where it is among ``networks``."""
    config = {"see": asdict(SeeConfig()), "complete": asdict(CompleteConfig())}
    more = {"move": asdict(MoveConfig())} if "move" in networks else {}
    return json.loads(json.dumps(config | more))


def save_small(path: str | Path, networks: dict[str, nn.Module], config: dict[str, Any], about: dict[str, Any]) -> str:
    """Write networks in float16; returns the hash that stands beside the file, as ``<name>.sha256``."""
    from safetensors.torch import save

    state = {f"{k}.{n}": v.half().contiguous() for k, net in networks.items() for n, v in net.state_dict().items()}
    blob = save(state, {"format": FORMAT, "config": json.dumps(config), "about": json.dumps(about)})
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path, overwrite=True) as temporary:
        temporary.write_bytes(blob)
    digest = hashlib.sha256(blob).hexdigest()
    with whole_file(path.with_suffix(".sha256"), overwrite=True) as temporary:
        temporary.write_text(digest + "\n")
    return digest


def load_small(path: str | Path | None = None) -> tuple[Eyes, MoveNet | None, dict[str, Any]]:
    """The networks of a file (default: those of the package), the correction of motions where it has one, and what is
    known of it: its hash and what made it.

    A file that is damaged, of another format or of other shapes is refused.
    """
    from safetensors import SafetensorError, safe_open
    from safetensors.torch import load

    path = SHIPPED if path is None else Path(path)
    if not path.is_file():
        raise ValueError(f"there are no weights at {path}: {AGAIN}")
    blob = path.read_bytes()
    digest = hashlib.sha256(blob).hexdigest()
    beside = path.with_suffix(".sha256")
    if beside.is_file() and beside.read_text().split()[:1] != [digest]:
        raise ValueError(f"{path} is damaged: its SHA-256 is {digest}, {beside.name} says another; {AGAIN}")
    try:
        with safe_open(path, "pt") as file:
            said = file.metadata() or {}
        state = load(blob)
    except (SafetensorError, ValueError) as error:
        raise ValueError(f"{path} is no readable safetensors file ({error}); {AGAIN}") from None
    if said.get("format") != FORMAT:
        raise ValueError(f"{path} says it is {said.get('format')!r}, expected {FORMAT!r}; {AGAIN}")
    networks = modules(json.loads(said["config"]))
    wanted = {f"{k}.{n}": v.shape for k, net in networks.items() for n, v in net.state_dict().items()}
    wrong = [
        n for n in wanted.keys() | state.keys() if n not in wanted or n not in state or wanted[n] != state[n].shape
    ]
    if wrong:
        raise ValueError(f"{path} does not fit its own configuration, first at {sorted(wrong)[0]!r}; {AGAIN}")
    for name, net in networks.items():
        own = {n.removeprefix(f"{name}."): v.float() for n, v in state.items() if n.startswith(f"{name}.")}
        net.load_state_dict(own)
        net.eval().requires_grad_(False)
    segment, complete, blind = networks["segment"], networks["complete"], networks["blind"]
    move = networks.get("move")
    assert isinstance(segment, SegmentNet)
    assert isinstance(complete, CompleteNet)
    assert isinstance(blind, BlindNet)
    assert move is None or isinstance(move, MoveNet)
    about = {"file": path.name, "sha256": digest, **json.loads(said.get("about", "{}"))}
    return Eyes(segment, complete, blind), move, about
