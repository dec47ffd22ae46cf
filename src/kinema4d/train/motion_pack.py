"""What the motion model learns from: surfaces of parts and robot, and where both were at every frame.

Pictures are not needed for it, and physics is a sixth of the price of an episode, so packs are simulated straight from
scenes; ``from_episode`` makes the same of any recorded episode with tracks. A pack is a folder of shards (``.npz``),
each whole or absent, so an interrupted run goes on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Float32, Int32

from kinema4d.data.generate import Order, Recipe, demonstrate, orders
from kinema4d.data.motion_file import read_arms, read_tracks
from kinema4d.data.pool import Progress, spread
from kinema4d.data.store import read_meta
from kinema4d.files import whole_file
from kinema4d.robot.kinematics import forward_kinematics
from kinema4d.robot.model import Robot
from kinema4d.robot.zoo import load_robot
from kinema4d.scenes.episode import Outcome, Stage, disturb, perform
from kinema4d.scenes.hand import hand_links
from kinema4d.scenes.world import surface_of
from kinema4d.types import Arm, Episode, Track

POINTS = 128
"""Surface points kept per part."""
HAND_POINTS, WRIST_POINTS = 224, 32
"""Surface points of the hand, half of them on the fingers, and of the two links before it."""
PER_SHARD = 24
"""Orders (scenes) per shard."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Shell:
    """Points on the surface of a robot's hand and wrist."""

    points: Float32[np.ndarray, "q 3"]
    """In the frame of their link, metres."""
    normals: Float32[np.ndarray, "q 3"]
    """Outward unit normals in the frame of their link."""
    link: Int32[np.ndarray, " q"]
    """Index into ``links``."""
    links: tuple[str, ...]
    """Links that carry points; the first is the palm, whose frame is the hand's."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Motion:
    """One episode as the motion model sees it."""

    robot: str
    """Whose shell it is."""
    Ts_world_link: Float32[np.ndarray, "t l 4 4"]
    """Links of the shell."""
    points: Float32[np.ndarray, "p n 3"]
    """Surface of each part in its own frame, metres."""
    normals: Float32[np.ndarray, "p n 3"]
    """Outward unit normals."""
    Ts_world_part: Float32[np.ndarray, "t p 4 4"]
    """Where the parts were."""
    names: tuple[str, ...]
    """Of the parts."""
    fps: float
    """Frames per second."""
    task: str
    """Of the episode."""
    success: bool
    """Its outcome."""
    seed: int
    """Of its scene: episodes that share it share a group."""


def sample_surface(
    vertices: Float[np.ndarray, "v 3"], faces: Int32[np.ndarray, "f 3"], count: int, rng: np.random.Generator
) -> tuple[Float32[np.ndarray, "n 3"], Float32[np.ndarray, "n 3"]]:
    """Points spread evenly by area, and their normals."""
    a, b, c = (vertices[faces[:, i]] for i in range(3))
    cross = np.cross(b - a, c - a)
    area = np.linalg.norm(cross, axis=1)
    if not area.sum() > 0:
        raise ValueError("a surface without area cannot be sampled")
    # Systematic sampling: every share of the area gets its share of the points.
    at = (np.arange(count) + rng.random()) / count * area.sum()
    face = np.minimum(np.searchsorted(np.cumsum(area), at), len(faces) - 1)
    u, v = rng.random((2, count))
    flip = u + v > 1
    u, v = np.where(flip, 1 - u, u), np.where(flip, 1 - v, v)
    points = a[face] + u[:, None] * (b - a)[face] + v[:, None] * (c - a)[face]
    normals = cross[face] / np.maximum(area[face], 1e-12)[:, None]
    return points.astype(np.float32), normals.astype(np.float32)


@lru_cache(maxsize=16)
def shell_of(robot: Robot) -> Shell:
    """Points on the hand of ``robot``, and a few on the two links that carry it."""
    hand = list(hand_links(robot))
    palm, fingers = hand[0], hand[1:]
    before, link = [], int(robot.parent[robot.link_index(palm)])
    while link >= 0 and len(before) < 2:
        if any(v.link == link for v in robot.visuals):
            before.append(robot.link_names[link])
        link = int(robot.parent[link])
    rng = np.random.default_rng(0)
    share = {
        **_share(robot, fingers, HAND_POINTS // 2),
        **_share(robot, [palm], HAND_POINTS // 2),
        **_share(robot, before, WRIST_POINTS),
    }
    parts, index = [], []
    links = (palm, *(n for n in share if n != palm))
    for name, count in share.items():
        own = [v.mesh for v in robot.visuals if v.link == robot.link_index(name)]
        offsets = np.cumsum([0] + [len(m.vertices) for m in own])
        vertices = np.concatenate([m.vertices for m in own])
        faces = np.concatenate([m.faces + np.int32(o) for m, o in zip(own, offsets, strict=False)]).astype(np.int32)
        parts.append(sample_surface(vertices, faces, count, rng))
        index.append(np.full(count, links.index(name), np.int32))
    return Shell(
        points=np.concatenate([p for p, _ in parts]),
        normals=np.concatenate([n for _, n in parts]),
        link=np.concatenate(index),
        links=links,
    )


def _share(robot: Robot, names: Sequence[str], count: int) -> dict[str, int]:
    """Split ``count`` points over the links that can be seen."""
    seen = [n for n in names if any(v.link == robot.link_index(n) for v in robot.visuals)]
    return {n: count // len(seen) + (i < count % len(seen)) for i, n in enumerate(seen)} if seen else {}


def link_poses(robot: Robot, q: Float[np.ndarray, "t dof"], T_world_base: Float[np.ndarray, "4 4"]) -> np.ndarray:
    """World poses of the links of the robot's shell."""
    Ts = T_world_base @ forward_kinematics(robot, q)
    return Ts[:, [robot.link_index(n) for n in shell_of(robot).links]].astype(np.float32)


