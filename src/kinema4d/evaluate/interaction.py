"""What happened to the things: judged from the generated 4D alone, and beside it from what the prediction itself says.

Things are found in the predicted pixels (:mod:`kinema4d.evaluate.locate`) and compared with the truth's tracks. A
prediction that also reports tracks of its own is judged by those in the scores that end in ``_said``: the two differ
where a world says one thing and shows another. A thing that is not found has no error: it counts in ``object_found``,
and an outcome that cannot be seen is a wrong one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Float

from kinema4d.evaluate import changed
from kinema4d.evaluate.locate import Found, locate
from kinema4d.evaluate.outcome import MOVED_M, MOVED_RAD, SLACK_M, judge, steady, untouched
from kinema4d.evaluate.penetration import depths, link_poses, robot_of, thing_solid
from kinema4d.evaluate.score import NA, About, Pair, Scores, Value
from kinema4d.evaluate.thing_models import FRAMES, Model, frames_of, models_of
from kinema4d.types import Episode

TRULY_M, TRULY_RAD = 0.01, float(np.radians(10))
"""A thing that comes further than this from its first pose at any frame of the truth has moved."""

_SAID = " by the prediction's own tracks"


def _about(label: str, unit: str, better: str, text: str, digits: int = 3, *, yes_no: bool = False) -> About:
    return About(label=label, unit=unit, better=better, group="interaction", text=text, digits=digits, yes_no=yes_no)


_BOTH: dict[str, About] = {
    "object_error_m": _about("object error", "m", "lower", "distance of a moved thing's middle from its true place at the end, mean over the moved things that are found and seen in the truth", 4),
    "object_path_error_m": _about("object path error", "m", "lower", "the same at all frames that are looked at and where the thing is found, mean along the way", 4),
    "object_angle_deg": _about("object angle", "deg", "lower", "angle to the true orientation at the end, without turns that the shape does not show, mean over moved things that have an orientation", 1),
    "object_found": _about("objects found", "%", "higher", "share of the moved things seen in the truth's last frame that are found in the prediction's", 1),
    "false_motion_m": _about("false motion", "m", "lower", "largest distance from its first place of a thing that stands still in the truth, mean over those", 4),
    "outcome_right": _about("outcome right", "%", "higher", "1 where the task's rule gives the true outcome, 0 where not or where the things that decide are not found", 1, yes_no=True),
    "near_miss_right": _about("near miss right", "%", "higher", "where the robot should touch nothing: 1 when things move beyond 4 mm or 3 degrees exactly if they truly do, 0 when not or when one is not found", 1, yes_no=True),
}  # fmt: skip

METRICS: dict[str, About] = {
    **_BOTH,
    **{
        f"{name}_said": replace(about, label=f"{about.label} (said)", text=about.text + _SAID)
        for name, about in _BOTH.items()
    },
    "penetration_m": _about("penetration", "m", "lower", "deepest overlap of a found (else reported) thing with the robot at its kinematic place, mean over frames; soft contacts give the truth some millimetres too", 4),
    **changed.METRICS,
}  # fmt: skip
"""What the numbers of this file mean."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Interaction:
    """Scores of one pair and what they come from."""

    scores: Scores
    """One entry per name of ``METRICS``."""
    details: dict[str, Any]
    """As JSON has it: every thing, whether and where it was found; the outcomes."""
    found: Mapping[str, Found]
    """Where each thing was found, for pictures."""


def scores(pair: Pair) -> Scores:
    """All scores of a pair."""
    return interact(pair).scores


def moved_things(truth: Episode, models: Mapping[str, Model]) -> dict[str, bool]:
    """Which things moved in the truth, by name."""
    return {t.name: _moves(models[t.name], t.Ts_world_object) for t in truth.tracks if t.name in models}


def _moves(model: Model, Ts: np.ndarray) -> bool:
    away, turned = _away(model, Ts)
    return bool(away.max() > TRULY_M or turned.max() > TRULY_RAD)


