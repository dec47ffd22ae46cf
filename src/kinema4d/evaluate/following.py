"""Action following: does the generated robot stand where kinematics says, at the time it says so?

Judged from the generated pointmap and RGB alone. The robot is looked for in the generated points
(:mod:`kinema4d.evaluate.articulated`) and, by colour, in the generated pictures (:mod:`kinema4d.evaluate.following_colour`);
every generated frame is compared with every expected one (:mod:`kinema4d.evaluate.following_time`). The verdict names the fault.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from kinema4d.evaluate import following_colour, following_kernels
from kinema4d.evaluate.articulated import Body, Fit, Stage, body, fit, stage, tool_path
from kinema4d.evaluate.following_time import MIRRORED, MOVED, ORDER, Timing, mask_disagreement, timing
from kinema4d.evaluate.score import NA, About, Pair, Scores
from kinema4d.robot.kinematics import forward_kinematics

MATCH_M = 0.05
"""Distance at which two points disagree fully in the matching matrix: a hand's width; 5 mm of noise costs a tenth."""
ELSEWHERE_M = 0.007
"""Mean tool error from which on the robot stands elsewhere: 5 mm of depth noise, or a blur of the edges, makes 1 to 3 mm
of a true robot; 3 degrees in every joint make 10 mm and more."""
STRAYS_M = 0.018
"""The same for the worst run of ``STRAY_FRAMES`` frames: a robot that follows for a while and then goes elsewhere. A true
robot with that noise stays below 7 mm."""
STRAY_FRAMES = 6
"""Length of such a run: a single misfitted frame is no fault."""
BODY_M = 0.005
"""The same for the mean over everything that is seen of the robot, which many pixels decide: noise makes 0.5 to 1.5 mm."""
ELSEWHERE_IOU = 0.06
"""Without points: how far the colour mask's IoU may lie below the truth's own before the robot stands elsewhere, or looks
like something else. Noise and blur cost less than 0.02."""
STRAYS_IOU = 0.12
"""The same for the worst run of ``STRAY_FRAMES`` frames."""
LEAST_VALID = 0.02
"""Share of the robot's pixels that must have a generated point for any of the point-based numbers."""
LEAST_FOUND = 0.5
"""Share of frames in which the robot must be found for it to have a path."""
TOOL_PIXELS = 10
"""Fewest visible pixels of the hand for the tool to be judged."""

METRICS: dict[str, About] = {
    "robot_error_m": About(
        label="robot error",
        unit="m",
        better="lower",
        group="following",
        text="mean over frames of the mean distance between generated and kinematic point on the robot's visible pixels; "
        "where something else stands there, it is the distance to that",
        digits=4,
    ),
    "robot_missing": About(
        label="robot missing",
        unit="%",
        better="lower",
        group="following",
        text="share of the robot's visible pixels without a generated point",
    ),
    "robot_iou": About(
        label="robot IoU",
        unit="%",
        better="higher",
        group="following",
        text="IoU of the expected visible robot and the generated points within 1.5 cm of the robot fitted to them; a frame "
        "without a robot counts 0",
    ),
    "robot_iou_rgb": About(
        label="robot IoU (RGB)",
        unit="%",
        better="higher",
        group="following",
        text="IoU of the expected visible robot and the pixels that look like it, by a colour model from the first frame; "
        "weak: compare it with the truth's own value, not with 1",
    ),
    "ee_error_m": About(
        label="tool error",
        unit="m",
        better="lower",
        group="following",
        text="mean distance between the kinematic tool and that of the robot fitted to the generated points, over the frames "
        "where it is found",
        digits=4,
    ),
    "ee_error_end_m": About(
        label="tool error, end",
        unit="m",
        better="lower",
        group="following",
        text="the same at the last frame in which the tool should be seen",
        digits=4,
    ),
    "ee_found": About(
        label="tool found",
        unit="%",
        better="higher",
        group="following",
        text="share of the frames with the tool in view in which a robot with its tool is found in the generated points",
    ),
    "delay_frames": About(
        label="delay",
        unit="frames",
        better="lower",
        group="following",
        text="size of the shift in time, late or early, that explains at least half of the disagreement that it would cause; "
        "0 where none does",
        digits=1,
    ),
    "follows": About(
        label="follows",
        yes_no=True,
        unit="%",
        better="higher",
        group="following",
        text="1 where no fault is found: mirrored, not found, frozen, out of order, late, elsewhere",
    ),
}


@dataclass(frozen=True, kw_only=True, eq=False)
class Following:
    """The judgement of one pair."""

    scores: Scores
    """One entry per name in ``METRICS``."""
    details: dict[str, Any]
    """As JSON has it: ``faults``, error per link, the matching matrix, tool paths, the RGB mask's ceiling."""


