"""One object of a 4D data set: its mesh, its poses, its free motions, and what judges may know of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float64

from kinema4d.data.objects4d import Content
from kinema4d.scenes import jointed, soft, soft_kinds
from kinema4d.scenes.assets import ASSETS, Real, load
from kinema4d.scenes.jointed import Jointed
from kinema4d.scenes.physics import mujoco_module

JOINTED = (*jointed.KINDS, jointed.GADGET)
"""Kinds of solid parts on joints, drawn by chance."""
SOFT = {
    "bar": "elastic", "blob": "elastic", "plate": "elastic", "cloth": "cloth", "rope": "rope", "rigid": "rigid",
    "door-rope": "mixed", "box-cloth": "mixed",
}  # fmt: skip
"""Kinds of other things, drawn by chance, with their categories."""
STEP = 0.01
"""Seconds from frame to frame of a motion."""
LONG, SHORT = 1.0, 0.3
"""Seconds of a motion, and the least of one that a limit cuts short."""
TRIES = 150
"""Starts per wanted motion."""


def make_content(kind: str, seed: int, *, poses: int, motions: int, assets: Path | None = None) -> Content:
    """The object of a kind and seed."""
    if kind in ASSETS:
        return _on_joints(load(kind, assets), seed, poses, motions)
    if kind in JOINTED:
        return _on_joints(jointed.draw(kind, seed), seed, poses, motions)
    return _soft(soft_kinds.draw(kind, seed), seed, poses, motions)


def _on_joints(thing: Jointed | Real, seed: int, poses: int, motions: int) -> Content:
    rng = np.random.default_rng([seed, 41])
    low, high = thing.limits.T
    q = rng.uniform(low, high, (poses, thing.freedom))
    starts, ways = [], []
    for _ in range(TRIES * motions):
        if len(ways) == motions:
            break
        # Near the middle or far out, slow or fast: what falls at once from one start stays up for a while from another.
        start = (low + high) / 2 + rng.uniform(0.05, 0.9) * rng.uniform(-0.5, 0.5, thing.freedom) * (high - low)
        speed = rng.normal(size=thing.freedom) * np.exp(rng.uniform(np.log(0.1), np.log(6.0))) * (high - low)
        way = free_swing(thing, start, speed, seconds=LONG)
        if len(way) > round(SHORT / STEP):
            ways.append(thing.posed(way))
            starts.append({"q": start.tolist(), "speed": speed.tolist(), "seconds": (len(way) - 1) * STEP})
    ours = isinstance(thing, Jointed)
    truth: dict[str, Any] = {
        "freedom": thing.freedom, "limits": thing.limits.tolist(), "gravity": list(soft.EARTH), "starts": starts, "poses": q.tolist(),
        "density": jointed.DENSITY if ours else None,
        "material": {"density": jointed.DENSITY} if ours else {"inertia": "of the asset's own bodies"},
    }  # fmt: skip
    rest = np.clip(np.zeros(thing.freedom), low, high)
    return Content(
        vertices=thing.posed(rest), faces=thing.faces, poses=thing.posed(q), motions=tuple(ways), step=STEP, truth=truth
    )


def free_swing(thing: Jointed | Real, q: np.ndarray, speed: np.ndarray, *, seconds: float, every: float = STEP) -> Float64[np.ndarray, "t j"]:  # fmt: skip
    """Joint positions while it moves freely under gravity, until the first joint leaves its limits, of which MuJoCo knows nothing."""
    mujoco = mujoco_module()
    model = mujoco.MjModel.from_xml_string(thing.xml())
    data = mujoco.MjData(model)
    data.qpos[:], data.qvel[:] = q, speed
    low, high = thing.limits.T
    out = [data.qpos.copy()]
    for _ in range(round(seconds / every)):
        mujoco.mj_step(model, data, round(every / model.opt.timestep))
        if not np.isfinite(data.qpos).all():
            raise ValueError(f"MuJoCo lost {thing.name}: positions are no numbers any more")
        if ((data.qpos < low) | (data.qpos > high)).any():
            break
        out.append(data.qpos.copy())
    return np.array(out)


def _soft(thing: soft.Soft, seed: int, poses: int, motions: int) -> Content:
    rng = np.random.default_rng([seed, 43])
    starts, ways = [], []
    for number in range(TRIES * motions):
        if len(ways) == motions:
            break
        start = soft.Start(
            seed=seed * 1009 + number, stir=1.0 if thing.category == "rigid" else float(rng.uniform(0.5, 1.2))
        )
        way = soft.run(thing, start, seconds=LONG, every=STEP)
        if len(way.vertices) > round(SHORT / STEP):
            ways.append(way.vertices)
            starts.append({"q": way.q.tolist(), "speed": way.speed.tolist(), "seconds": (len(way.vertices) - 1) * STEP})
    truth = {
        "freedom": None if thing.category in ("elastic", "cloth") else thing.freedom, "limits": thing.limits, "gravity": list(soft.EARTH),
        "starts": starts, "density": thing.material["density"], "material": thing.material, "pinned": thing.pinned.tolist(),
    }  # fmt: skip
    return Content(
        vertices=thing.vertices, faces=thing.faces, poses=soft.some_poses(thing, poses, seed), motions=tuple(ways), step=STEP, truth=truth
    )  # fmt: skip
