"""``kinema4d objects train``: the models that foretell the kinematics of objects they never saw."""

from __future__ import annotations

from pathlib import Path
from typing import Literal


def train_objects(
    *,
    data: tuple[Path, ...],
    out: Path,
    model: Literal["all", "joints", "limp", "field"] = "all",
    preset: Literal["small", "large"] = "small",
    steps: int | None = None,
    start: Path | None = None,
    augment: bool = True,
    dual: bool = True,
    nested: bool = True,
    parts: bool = False,
    threads: int | None = None,
) -> None:
    """Train a model of unseen objects on a data set of 'objects generate'. A run that was interrupted goes on: give the same command again.

    Logs to OUT/joints/log.jsonl and OUT/limp/log.jsonl; writes OUT/objects.safetensors, for 'objects simulate MESH --weights'. The field, which is NeuROK's own model,
    logs to OUT/log.jsonl and is written to OUT/field.safetensors, for kinema4d.objects.field_object.

    Args:
        data: Data sets: their split train is learned from, their split val judged on.
        out: Folder of the run.
        model: limp, which parts bend; joints of those that keep their form; all of both; or field, as in the paper, for its ablations.
        preset: small for a CPU, large for a GPU.
        steps: Steps in all of each; default 8000 of joints, 3000 of what bends, 20000 of a field.
        start: Of joints: weights of the same preset to go on from, instead of from nothing.
        augment: Field: turn and scale at random, and let any pose be the one that is seen (an ablation).
        dual: Field: deformations are dual quaternions; otherwise displacements (an ablation).
        nested: Field: order latents by nested dropout (an ablation).
        parts: Field: tell every point the middle and radius of the connected part that it is on, which the paper does not.
        threads: Cores to train on; default all.
    """
    import torch

    if steps is not None and steps < 1:
        raise ValueError(f"--steps must be at least 1, got {steps}")
    told = {"augment": augment, "dual": dual, "nested": nested}
    wrong = [(f"--no-{name}", "field") for name, on in told.items() if not on and model != "field"]
    wrong += [("--start", "joints")] * (start is not None and model not in ("all", "joints"))
    wrong += [("--parts", "field")] * (parts and model != "field")
    if wrong:
        raise ValueError(f"{wrong[0][0]} is for --model {wrong[0][1]}, and this is --model {model}")
    if threads is not None:
        torch.set_num_threads(threads)
    about = {"data": [d.name for d in data], "preset": preset, "steps": steps}
    if model == "field":
        from dataclasses import replace

        from kinema4d.objects.field import PRESETS as FIELDS
        from kinema4d.objects.field import save_field
        from kinema4d.train.object_field import Recipe, run_field

        recipe = replace(Recipe() if augment else Recipe.plain(), nested=nested)
        field = run_field(data, out, replace(FIELDS[preset], dual=dual, parts=parts), recipe, steps=steps, tell=_say)
        file = out / "field.safetensors"
        digest = save_field(file, field, {**about, "augment": augment, "nested": nested})
    else:
        from kinema4d.train.objects import run_objects

        file, digest = run_objects(
            data, out, preset=preset, what=model, steps=steps, start=start, about=about, tell=_say
        )
    print(f"{file}: sha256 {digest}")


def _say(step: int, found: dict[str, float]) -> None:
    print(f"{step:6d}  " + "  ".join(f"{name} {value:.4g}" for name, value in found.items()), flush=True)
