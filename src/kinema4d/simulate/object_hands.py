"""Hands that lead places of an object, and velocities that places begin with."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from kinema4d.objects.body import Body, State, jacobian
from kinema4d.objects.inverse import initial_velocity
from kinema4d.objects.lagrange import Motion
from kinema4d.objects.pin import Pin
from kinema4d.simulate.object_places import Marks, text
from kinema4d.simulate.object_wish import LeadAt, Vector, VelocityAt

GIVE = 0.02
"""Of a hand: it is off its way by about this share, squared, of how far its force would move the place in one step."""
STRONG = 3.0
"""Force of a hand at most, of what would move the whole object along its way and carry it: one that is stuck would else press with any force."""
PEAK = 10 / np.sqrt(3)
"""Largest acceleration on a hand's way from rest to rest, in lengths of the way per squared time that it takes."""
APART = 0.01
"""A hand that is further off its way, of the size, is flagged; so is a velocity, of the wished."""


def hands(
    leads: Sequence[LeadAt], marks: Marks, first: int, mass: float, gravity: Vector
) -> tuple[list[Pin], list[LeadAt], list[int]]:
    """As pins, whose they are, and their marks; ``first`` is the index of the first mark among the body's points, ``mass`` is of the whole, kg."""
    pins, whose, at = [], [], []
    for lead in leads:
        mark = marks.put(lead.place, "the hand", moving=True)
        if mark is not None:
            goal = torch.tensor([lead.goal], dtype=torch.float64)
            start = (marks.rows[mark] @ marks.mesh.vertices)[0]
            fastest = PEAK * float(np.linalg.norm(np.array(lead.goal) - start)) / (lead.end - lead.begin) ** 2
            strength = STRONG * mass * (fastest + float(np.linalg.norm(gravity)))
            pins.append(Pin(on=torch.tensor([first + mark]), goal=goal, begin=lead.begin, end=lead.end, give=GIVE, strength=max(strength, 1e-9)))  # fmt: skip
            whose.append(lead)
            at.append(mark)
    return pins, whose, at


def off_the_way(run: Motion, leads: Sequence[LeadAt], column: int, size: float) -> list[str]:
    """In words, which hands pulled where the object cannot go; their points are those of all pins from ``column`` on."""
    out = []
    for number, lead in enumerate(leads):
        miss = np.array([float(m[0, column + number]) for m in run.miss])
        if miss.max(initial=0.0) <= APART * size:
            continue
        worst = int(miss.argmax())
        held = np.flatnonzero([bool(f[0, column + number].any()) for f in run.hold])
        far = f"{miss[worst]:.3g} m off its way at {run.step * (worst + 1):.2f} s"
        if not len(held) or run.step * (held[-1] + 1) < lead.end - run.step:  # the run ended before
            out.append(f"the hand at {text(lead.place)} m pulls where the object cannot go: {far}")
        elif (last := float(miss[held[-1]])) > APART * size:
            out.append(f"the hand at {text(lead.place)} m pulled where the object cannot go: {far}, and {last:.3g} m off {text(lead.goal)} m when it let go")  # fmt: skip
        else:
            out.append(
                f"the hand at {text(lead.place)} m came to {text(lead.goal)} m, but the object cannot go there straight: it was {far}"
            )
    return out


def begun(body: Body, start: State, wished: Sequence[VelocityAt], marks: Sequence[int | None], first: int) -> tuple[torch.Tensor, list[str]]:  # fmt: skip
    """Velocities of the unknowns [1,unknowns] that come closest to the wished ones, and in words what they could not meet."""
    there = [(v, m) for v, m in zip(wished, marks, strict=True) if m is not None]
    if not there:
        return torch.zeros(1, body.unknowns, dtype=torch.float64), []
    on = torch.tensor([first + m for _, m in there])
    want = torch.tensor([v.velocity for v, _ in there], dtype=torch.float64)
    speed = initial_velocity(body, start, want[None], on)
    got = torch.einsum("nid,d->ni", jacobian(body, start)[1][0, on], speed[0])
    said = []
    for (v, _), have, goal in zip(there, got, want, strict=True):
        off = float((have - goal).norm())
        if off > APART * float(goal.norm()):
            said.append(
                f"the velocity {text(v.velocity)} m/s at {text(v.place)} m is not met by {off:.3g} m/s: with the others, and as the object can move, "
                f"it is {text(have.numpy().round(9) + 0.0)}"
            )
    return speed, said
