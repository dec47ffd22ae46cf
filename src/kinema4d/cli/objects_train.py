"""``kinema4d objects train``: the model that foretells the kinematics of objects it never saw."""

from __future__ import annotations

from pathlib import Path
from typing import Literal


def train_objects(
    *,
    data: Path,
    out: Path,
    preset: Literal["small", "large"] = "small",
    steps: int | None = None,
    counted: bool = True,
    turned: bool = True,
    start: Path | None = None,
    threads: int | None = None,
) -> None:
    """Train the model of unseen objects on a data set of 'objects generate'. A run that was interrupted goes on: give the same command again.

    Logs to OUT/log.jsonl, and writes OUT/objects.safetensors, for 'objects simulate MESH --weights'.

    Args:
        data: Data set: its split train is learned from, its split val judged on. Objects of which a part bends are left out.
        out: Folder of the run.
        preset: small for a CPU, large for a GPU.
        steps: Steps in all; default 6000.
        counted: Ask for no more coordinates than an object has; otherwise all may be used for the same motions (an ablation).
        turned: Let any pose be the one that is seen; otherwise always that at rest.
        start: Weights of the same preset to go on from, instead of from nothing.
        threads: Cores to train on; default all.
    """
    import torch

    from kinema4d.objects.amortised import PRESETS, save_model
    from kinema4d.train.objects import run_objects

    if steps is not None and steps < 1:
        raise ValueError(f"--steps must be at least 1, got {steps}")
    if threads is not None:
        torch.set_num_threads(threads)
    net = run_objects(data, out, PRESETS[preset], steps=steps, counted=counted, turned=turned, start=start, tell=_say)
    file = out / "objects.safetensors"
    about = {"data": data.name, "preset": preset, "counted": counted, "turned": turned, "steps": steps}
    print(f"{file}: sha256 {save_model(file, net, about)}")


def _say(step: int, found: dict[str, float]) -> None:
    print(f"{step:6d}  " + "  ".join(f"{name} {value:.4g}" for name, value in found.items()), flush=True)
