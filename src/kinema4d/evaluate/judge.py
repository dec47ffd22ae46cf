"""All metrics on all rollouts, beside the static world and the truth itself.

``judge`` finds the truth of every rollout, scores it, scores what a world in which nothing answers would have got, and
what the truth itself gets (each metric's ceiling, and the error of our own instruments). The score of each clip is
kept under the report folder by the hash of all that it depends on, so a run that was interrupted goes on.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from kinema4d.data.dataset import Dataset, open_dataset
from kinema4d.data.dataset import Row as Listed
from kinema4d.data.pool import Progress, spread
from kinema4d.data.store import load, read_meta
from kinema4d.evaluate import following, frechet, geometry, interaction, latent, perceptual, sensitivity, video
from kinema4d.evaluate.pictures import jpeg, sheet
from kinema4d.evaluate.report import Report, Row
from kinema4d.evaluate.score import NA, About, Pair, Scores
from kinema4d.evaluate.weights import WEIGHTS
from kinema4d.files import whole_file
from kinema4d.robot.control import project
from kinema4d.robot.zoo import load_robot
from kinema4d.types import Clip, Episode, Rollout
from kinema4d.world.protocol import first_depth
from kinema4d.world.static import StaticWorld

GROUPS = (
    "video",
    "lpips_alex",
    "lpips_vgg",
    "l2_latent",
    "fvd",
    "fid",
    "fd_alexnet",
    "geometry",
    "following",
    "interaction",
)
"""What can be asked for."""
USUAL = ("video", "lpips_alex", "geometry", "following", "interaction")
"""What is computed unless something else is asked for: about two CPU-seconds per clip of 49x96x144."""
WORLDS = ("prediction", "static", "truth")
"""Columns of the table."""
PER_GROUP = 2
"""Rollouts of one scene that are compared with each other for sensitivity."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What is measured, and how."""

    metrics: tuple[str, ...] = USUAL
    """Some of ``GROUPS``."""
    tau: float = 0.01
    """Threshold of the F-score, metres."""
    vae: str = ""
    """Folder of the VAE for ``l2_latent``."""
    weights: str = ""
    """Folder of the metrics' networks; empty for the usual one."""

    def __post_init__(self) -> None:
        unknown = [m for m in self.metrics if m not in GROUPS]
        if unknown:
            raise ValueError(f"unknown metrics {', '.join(unknown)}; known are {', '.join(GROUPS)}")
        if not self.tau > 0:
            raise ValueError(f"tau must be positive, got {self.tau}")
        if "l2_latent" in self.metrics and not self.vae:
            raise ValueError("l2_latent needs the folder of a VAE: --vae FOLDER, as diffusers saves it")


@dataclass(frozen=True, kw_only=True)
class Found:
    """A rollout and the episode that it foretells."""

    path: str
    """Its clip folder, or empty for a data set's own episode."""
    episode: str
    """Id of its truth."""
    seed: int | None
    """Which sample it is."""
    sha256: str
    """Of its ``meta.json``, which holds the hash of every other file."""


def about(settings: Settings) -> dict[str, About]:
    """The meaning of every number that ``settings`` asks for, in the order of the table."""
    chosen = settings.metrics
    out: dict[str, About] = {}
    if "video" in chosen:
        out |= video.METRICS
    for name in ("lpips_alex", "lpips_vgg"):
        if name in chosen:
            out |= {k: v for k, v in perceptual.METRICS.items() if k.startswith(name)}
    if "l2_latent" in chosen:
        out |= latent.METRICS
    out |= {k: v for k, v in frechet.METRICS.items() if k in chosen}
    if "geometry" in chosen:
        out |= geometry.METRICS
    if "following" in chosen:
        out |= following.METRICS | sensitivity.METRICS
    if "interaction" in chosen:
        out |= interaction.METRICS
    return out


