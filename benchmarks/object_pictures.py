"""Film strips of objects for the docs: one row per kind, moved by what was learned of it.

    python benchmarks/object_pictures.py --out docs/images/objects_fit.jpg                            # each kind fitted from its own poses
    python benchmarks/object_pictures.py --weights runs/o/objects.safetensors --out docs/images/objects_foretold.jpg   # foretold from the mesh alone

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
from kinema4d.objects.fit import Fitted, fit
from kinema4d.objects.foretell import kinematics
from kinema4d.objects.solid import Mesh
from kinema4d.scenes.jointed import KINDS, Jointed, draw, some_poses, swing
from kinema4d.simulate.object_wish import Wish
from kinema4d.simulate.objects import simulate_object

GRAVITY = (1.5, -3.0, -9.2)
"""Askew, so that doors and drawers move, too."""


def moved(thing: Jointed, got: Fitted, q: np.ndarray, seconds: float) -> ObjectMotion:
    start = tuple(got.coordinates(thing.posed(q)[None])[0].tolist())
    return simulate_object(got, Wish(seconds=seconds, gravity=GRAVITY, start=start))


def truth(thing: Jointed, q: np.ndarray, motion: ObjectMotion) -> ObjectMotion:
    way = swing(thing, q, np.zeros(thing.freedom), seconds=(len(motion) - 1) * motion.step, gravity=GRAVITY)
    return replace(motion, vertices=thing.posed(way).astype(np.float32))


def main(
    out: Path,
    weights: Path | None = None,
    seed: int = 7000,
    seconds: float = 0.4,
    kinds: tuple[str, ...] = tuple(KINDS),
) -> None:
    """Draw.

    Args:
        out: Picture to write.
        weights: Of the model that foretells; without, each object is fitted from its own poses.
        seed: Of the objects.
        seconds: Of motion.
        kinds: Rows.
    """
    torch.set_num_threads(1)
    rows = []
    for kind in kinds:
        thing = draw(kind, seed)
        low, high = thing.limits.T
        q = low + 0.4 * (high - low)
        if weights is None:
            rest = thing.posed(np.zeros(thing.freedom))
            got = fit(Mesh(vertices=rest, faces=thing.faces), thing.posed(some_poses(thing, 64, 1)))
        else:
            got = kinematics(Mesh(vertices=thing.posed(q), faces=thing.faces), weights)
        motion = moved(thing, got, q, seconds)
        for name, shown in (("MuJoCo", truth(thing, q, motion)), ("foretold", motion)) if weights else (("", motion),):
            strip = Image.fromarray(film_strip(shown, 6, height=160, width=160))
            ImageDraw.Draw(strip).text((4, 2), f"{kind} {name} ({thing.freedom})", fill=(0, 0, 0))
            rows.append(np.asarray(strip))
    every = np.concatenate(rows)
    half = (len(rows) + 1) // 2
    if weights is None:  # two columns
        blank = np.full_like(rows[0], 255)
        rows += [blank] * (2 * half - len(rows))
        every = np.concatenate([np.concatenate(rows[:half]), np.concatenate(rows[half:])], axis=1)
    Image.fromarray(every).save(out, quality=85)
    print(out)


if __name__ == "__main__":
    tyro.cli(main)