def scores(pair: Pair) -> Scores:
    """The numbers alone."""
    return follow(pair).scores


def details(pair: Pair) -> dict[str, Any]:
    """What is behind the numbers."""
    return follow(pair).details


def follow(pair: Pair) -> Following:
    """Judge whether the generated robot follows its actions."""
    reason = _why_not(pair)
    if reason:
        return _nothing(reason)
    truth = pair.truth
    try:
        for arm in truth.arms:
            body(arm.robot)
    except ValueError as error:  # the robot's files are not on this machine: one source of many must not stop the rest
        return _nothing(f"the robot cannot be drawn: {error}")
    at = stage(truth.arms, truth.clip.camera)
    expected, labelled = at.expected.valid, truth.robot_mask
    visible = expected if labelled is None else expected & at.thin(labelled)
    if not visible.any():
        return _nothing("the camera sees no part of the robot")
    hidden = expected & ~visible
    points, valid = _points(pair, at)
    out: Scores = dict.fromkeys(METRICS, NA("not computed"))
    info: dict[str, Any] = {}

    rgb, model = at.thin(pair.predicted.rgb), None
    looks = truth_looks = np.zeros_like(visible)
    if visible[0].any():
        model = following_colour.learn(at.thin(truth.clip.rgb[:1])[0], visible, still=not at.camera.moving)
        looks, truth_looks = following_colour.find(model, rgb), following_colour.find(model, at.thin(truth.clip.rgb))
        out["robot_iou_rgb"] = _iou(looks, visible, hidden)
        info["robot_iou_rgb_truth"] = _iou(truth_looks, visible, hidden)
    else:
        out["robot_iou_rgb"] = NA("the first frame shows no robot whose colours could be learned")

    known = visible & valid
    out["robot_missing"] = float(1 - known.sum() / visible.sum())
    faults: list[str] = []
    elsewhere = ""
    if known.sum() < LEAST_VALID * visible.sum():
        why = "the truth is not in metres" if not truth.metric else "the prediction has no points on the robot"
        for name in ("robot_error_m", "robot_iou", "ee_error_m", "ee_error_end_m", "ee_found"):
            out[name] = NA(why)
        if not truth.metric:
            out["robot_missing"] = NA(why)
        if model is None:
            return Following(
                scores={**out, "delay_frames": NA(why), "follows": NA(why)},
                details={**info, "faults": [], "judged_by": ""},
            )
        E, S = mask_disagreement(looks, visible, hidden), mask_disagreement(truth_looks, visible, hidden)
        # The colour mask is blunt: what a fault costs is what it costs the truth's own mask.
        S = np.maximum(S - np.diagonal(S)[:, None], 0)
        flipped = following_colour.find(model, np.ascontiguousarray(rgb[:, :, ::-1]))
        flip_gain = _iou(flipped, visible, hidden) - _iou(looks, visible, hidden)
        gaps = _frame_iou(truth_looks, visible, hidden) - _frame_iou(looks, visible, hidden)
        gap, worst = float(gaps.mean()), _worst_run(gaps)
        if gap > ELSEWHERE_IOU or worst > STRAYS_IOU:
            elsewhere = f"stands elsewhere or looks different: the colour mask's IoU is {gap:.2f} below the truth's (worst {worst:.2f})"
        info["judged_by"] = "rgb"
    else:
        gap_m = np.linalg.norm(points - at.expected.points, axis=-1)
        per_frame = [gap_m[t][known[t]].mean() for t in range(at.frames) if known[t].any()]
        out["robot_error_m"] = float(np.mean(per_frame))
        info["error_per_link_m"] = _per_link(at, gap_m, known)
        found = fit(at, points, valid)
        out["robot_iou"] = _iou(found.mask, visible, hidden)
        strays = (_tool(at, found, points, valid, visible, out, info), _body(at, found, visible, info))
        elsewhere = strays[0] or strays[1]
        E = _disagreement(at, points, valid, found.mask, visible, hidden)
        S = _disagreement(at, at.expected.points, visible, visible, visible, hidden)
        flip_gain = _flip_gain(at, points, valid, visible)
        if not found.found.any(axis=1).mean() >= LEAST_FOUND:
            faults.append("robot not found")
        info["judged_by"] = "points"

    time = timing(E, S)
    out["delay_frames"] = NA("the robot moves too little to tell") if time.delay is None else float(abs(time.delay))
    if flip_gain > MIRRORED:
        faults.insert(0, "mirrored")
    faults += _time_faults(time)
    if elsewhere:
        faults.append(elsewhere)
    out["follows"] = 0.0 if faults else 1.0
    info |= {
        "faults": faults,
        "fault": faults[0] if faults else "",
        "delay_frames": time.delay,
        "order": time.order,
        "moved": time.moved,
        "matrix": np.round(E, 4).tolist(),
    }
    return Following(scores=out, details=info)


