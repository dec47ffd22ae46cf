"""What generation costs and gives: steps of the flow, priors that contradict the picture, and speed.

    python benchmarks/paint.py --data out/world/iid-96                              # small-direct: steps, speed
    python benchmarks/paint.py --data out/world/iid-96 --painter runs/p/paint.safetensors   # also a painter, and shuffled priors
    python benchmarks/paint.py --data out/world/iid --episodes 30 --only-sheets --sheets out/paint   # to look at

``steps``: the same episodes and seeds with 1, 2, 4 and 25 steps of the flow; LPIPS and the PSNR of what was uncovered, and
the difference from 25 steps by pairs. ``shuffled``: a painter gets the prior of another episode. It must not invent things: the
share of pixels that it puts at least 1 cm nearer than both the picture and the prior have them, and how far its colours
are from the prior's, beside the same with the right prior. ``speed``: 49 frames at the size of the data, both cores, with
the memory that the process takes; the worlds take turns in one run.
"""

from __future__ import annotations

import json as json_module
import subprocess
import sys
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import tyro
from world_pictures import COLUMNS, EACH, Strip, contact_sheet, jpeg
from world_scores import the_data

from kinema4d.data.dataset import open_dataset
from kinema4d.data.pool import spread
from kinema4d.evaluate import perceptual
from kinema4d.evaluate.foretell import control_of, foretell
from kinema4d.evaluate.interaction import interact
from kinema4d.evaluate.score import NA, Pair
from kinema4d.evaluate.statistics import paired
from kinema4d.files import whole_file
from kinema4d.world.load import load_world
from kinema4d.world.protocol import first_depth

STEPS = (1, 2, 4, 25)
NEARER_M = 0.01
"""What is so much nearer than picture and prior was invented, metres."""


@lru_cache(maxsize=2)
def a_world(name: str) -> Any:
    """A world, on one thread."""
    import torch

    torch.set_num_threads(1)
    return load_world(name)


def stepped(job: tuple[str, str, str]) -> dict[str, Any]:
    """Scores of one episode by number of steps."""
    root, id, world = job
    truth = the_data(root).load(id)
    out: dict[str, Any] = {"group": truth.group}
    for steps in STEPS:
        made = foretell(a_world(world), truth, steps=steps, text=truth.text)
        pair = Pair(predicted=made.clip, truth=truth)
        scores = dict(interact(pair).scores) | perceptual.scores(pair, networks=("alex",))
        wanted = {"lpips": scores["lpips_alex"], "disocclusion_psnr_db": scores["disoccluded_psnr_db"]}
        out[str(steps)] = {k: None if isinstance(v, NA) else float(v) for k, v in wanted.items()}
    return out


