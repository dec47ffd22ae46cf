"""A small scene for the correction of motions: a hand sweeps past a block, a drawer, a door and a far block."""

from __future__ import annotations

import numpy as np

from kinema4d.geometry.se3 import invert, rotvec_to_matrix
from kinema4d.types import Solid
from kinema4d.world.small.move_scene import Case, case_of
from kinema4d.world.small.parts import Part

FRAMES, FPS = 12, 10.0
SIDES = np.array([[1, 3, 7, 5], [2, 0, 4, 6], [3, 2, 6, 7], [0, 1, 5, 4], [4, 5, 7, 6], [2, 3, 1, 0]])
FACES = np.concatenate([SIDES[:, [0, 1, 2]], SIDES[:, [0, 2, 3]]]).astype(np.int32)
BLOCK, DRAWER, DOOR, FAR, SHELF = range(5)


def box(half: tuple[float, float, float], centre: tuple[float, float, float] = (0, 0, 0)) -> np.ndarray:
    corners = np.array([[1 if n >> k & 1 else -1 for k in range(3)] for n in range(8)], np.float64)
    return corners * half + centre


def the_parts() -> list[Part]:
    mask = np.zeros((1, 1), bool)
    common = {"mask": mask, "faces": FACES}
    half = (0.02, 0.02, 0.025)
    slant = np.array([0.6, 0.8, 0.0])
    return [
        Part(name="block", joint="free", vertices=box(half, (0.0, 0.0, 0.025)), **common),
        Part(name="drawer", joint="slide", vertices=box(half, (0.0, 0.06, 0.025)), axis=slant, **common),
        Part(name="door", joint="hinge", vertices=box(half, (0.0, -0.06, 0.025)), axis=np.array([0.0, 0.0, 1.0]),
             pivot=np.array([0.0, -0.12, 0.0]), **common),
        Part(name="far", joint="free", vertices=box(half, (0.0, 0.5, 0.025)), **common),
        Part(name="shelf", joint="fixed", vertices=box(half, (0.1, 0.0, 0.025)), **common),
    ]  # fmt: skip


def the_robot(seed: int = 0) -> list[Solid]:
    """A palm, two fingers that stay where they are in it, and a wrist."""
    rng = np.random.default_rng(seed)
    Ts = np.tile(np.eye(4), (FRAMES, 1, 1))
    start, end = np.array([-0.12, 0.0, 0.06]), np.array([0.05, 0.0, 0.06]) + 0.02 * rng.standard_normal(3)
    Ts[:, :3, 3] = np.linspace(start, end, FRAMES)
    Ts[:, :3, :3] = rotvec_to_matrix(np.linspace([0, 0, 0], [0.0, 0.0, 0.4], FRAMES))

    def solid(name: str, role: str, half: tuple[float, float, float], at: tuple[float, float, float]) -> Solid:
        T = Ts.copy()
        T[:, :3, 3] += Ts[:, :3, :3] @ np.array(at)
        return Solid(name=name, role=role, vertices=box(half), faces=FACES, Ts_world_link=T)

    return [
        solid("wrist", "arm", (0.03, 0.03, 0.03), (0, 0, 0.1)),
        solid("palm", "palm", (0.02, 0.06, 0.02), (0, 0, 0.03)),
        solid("left", "finger", (0.01, 0.005, 0.03), (0, 0.045, -0.01)),
        solid("right", "finger", (0.01, 0.005, 0.03), (0, -0.045, -0.01)),
    ]


def motions(share: float = 1.0) -> np.ndarray:
    """[p,t,4,4]: the block is pushed and turns, the drawer slides, the door turns, from the sixth frame on."""
    on = share * np.clip((np.arange(FRAMES) - 5) / (FRAMES - 6), 0, 1)
    out = np.tile(np.eye(4), (5, FRAMES, 1, 1))
    parts = the_parts()
    out[BLOCK, :, 0, 3] = 0.06 * on
    middle, door = np.eye(4), np.eye(4)
    middle[:3, 3], door[:3, 3] = (0, 0, 0.025), parts[DOOR].pivot
    turn = np.tile(np.eye(4), (FRAMES, 1, 1))
    turn[:, :3, :3] = rotvec_to_matrix(on[:, None] * [0.2, 0.1, 0.5])
    out[BLOCK] = out[BLOCK] @ middle @ turn @ invert(middle)
    axis = parts[DRAWER].axis
    assert axis is not None
    out[DRAWER, :, :3, 3] = 0.04 * on[:, None] * axis
    swing = np.tile(np.eye(4), (FRAMES, 1, 1))
    swing[:, :3, :3] = rotvec_to_matrix(on[:, None] * [0.0, 0.0, -0.5])
    out[DOOR] = door @ swing @ invert(door)
    return out


def a_case(share: float = 0.7, seed: int = 0) -> Case:
    """The engine says that things go only ``share`` of their way, and in a second draw half of that."""
    proposals = np.stack([motions(share), motions(0.5 * share)])
    return case_of(the_parts(), the_robot(seed), proposals, fps=FPS)