def _disagreement(
    at: Stage, points: np.ndarray, valid: np.ndarray, robot: np.ndarray, visible: np.ndarray, hidden: np.ndarray
) -> Float[np.ndarray, "t t"]:
    """Every frame of the points against every expected frame."""
    where = visible.any(axis=0) | robot.any(axis=0)
    out = np.empty((at.frames, at.frames))
    p, v, r, e, m, n = (a[:, where] for a in (points, valid, robot, at.expected.points, visible, hidden))
    following_kernels.disagreement(p, v, r, e, m, n, MATCH_M, out)
    return out


def _why_not(pair: Pair) -> str:
    truth = pair.truth
    if not truth.arms:
        return "no robot in the truth"
    if truth.camera_from == "guessed":
        return "the camera is a guess"
    lengths = {len(a.trajectory.q) for a in truth.arms}
    if lengths != {len(truth)}:
        raise ValueError(
            f"the truth has {len(truth)} frames but its arms {sorted(lengths)}: resample the motion to the frames"
        )
    if len(truth) < 2:
        return "a single frame shows no motion"
    return ""


def _nothing(reason: str) -> Following:
    return Following(scores=dict.fromkeys(METRICS, NA(reason)), details={"faults": [], "fault": "", "judged_by": ""})


def _points(pair: Pair, at: Stage) -> tuple[np.ndarray, np.ndarray]:
    """Generated points and where they are, on the stage's pixels. Undefined values become 0, and are not valid."""
    points = at.thin(pair.predicted.pointmap.points).astype(np.float32)
    valid = at.thin(pair.predicted.pointmap.valid) & np.isfinite(points).all(axis=-1)
    if not pair.truth.metric:  # a model of such data answers in its units; a robot is in metres
        valid = np.zeros_like(valid)
    points[~valid] = 0
    return points, valid


def _frame_iou(a: np.ndarray, b: np.ndarray, hidden: np.ndarray) -> Float[np.ndarray, " n"]:
    """IoU of the frames that should show the robot; pixels where something hides it do not count."""
    there = b.any(axis=(1, 2))
    a, b = a[there] & ~hidden[there], b[there]
    return (a & b).sum(axis=(1, 2)) / (a | b).sum(axis=(1, 2))


def _iou(a: np.ndarray, b: np.ndarray, hidden: np.ndarray) -> float:
    return float(_frame_iou(a, b, hidden).mean())


def _per_link(at: Stage, gap: np.ndarray, known: Bool[np.ndarray, "t h w"]) -> dict[str, float]:
    names = [n if len(at.arms) == 1 else f"{i}/{n}" for i, b in enumerate(at.bodies) for n in b.robot.link_names]
    ids = at.expected.ids[known].astype(np.int64)
    count, total = np.bincount(ids, minlength=len(names) + 1), np.bincount(ids, gap[known], len(names) + 1)
    return {n: float(total[i + 1] / count[i + 1]) for i, n in enumerate(names) if count[i + 1]}