def by_steps(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Means, and the difference from the most steps by pairs of episodes."""
    out: dict[str, Any] = {}
    most = str(STEPS[-1])
    for steps in map(str, STEPS):
        out[steps] = {}
        for key in ("lpips", "disocclusion_psnr_db"):
            both = [
                (r[most][key], r[steps][key], r["group"]) for r in rows if None not in (r[most][key], r[steps][key])
            ]
            if not both:
                continue
            pairs = paired([a for a, _, _ in both], [b for _, b, _ in both], groups=[g for _, _, g in both])
            out[steps][key] = float(np.mean([b for _, b, _ in both]))
            if not isinstance(pairs, NA):
                out[steps][f"{key}_against_{most}"] = [pairs.difference, *pairs.interval]
    return out


def shuffled(job: tuple[str, str, str, str]) -> dict[str, Any]:
    """One episode painted with its own prior and with that of another."""
    from kinema4d.world.small.direct import load_painter
    from kinema4d.world.small.painter import painted

    root, id, other, painter = job
    net = load_painter(painter)
    out: dict[str, Any] = {}
    truth = the_data(root).load(id)
    image, control = truth.clip.rgb[0], control_of(truth)
    for name, source in {"own": id, "other": other}.items():
        stranger = the_data(root).load(source)
        prior = a_world("small").prior(stranger.clip.rgb[0], control_of(stranger), depth=first_depth(stranger.clip))
        made = painted(net, image, control, prior)
        z, before = made.pointmap.depth, prior.pointmap.depth
        seen = truth.clip.pointmap.depth[:1]
        free = ~control.mask
        out[f"{name}_invented"] = float(((z < np.minimum(before, seen) - NEARER_M) & free)[1:].mean())
        out[f"{name}_colour"] = float(np.abs(made.rgb.astype(np.int16) - prior.rgb)[1:].mean())
    return out


def drawn(job: tuple[str, str, tuple[str, ...]]) -> tuple[str, dict[str, np.ndarray]]:
    """Some frames of an episode, the truth and what worlds make of it."""
    root, id, worlds = job
    truth = the_data(root).load(id)
    at = np.linspace(0, len(truth) - 1, COLUMNS).round().astype(int)
    out = {"truth": truth.clip.rgb[at]}
    for name in worlds:
        out[Path(name).stem] = foretell(a_world(name), truth).clip.rgb[at]
    return f"{truth.task}, {truth.arms[0].robot}, truly a {truth.outcome}   ({id})", out


SPEED = """
import json, resource, sys, time
from kinema4d.world.small.machine import guard
guard()
from kinema4d.data.dataset import open_dataset
from kinema4d.robot.recorded import control_of
from kinema4d.world.load import load_world
from kinema4d.world.protocol import first_depth
root, name, painter = sys.argv[1:]
world = load_world(name, painter=painter or None)
dataset = open_dataset(root)
times = []
for n, id in enumerate([dataset.ids[0], *dataset.ids[:6]]):  # the first compiles and warms up
    episode = dataset.load(id)
    begin = time.perf_counter()
    world.simulate(episode.clip.rgb[0], control_of(episode), depth=first_depth(episode.clip))
    if n:
        times.append(time.perf_counter() - begin)
print(json.dumps({"seconds": sum(times) / len(times), "peak_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6}))
"""
"""Six rollouts, from robot and first frame to clip, in a process of their own."""


def speed(data: Path, world: str, painter: Path | None) -> dict[str, float]:
    """Seconds per rollout of 49 frames and peak memory."""
    command = [sys.executable, "-c", SPEED, str(data), world, "" if painter is None else str(painter)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found = json_module.loads(done.stdout.splitlines()[-1])
    return found | {"realtime_factor": 4.9 / found["seconds"]}


def main(
    *,
    data: Path,
    direct: str = "small-direct",
    painter: Path | None = None,
    episodes: int = 32,
    timing: bool = True,
    sheets: Path | None = None,
    only_sheets: bool = False,
    workers: int = 2,
    json: bool = False,
) -> None:
    """See the top of this file.

    Args:
        data: Data set of whole episodes with truth, such as benchmarks/world.py makes.
        direct: World that is sampled by a flow: small-direct or its weights.
        painter: Weights of a painter.
        episodes: How many, spread over the set.
        timing: Also speed, for which the machine should be idle.
        sheets: Write contact sheets there, three episodes each: truth, small, small-motion and the world that is sampled.
        only_sheets: Nothing else.
        workers: Processes.
        json: Print one JSON object.
    """
    ids = open_dataset(data).ids
    picks = [ids[i * len(ids) // min(episodes, len(ids))] for i in range(min(episodes, len(ids)))]
    if sheets is not None:
        jobs = [(str(data), i, ("small", "small-motion", direct)) for i in picks]
        strips = [Strip(*found) for found in spread(drawn, jobs, workers=workers)]
        for n in range(0, len(strips), EACH):
            with whole_file(sheets / f"sheet-{n // EACH:02d}.jpg", overwrite=True) as file:
                file.write_bytes(jpeg(contact_sheet(strips[n : n + EACH])))
        if only_sheets:
            return
    rows = spread(stepped, [(str(data), i, direct) for i in picks], workers=workers)
    out: dict[str, Any] = {"episodes": len(picks), "steps": by_steps(rows)}
    if painter is not None:
        jobs = [(str(data), a, b, str(painter)) for a, b in zip(picks, [*picks[1:], picks[0]], strict=True)]
        found = spread(shuffled, jobs, workers=workers)
        out["shuffled"] = {k: float(np.mean([f[k] for f in found])) for k in found[0]}
    if timing:
        out["speed"] = {w: speed(data, w, None) for w in ("small-motion", "small", direct)}
        if painter is not None:
            out["speed"]["small with painter"] = speed(data, "small", painter)
    print(json_module.dumps(out, indent=1) if json else _text(out))


def _text(out: dict[str, Any]) -> str:
    return "\n".join(
        f"{k}: {json_module.dumps(v)}" for part in out.values() if isinstance(part, dict) for k, v in part.items()
    )


if __name__ == "__main__":
    tyro.cli(main)
