"""Teach the model of unseen objects: which parts bend, and which joints there are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

from kinema4d.data.objects4d import read_objects
from kinema4d.objects.choose import PRESETS as JOINTS
from kinema4d.objects.foretell import Foreteller, load_foreteller, save_foreteller
from kinema4d.objects.limp import PRESETS as LIMP
from kinema4d.train.choose import run_joints
from kinema4d.train.limp import run_limp

Tell = Callable[[int, dict[str, float]], None]
SOFT = ("elastic", "cloth", "rope", "mixed")
"""Categories of what bends."""


def run_objects(
    data: Sequence[Path],
    out: Path,
    *,
    preset: Literal["small", "large"] = "small",
    what: Literal["all", "joints", "limp"] = "all",
    steps: int | None = None,
    start: Path | None = None,
    about: dict[str, Any] | None = None,
    tell: Tell | None = None,
) -> tuple[Path, str]:
    """Train both networks, or one, as far as there is something to learn them from, in folders ``joints`` and ``limp`` of ``out``; write ``objects.safetensors``
    there, and return it and its hash. Joints are learned from nothing or from those of the weights ``start``. What was interrupted goes on."""
    there = {split: {o.category in SOFT for d in data for o in read_objects(d, split)} for split in ("train", "val")}
    wanted = {
        n: what == n or (what == "all" and soft in there["train"]) for n, soft in (("joints", False), ("limp", True))
    }
    for name, soft in (("joints", False), ("limp", True)):
        for split, found in there.items():
            if wanted[name] and soft not in found:
                raise ValueError(f"the split {split!r} has no objects to {'learn' if split == 'train' else 'judge'} {name} by: make a larger data set, or train one of both with --model")  # fmt: skip
    before = None if start is None else load_foreteller(start)[0].joints
    joints = (
        run_joints(data, out / "joints", JOINTS[preset], steps=steps, start=before, tell=tell)
        if wanted["joints"]
        else None
    )
    limp = run_limp(data, out / "limp", LIMP[preset], steps=steps, tell=tell) if wanted["limp"] else None
    file = out / "objects.safetensors"
    return file, save_foreteller(file, Foreteller(joints=joints, limp=limp), {"preset": preset, **(about or {})})