def from_outcome(stage: Stage, outcome: Outcome) -> Motion:
    """A simulated path that nobody drew."""
    robot, rng = stage.scene.robot, np.random.default_rng(stage.wish.seed)
    bodies = [(f"{t.name}/{b.name}", b) for t in stage.scene.things for b in t.bodies]
    surfaces = [sample_surface(*surface_of(b), POINTS, rng) for _, b in bodies]
    commands = outcome.path.commands
    return Motion(
        robot=robot.source,
        Ts_world_link=link_poses(robot, outcome.q, stage.scene.T_world_base),
        points=np.stack([p for p, _ in surfaces]),
        normals=np.stack([n for _, n in surfaces]),
        Ts_world_part=outcome.Ts_world_body[:, len(robot.link_names) :].astype(np.float32),
        names=tuple(name for name, _ in bodies),
        fps=1 / (commands.seconds * commands.ticks),
        task=stage.wish.task,
        success=outcome.success,
        seed=stage.wish.seed,
    )


def from_episode(episode: Episode) -> Motion:
    """A recorded episode whose things have tracks with surfaces."""
    said = {"fps": episode.clip.fps, "task": episode.task, "outcome": episode.outcome, "facts": episode.facts}
    return _recorded(episode.arms, episode.tracks, said)


def from_folder(folder: Path) -> Motion:
    """The same from an episode's folder, without looking at its pictures."""
    meta = read_meta(folder)
    if "tracks" not in meta:
        raise ValueError(f"{folder} has no tracks: there is nothing to learn motion from")
    return _recorded(read_arms(folder, meta), read_tracks(folder, meta["tracks"], meta["frames"]), meta)


def _recorded(arms: Sequence[Arm], tracks: Sequence[Track], said: Mapping[str, Any]) -> Motion:
    if len(arms) != 1:
        raise ValueError(f"the motion model learns from one robot at a time, this episode has {len(arms)}")
    tracks = [t for t in tracks if t.vertices is not None and t.faces is not None]
    if not tracks:
        raise ValueError("this episode has no tracks with surfaces: there is nothing to learn motion from")
    arm, seed = arms[0], int(said.get("facts", {}).get("seed") or 0)
    rng = np.random.default_rng(seed)
    surfaces = [sample_surface(np.asarray(t.vertices), np.asarray(t.faces), POINTS, rng) for t in tracks]
    return Motion(
        robot=arm.robot,
        Ts_world_link=link_poses(_robot(arm.robot), arm.trajectory.q, arm.trajectory.T_world_base),
        points=np.stack([p for p, _ in surfaces]),
        normals=np.stack([n for _, n in surfaces]),
        Ts_world_part=np.stack([t.Ts_world_object for t in tracks], axis=1).astype(np.float32),
        names=tuple(t.name for t in tracks),
        fps=float(said["fps"]),
        task=str(said.get("task", "")),
        success=said.get("outcome") == "success",
        seed=seed,
    )