def find(folder: str | Path, dataset: Dataset) -> list[Found]:
    """Every rollout in ``folder`` (clip folders in it, or a data set, whose episodes are taken as predictions)."""
    folder = Path(folder)
    if not folder.is_dir():
        raise ValueError(f"{folder} is no folder of rollouts")
    if (folder / "dataset.json").is_file():
        rows = open_dataset(folder).rows
        paths = [folder / "episodes" / row.id for row in rows]
    elif (folder / "meta.json").is_file():
        paths = [folder]
    else:
        paths = sorted(p.parent for p in folder.rglob("meta.json"))
    known = {row.id for row in dataset.rows}
    out, strangers = [], []
    for path in paths:
        meta = read_meta(path)
        made = meta.get("rollout", {})
        name = str(made.get("episode", path.name))
        if name not in known:
            strangers.append(name)
            continue
        seed = made.get("seed")
        out.append(
            Found(
                path=str(path),
                episode=name,
                seed=int(seed) if seed is not None else None,
                sha256=hashlib.sha256((path / "meta.json").read_bytes()).hexdigest(),
            )
        )
    if strangers:
        raise ValueError(
            f"{len(strangers)} of {len(paths)} rollouts have no truth in {dataset.root}, such as {strangers[0]!r}: "
            "a rollout's folder, or 'episode' in its provenance, names the episode that it foretells"
        )
    if not out:
        raise ValueError(f"{folder} holds no rollout: expected clip folders, each with a meta.json")
    return out


def judge(
    rollouts: str | Path,
    truth: str | Path,
    *,
    settings: Settings | None = None,
    keep: str | Path | None = None,
    workers: int = 2,
    progress: Progress | None = None,
) -> Report:
    """Score every rollout and its two neighbours; ``keep`` is a folder for scores that a next run finds again."""
    settings = settings or Settings()
    dataset = open_dataset(truth)
    found = find(rollouts, dataset)
    kept = Path(keep) if keep is not None else None
    work = partial(_judge_one, str(dataset.root), settings, kept)
    results = spread(work, found, workers=workers, progress=progress)
    rows = tuple(row for result in results for row in _rows(result, dataset))
    sets = {world: _set_scores(world, results, settings) for world in WORLDS}
    if "following" in settings.metrics:
        for world, scores in _sensitivity(found, dataset).items():
            sets[world] |= scores
    return Report(
        rows=rows,
        set_scores=sets,
        about=about(settings),
        config={
            "settings": {k: v for k, v in asdict(settings).items() if k not in ("weights", "vae")},
            "versions": _versions(settings),
            "weights": _weights(settings),
            "rollouts": [{"episode": f.episode, "seed": f.seed, "sha256": f.sha256} for f in found],
            "truth": {f.episode: dataset.row(f.episode).sha256 for f in found},
        },
    )


def pictures(rollouts: str | Path, truth: str | Path) -> Callable[[str], bytes | None]:
    """Contact sheets by episode, for the report: its first sample beside its truth."""
    dataset = open_dataset(truth)
    found: dict[str, Found] = {}
    for f in find(rollouts, dataset):
        found.setdefault(f.episode, f)

    def picture(episode: str) -> bytes | None:
        clip = _clip("prediction", dataset.load(episode), found[episode])
        return None if isinstance(clip, NA) else jpeg(sheet(clip, dataset.load(episode).clip))

    return picture


def score(pair: Pair, settings: Settings) -> tuple[Scores, dict[str, Any], dict[str, np.ndarray]]:
    """One pair: its scores, what explains them, and the features for set-level metrics."""
    chosen, folder = settings.metrics, Path(settings.weights) if settings.weights else None
    scores: Scores = {}
    details: dict[str, Any] = {}
    features: dict[str, np.ndarray] = {}
    if "video" in chosen:
        scores |= video.scores(pair)
    networks = tuple(n.removeprefix("lpips_") for n in ("lpips_alex", "lpips_vgg") if n in chosen)
    if networks:
        scores |= perceptual.scores(pair, networks=networks, folder=folder)
    if "l2_latent" in chosen:
        scores |= latent.scores(pair, _vae(settings.vae))
    for name in ("fvd", "fid", "fd_alexnet"):
        if name in chosen:
            found = frechet.features(name, pair.predicted, folder=folder)
            if isinstance(found, NA):
                details[f"{name}_missing"] = found.reason
            else:
                features[name] = found
    if "geometry" in chosen:
        scores |= geometry.scores(pair, tau=settings.tau)
    if "following" in chosen:
        follows = following.follow(pair)
        scores |= follows.scores
        details["following"] = follows.details
    if "interaction" in chosen:
        acted = interaction.interact(pair)
        scores |= acted.scores
        details["interaction"] = acted.details
    return scores, details, features


