"""What the seeing networks learn from: pictures of tabletop scenes with true depth, parts, joints and solids.

Scenes come from the same stages as episodes, before or after the expert acted, so that things also lie, lean, hang in
the hand and stand in bowls. Each is drawn several times, in other rooms, under other suns, with other patterns, from
other cameras. A pack is a folder of shards (``.npz``), each whole or absent, so an interrupted run goes on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Float32, Int32, UInt8, UInt16

from kinema4d.data.generate import Recipe, orders
from kinema4d.data.pool import Progress, spread
from kinema4d.files import whole_file
from kinema4d.robot.model import Robot
from kinema4d.robot.zoo import load_robot
from kinema4d.scenes.episode import TASKS, Stage, disturb, perform, set_stage
from kinema4d.scenes.picture import draw
from kinema4d.scenes.room import restyle
from kinema4d.scenes.tasks import joint_position, role_of
from kinema4d.scenes.things import Body, Thing
from kinema4d.types import Camera
from kinema4d.world.small.parts import JOINTS

PER_SHARD = 8
"""Scenes per shard."""
VIEWS = 4
"""Pictures of each, every second one from a camera of another range."""
TRIES = 4
"""Cameras that may be drawn until one sees something of the things."""
INVERSE_UNIT = 5.0 / 65535
"""Inverse depth is kept in 16 bits up to 5 per metre: 0.05 mm at 0.8 m."""
ROBOT = 255
"""Id of robot pixels."""
KINDS = ("box", "cylinder", "sphere")
"""Primitives of a solid."""
UNKNOWN_SOLID = -1
"""In place of a kind: the part is a thing, but nobody knows its solid."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Picture:
    """One view of one scene."""

    rgb: UInt8[np.ndarray, "h w 3"]
    """What the camera sees."""
    inverse: UInt16[np.ndarray, "h w"]
    """Inverse depth in units of ``INVERSE_UNIT``; 0 where nothing is."""
    ids: UInt8[np.ndarray, "h w"]
    """0 surroundings, 1 + index of a part, ``ROBOT``."""
    camera: Camera
    """Who looks."""
    joint: Int32[np.ndarray, " p"]
    """Index into ``JOINTS`` of each part."""
    Ts_world_part: Float32[np.ndarray, "p 4 4"]
    """Where each part is."""
    axis: Float32[np.ndarray, "p 3"]
    """World direction of its joint; 0 where it has none."""
    pivot: Float32[np.ndarray, "p 3"]
    """World point of its joint."""
    room: Float32[np.ndarray, "p 2"]
    """How far its joint can go back and forth from here, metres or radians; 0 where it has none."""
    middle: Float32[np.ndarray, "p 3"]
    """World middle of its bounding box."""
    primitives: Float32[np.ndarray, "g 17"]
    """Solids: part, kind (index into ``KINDS``, or ``UNKNOWN_SOLID``), three sizes, the rows of T_part_primitive."""

    @property
    def depth(self) -> Float32[np.ndarray, "h w"]:
        """Metres; 0 where nothing is."""
        inverse = self.inverse * np.float32(INVERSE_UNIT)
        return np.where(self.inverse > 0, 1 / np.maximum(inverse, 1e-6), 0).astype(np.float32)


def make_pack(
    folder: str | Path,
    recipe: Recipe,
    *,
    views: int = VIEWS,
    eyes: str = "wide",
    workers: int = 2,
    progress: Progress | None = None,
) -> tuple[Path, ...]:
    """Draw the scenes of ``recipe``; shards that are there already are kept."""
    folder = Path(folder)
    wanted = [(o.robot, o.wish) for o in orders(recipe)]
    parts = [wanted[i : i + PER_SHARD] for i in range(0, len(wanted), PER_SHARD)]
    paths = [folder / f"see-{recipe.seed}-{i:05d}.npz" for i in range(len(parts))]
    missing = [(p, o, views, eyes) for p, o in zip(paths, parts, strict=True) if not p.exists()]
    spread(_make_shard, missing, workers=workers, progress=progress)
    return tuple(paths)


@lru_cache(maxsize=8)
def _robot(name: str) -> Robot:
    return load_robot(name)


def _make_shard(content: tuple[Path, list, int, str]) -> None:
    path, wanted, views, eyes = content
    pictures: list[Picture] = []
    for name, wish in wanted:
        try:
            stage = set_stage(_robot(name), wish)
        except ValueError:  # a table too full for this seed: other seeds stand in for it
            continue
        pictures += pictures_of(stage, views, eyes)
    write_shard(path, pictures)


def pictures_of(stage: Stage, views: int, eyes: str) -> list[Picture]:
    """Views of a stage: half before anything happened, half at a moment of a run that was disturbed."""
    rng = np.random.default_rng([stage.wish.seed, 4])
    world, out = stage.world, []
    stage.world.reset()
    start = world.transforms(world.data.qpos[None].copy())
    run = perform(stage, disturb(stage, int(rng.integers(3)), float(rng.uniform(0, 1))))
    for n in range(views):
        Ts = start if n < (views + 1) // 2 else run.Ts_world_body[[int(rng.integers(len(run.q)))]]
        links = len(stage.scene.robot.link_names)
        for _ in range(TRIES):
            side = TASKS[stage.wish.task].side and rng.random() < 0.7
            scene = restyle(rng, stage.scene, look=stage.wish.look, side=side, eyes=eyes if n % 2 else stage.wish.look)
            seen = draw(scene, Ts, threads=1)
            ids = seen.ids[0].astype(np.int64)
            labels = np.where(ids == 0, 0, np.where(ids <= links, ROBOT, ids - links)).astype(np.uint8)
            robot = labels == ROBOT
            if robot.mean() < 0.5 and ((labels > 0) & ~robot).mean() > 0.004:  # the arm is not in the way
                break
        else:
            continue
        assert seen.rgb is not None
        z = seen.points[0, ..., 2]
        inverse = np.where(seen.valid[0], 1 / np.maximum(z, 0.21), 0)
        out.append(
            Picture(
                rgb=seen.rgb[0],
                inverse=np.round(inverse / INVERSE_UNIT).clip(0, 65535).astype(np.uint16),
                ids=labels,
                camera=scene.camera,
                **_parts(scene.things, Ts[0, links:]),
            )
        )
    return out


