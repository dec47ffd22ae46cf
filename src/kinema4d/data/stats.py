"""What a data set holds, in numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from kinema4d.data.dataset import Dataset, Row, open_dataset
from kinema4d.data.motion_file import read_arms
from kinema4d.data.pool import Progress
from kinema4d.data.store import read_meta
from kinema4d.robot.kinematics import forward_kinematics
from kinema4d.robot.model import Robot
from kinema4d.robot.zoo import load_robot

QUANTILES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)
"""What is printed of a distribution."""


def stats(root: str | Path, *, assets: Path | None = None, progress: Progress | None = None) -> dict[str, Any]:
    """Counts, sizes, motion and gap distributions of a data set, as JSON has them."""
    dataset = open_dataset(root)
    rows = dataset.rows
    seconds = sum(row.frames / row.fps for row in rows)
    size = [row.bytes for row in rows]
    out: dict[str, Any] = {
        "root": str(dataset.root),
        "episodes": len(rows),
        "groups": len({row.group or row.id for row in rows}),
        "frames": sum(row.frames for row in rows),
        "hours": seconds / 3600,
        "bytes": sum(size),
        "bytes_per_episode": _spread(size),
        "by": {
            "source": _count(row.dataset for row in rows),
            "task": _count(row.task for row in rows),
            "robot": _count(name for row in rows for name in (row.robots or ("",))),
            "outcome": _count(row.outcome for row in rows),
            "scenario": _count(str(row.facts.get("scenario", "")) for row in rows),
            "view": _count(row.view for row in rows),
            "camera": _count(row.camera_from for row in rows),
            "resolution": _count(f"{row.width}x{row.height}" for row in rows),
            "frames": _count(f"{row.frames}" for row in rows),
            "fps": _count(f"{row.fps:.4g}" for row in rows),
        },
        "success_by_task": _success(rows),
        "min_gap_m": _spread([g for row in rows if (g := _number(row.facts.get("min_gap_m"))) is not None]),
        "metric": sum(row.metric for row in rows),
        "instructions": len({row.text for row in rows if row.text}),
    }
    return out | _motion(dataset, assets, progress)


def _motion(dataset: Dataset, assets: Path | None, progress: Progress | None) -> dict[str, Any]:
    """Joint ranges per robot, and the box that tools reach in the world."""
    robots: dict[str, Robot | None] = {}
    joints: dict[str, dict[str, list[float]]] = {}
    reach: dict[str, np.ndarray] = {}
    unreadable = []
    for number, row in enumerate(dataset.rows):
        try:
            folder = dataset.folder(row.id)
            arms = read_arms(folder, read_meta(folder))
        except (ValueError, OSError):
            unreadable.append(row.id)
            continue
        for arm in arms:
            path = arm.trajectory
            known = joints.setdefault(arm.robot, {})
            for column, name in enumerate(path.joint_names):
                low, high = float(path.q[:, column].min()), float(path.q[:, column].max())
                now = known.get(name, [low, high])
                known[name] = [min(low, now[0]), max(high, now[1])]
            if arm.robot not in robots:
                robots[arm.robot] = _robot(arm.robot, assets)
            robot = robots[arm.robot]
            if robot is None or set(path.joint_names) - set(robot.joint_names):
                continue
            q = np.tile(robot.home, (len(path.q), 1))
            q[:, robot.joint_indices(path.joint_names)] = path.q
            tool = path.T_world_base @ forward_kinematics(robot, q)[:, robot.link_index(robot.tool_link)]
            box = np.stack([tool[:, :3, 3].min(axis=0), tool[:, :3, 3].max(axis=0)])
            now = reach.get(arm.robot, box)
            reach[arm.robot] = np.stack([np.minimum(now[0], box[0]), np.maximum(now[1], box[1])])
        if progress is not None:
            progress(number + 1, len(dataset))
    return {
        "joints": {name: dict(sorted(known.items())) for name, known in sorted(joints.items())},
        "tool_box_m": {name: box.tolist() for name, box in sorted(reach.items())},
        "robots_without_files": sorted(name for name, robot in robots.items() if robot is None),
        "unreadable": unreadable,
    }


def _robot(name: str, assets: Path | None) -> Robot | None:
    try:
        return load_robot(name, assets=assets, visuals=False)
    except ValueError:
        return None  # listed under robots_without_files


def _count(values: Iterable[str]) -> dict[str, int]:
    found = Counter(value or "(none)" for value in values)
    return dict(sorted(found.items(), key=lambda item: (-item[1], item[0])))


def _success(rows: Iterable[Row]) -> dict[str, dict[str, int]]:
    out: dict[str, Counter[str]] = {}
    for row in rows:
        out.setdefault(row.task or "(none)", Counter())[row.outcome] += 1
    return {task: dict(out[task]) for task in sorted(out)}


def _spread(values: list[Any]) -> dict[str, float] | None:
    if not values:
        return None
    quantiles = np.quantile(np.array(values, np.float64), QUANTILES)
    return {"count": len(values), "mean": float(np.mean(values))} | {
        f"p{round(100 * q)}": float(v) for q, v in zip(QUANTILES, quantiles, strict=True)
    }


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