def static_rollout(truth: Episode) -> Rollout | NA:
    """What a world in which nothing answers makes of an episode."""
    if not truth.arms:
        return NA("no robot in the truth: there is nothing to put over the first frame")
    if truth.clip.camera.moving:
        return NA("the camera moves: the static world cannot see its first frame from elsewhere")
    robots = [load_robot(arm.robot) for arm in truth.arms]
    control = project(robots, truth.arms, truth.clip.camera)
    return StaticWorld().simulate(truth.clip.rgb[0], control, depth=first_depth(truth.clip))


# ---------------------------------------------------------------------- one rollout, in a worker


def _judge_one(root: str, settings: Settings, keep: Path | None, found: Found) -> dict[str, Any]:
    """``{world: {"scores": ..., "missing": ..., "details": ..., "features": ...}}`` of one rollout."""
    dataset = _opened(root)
    row = dataset.row(found.episode)
    out: dict[str, Any] = {"found": found}
    loaded: dict[str, Any] = {}
    for world in WORLDS:
        depends = {"world": world, "truth": row.sha256, "settings": asdict(settings), "versions": _versions(settings)}
        if world == "prediction":
            depends["prediction"] = found.sha256
        key = hashlib.sha256(json.dumps(depends, sort_keys=True).encode()).hexdigest()[:32]
        result = _kept(keep, key)
        if result is None:
            if not loaded:
                loaded["truth"] = dataset.load(found.episode)
            result = _scored(world, loaded["truth"], found, settings)
            _keep(keep, key, result)
        out[world] = result
    return out


def _scored(world: str, truth: Episode, found: Found, settings: Settings) -> dict[str, Any]:
    if world == "prediction":
        made = load(found.path)
        tracks = made.tracks if isinstance(made, Rollout | Episode) else ()
        clip = made if isinstance(made, Clip) else made.clip
    elif world == "static":
        made = static_rollout(truth)
        if isinstance(made, NA):
            names = [n for n in about(settings) if n not in _set_names()]
            return {"scores": {}, "missing": dict.fromkeys(names, made.reason), "details": {}, "features": {}}
        clip, tracks = made.clip, ()
    else:
        clip, tracks = truth.clip, truth.tracks
    try:
        pair = Pair(predicted=clip, truth=truth, tracks=tracks)
    except ValueError as error:
        raise ValueError(f"{found.path} against {found.episode}: {error}") from None
    scores, details, features = score(pair, settings)
    return {
        "scores": {k: float(v) for k, v in scores.items() if not isinstance(v, NA)},
        "missing": {k: v.reason for k, v in scores.items() if isinstance(v, NA)},
        "details": details,
        "features": {k: v.tolist() for k, v in features.items()},
    }


def _kept(folder: Path | None, key: str) -> dict[str, Any] | None:
    if folder is None or not (folder / f"{key}.json").is_file():
        return None
    return json.loads((folder / f"{key}.json").read_text())


def _keep(folder: Path | None, key: str, result: dict[str, Any]) -> None:
    if folder is None:
        return
    folder.mkdir(parents=True, exist_ok=True)
    with whole_file(folder / f"{key}.json", overwrite=True) as file:
        file.write_text(json.dumps(result, sort_keys=True))


@lru_cache(maxsize=2)
def _opened(root: str) -> Dataset:
    return open_dataset(root)


@lru_cache(maxsize=1)
def _vae(path: str) -> Callable[..., np.ndarray]:
    return latent.load_vae(path)


# ---------------------------------------------------------------------- all rollouts


def _rows(result: dict[str, Any], dataset: Dataset) -> list[Row]:
    found: Found = result["found"]
    listed = dataset.row(found.episode)
    return [_row(world, result[world], found, listed) for world in WORLDS]


