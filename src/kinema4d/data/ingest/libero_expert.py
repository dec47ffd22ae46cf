"""The scripted expert of live LIBERO: picks one thing up and puts it on or in another.

Part of ``libero_worker.py``, which runs in LIBERO's own environment: NumPy only, nothing of kinema4d. ``world`` is the
worker's ``World``.
"""

from __future__ import annotations

from typing import Any

import numpy as np

OPEN, CLOSE = -1.0, 1.0
"""Gripper column of a command."""
JAW = 0.076
"""Widest thing between the fingers, metres; wider things are pinched by their rim."""


def demonstrate(world: Any) -> None:
    """Pick the thing up and put it where the goal says, by feedback on the simulator's true state."""
    position, rotation = world.tool()
    grasp, turn, top = _plan_grasp(world)
    down = turn @ rotation
    _reach(world, np.array([*grasp[:2], max(top + 0.08, position[2] - 0.1)]), down, OPEN, tolerance=0.015)
    _reach(world, np.array([*grasp[:2], top + 0.05]), down, OPEN, tolerance=0.008)
    _reach(world, grasp, down, OPEN, speed=0.5, tolerance=0.004)
    _wait(world, CLOSE, 12)
    goal, floor, rim = _goal(world)
    thing = world.surface(f"{world.thing}_main")
    lift = max(rim + 0.06, floor + 0.10, thing[:, 2].min() + 0.10) - thing[:, 2].min()
    position, _ = world.tool()
    _reach(world, position + np.array([0, 0, lift]), down, CLOSE, speed=0.7, tolerance=0.01)
    height = world.tool()[0][2]
    for release, speed, tolerance in ((None, 0.6, 0.008), (max(floor + 0.01, rim - 0.05), 0.4, 0.006)):
        # Where the thing is in the hand is seen, not assumed: it slips while it is lifted.
        position, thing = world.tool()[0], world.surface(f"{world.thing}_main")
        target = position + np.array([*(goal - _middle(thing)), 0])
        target[2] = height if release is None else position[2] + release - thing[:, 2].min()
        _reach(world, target, down, CLOSE, speed=speed, tolerance=tolerance)
    _wait(world, OPEN, 15)
    position, _ = world.tool()
    _reach(world, position + np.array([0, 0, 0.12]), down, OPEN, tolerance=0.02, limit=25)
    _wait(world, OPEN, 6)


def _middle(points: np.ndarray) -> np.ndarray:
    return (points[:, :2].min(axis=0) + points[:, :2].max(axis=0)) / 2


def _plan_grasp(world: Any) -> tuple[np.ndarray, np.ndarray, float]:
    """Where the tool goes, how far it turns about the vertical, and the height of the thing's top.

    Of all directions in which the fingers could close, the one with the fewest neighbours in the way and the
    smallest turn; things wider than the jaw are pinched at their rim.
    """
    surface = world.surface(f"{world.thing}_main")
    bottom, top = float(surface[:, 2].min()), float(surface[:, 2].max())
    names = world.parts()
    bodies = [b for b, n in names.items() if n not in ("robot", "mount", world.thing)]
    others = np.concatenate([world.surface(world.m.body(b).name) for b in bodies])
    position, rotation = world.tool()
    heading, middle = np.arctan2(rotation[1, 0], rotation[0, 0]), _middle(surface)
    best: tuple[float, np.ndarray, float] | None = None
    turns = np.deg2rad(np.arange(-90, 91, 5))
    whole = any(np.ptp(surface[:, :2] @ [np.cos(a), np.sin(a)]) <= JAW for a in heading + turns)
    for turn in turns:
        across = np.array([np.cos(heading + turn), np.sin(heading + turn)])
        along = np.array([-across[1], across[0]])
        extent = surface[:, :2] @ across
        width, height = np.ptp(extent), max(bottom + 0.012, top - 0.035)
        if whole and width > JAW:
            continue
        if whole:
            length = np.ptp(surface[:, :2] @ along) / 2 - 0.015
            choices = [middle + along * s for s in (0, 0.012, -0.012, 0.024, -0.024) if s == 0 or abs(s) < length]
        else:
            width, height = 0.02, top - 0.02
            rim = (np.ptp(extent) / 2 - 0.003) * across
            choices = [middle + rim, middle - rim]
        for centre in choices:
            u, v = np.abs((others[:, :2] - centre) @ across), np.abs((others[:, :2] - centre) @ along)
            hits = (others[:, 2] > height + 0.025) & (u < 0.112) & (v < 0.042)
            hits |= (others[:, 2] > height - 0.015) & (u < 0.06) & (u > width / 2) & (v < 0.016)
            away = np.linalg.norm(centre - middle) if whole else 0.0
            reach = np.linalg.norm(centre - position[:2])
            cost = 10 * hits.any() + hits.mean() + 4 * width + 0.1 * abs(turn) + 3 * away + 0.3 * reach
            if best is None or cost < best[0]:
                best = (float(cost), np.array([*centre, height]), float(turn))
    assert best is not None
    c, s = np.cos(best[2]), np.sin(best[2])
    return best[1], np.array([[c, -s, 0], [s, c, 0], [0, 0, 1.0]]), top


def _goal(world: Any) -> tuple[np.ndarray, float, float]:
    """Middle [2] of the place, the height of its floor there, and of its rim."""
    objects = world.env.env.objects_dict
    owner = next((name for name in objects if world.place == name or world.place.startswith(name + "_")), None)
    if owner is None:  # a region of a fixture
        site = world.d.site_xpos[world.m.site(world.place).id]
        return site[:2].copy(), float(site[2]), float(site[2])
    surface = world.surface(f"{owner}_main")
    middle = _middle(surface)
    inner = surface[np.linalg.norm(surface[:, :2] - middle, axis=1) < 0.04, 2]
    floor = inner.max() if len(inner) else surface[:, 2].min()
    return middle, float(floor), float(surface[:, 2].max())


def _reach(
    world: Any,
    target: np.ndarray,
    rotation: np.ndarray,
    gripper: float,
    *,
    speed: float = 1.0,
    tolerance: float,
    limit: int = 90,
) -> None:
    """Servo the tool to a pose. The controller is soft: what it leaves over adds up until it gives in."""
    quaternion, turn, lag = np.zeros(4), np.zeros(3), np.zeros(3)
    for _ in range(limit):
        position, now = world.tool()
        world.mujoco.mju_mat2Quat(quaternion, (rotation @ now.T).flatten())
        world.mujoco.mju_quat2Vel(turn, quaternion, 1.0)
        left = target - position
        if np.linalg.norm(left) < tolerance and np.linalg.norm(turn) < 0.12:
            return
        if np.linalg.norm(left) < 0.03:
            lag = np.clip(lag + 0.15 * left, -0.02, 0.02)
        linear = np.clip((0.8 * left + lag) / 0.05, -speed, speed)
        angular = np.clip(0.6 * turn / 0.5, -0.5, 0.5)
        world.step(np.array([*linear, *angular, gripper]))


def _wait(world: Any, gripper: float, steps: int) -> None:
    for _ in range(steps):
        world.step(np.array([0, 0, 0, 0, 0, 0, gripper]))
