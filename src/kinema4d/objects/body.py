"""An object as mechanics has it: points that follow few coordinates, their masses, and a place in the world (NeuROK, section 5).

The points come from any differentiable map of coordinates, a learned decoder or a formula. Everything is batched: the first axis
counts copies of one object that are simulated side by side.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

Shape = Callable[[Tensor], Tensor]
"""Coordinates [b,k] to points [b,n,3] in the object's own frame, metres."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Body:
    """What moves."""

    shape: Shape
    """Where its points are for its coordinates."""
    mass: Tensor
    """[n] of each point, kg: a quadrature of its volume."""
    coordinates: int
    """How many there are."""
    slopes: Callable[[Tensor], tuple[Tensor, Tensor]] | None = None
    """Coordinates to points and how they change with each [b,n,3,k], where there is a formula; None: they are derived."""
    free: bool = False
    """Whether it also moves as a whole; otherwise its frame stands still."""
    energy: Callable[[Tensor], Tensor] | None = None
    """Coordinates [b,k] to elastic energy [b], joule; None for none."""
    stress: Callable[[Tensor, Tensor], Tensor] | None = None
    """Coordinates and their speeds [b,k] to the energy's slope and what damping inside adds to it [b,k], where there is a formula; None: it is derived."""
    drag: Tensor | None = None
    """[k,k] force that a speed of the coordinates costs, which is taken at the end of each step: stable however large it is; None for none."""
    reach: Tensor | None = None
    """[k,2] range of coordinates that was learned from: beyond it a wall pushes back, one-sided, so that it is no false spring."""

    def __post_init__(self) -> None:
        if self.mass.ndim != 1 or not bool((self.mass > 0).all()):
            raise ValueError(f"masses must be one positive number per point, got {list(self.mass.shape)}")
        if self.coordinates < 0 or (self.coordinates == 0 and not self.free):
            raise ValueError("a body that stands still needs at least one coordinate of its own")
        if self.reach is not None and tuple(self.reach.shape) != (self.coordinates, 2):
            raise ValueError(f"the range of {self.coordinates} coordinates is {[self.coordinates, 2]}, got {list(self.reach.shape)}")  # fmt: skip

    @property
    def unknowns(self) -> int:
        """Of one step: six of the whole, if it is free, and the coordinates."""
        return self.coordinates + (6 if self.free else 0)


@dataclass(frozen=True, kw_only=True, eq=False)
class State:
    """Where it is."""

    place: Tensor
    """[b,3] origin of its frame in the world, metres."""
    turn: Tensor
    """[b,3,3] its axes in the world."""
    q: Tensor
    """[b,k] coordinates."""


def at_rest(body: Body, q: Tensor, *, place: Tensor | None = None, turn: Tensor | None = None) -> State:
    """With its frame in the world's, unless it is said where."""
    many = len(q)
    if q.shape != (many, body.coordinates):
        raise ValueError(f"the body has {body.coordinates} coordinates, got {list(q.shape)}")
    own = torch.zeros(many, 3, dtype=q.dtype) if place is None else place.expand(many, 3).clone()
    axes = torch.eye(3, dtype=q.dtype).expand(many, 3, 3).clone() if turn is None else turn.expand(many, 3, 3).clone()
    return State(place=own, turn=axes, q=q)


def points(body: Body, state: State) -> Tensor:
    """[b,n,3] in the world."""
    return body.shape(state.q) @ state.turn.transpose(1, 2) + state.place[:, None]


def moved(body: Body, state: State, change: Tensor) -> State:
    """After small changes [b,unknowns]: shift and turn (about the frame's origin, in world axes) of a free body, then coordinates."""
    if not body.free:
        return State(place=state.place, turn=state.turn, q=state.q + change)
    shift, turn, q = change.split([3, 3, body.coordinates], 1)
    return State(place=state.place + shift, turn=rotation(turn) @ state.turn, q=state.q + q)


def rotation(v: Tensor) -> Tensor:
    """[b,3] rotation vectors to [b,3,3] matrices."""
    return torch.linalg.matrix_exp(cross(v))


def cross(v: Tensor) -> Tensor:
    """[...,3] to the matrices that multiply from the left as v x."""
    x, y, z = v.unbind(-1)
    o = torch.zeros_like(x)
    return torch.stack([o, -z, y, z, o, -x, -y, x, o], -1).unflatten(-1, (3, 3))


def jacobian(body: Body, state: State) -> tuple[Tensor, Tensor]:
    """Points [b,n,3], and how they change with every unknown [b,n,3,unknowns]: one forward derivative per coordinate, all at once."""
    many, k = state.q.shape
    ways = torch.eye(k, dtype=state.q.dtype).repeat_interleave(many, 0)
    slopes: Tensor | None = None
    if k and body.slopes is not None:
        own, slopes = body.slopes(state.q)
    elif k:
        both: Any = torch.func.jvp(body.shape, (state.q.repeat(k, 1),), (ways,))
        own, slopes = both[0], both[1].unflatten(0, (k, many)).movedim(0, -1)
    else:
        own = body.shape(state.q)
    x = own[:many] @ state.turn.transpose(1, 2)
    parts = []
    if body.free:
        unit = torch.eye(3, dtype=x.dtype).expand(*x.shape[:2], 3, 3)
        parts += [unit, -cross(x)]
    if slopes is not None:
        parts.append(torch.einsum("bij,bnjk->bnik", state.turn, slopes))
    return x + state.place[:, None], torch.cat(parts, -1)
