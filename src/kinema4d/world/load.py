"""Worlds by name."""

from __future__ import annotations

from pathlib import Path

from kinema4d.world.protocol import World
from kinema4d.world.static import StaticWorld

WORLDS = {
    "static": "nothing answers: the honest baseline",
    "small": "see, move, draw: parts and rigid bodies, on a laptop",
}
"""Every world that has a name."""


def load_world(name: str | Path = "small") -> World:
    """A world by name, or the small world (or the diffusion transformer alone) with the weights of a file."""
    if name == "static":
        return StaticWorld()
    path = Path(name)
    if name == "small" or path.suffix == ".safetensors":
        try:
            from kinema4d.world.small.checkpoint import load_small
            from kinema4d.world.small.direct import FORMAT, load_direct
            from kinema4d.world.small.world import SmallWorld
            from kinema4d.world.weights_file import said_to_be
        except ImportError as error:
            raise ValueError(f"the small world needs {error.name}: pip install 'kinema4d[world]'") from None
        if name != "small" and said_to_be(path) == FORMAT:
            return load_direct(path)
        eyes, mover, about = load_small(None if name == "small" else path)
        return SmallWorld(eyes, about, mover=mover)
    known = "; ".join(f"{k} ({v})" for k, v in WORLDS.items())
    raise ValueError(f"unknown world {str(name)!r}; known are {known}, or a .safetensors file of the small world")
