"""A small object that really moves: two bars on hinges, pushed for a while, by the simulator of kinema4d."""

from __future__ import annotations

from itertools import product

import numpy as np
import torch

from kinema4d.geometry.deforming import ObjectMotion, sweep
from kinema4d.objects.body import at_rest
from kinema4d.objects.exact import pendulum
from kinema4d.objects.lagrange import Conditions, Push, simulate

LENGTHS, BROAD = (0.45, 0.4), 0.06
FORCE, UNTIL = np.array([6.0, 0.0, 2.0]), 0.5


def swinging(seconds: float = 1.2, step: float = 0.02, samples: int = 17) -> ObjectMotion:
    """A double pendulum of thin boxes that is let go, and pushed at the end of the second bar for a while."""
    body = pendulum(LENGTHS, BROAD)
    per_bar = len(body.mass) // 2
    low = int(body.shape(torch.zeros(1, 2, dtype=torch.float64))[0, :, 2].argmin())
    push = Push(on=torch.tensor([low]), force=torch.tensor(FORCE), end=UNTIL)
    start = at_rest(body, torch.tensor([[0.9, -0.6]], dtype=torch.float64))
    run = simulate(body, start, Conditions(pushes=[push]), seconds=seconds, step=step)
    points = np.stack([p[0].numpy() for p in run.points])
    q = np.stack([s.q[0].numpy() for s in run.states])
    assert points.shape[1] == 2 * per_bar
    at, on = points[:, [low]], np.arange(len(run)) * step < UNTIL
    force = np.where(on[:, None, None], FORCE, 0.0)
    done = np.concatenate([[0.0], ((at[1:] - at[:-1]) * (force[1:] + force[:-1]) / 2).sum((1, 2))]).cumsum()
    reach = np.array([[-2.0, 2.0], [-2.5, 2.5]])
    many = len(run)
    return ObjectMotion(
        vertices=bars(q),
        faces=FACES,
        step=step,
        q=q,
        place=np.zeros((many, 3)),
        turn=np.tile(np.eye(3), (many, 1, 1)),
        kinetic=np.array([float(e[0]) for e in run.kinetic]),
        potential=np.array([float(e[0]) for e in run.potential]),
        work=done,
        momentum=np.stack([m[0].numpy() for m in run.momentum]),
        penetration=np.zeros(many),
        force_at=at,
        force=force,
        rest=bars(np.zeros((1, 2)))[0],
        rest_q=np.zeros(2),
        reach=reach,
        sliders=bars(sweep(np.zeros(2), reach, samples).reshape(-1, 2)).reshape(2, samples, -1, 3),
        about={"command": "test", "seed": 0},
    )


CORNERS = np.array(list(product((-0.5, 0.5), (-0.5, 0.5), (-1.0, 0.0))))
_BOX = np.array(
    [[0, 1, 3], [0, 3, 2], [4, 6, 7], [4, 7, 5], [0, 4, 5], [0, 5, 1], [2, 3, 7], [2, 7, 6], [0, 2, 6], [0, 6, 4], [1, 5, 7], [1, 7, 3]]
)  # fmt: skip
FACES = np.concatenate([_BOX, _BOX + 8])


def bars(q: np.ndarray) -> np.ndarray:
    """[n,2] angles to [n,16,3] corners of the two boxes."""
    place, angle, out = np.zeros((len(q), 1, 3)), np.zeros(len(q)), []
    for i, length in enumerate(LENGTHS):
        angle = angle + q[:, i]
        c, s = np.cos(angle)[:, None], np.sin(angle)[:, None]
        own = CORNERS * [BROAD, BROAD, length]
        out.append(
            np.stack([c * own[:, 0] + s * own[:, 2], own[:, 1] + 0 * c, -s * own[:, 0] + c * own[:, 2]], -1) + place
        )
        place = place + length * np.stack([-s, 0 * s, -c], -1)
    return np.concatenate(out, 1).astype(np.float32)