def _parts(things: Sequence[Thing], Ts: Float[np.ndarray, "p 4 4"]) -> dict[str, np.ndarray]:
    bodies = [(t, b) for t in things for b in t.bodies]
    joint, axis, pivot, room, middle, primitives = [], [], [], [], [], []
    poses = {f"{t.name}/{b.name}": T[None] for (t, b), T in zip(bodies, Ts, strict=True)}
    for i, ((thing, body), T) in enumerate(zip(bodies, Ts, strict=True)):
        joint.append(JOINTS.index(body.joint))
        moves = body.joint in ("slide", "hinge")
        at = joint_position(role_of(thing), poses) if moves else None
        room.append((body.range[0] - at[0], body.range[1] - at[0]) if at is not None else (0.0, 0.0))
        axis.append(T[:3, :3] @ np.array(body.axis, np.float64) if moves else np.zeros(3))
        pivot.append(T[:3, 3] if moves else np.zeros(3))
        corners = np.concatenate([m.vertices for m in body.meshes]) @ T[:3, :3].T + T[:3, 3]
        middle.append((corners.min(axis=0) + corners.max(axis=0)) / 2)
        primitives += _primitives(i, body)
    to = np.float32
    return {
        "joint": np.array(joint, np.int32),
        "Ts_world_part": np.asarray(Ts, to),
        "axis": np.array(axis, to),
        "pivot": np.array(pivot, to),
        "room": np.array(room, to),
        "middle": np.array(middle, to),
        "primitives": np.array(primitives, to).reshape(-1, 17),
    }


def _primitives(index: int, body: Body) -> list[np.ndarray]:
    out = []
    for geom in body.geoms:
        size = [*geom.size, *[0.0] * (3 - len(geom.size))]
        out.append(np.array([index, KINDS.index(geom.kind), *size, *geom.T_body_geom[:3].ravel()], np.float32))
    return out


def inside(primitives: Float[np.ndarray, "g 17"], points: Float[np.ndarray, "n 3"]) -> Float32[np.ndarray, " n"]:
    """Signed distance in metres of points in the part's frame to its solid, negative inside: exact outside, a bound
    inside."""
    best = np.full(len(points), np.inf)
    for row in primitives:
        kind, size, T = KINDS[int(row[1])], row[2:5], row[5:].reshape(3, 4)
        x = (points - T[:, 3]) @ T[:, :3]
        if kind == "sphere":
            d = np.linalg.norm(x, axis=1) - size[0]
        else:
            q = np.abs(x) - size if kind == "box" else np.stack(
                [np.hypot(x[:, 0], x[:, 1]) - size[0], np.abs(x[:, 2]) - size[1]], axis=1
            )  # fmt: skip
            d = np.linalg.norm(np.maximum(q, 0), axis=1) + np.minimum(q.max(axis=1), 0)
        best = np.minimum(best, d)
    return best.astype(np.float32)


_ROWS = ("joint", "Ts_world_part", "axis", "pivot", "room", "middle")


def write_shard(path: Path, pictures: Sequence[Picture]) -> None:
    """One file with the arrays of many pictures, part axes one after the other."""
    rows: dict[str, Any] = {k: np.concatenate([getattr(p, k) for p in pictures]) for k in _ROWS}
    with whole_file(path, overwrite=True) as temporary:
        np.savez(
            temporary,
            rgb=np.stack([p.rgb for p in pictures]),
            inverse=np.stack([p.inverse for p in pictures]),
            ids=np.stack([p.ids for p in pictures]),
            K=np.stack([p.camera.K for p in pictures]),
            T_world_camera=np.stack([p.camera.T_world_camera for p in pictures]),
            counts=np.array([len(p.joint) for p in pictures]),
            solids=np.array([len(p.primitives) for p in pictures]),
            primitives=np.concatenate([p.primitives for p in pictures]),
            **rows,
        )


def read_shard(path: Path) -> Iterator[Picture]:
    """What :func:`write_shard` wrote."""
    with np.load(path, allow_pickle=False) as file:
        found = {k: file[k] for k in file.files}
    part = np.concatenate([[0], np.cumsum(found["counts"])])
    solid = np.concatenate([[0], np.cumsum(found["solids"])])
    for i in range(len(found["rgb"])):
        height, width = found["rgb"].shape[1:3]
        yield Picture(
            rgb=found["rgb"][i],
            inverse=found["inverse"][i],
            ids=found["ids"][i],
            camera=Camera(K=found["K"][i], T_world_camera=found["T_world_camera"][i], height=height, width=width),
            primitives=found["primitives"][solid[i] : solid[i + 1]],
            **{k: found[k][part[i] : part[i + 1]] for k in _ROWS},
        )


def read_pack(folder: str | Path, *, most: int | None = None) -> list[Picture]:
    """Every picture of every shard, or of the first ``most`` shards."""
    paths = sorted(Path(folder).glob("see-*.npz"))
    if not paths:
        raise ValueError(f"{folder} holds no pictures (see-*.npz)")
    return [picture for path in paths[:most] for picture in read_shard(path)]
