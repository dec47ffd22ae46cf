"""The small world's weights: one safetensors file in float16, with its configuration and what made it."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from kinema4d.world.small.machine import guard

guard()

from torch import nn  # noqa: E402

from kinema4d.weights_file import fill_in, read_weights, write_weights  # noqa: E402
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
    state = {f"{k}.{n}": v for k, net in networks.items() for n, v in net.state_dict().items()}
    return write_weights(path, state, FORMAT, config, about)


def load_small(path: str | Path | None = None) -> tuple[Eyes, MoveNet | None, dict[str, Any]]:
    """The networks of a file (default: those of the package), the correction of motions where it has one, and what is
    known of it: its hash and what made it.

    A file that is damaged, of another format or of other shapes is refused.
    """
    path = SHIPPED if path is None else Path(path)
    state, config, about = read_weights(path, FORMAT, AGAIN)
    networks = modules(config)
    fill_in(networks, state, path, AGAIN)
    segment, complete, blind = networks["segment"], networks["complete"], networks["blind"]
    move = networks.get("move")
    assert isinstance(segment, SegmentNet)
    assert isinstance(complete, CompleteNet)
    assert isinstance(blind, BlindNet)
    assert move is None or isinstance(move, MoveNet)
    return Eyes(segment, complete, blind), move, about
