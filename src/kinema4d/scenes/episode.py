"""One episode from one seed: draw a scene, let the expert act, let physics answer, judge, and look.

Failures follow the paper (appendix B.2): a demonstration is cut into three parts of equal length, and in one of them
Gaussian noise is added to the six numbers of each pose command, the gripper untouched. Commands here are displacements
of the hand per tick, as the policies of LIBERO give them, so that the errors add up and stay: the robot drifts off its
path. The unit of sigma is ``NOISE_M`` metres and ``NOISE_RAD`` radians per tick. Physics judges again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Float

from kinema4d.geometry.raster import Render
from kinema4d.geometry.se3 import invert, matrix_to_quaternion, place, rotvec_to_matrix
from kinema4d.robot.model import Robot
from kinema4d.scenes import grasp_tasks, joint_tasks, path, push_tasks
from kinema4d.scenes.clutter import SCENARIOS, clutter
from kinema4d.scenes.looks import LOOKS
from kinema4d.scenes.path import Key, Path
from kinema4d.scenes.picture import draw, label_names
from kinema4d.scenes.reach import Reach, grasp_pose, measure_reach
from kinema4d.scenes.room import restyle, sample_camera, sample_light, sample_room
from kinema4d.scenes.tasks import Cast, CrowdedError, Evidence, Task, roles_of
from kinema4d.scenes.world import Scene, World, surface_of
from kinema4d.types import Arm, Clip, Commands, Episode, Pointmap, Track, Trajectory

TASKS: dict[str, Task] = {**grasp_tasks.TASKS, **push_tasks.TASKS, **joint_tasks.TASKS}
"""Every task."""
SIGMAS = (0.5, 0.8, 1.2)
"""The paper's noise levels."""
SEGMENTS = 3
"""Parts of a demonstration."""
NOISE_M, NOISE_RAD = 0.008, 0.03
"""What a sigma of 1 means: metres and radians per command."""
ATTEMPTS = 100
"""Scenes that may be drawn until one has room and is within reach."""


@dataclass(frozen=True, kw_only=True)
class Wish:
    """What to make. The same wish gives the same episode."""

    task: str
    """One of ``TASKS``."""
    scenario: str = "canonical"
    """One of ``SCENARIOS``."""
    seed: int = 0
    """Of everything random."""
    height: int = 96
    """Image rows."""
    width: int = 144
    """Image columns."""
    look: str = "train"
    """``unseen`` for textures and cameras that no world learns from."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Outcome:
    """What came of a path."""

    path: Path
    """What the robot was told."""
    qpos: Float[np.ndarray, "t p"]
    """Simulator positions at each frame."""
    Ts_world_body: Float[np.ndarray, "t b 4 4"]
    """Links, then things."""
    q: Float[np.ndarray, "t dof"]
    """Joint positions at each frame."""
    gaps: Float[np.ndarray, " n"]
    """Distance between robot and target at each tick, metres."""
    success: bool
    """Whether the task was done."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Stage:
    """A scene in which somebody is about to act."""

    wish: Wish
    """What was asked for."""
    reach: Reach
    """The robot's place."""
    cast: Cast
    """Who is meant."""
    scene: Scene
    """Everything before the first frame."""
    path: Path
    """What the expert will do."""
    world: World
    """Its physics, at rest."""


def set_stage(robot: Robot, wish: Wish) -> Stage:
    """Draw scenes until one has room for everything and its plan is within reach."""
    if wish.task not in TASKS:
        raise ValueError(f"unknown task {wish.task!r}; known are {', '.join(TASKS)}")
    if wish.scenario not in SCENARIOS:
        raise ValueError(f"unknown scenario {wish.scenario!r}; known are {', '.join(SCENARIOS)}")
    if wish.look not in LOOKS:
        raise ValueError(f"unknown look {wish.look!r}; known are {', '.join(LOOKS)}")
    reach = measure_reach(robot)
    if not TASKS[wish.task].possible(reach):
        raise ValueError(f"robot {robot.name!r} cannot do {wish.task}: leave it out for this robot")
    rng = np.random.default_rng([wish.seed, list(TASKS).index(wish.task), list(SCENARIOS).index(wish.scenario)])
    why = ""
    for _ in range(ATTEMPTS):
        try:
            return _try_stage(rng, robot, reach, wish)
        except CrowdedError as error:
            why = str(error)
    raise ValueError(
        f"no {wish.scenario} scene for {wish.task} in {ATTEMPTS} attempts with robot {robot.name!r} and seed {wish.seed}: {why}"
    )


def _try_stage(rng: np.random.Generator, robot: Robot, reach: Reach, wish: Wish) -> Stage:
    task = TASKS[wish.task]
    cast = task.setup(rng, reach)
    keys = task.plan(rng, cast, reach)
    T_world_base = place(reach.base_x, 0.0, 0.0)
    high = max(float(keys[0].T_world_grasp[2, 3]), 0.14)
    above = grasp_pose(
        rng.uniform(-0.6, 0.6) * reach.depth,
        rng.uniform(-0.6, 0.6) * reach.breadth,
        high + rng.uniform(0, 0.06),
        reach.yaw,
    )
    keys = [Key(T_world_grasp=above, closed=keys[0].closed), *keys]
    commands = path.interpolate(keys)
    solved = path.solve(robot, reach, T_world_base, commands)
    if not solved.converged.all():
        raise CrowdedError("the plan leaves the robot's reach")
    if np.abs(np.diff(solved.q, axis=0)).max() > 0.35:
        raise CrowdedError("the plan makes a joint jump")
    camera = sample_camera(rng, wish.height, wish.width, side=task.side, look=wish.look)
    light = sample_light(rng)
    others = clutter(rng, wish.scenario, cast, reach, commands, camera)
    scene = Scene(
        robot=robot,
        T_world_base=T_world_base,
        q_start=solved.q[0],
        things=(*cast.things, *others),
        room=sample_room(rng, reach.base_x, look=wish.look),
        camera=camera,
        light=light,
    )
    if wish.look != "train":
        scene = replace(restyle(rng, scene, look=wish.look), camera=camera)
    return Stage(wish=wish, reach=reach, cast=cast, scene=scene, path=solved, world=World(scene))


