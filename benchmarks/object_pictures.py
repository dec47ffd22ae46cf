"""Film strips of objects for the docs: one row per kind, moved by what was learned of it.

    python benchmarks/object_pictures.py --out docs/images/objects_fit.jpg                            # each kind fitted from its own poses
    python benchmarks/object_pictures.py --weights runs/o/objects.safetensors --out docs/images/objects_foretold.jpg   # foretold from the mesh alone
    python benchmarks/object_pictures.py --assets wheels/ --out docs/images/objects_real.jpg          # real ones fitted, and what is rigid

Foretold rows have the truth above them: MuJoCo's motion from the same pose and velocity under the same gravity.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
import tyro
from PIL import Image, ImageDraw

from kinema4d.geometry.deforming import ObjectMotion
from kinema4d.geometry.film import film_strip
from kinema4d.objects.fit import Fitted, fit, solid_as_one
from kinema4d.objects.foretell import kinematics
from kinema4d.objects.solid import Mesh
from kinema4d.scenes import soft_kinds
from kinema4d.scenes.assets import Real, available, load
from kinema4d.scenes.jointed import KINDS, Jointed, draw, some_poses, swing
from kinema4d.simulate.object_wish import Wish
from kinema4d.simulate.objects import simulate_object

GRAVITY = (1.5, -3.0, -9.2)
"""Askew, so that doors and drawers move, too."""


def moved(thing: Jointed | Real, got: Fitted, q: np.ndarray, seconds: float) -> ObjectMotion:
    start = tuple(got.coordinates(thing.posed(q)[None])[0].tolist())
    return simulate_object(got, Wish(seconds=seconds, gravity=GRAVITY, start=start, anyway=True))


def real(assets: Path, seconds: float) -> list[np.ndarray]:
    """Rows of real objects, each fitted from 48 poses of its own mesh, and of a solid that was thrown."""
    rows = []
    for kind in available(assets):
        thing = load(kind, assets)
        low, high = thing.limits.T
        mesh = Mesh(vertices=thing.posed(np.clip(np.zeros(thing.freedom), low, high)), faces=thing.faces)
        got = fit(mesh, thing.posed(np.random.default_rng(1).uniform(low, high, (48, thing.freedom))))
        found = "not minimal" if got.freedom.count is None else got.freedom.count
        rows.append(labelled(moved(thing, got, low + 0.4 * (high - low), seconds), f"{kind} ({found})"))
    solid = soft_kinds.draw("rigid", 3)
    alone = solid_as_one(Mesh(vertices=solid.vertices, faces=solid.faces), 1000.0, "one solid")
    floor = float(solid.vertices[:, 2].min()) - 0.3
    motion = simulate_object(alone, Wish(seconds=2 * seconds, gravity=GRAVITY, free=True, ground=floor))
    return [*rows, labelled(motion, "rigid, on a floor")]


def labelled(motion: ObjectMotion, text: str) -> np.ndarray:
    strip = Image.fromarray(film_strip(motion, 6, height=160, width=160))
    ImageDraw.Draw(strip).text((4, 2), text, fill=(0, 0, 0))
    return np.asarray(strip)


def paired(rows: list[np.ndarray]) -> np.ndarray:
    """In two columns."""
    half = (len(rows) + 1) // 2
    rows = rows + [np.full_like(rows[0], 255)] * (2 * half - len(rows))
    return np.concatenate([np.concatenate(rows[:half]), np.concatenate(rows[half:])], axis=1)


def truth(thing: Jointed, q: np.ndarray, motion: ObjectMotion) -> ObjectMotion:
    way = swing(thing, q, np.zeros(thing.freedom), seconds=(len(motion) - 1) * motion.step, gravity=GRAVITY)
    return replace(motion, vertices=thing.posed(way).astype(np.float32))


def main(
    out: Path,
    weights: Path | None = None,
    assets: Path | None = None,
    seed: int = 7000,
    seconds: float = 0.4,
    kinds: tuple[str, ...] = tuple(KINDS),
) -> None:
    """Draw.

    Args:
        out: Picture to write.
        weights: Of the model that foretells; without, each object is fitted from its own poses.
        assets: Folder with metaworld/ and gymnasium_robotics/ out of their wheels: real objects instead, and what is rigid.
        seed: Of the objects.
        seconds: Of motion.
        kinds: Rows.
    """
    torch.set_num_threads(1)
    rows = [] if assets is None else real(assets, seconds)
    for kind in kinds if assets is None else ():
        thing = draw(kind, seed)
        low, high = thing.limits.T
        q = low + 0.4 * (high - low)
        if weights is None:
            rest = thing.posed(np.zeros(thing.freedom))
            got = fit(Mesh(vertices=rest, faces=thing.faces), thing.posed(some_poses(thing, 64, 1)))
        else:
            got = kinematics(Mesh(vertices=thing.posed(q), faces=thing.faces), weights)
        motion = moved(thing, got, q, seconds)
        if weights is None:
            rows.append(labelled(motion, f"{kind} ({thing.freedom})"))
        else:
            both = [(truth(thing, q, motion), "MuJoCo"), (motion, "foretold")]
            rows.append(np.concatenate([labelled(shown, f"{kind} {name} ({thing.freedom})") for shown, name in both]))
    every = paired(rows)
    Image.fromarray(every).save(out, quality=85)
    print(out)


if __name__ == "__main__":
    tyro.cli(main)
