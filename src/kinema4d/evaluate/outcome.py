"""Did it work? Judged from where the things and the robot's kinematics are, and nothing else.

The rules are the simulator's own (:mod:`kinema4d.scenes.tasks`); an episode keeps who is who in its fact ``roles``, so
any set of tracks can be judged by them: the truth's, those that a prediction reports, those found in its pixels.
LIBERO's episodes say which thing belongs where, and are judged by LIBERO's two rules.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from jaxtyping import Float

from kinema4d.evaluate.penetration import gaps, thing_solid
from kinema4d.evaluate.score import NA
from kinema4d.scenes.episode import TASKS
from kinema4d.scenes.tasks import Evidence, Roles, joint_position
from kinema4d.types import Episode

MOVED_M, MOVED_RAD = 0.004, float(np.radians(3))
"""Things found in pixels count as moved from here on. Measured on 108 episodes: in the truth's own clips 90 of 100
things that stand still are found exactly where they began, the mean drift is 0.2 mm; with 3 mm of noise on the depth the
mean largest drift of an episode is 1.0 mm, 95 of 100 stay below 2.3 mm, the worst comes to 3.9 mm."""
SLACK_M = 0.004
"""How far a distance between hand and thing may be off when the thing was found in pixels."""
UNTOUCHED_M = 0.001
"""A smallest gap beyond this is no touch."""
INSIDE_M, INSIDE_HIGH_M = 0.07, 0.13
"""LIBERO: a thing within this distance of a container's axis and below this height is in it."""
ON_M, ON_HIGH_M = 0.03, 0.03
"""LIBERO's own rule for a plate: the thing's origin within 3 cm of the plate's."""


def steady(Ts: Float[np.ndarray, "n 4 4"], centre: Float[np.ndarray, "3"]) -> Float[np.ndarray, "n 4 4"]:
    """Poses without what is less than the dead band from the first: the noise of finding is not a motion."""
    from kinema4d.geometry.se3 import difference

    places = Ts[:, :3, :3] @ centre + Ts[:, :3, 3]
    _, angles = difference(Ts, np.broadcast_to(Ts[:1], Ts.shape))
    still = (np.linalg.norm(places - places[0], axis=1) < MOVED_M) & (angles < MOVED_RAD)
    return np.where(still[:, None, None], Ts[:1], Ts)


def judge(
    truth: Episode,
    Ts: Mapping[str, Float[np.ndarray, "n 4 4"]],
    *,
    frames: np.ndarray | None = None,
    slack: float = 0.0,
) -> str | NA:
    """``success`` or ``failure`` by where ``Ts`` puts the things of the truth at ``frames`` (by default all); or why
    nobody can say. ``slack`` is how far poses may be off, metres."""
    frames = np.arange(len(truth)) if frames is None else frames
    if "roles" in truth.facts:
        return _by_roles(truth, Ts, frames, slack)
    if {"thing", "place"} <= truth.facts.keys():
        return _libero(truth, Ts)
    return NA("the episode does not say who is who (no fact 'roles'): generate again")


def _by_roles(truth: Episode, Ts: Mapping[str, np.ndarray], frames: np.ndarray, slack: float) -> str | NA:
    roles = Roles.from_json(truth.facts["roles"])
    if truth.task not in TASKS:
        return NA(f"no rule for task {truth.task!r}")
    needed = [r.body for r in (roles.target, *((roles.goal,) if roles.goal else ()), *roles.extra)]
    if roles.target.joint is not None:
        needed.append(roles.target.joint.body)
    missing = [name for name in needed if name not in Ts]
    if missing:
        return NA(f"nobody says where the {missing[0]} is")
    if not truth.arms:
        return NA("the truth has no robot")
    surfaces = {t.name: t for t in truth.tracks}
    parts = []
    for name in dict.fromkeys([roles.target.body, *needed[-1:]] if roles.target.joint else [roles.target.body]):
        track = surfaces.get(name)
        if track is None or track.vertices is None or track.faces is None:
            return NA(f"the {name} has no mesh")
        parts.append((thing_solid(track.vertices, track.faces), Ts[name]))
    evidence = Evidence(
        roles=roles,
        Ts=dict(Ts),
        joint=joint_position(roles.target, Ts),
        gaps=gaps(truth.arms, frames, parts),
        slack=slack,
    )
    return "success" if TASKS[truth.task].success(evidence) else "failure"


def _libero(truth: Episode, Ts: Mapping[str, np.ndarray]) -> str | NA:
    thing, region = str(truth.facts["thing"]), str(truth.facts["place"])
    places = [t.name for t in truth.tracks if region == t.name or region.startswith(t.name + "_")]
    if not places:
        return NA(f"the truth has no track of {region}")
    place = max(places, key=len)
    for name in (thing, place):
        if name not in Ts:
            return NA(f"nobody says where the {name} is")
    offset = Ts[thing][-1, :3, 3] - Ts[place][-1, :3, 3]
    far, high = float(np.hypot(offset[0], offset[1])), float(offset[2])
    if region == place:  # on it
        done = far < ON_M and abs(high) < ON_HIGH_M
    else:  # in its region
        done = far < INSIDE_M and -0.02 < high < INSIDE_HIGH_M
    return "success" if done else "failure"


def untouched(truth: Episode) -> bool:
    """Whether the truth is a near miss: a task that is one, or a robot that touched nothing that matters."""
    return truth.task == "near_miss" or float(truth.facts.get("min_gap_m", -1.0)) > UNTOUCHED_M
