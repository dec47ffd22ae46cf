"""Worlds by name."""

from __future__ import annotations

from pathlib import Path

from kinema4d.world.protocol import World
from kinema4d.world.static import StaticWorld
from kinema4d.world.wan.options import Sampling, Setup

WORLDS = {
    "static": "nothing answers: the honest baseline",
    "small": "see, move, paint: parts, rigid bodies and light, on a laptop",
    "small-motion": "the same without paint: what motion alone knows",
    "small-direct": "the paper's diffusion transformer alone, small",
    "wan": "the paper's own model, Wan2.1-14B with its adapter: needs --weights, and a GPU to be of use",
}
"""Every world that has a name."""


def load_world(
    name: str | Path = "small",
    *,
    painter: str | Path | None = None,
    weights: str | Path | None = None,
    adapter: str | Path | None = None,
    setup: Setup | None = None,
    sampling: Sampling | None = None,
) -> World:
    """A world by name, or the small world (or the diffusion transformer alone) with the weights of a file. ``painter`` is a
    file of a network that corrects what the small world draws. ``weights`` (Wan2.1-I2V as diffusers has it), ``adapter``, ``setup`` and
    ``sampling`` are for ``wan``."""
    if name == "wan":
        return _wan(weights, adapter, setup, sampling)
    if weights is not None or adapter is not None:
        raise ValueError(f"--weights and --adapter are for the world wan, not for {name}")
    if painter is not None and name in ("static", "small-direct"):
        raise ValueError(f"a painter corrects what the small world draws, not {name}")
    if name == "static":
        return StaticWorld()
    path = Path(name)
    if name in ("small", "small-motion", "small-direct") or path.suffix == ".safetensors":
        try:
            from kinema4d.weights_file import said_to_be
            from kinema4d.world.small.checkpoint import load_small
            from kinema4d.world.small.direct import FORMAT, load_direct, load_painter
            from kinema4d.world.small.world import SmallWorld
        except ImportError as error:
            raise ValueError(f"the small world needs {error.name}: pip install 'kinema4d[world]'") from None
        if name == "small-direct":
            return load_direct()
        if path.suffix and said_to_be(path) == FORMAT:
            if painter is not None:
                raise ValueError(f"a painter corrects what the small world draws, not {path.name}")
            return load_direct(path)
        eyes, mover, about = load_small(path if path.suffix else None)
        paint = name != "small-motion"
        net = None if painter is None else load_painter(painter)
        title = "small" if paint else "small-motion"
        return SmallWorld(eyes, about, mover=mover, paint=paint, painter=net, name=title)
    known = "; ".join(f"{k} ({v})" for k, v in WORLDS.items())
    raise ValueError(f"unknown world {str(name)!r}; known are {known}, or a .safetensors file of the small world")


def _wan(
    weights: str | Path | None, adapter: str | Path | None, setup: Setup | None, sampling: Sampling | None
) -> World:
    if weights is None:
        raise ValueError("the world wan needs --weights: the folder of Wan2.1-I2V-14B-480P as diffusers has it")
    from kinema4d.world.small.machine import guard

    guard()
    try:
        from kinema4d.world.wan.load import load_wan
    except ImportError as error:
        raise ValueError(f"the world wan needs {error.name}: pip install 'kinema4d[wan]'") from None
    return load_wan(weights, adapter, setup=setup, sampling=sampling)