def _tool(
    at: Stage, found: Fit, points: np.ndarray, valid: np.ndarray, visible: np.ndarray, out: Scores, info: dict[str, Any]
) -> str:
    """Tool errors into ``out``, paths into ``info``; returns the fault, if any."""
    judged, good, error = [], [], []
    near = found.mask
    first, info["ee"] = 0, []
    for i, (own, arm) in enumerate(zip(at.bodies, at.arms, strict=True)):
        robot = own.robot
        hand = first + 1 + np.flatnonzero(_hand(own))
        first += len(robot.link_names)
        should = (np.isin(at.expected.ids, hand) & visible).sum(axis=(1, 2)) >= TOOL_PIXELS
        drawn = np.isin(found.render.ids, hand)
        open_ = drawn & ~(valid & (points[..., 2] < found.render.points[..., 2] - 0.02))
        on = (drawn & near).sum(axis=(1, 2))
        has = found.found[:, i] & (on >= TOOL_PIXELS // 2) & (on >= 0.4 * open_.sum(axis=(1, 2)))
        expected, fitted = tool_path(at, i, arm.trajectory.q), tool_path(at, i, found.q[i])
        judged.append(should)
        good.append(has & should)
        error.append(np.linalg.norm(fitted - expected, axis=1))
        info["ee"].append(
            {
                "expected": np.round(expected, 5).tolist(),
                "fitted": [np.round(p, 5).tolist() if ok else None for p, ok in zip(fitted, has, strict=True)],
                "share": np.round(found.share[:, i], 3).tolist(),
            }
        )
    should, has, off = np.array(judged), np.array(good), np.array(error)
    if not should.any():
        for name in ("ee_error_m", "ee_error_end_m", "ee_found"):
            out[name] = NA("the tool is hidden or out of view")
        return ""
    share = float(has.sum() / should.sum())
    out["ee_found"] = share
    if share < LEAST_FOUND:
        out["ee_error_m"] = out["ee_error_end_m"] = NA(f"the tool was found in {100 * share:.0f} % of the frames only")
        return ""
    out["ee_error_m"] = mean = float(off[has].mean())
    end = [
        off[i, np.flatnonzero(should[i])[-1]]
        for i in range(len(off))
        if should[i].any() and has[i, np.flatnonzero(should[i])[-1]]
    ]
    out["ee_error_end_m"] = float(np.mean(end)) if end else NA("the tool was not found in the last frame")
    worst = max(_worst_run(off[i][has[i]]) for i in range(len(off)))
    info["ee_worst_run_m"] = worst
    if mean > ELSEWHERE_M or worst > STRAYS_M:
        return f"stands elsewhere by {100 * mean:.1f} cm (worst {100 * worst:.1f} cm)"
    return ""


def _body(at: Stage, found: Fit, visible: Bool[np.ndarray, "t h w"], info: dict[str, Any]) -> str:
    """How far the fitted links are from the kinematic ones, weighed by what is seen of them, into ``info``; returns the
    fault, if any. A redundant arm can hold its tool in place and its elbow elsewhere."""
    moved, weight, first, worst = 0.0, 0.0, 0, {}
    for i, (own, arm) in enumerate(zip(at.bodies, at.arms, strict=True)):
        a, b = forward_kinematics(own.robot, arm.trajectory.q), forward_kinematics(own.robot, found.q[i])
        ok = found.found[:, i]
        for link, name in enumerate(own.robot.link_names):
            patches = own.patches[own.links == link]
            seen = ((at.expected.ids == first + 1 + link) & visible).sum(axis=(1, 2))[ok].astype(float)
            if not len(patches) or not seen.any():
                continue
            D = b[ok, link] - a[ok, link]
            off = np.linalg.norm(patches @ np.swapaxes(D[:, :3, :3], 1, 2) + D[:, None, :3, 3], axis=-1).mean(axis=1)
            worst[name if len(at.arms) == 1 else f"{i}/{name}"] = float((off * seen).sum() / seen.sum())
            moved, weight = moved + float((off * seen).sum()), weight + float(seen.sum())
        first += len(own.robot.link_names)
    info["displacement_per_link_m"] = worst
    if not weight:
        return ""
    info["displacement_m"] = mean = moved / weight
    if mean > BODY_M:
        name = max(worst, key=lambda n: worst[n])
        return f"stands elsewhere by {100 * mean:.1f} cm ({name} by {100 * worst[name]:.1f} cm)"
    return ""


def _worst_run(off: np.ndarray) -> float:
    """Largest median over ``STRAY_FRAMES`` neighbouring frames."""
    if len(off) < STRAY_FRAMES:
        return float(np.median(off)) if len(off) else 0.0
    return float(np.median(np.lib.stride_tricks.sliding_window_view(off, STRAY_FRAMES), axis=1).max())


def _hand(own: Body) -> np.ndarray:
    """Links that the last joint of the arm moves."""
    robot = own.robot
    last = np.flatnonzero(robot.column == robot.arm_columns[-1])
    return np.asarray(own.moves[:, last].any(axis=1))


def _flip_gain(at: Stage, points: np.ndarray, valid: np.ndarray, visible: np.ndarray) -> float:
    """By how much the prediction, flipped left to right, agrees better with the expected robot."""
    K, w = at.camera.K, at.camera.width
    u = np.arange(w)
    z = points[:, :, ::-1, 2]
    ray = ((u - K[0, 2]) / K[0, 0])[None, None]
    y = points[:, :, ::-1, 1]
    flipped = np.stack([ray * z - K[0, 1] / K[0, 0] * y, y, z], axis=-1)
    costs = []
    for p, ok in ((points, valid), (flipped, valid[:, :, ::-1])):
        off = np.minimum(np.linalg.norm(p[visible] - at.expected.points[visible], axis=-1) / MATCH_M, 1)
        costs.append(float(np.where(ok[visible], off, 1).mean()))
    return costs[0] - costs[1]


def _time_faults(time: Timing) -> list[str]:
    faults = []
    if time.moved is not None and time.moved < MOVED:
        faults.append("does not move")
    elif time.order is not None and time.order < ORDER and time.reordered:
        faults.append("frames out of order")
    elif time.delay:
        n = abs(time.delay)
        faults.append(f"{'late' if time.delay > 0 else 'early'} by {n} frame{'s' if n > 1 else ''}")
    return faults