def perform(stage: Stage, way: Path | None = None) -> Outcome:
    """Let the robot follow a path, by default the expert's, and judge what happened."""
    way, world, cast = way or stage.path, stage.world, stage.cast
    world.reset()
    every = way.commands.steps
    at_ticks = world.run(way.at_steps, every)
    qpos = at_ticks[:: way.commands.ticks]
    gaps = world.gaps(at_ticks, cast.target)
    Ts = world.transforms(qpos)
    links = len(stage.scene.robot.link_names)
    poses = {name: Ts[:, links + i] for i, name in enumerate(world.names)}
    joint = world.joint_of(cast.target, qpos) if len(cast.target.bodies) > 1 else None
    evidence = Evidence(roles=roles_of(cast), Ts=poses, joint=joint, gaps=gaps)
    return Outcome(
        path=way,
        qpos=qpos,
        Ts_world_body=Ts,
        q=world.q_of(qpos),
        gaps=gaps,
        success=TASKS[stage.wish.task].success(evidence),
    )


def disturb(stage: Stage, segment: int, sigma: float) -> Path:
    """The expert's path with noise on the pose commands of one of its three parts."""
    commands = stage.path.commands
    n = len(commands.closed)
    rng = np.random.default_rng([stage.wish.seed, segment, round(1000 * sigma)])
    inside = np.zeros(n)
    inside[segment * n // SEGMENTS : (segment + 1) * n // SEGMENTS] = 1.0
    inside[0] = 0.0
    drift = np.cumsum(rng.normal(0, sigma, (n, 6)) * inside[:, None], axis=0)
    Ts = commands.Ts_world_grasp.copy()
    Ts[:, :3, 3] += NOISE_M * drift[:, :3]
    Ts[:, :3, :3] = rotvec_to_matrix(NOISE_RAD * drift[:, 3:]) @ Ts[:, :3, :3]
    noisy = replace(commands, Ts_world_grasp=Ts)
    return path.solve(stage.scene.robot, stage.reach, stage.scene.T_world_base, noisy, stage.scene.q_start)


def record(
    stage: Stage, outcome: Outcome, *, source: str, facts: dict[str, Any], threads: int | None = None
) -> Episode:
    """Draw what happened and put everything that is known about it together."""
    return compose(
        stage, outcome, draw(stage.scene, outcome.Ts_world_body, threads=threads), source=source, facts=facts
    )


def compose(stage: Stage, outcome: Outcome, seen: Render, *, source: str, facts: dict[str, Any]) -> Episode:
    """The episode of frames that were drawn already."""
    scene, wish, commands = stage.scene, stage.wish, outcome.path.commands
    assert seen.rgb is not None
    fps = 1 / (commands.seconds * commands.ticks)
    at_frames = slice(None, None, commands.ticks)
    arm = Arm(
        robot=scene.robot.source,
        trajectory=Trajectory(
            q=outcome.q, joint_names=scene.robot.joint_names, fps=fps, T_world_base=scene.T_world_base
        ),
        link_names=scene.robot.link_names,
        converged=outcome.path.converged[at_frames],
        residual_m=outcome.path.residual_m[at_frames],
        residual_rad=outcome.path.residual_rad[at_frames],
    )
    Ts_base_tool = invert(scene.T_world_base) @ commands.Ts_world_grasp @ invert(stage.reach.hand.T_tool_grasp)
    values = np.column_stack([Ts_base_tool[:, :3, 3], matrix_to_quaternion(Ts_base_tool[:, :3, :3]), commands.closed])
    told = Commands(
        values=values,
        names=("x", "y", "z", "qw", "qx", "qy", "qz", "gripper"),
        fps=1 / commands.seconds,
        space="ee_pose",
        convention="kinema4d",
    )
    bodies = [(f"{t.name}/{b.name}", b) for t in scene.things for b in t.bodies]
    tracks = []
    for i, (name, body) in enumerate(bodies):
        vertices, faces = surface_of(body)
        Ts = outcome.Ts_world_body[:, len(scene.robot.link_names) + i]
        tracks.append(Track(name=name, Ts_world_object=Ts, vertices=vertices, faces=faces))
    nearest = int(outcome.gaps.argmin())
    own = {
        "scenario": wish.scenario,
        "seed": wish.seed,
        "target": stage.cast.target.name,
        "roles": roles_of(stage.cast).to_json(),
        "min_gap_m": round(float(outcome.gaps.min()), 5),
        "min_gap_s": round(nearest * commands.seconds, 3),
        "light": {"direction_world": list(scene.light.direction_world), "ambient": scene.light.ambient},
    }
    return Episode(
        clip=Clip(camera=scene.camera, rgb=seen.rgb, pointmap=Pointmap(points=seen.points, valid=seen.valid), fps=fps),
        arms=(arm,),
        labels=seen.ids,
        label_names=label_names(scene),
        text=stage.cast.text,
        outcome="success" if outcome.success else "failure",
        source=source,
        task=wish.task,
        group=f"tabletop/{scene.robot.source}/{wish.task}/{wish.scenario}/{wish.seed}",
        view="main",
        commands=told,
        tracks=tuple(tracks),
        facts={**own, **facts},
    )