def _row(world: str, part: dict[str, Any], found: Found, listed: Listed) -> Row:
    scores: Scores = {**part["scores"], **{k: NA(v) for k, v in part["missing"].items()}}
    return Row(
        world=world,
        episode=found.episode,
        seed=found.seed,
        source=listed.source.split("/")[0],
        task=listed.task,
        outcome=listed.outcome,
        group=listed.group,
        robot=", ".join(listed.robots),
        scenario=str(listed.facts.get("scenario", "")),
        scores=scores,
        details=part["details"],
    )


def _set_names() -> set[str]:
    return set(frechet.METRICS) | set(sensitivity.METRICS)


def _set_scores(world: str, results: Sequence[dict[str, Any]], settings: Settings) -> Scores:
    out: Scores = {}
    for name in frechet.METRICS:
        if name not in settings.metrics:
            continue
        missing = [r[w]["details"].get(f"{name}_missing") for r in results for w in (world, "truth")]
        pairs = [(r[world]["features"], r["truth"]["features"]) for r in results]
        both = [(a[name], b[name]) for a, b in pairs if name in a and name in b]
        if not both:
            out[name] = NA(next((m for m in missing if m), "no clip has features"))
            continue
        predicted, true = (np.concatenate([np.atleast_2d(np.array(x[i], np.float32)) for x in both]) for i in (0, 1))
        out[name] = frechet.distance(predicted, true, clips=len(both))
    return out


def _sensitivity(found: Sequence[Found], dataset: Dataset) -> dict[str, Scores]:
    """Mean over scenes of how much two predictions of one scene differ, against how much their truths do."""
    groups: dict[str, list[Found]] = {}
    for f in found:
        group = groups.setdefault(dataset.row(f.episode).group, [])
        if f.episode not in {g.episode for g in group}:
            group.append(f)
    values: dict[str, dict[str, list[float]]] = {w: {n: [] for n in sensitivity.METRICS} for w in WORLDS}
    reasons: dict[str, str] = {}
    for group, members in groups.items():
        if not group or len(members) < PER_GROUP:
            continue
        truths = [dataset.load(m.episode) for m in members[:PER_GROUP]]
        for world in WORLDS:
            clips = [_clip(world, t, m) for t, m in zip(truths, members, strict=False)]
            if any(isinstance(c, NA) for c in clips):
                continue
            pairs = [Pair(predicted=c, truth=t) for c, t in zip(clips, truths, strict=True) if not isinstance(c, NA)]
            for name, value in sensitivity.sensitivity(*pairs).items():
                if isinstance(value, NA):
                    reasons[name] = value.reason
                else:
                    values[world][name].append(value)
    none = "no scene has two rollouts with different actions"
    return {
        world: {name: float(np.mean(v)) if v else NA(reasons.get(name, none)) for name, v in values[world].items()}
        for world in WORLDS
    }


def _clip(world: str, truth: Episode, found: Found) -> Clip | NA:
    if world == "truth":
        return truth.clip
    made = load(found.path) if world == "prediction" else static_rollout(truth)
    return made if isinstance(made, Clip | NA) else made.clip


def _versions(settings: Settings) -> dict[str, str]:
    """Versions of everything that a score can depend on."""
    from importlib.metadata import PackageNotFoundError, version

    names = ["kinema4d", "numpy", "scipy", "numba"]
    if set(settings.metrics) & {"lpips_alex", "lpips_vgg", "l2_latent", "fvd", "fid", "fd_alexnet"}:
        names += ["torch"]
    if "l2_latent" in settings.metrics:
        names += ["diffusers"]
    out = {}
    for name in names:
        try:
            out[name] = version(name)
        except PackageNotFoundError:
            out[name] = "absent"
    return out


def _weights(settings: Settings) -> dict[str, str]:
    """Which networks measured, by their pinned hashes, so that runs with others are not compared."""
    used = {
        "lpips_alex": "lpips_alex",
        "fd_alexnet": "lpips_alex",
        "lpips_vgg": "lpips_vgg",
        "fvd": "i3d",
        "fid": "inception",
    }
    sources = {used[m]: WEIGHTS[used[m]] for m in settings.metrics if m in used}
    return {name: source.tensors_sha256 or source.sha256 for name, source in sorted(sources.items())}
