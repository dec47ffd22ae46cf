"""The robot in the light of the first picture: its meshes are known, and the sun was found by its shadows.

A control signal is shaded by a lamp of its own. Where the first picture shows a sun, the robot is drawn again in that
light, with the shadows that it and the parts throw on it. Half of the error of a foretold picture was this.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from jaxtyping import Float, UInt8

from kinema4d.geometry.camera import T_camera_world
from kinema4d.geometry.mesh import Mesh
from kinema4d.geometry.raster import Light, Surfaces, assemble, merge, rasterize
from kinema4d.types import Control
from kinema4d.world.small.casters import coarse
from kinema4d.world.small.parts import Part
from kinema4d.world.small.shadow import Sun

TEXELS = (192, 1024)
"""Least and largest side of the shadow map; between, two per row of the picture."""


def ambient_of(sun: Sun) -> float:
    """The share of light that comes from everywhere, out of what a shadow leaves of a level surface."""
    dark, height = float(sun.dark.mean()), float(sun.direction_world[2])
    return dark * height / (1 - dark + dark * height)


@lru_cache(maxsize=4)
def _surfaces(links: tuple[tuple[Mesh, ...], ...]) -> tuple[Surfaces, Surfaces]:
    """The meshes of links, as they are seen and as they throw shadows."""
    every = [(m, i) for i, meshes in enumerate(links) for m in meshes]
    return assemble(every), assemble([(coarse(m), i) for m, i in every])


def sunlit_robot(
    control: Control, sun: Sun, parts: Sequence[Part], motions: Float[np.ndarray, "p t 4 4"]
) -> UInt8[np.ndarray, "t h w 3"]:
    """The robot's colour under this sun; as it was where a solid does not say how it looks."""
    assert control.rgb is not None
    solids = [s for s in control.solids if s.meshes]
    if not solids:
        return control.rgb
    closed = [(p, Ts) for p, Ts in zip(parts, motions, strict=True) if len(p.faces)]
    Ts = np.stack([*(s.Ts_world_link for s in solids), *(Ts for _, Ts in closed)], axis=1)
    seen, cast = _surfaces(tuple(s.meshes for s in solids))
    cast = [(cast, 0)]
    if closed:
        cast.append((assemble([(_grey(p), i) for i, (p, _) in enumerate(closed)]), len(solids)))
    size = int(np.clip(2 * control.camera.height, *TEXELS))
    x, y, z = sun.direction_world.tolist()
    light = Light(direction_world=(x, y, z), ambient=ambient_of(sun), shadow_size=size)
    drawn = rasterize(
        seen, T_camera_world(control.camera, len(control))[:, None] @ Ts, control.camera, rgb=True, light=light,
        casters=merge(cast),
    )  # fmt: skip
    assert drawn.rgb is not None
    other = control.mask & ~drawn.valid
    drawn.rgb[other] = control.rgb[other]
    return drawn.rgb


def _grey(part: Part) -> Mesh:
    return Mesh(vertices=part.vertices, faces=part.faces, colors=np.full((len(part.faces), 3), 128, np.uint8))
