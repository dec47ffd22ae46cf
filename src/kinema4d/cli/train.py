"""``kinema4d train``: train the networks of the small world."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from kinema4d.cli.progress import bar


def train(
    *,
    preset: Literal["small", "small-segment", "small-complete", "small-blind", "small-move", "small-direct"],
    data: Path,
    out: Path,
    scenes: int = 4000,
    episodes: tuple[Path, ...] = (),
    start: Path | None = None,
    draws: int = 2,
    control: str = "pointmap",
    steps: int | None = None,
    workers: int = 2,
    threads: int | None = None,
) -> None:
    """Train the small world, or one network of it. A run that was interrupted goes on: give the same command again.

    Logs to OUT/log.jsonl, and to TensorBoard where that is installed.

    Args:
        preset: small trains all networks that see, one after the other, and writes OUT/small.safetensors; small-move
            trains the correction of motions, and writes the same with it and the package's own eyes; small-direct
            trains the 4D diffusion transformer alone, and writes OUT/direct.safetensors.
        data: Folder of training pictures; what is missing of --scenes scenes is simulated and drawn into it first. For
            small-move a data set of episodes, which are seen and moved into OUT/pack first; for small-direct likewise,
            shrunk to the model's size.
        out: Folder of the run: checkpoints and log.
        scenes: Scenes to learn from, four pictures each.
        episodes: Data sets with labels and geometry (live LIBERO, your own) whose frames are learned from too.
        start: Weights (small, or a .safetensors file of the small world) whose network a single preset goes on from; it then writes
            OUT/small.safetensors, those weights with the network that was trained. Default: from nothing.
        draws: Answers of the engine per episode, for small-move.
        control: What tells small-direct of the robot: pointmap, pointmap+rgb, rgb, mask, depth, embedding, text or none.
        steps: Steps in all, instead of the preset's.
        workers: Processes that prepare data.
        threads: Cores to train on; default all.
    """
    from kinema4d.world.small.machine import guard

    guard()
    try:
        import torch
    except ImportError:
        raise ValueError("training needs torch: pip install 'kinema4d[world]'") from None
    from kinema4d.train import presets

    if scenes < 8 or (steps is not None and steps < 1):
        raise ValueError(f"--scenes must be at least 8 and --steps at least 1, got {scenes} and {steps}")
    if threads is not None:
        torch.set_num_threads(threads)
    if start is not None and preset in ("small", presets.MOVE, presets.DIRECT):
        raise ValueError(f"--start is for presets of one network that sees, not for {preset}")
    if preset == presets.MOVE:
        _move(data, out, draws, steps, workers)
        return
    if preset == presets.DIRECT:
        _direct(data, out, control, steps, workers)
        return
    with bar("drawing", quiet=False) as progress:
        held_out = max(8, min(64, scenes // 8))
        presets.pack(data, scenes=scenes, held_out=held_out, workers=workers, progress=progress, episodes=episodes)
    names = list(presets.PRESETS) if preset == "small" else [preset]
    for name in names:
        folder = out / name if preset == "small" else out
        print(f"{name}: {presets.PRESETS[name].about}", flush=True)
        presets.run(name, data, folder, steps=steps, start=start, tell=_say)
    if preset == "small" or start is not None:
        about = {"scenes": scenes, "episodes": [p.name for p in episodes]}
        file = out / "small.safetensors"
        digest = (
            presets.assemble(out, file, about) if start is None else presets.replaced(start, preset, out, file, about)
        )
        print(f"{file}: sha256 {digest}")


def _move(data: Path, out: Path, draws: int, steps: int | None, workers: int) -> None:
    from kinema4d.train import move_pack, presets

    with bar("seeing and moving", quiet=False) as progress:
        shards = move_pack.make_pack(out / "pack", data, draws=draws, workers=workers, progress=progress)
    net = presets.run_move(shards, out, steps=steps, tell=_say)
    digest = presets.with_mover(net, out / "small.safetensors", {"episodes": str(data), "draws": draws})
    print(f"{out / 'small.safetensors'}: sha256 {digest}")


def _direct(data: Path, out: Path, control: str, steps: int | None, workers: int) -> None:
    from kinema4d.train import direct, presets
    from kinema4d.world.small.diffusion import DiffusionConfig
    from kinema4d.world.small.direct import save_direct

    config = DiffusionConfig(control=control)
    with bar("shrinking", quiet=False) as progress:
        shards = direct.make_pack(out / "pack", data, config, workers=workers, progress=progress)
    net = presets.run_direct(shards, out, config, steps=steps, tell=_say)
    digest = save_direct(out / "direct.safetensors", net, {"episodes": str(data)})
    print(f"{out / 'direct.safetensors'}: sha256 {digest}")


def _say(step: int, found: dict[str, float]) -> None:
    print(f"{step:6d}  " + "  ".join(f"{name} {value:.4g}" for name, value in found.items()), flush=True)
