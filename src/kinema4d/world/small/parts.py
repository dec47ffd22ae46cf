"""Parts: the pieces of a scene that could move, or that stand in the way of those that do."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int32

from kinema4d.world.small.pieces import Piece
from kinema4d.world.small.shape import Shape

JOINTS = ("fixed", "free", "slide", "hinge")
"""How a part may move: not at all, in any way, along an axis, about an axis."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Part:
    """One rigid piece of the scene as the first frame shows it, its unseen sides completed."""

    name: str
    """What a track of it is called."""
    joint: str
    """One of ``JOINTS``."""
    mask: Bool[np.ndarray, "h w"]
    """Its pixels in the first image."""
    vertices: Float[np.ndarray, "v 3"]
    """Closed surface in world coordinates at the first frame, metres."""
    faces: Int32[np.ndarray, "f 3"]
    """Triangles of it, normals outward."""
    axis: Float[np.ndarray, "3"] | None = None
    """World direction of a slide or hinge, unit length."""
    pivot: Float[np.ndarray, "3"] | None = None
    """World point on the axis of a hinge, metres."""
    room: tuple[float, float] | None = None
    """How far a slide or hinge can go back (negative) and forth from the first frame, metres or radians; None where
    nobody knows."""
    shape: Shape | None = None
    """The everyday solid that it is, in world coordinates; None where it is just its surface."""
    pieces: tuple[Piece, ...] = ()
    """Convex pieces that collide, in world coordinates; where there are none, the surface is cut into some."""
    confidence: float = 1.0
    """How sure the segmenter is that these pixels are one thing that moves like this, 0..1."""

    def __post_init__(self) -> None:
        if self.joint not in JOINTS:
            raise ValueError(f"part {self.name!r} has joint {self.joint!r}; allowed are {', '.join(JOINTS)}")
        if self.joint in ("slide", "hinge") and self.axis is None:
            raise ValueError(f"part {self.name!r} has a {self.joint} joint but no axis")
        if self.joint == "hinge" and self.pivot is None:
            raise ValueError(f"part {self.name!r} has a hinge but no pivot")
        if not np.isfinite(self.vertices).all():
            raise ValueError(f"part {self.name!r} has a vertex that is not finite")