@lru_cache(maxsize=8)
def _robot(name: str) -> Robot:
    return load_robot(name)


# ---------------------------------------------------------------------- files


def simulate_pack(
    folder: str | Path, recipe: Recipe, *, workers: int = 2, progress: Progress | None = None
) -> tuple[Path, ...]:
    """Simulate every episode of ``recipe`` without drawing it; shards that are there already are kept."""
    folder = Path(folder)
    wanted = orders(recipe)
    parts = [wanted[i : i + PER_SHARD] for i in range(0, len(wanted), PER_SHARD)]
    paths = [folder / f"motion-{recipe.seed}-{i:05d}.npz" for i in range(len(parts))]
    missing = [(p, o) for p, o in zip(paths, parts, strict=True) if not p.exists()]
    spread(_make_shard, missing, workers=workers, progress=progress)
    return tuple(paths)


def _make_shard(content: tuple[Path, list[Order]]) -> None:
    path, wanted = content
    motions: list[Motion] = []
    for order in wanted:
        try:
            stage, outcome, _ = demonstrate(order)
        except ValueError:  # a table too full for this seed: other seeds stand in for it
            continue
        motions.append(from_outcome(stage, outcome))
        for segment, sigma in order.disturbances:
            motions.append(from_outcome(stage, perform(stage, disturb(stage, segment, sigma))))
    write_shard(path, motions)


def write_shard(path: Path, motions: Sequence[Motion]) -> None:
    """One file with the arrays of many motions, part axes one after the other."""
    counts = np.array([len(m.names) for m in motions])
    with whole_file(path, overwrite=True) as temporary:
        np.savez(
            temporary,
            counts=counts,
            links=np.array([m.Ts_world_link.shape[1] for m in motions]),
            frames=np.array([len(m.Ts_world_link) for m in motions]),
            Ts_world_link=np.concatenate([m.Ts_world_link[..., :3, :].reshape(-1, 3, 4) for m in motions]),
            points=np.concatenate([m.points for m in motions]).astype(np.float32),
            normals=np.concatenate([m.normals for m in motions]).astype(np.float16),
            Ts_world_part=np.concatenate([m.Ts_world_part[..., :3, :].reshape(-1, 3, 4) for m in motions]),
            names=np.array([n for m in motions for n in m.names]),
            robot=np.array([m.robot for m in motions]),
            task=np.array([m.task for m in motions]),
            fps=np.array([m.fps for m in motions]),
            success=np.array([m.success for m in motions]),
            seed=np.array([m.seed for m in motions]),
        )


def read_shard(path: Path) -> list[Motion]:
    """What :func:`write_shard` wrote."""
    with np.load(path, allow_pickle=False) as file:
        found = {k: file[k] for k in file.files}
    out, part, link_row, part_row = [], 0, 0, 0

    def transforms(rows: np.ndarray, t: int, k: int) -> np.ndarray:
        Ts = np.zeros((t, k, 4, 4), np.float32)
        Ts[..., :3, :] = rows.reshape(t, k, 3, 4)
        Ts[..., 3, 3] = 1
        return Ts

    for i, (p, k, t) in enumerate(zip(*(found[name].tolist() for name in ("counts", "links", "frames")), strict=True)):
        out.append(
            Motion(
                robot=str(found["robot"][i]),
                Ts_world_link=transforms(found["Ts_world_link"][link_row : link_row + t * k], t, k),
                points=found["points"][part : part + p],
                normals=found["normals"][part : part + p].astype(np.float32),
                Ts_world_part=transforms(found["Ts_world_part"][part_row : part_row + t * p], t, p),
                names=tuple(str(n) for n in found["names"][part : part + p]),
                fps=float(found["fps"][i]),
                task=str(found["task"][i]),
                success=bool(found["success"][i]),
                seed=int(found["seed"][i]),
            )
        )
        part, link_row, part_row = part + p, link_row + t * k, part_row + t * p
    return out


def read_pack(folder: str | Path, *, progress: Progress | None = None) -> list[Motion]:
    """Every motion of every shard."""
    paths = sorted(Path(folder).glob("motion-*.npz"))
    if not paths:
        raise ValueError(f"{folder} holds no motion shards (motion-*.npz)")
    return [m for part in spread(read_shard, paths, workers=1, progress=progress) for m in part]