def _away(model: Model, Ts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Distance and angle from the first pose."""
    places = model.place(Ts)
    turned = model.symmetry.angle(Ts[:, :3, :3], np.broadcast_to(Ts[:1, :3, :3], (len(Ts), 3, 3)))
    return np.linalg.norm(places - places[0], axis=1), turned


def interact(pair: Pair, *, frames: int = FRAMES) -> Interaction:
    """Judge what happened to the things; ``frames`` is at how many frames they are looked for."""
    truth = pair.truth
    models = models_of(truth)
    why = _unfit(pair, models)
    if why is not None:
        return Interaction(
            scores={**dict.fromkeys(METRICS, why), **changed.changed_scores(pair, ())},
            details={"why": why.reason},
            found={},
        )
    moved = moved_things(truth, models)
    hands = [link_poses(arm)[:, robot_of(arm.robot).link_index(robot_of(arm.robot).tool_link)] for arm in truth.arms]
    found = untangle(locate(pair.predicted, truth, models=models, Ts_world_tool=hands, frames=frames), truth)
    at = frames_of(len(truth), frames)
    true = {t.name: t.Ts_world_object for t in truth.tracks if t.name in models}
    rows = {name: _row(found[name], true[name][at], moved[name]) for name in found}
    said = {t.name: t.Ts_world_object for t in pair.tracks if t.name in models}
    said_rows = {name: _said_row(models[name], said.get(name), true[name], moved[name]) for name in models}
    out: Scores = {**_summary(rows, said=False)}
    verdict = _verdict(truth, found, at)
    out["outcome_right"] = _right(verdict, truth)
    out["near_miss_right"] = _missed(truth, moved, models, true, {n: _drift(f) for n, f in found.items()})
    none = NA("the prediction has no tracks of its own")
    said_verdict: str | NA = none
    if said:
        out |= {f"{name}_said": value for name, value in _summary(said_rows, said=True).items()}
        known = {t.name for t in truth.tracks}
        said_verdict = judge(truth, {t.name: t.Ts_world_object for t in pair.tracks if t.name in known})
        out["outcome_right_said"] = _right(said_verdict, truth)
        drifts = {n: _away(models[n], said[n]) if n in said else None for n in models}
        out["near_miss_right_said"] = _missed(truth, moved, models, true, drifts)
    else:
        out |= dict.fromkeys((f"{name}_said" for name in _BOTH), none)
    out["penetration_m"] = _penetration(truth, models, found, said, at)
    out |= changed.changed_scores(pair, [name for name, does in moved.items() if does])
    details = {
        "frames": at.tolist(),
        "objects": rows,
        "said": said_rows if said else None,
        "outcome": {"true": truth.outcome, "seen": _plain(verdict), "said": _plain(said_verdict)},
    }
    return Interaction(scores={name: out[name] for name in METRICS}, details=details, found=found)


def _unfit(pair: Pair, models: Mapping[str, Model]) -> NA | None:
    if not pair.truth.tracks:
        return NA("the truth has no tracks of its things")
    if pair.truth.labels is None:
        return NA("the truth has no labels")
    if not models:
        return NA("no thing is ever seen in the truth")
    if not pair.predicted.pointmap.valid.any():
        return NA("no pixel of the prediction has depth")
    return None


def untangle(found: Mapping[str, Found], truth: Episode) -> dict[str, Found]:
    """Twins renamed so that together they are nearest to their true places: nobody can tell one bead from another."""
    from scipy.optimize import linear_sum_assignment

    out = dict(found)
    done: set[str] = set()
    true = {t.name: t.Ts_world_object for t in truth.tracks}
    for name, one in found.items():
        group = [name, *(n for n in one.model.twins if n in found)]
        if len(group) < 2 or done & set(group):
            continue
        done |= set(group)
        places = np.stack([found[n].model.place(found[n].Ts_world_object) for n in group])
        wanted = np.stack([found[n].model.place(true[n][one.frames]) for n in group])
        lost = ~np.stack([found[n].found for n in group])
        order = np.empty((len(group), len(one.frames)), int)
        for k in range(len(one.frames)):
            cost = np.linalg.norm(places[:, None, k] - wanted[None, :, k], axis=-1) + 10.0 * lost[:, k, None]
            # Where one is not found, it is the one whose truth is seen least.
            cost = cost + 5.0 * (lost[:, None, k] & np.array([bool(found[n].visible[k]) for n in group])[None])
            who, whose = linear_sum_assignment(cost)
            order[whose, k] = who
        for i, n in enumerate(group):
            picks = [found[group[order[i, k]]] for k in range(len(one.frames))]
            out[n] = replace(
                found[n],
                Ts_world_object=np.stack([p.Ts_world_object[k] for k, p in enumerate(picks)]),
                status=tuple(p.status[k] for k, p in enumerate(picks)),
                agreement=np.array([p.agreement[k] for k, p in enumerate(picks)]),
                contradiction=np.array([p.contradiction[k] for k, p in enumerate(picks)]),
            )
    return out


def _row(found: Found, true: Float[np.ndarray, "n 4 4"], moved: bool) -> dict[str, Any]:
    """One thing's numbers; None where there is none."""
    model, seen = found.model, found.found
    errors = np.linalg.norm(model.place(found.Ts_world_object) - model.place(true), axis=1)
    away = np.linalg.norm(model.place(found.Ts_world_object) - model.place(true[0]), axis=1)
    truly = np.linalg.norm(model.place(true) - model.place(true[0]), axis=1)
    end = bool(seen[-1] and found.visible[-1])
    angle = None
    if end and model.whole and not model.symmetry.round:
        angle = float(np.degrees(model.symmetry.angle(found.Ts_world_object[-1, :3, :3], true[-1, :3, :3])))
    judged = seen & found.visible
    return {
        "moved": moved,
        "true_displacement_m": float(truly[-1]),
        "visible_at_end": bool(found.visible[-1]),
        "status": list(found.status),
        "error_m": float(errors[-1]) if end else None,
        "path_error_m": float(errors[judged].mean()) if judged.any() else None,
        "angle_deg": angle,
        "largest_displacement_m": float(away[judged].max()) if judged.any() else None,
    }


def _said_row(model: Model, Ts: np.ndarray | None, true: np.ndarray, moved: bool) -> dict[str, Any]:
    row: dict[str, Any] = {"moved": moved, "visible_at_end": True}
    if Ts is None or len(Ts) != len(true):
        return row | dict.fromkeys(("error_m", "path_error_m", "angle_deg", "largest_displacement_m"))
    errors = np.linalg.norm(model.place(Ts) - model.place(true), axis=1)
    away = np.linalg.norm(model.place(Ts) - model.place(true[0]), axis=1)
    angle = None
    if model.whole and not model.symmetry.round:
        angle = float(np.degrees(model.symmetry.angle(Ts[-1, :3, :3], true[-1, :3, :3])))
    return row | {
        "error_m": float(errors[-1]),
        "path_error_m": float(errors.mean()),
        "angle_deg": angle,
        "largest_displacement_m": float(away.max()),
    }


def _summary(rows: Mapping[str, dict[str, Any]], *, said: bool) -> Scores:
    moved = [row for row in rows.values() if row["moved"]]
    still = [row for row in rows.values() if not row["moved"]]
    seen = [row for row in moved if row["visible_at_end"]]
    if not moved:
        why = NA("no thing moved")
    elif not seen:
        why = NA("every moved thing is hidden at the end of the truth")
    else:
        why = NA("no moved thing has a track" if said else "no moved thing was found")
    lacks = "no moved thing with an orientation was found" if moved else why.reason
    out: Scores = {
        "object_error_m": _mean(seen, "error_m", why),
        "object_path_error_m": _mean(moved, "path_error_m", why if moved else NA("no thing moved")),
        "object_angle_deg": _mean(seen, "angle_deg", NA(lacks)),
        "object_found": float(np.mean([row["error_m"] is not None for row in seen])) if seen else why,
        "false_motion_m": _mean(still, "largest_displacement_m", NA("no thing that stands still was found" if still else "every thing moved")),
    }  # fmt: skip
    return out


def _mean(rows: list[dict[str, Any]], key: str, why: NA) -> Value:
    values = [row[key] for row in rows if row[key] is not None]
    return float(np.mean(values)) if values else why


def _drift(found: Found) -> tuple[np.ndarray, np.ndarray] | None:
    """How far a found thing is from its first pose at each frame where it is found; None where it is gone."""
    seen = found.found
    if (found.visible & ~seen & (np.array(found.status) == "missing")).any() or not seen.any():
        return None if found.visible.any() else (np.zeros(1), np.zeros(1))
    Ts = np.concatenate([found.Ts_world_object[:1], found.Ts_world_object[seen]])
    away, turned = _away(found.model, Ts)
    # What moves stays moved: at two frames at least, where one alone is a slip of the finding.
    return (np.sort(away)[:-1], np.sort(turned)[:-1]) if len(away) > 2 else (away, turned)


def _missed(
    truth: Episode,
    moved: Mapping[str, bool],
    models: Mapping[str, Model],
    true: Mapping[str, np.ndarray],
    drifts: Mapping[str, tuple[np.ndarray, np.ndarray] | None],
) -> Value:
    if not untouched(truth):
        return NA("not a near miss: the robot touches something")
    if any(drift is None for drift in drifts.values()):
        return 0.0
    does = any(d[0].max() > MOVED_M or d[1].max() > MOVED_RAD for d in drifts.values() if d is not None)
    truly = any(moved.values()) or any(
        d[0].max() > MOVED_M or d[1].max() > MOVED_RAD for d in (_away(models[n], Ts) for n, Ts in true.items())
    )
    return float(does == truly)


def _verdict(truth: Episode, found: Mapping[str, Found], at: np.ndarray) -> str | NA:
    """The outcome by what is seen. What the prediction alone hides is taken to be where the hand or the last sight left
    it; where the truth hides it too, nobody can say."""
    deciding = _deciding(truth)
    for name, one in found.items():
        if name in deciding and one.status[-1] != "found":
            if not one.visible[-1]:
                return NA(f"the {name} is hidden at the end of the truth")
            if one.status[-1] == "missing":
                return NA(f"the {name} is not found at the end")
    return judge(
        truth, {n: steady(f.Ts_world_object, f.model.centre) for n, f in found.items()}, frames=at, slack=SLACK_M
    )


def _deciding(truth: Episode) -> set[str]:
    if "roles" in truth.facts:
        roles = truth.facts["roles"]
        own = {roles["target"]["body"], (roles["goal"] or {}).get("body", ""), *(r["body"] for r in roles["extra"])}
        return own | ({roles["target"]["joint"]["body"]} if roles["target"]["joint"] else set())
    return {str(truth.facts.get("thing", ""))}


def _right(verdict: str | NA, truth: Episode) -> Value:
    if truth.outcome == "unknown":
        return NA("the true outcome is unknown")
    if isinstance(verdict, NA):
        return 0.0 if verdict.reason.endswith("not found at the end") else verdict
    return float(verdict == truth.outcome)


def _penetration(
    truth: Episode,
    models: Mapping[str, Model],
    found: Mapping[str, Found],
    said: Mapping[str, np.ndarray],
    at: np.ndarray,
) -> Value:
    if not truth.arms:
        return NA("the truth has no robot")
    things = {}
    for name, model in models.items():
        seen = found[name].found
        Ts = np.where(seen[:, None, None], found[name].Ts_world_object, np.nan)
        if not seen.any() and name in said:
            Ts = said[name][at]
        if np.isfinite(Ts).all(axis=(1, 2)).any():
            things[name] = (thing_solid(model.vertices, model.faces, whole=model.whole), Ts)
    if not things:
        return NA("no thing was found")
    return float(depths(truth.arms, at, things).mean())


def _plain(verdict: str | NA) -> str:
    return f"n/a: {verdict.reason}" if isinstance(verdict, NA) else verdict
