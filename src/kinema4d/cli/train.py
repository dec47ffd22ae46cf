"""``kinema4d train``: train the networks of the small world."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Literal

from kinema4d.cli.progress import bar
from kinema4d.train.wan_plan import WanPlan
from kinema4d.world.small.diffusion_config import DiffusionConfig

WAN = WanPlan()
"""Of wan-lora."""
DIRECT = DiffusionConfig()
"""The model of small-direct."""


def train(
    *,
    preset: Literal[
        "small",
        "small-segment",
        "small-complete",
        "small-blind",
        "small-move",
        "small-direct",
        "small-paint",
        "wan-lora",
    ]
    | None = None,
    ablation: Literal["table4", "table6"] | None = None,
    data: Path,
    out: Path,
    scenes: int = 4000,
    episodes: tuple[Path, ...] = (),
    start: Path | None = None,
    draws: int = 2,
    direct: DiffusionConfig = DIRECT,
    groups: int | None = None,
    members: tuple[str, ...] = (),
    base_steps: int = 3000,
    test: Path | None = None,
    test_episodes: int = 64,
    steps: int | None = None,
    workers: int = 2,
    threads: int | None = None,
    weights: Path | None = None,
    adapter: Path | None = None,
    variant: Literal["act", "pmcond"] = "act",
    wan: WanPlan = WAN,
) -> None:
    """Train the small world, or one network of it, or an adapter of the paper's own model. A run that was interrupted goes on: give the same command again.

    Logs to OUT/log.jsonl, and to TensorBoard where that is installed.

    Args:
        preset: small trains all networks that see, one after the other, and writes OUT/small.safetensors; small-move
            trains the correction of motions, and writes the same with it and the package's own eyes; small-direct
            trains the 4D diffusion transformer alone, and writes OUT/direct.safetensors; small-paint trains one that
            corrects what small draws, and writes OUT/paint.safetensors; wan-lora trains an adapter of Wan2.1 on latents (kinema4d data
            encode), with torchrun or accelerate launch on any number of GPUs.
        ablation: Instead of a preset, a table of the paper: trains its members with one budget from one start, judges them on
            --test, and writes OUT/table.md, table.json and plots.
        data: Folder of training pictures; what is missing of --scenes scenes is simulated and drawn into it first. For
            small-move a data set of episodes, which are seen and moved into OUT/pack first; for small-direct and
            small-paint likewise, shrunk to the model's size.
        out: Folder of the run: checkpoints and log.
        scenes: Scenes to learn from, four pictures each.
        episodes: Data sets with labels and geometry (live LIBERO, your own) whose frames are learned from too.
        start: Weights (small, or a .safetensors file of the small world) whose network a single preset goes on from; it then writes
            OUT/small.safetensors, those weights with the network that was trained. For small-direct a file of such a
            model, which may be told of the robot in another way. Default: from nothing.
        draws: Answers of the engine per episode, for small-move.
        direct: The model of small-direct, and what all members of an ablation share.
        groups: Groups of frames of a clip that small-direct learns from at a time; default 5 of 13, 0 for all.
        members: Of the ablation, by the names of its table; default all.
        base_steps: Steps of the model that is told in every way by turns, from which all members start; 0 for none.
        test: Data set that no member learns from, to judge the ablation on.
        test_episodes: How many of it, spread evenly.
        steps: Steps in all, instead of the preset's; of each member of an ablation (default 1000).
        workers: Processes that prepare data.
        threads: Cores to train on; default all.
        weights: For wan-lora: the folder of Wan2.1-I2V-14B-480P as diffusers has it.
        adapter: For wan-lora: adapter to start from (4DNeX's, Kinema4D's, your own); default from nothing.
        variant: For wan-lora without an adapter that says so: told of the robot by colour and points, or by points alone.
        wan: For wan-lora: how it is trained. --steps and --data (the folder of latents) are as everywhere.
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
    if (preset is None) == (ablation is None):
        raise ValueError("give either --preset or --ablation")
    if start is not None and (ablation or preset in ("small", presets.MOVE)):
        raise ValueError(f"--start is for presets of one network, not for {preset or ablation}")
    if ablation is not None:
        if test is None:
            raise ValueError("an ablation needs --test: a data set that no member learns from")
        _ablation(ablation, data, test, out, direct, members, steps or 1000, base_steps, test_episodes, workers)
        return
    assert preset is not None
    if preset == "wan-lora":
        _wan(data, out, weights, adapter, variant, wan if steps is None else replace(wan, steps=steps))
        return
    if weights is not None or adapter is not None:
        raise ValueError(f"--weights and --adapter are for wan-lora, not for {preset}")
    if preset == presets.MOVE:
        _move(data, out, draws, steps, workers)
        return
    if preset in (presets.DIRECT, presets.PAINT):
        _direct(data, out, direct, start, groups, steps, workers, paint=preset == presets.PAINT)
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


def _wan(data: Path, out: Path, weights: Path | None, adapter: Path | None, variant: Literal["act", "pmcond"], plan: WanPlan) -> None:  # fmt: skip
    if weights is None:
        raise ValueError("wan-lora needs --weights: the folder of Wan2.1-I2V-14B-480P as diffusers has it")
    try:
        from kinema4d.evaluate.decoded import decoded_scores
        from kinema4d.train.wan import train_adapter
    except ImportError as error:
        raise ValueError(f"wan-lora needs {error.name}: pip install 'kinema4d[wan]'") from None
    folder = train_adapter(weights, data, out, plan, adapter=adapter, variant=variant, judge=decoded_scores, tell=_say)
    print(f"{folder}: use it with kinema4d simulate --world wan --weights {weights} --adapter {folder}")


def _move(data: Path, out: Path, draws: int, steps: int | None, workers: int) -> None:
    from kinema4d.train import move_pack, presets

    with bar("seeing and moving", quiet=False) as progress:
        shards = move_pack.make_pack(out / "pack", data, draws=draws, workers=workers, progress=progress)
    net = presets.run_move(shards, out, steps=steps, tell=_say)
    digest = presets.with_mover(net, out / "small.safetensors", {"episodes": str(data), "draws": draws})
    print(f"{out / 'small.safetensors'}: sha256 {digest}")


def _direct(
    data: Path,
    out: Path,
    config: DiffusionConfig,
    start: Path | None,
    groups: int | None,
    steps: int | None,
    workers: int,
    *,
    paint: bool,
) -> None:
    from kinema4d.train import direct, direct_pack, presets
    from kinema4d.world.small.direct import save_direct
    from kinema4d.world.small.painter import painter_config

    if paint and config == DIRECT:
        config = painter_config()
    if paint != config.prior:
        raise ValueError("a painter has --direct.prior, the model that is alone has not")
    with bar("foretelling" if paint else "shrinking", quiet=False) as progress:
        shards = direct_pack.make_pack(out / "pack", data, config, workers=workers, progress=progress)
    at_once = direct.GROUPS if groups is None else groups or None
    net = presets.run_direct(shards, out, config, steps=steps, start=start, groups=at_once, tell=_say)
    file = out / ("paint.safetensors" if paint else "direct.safetensors")
    digest = save_direct(file, net, {"episodes": data.name, "start": start and start.name})
    print(f"{file}: sha256 {digest}")


def _ablation(
    name: str,
    data: Path,
    test: Path,
    out: Path,
    config: DiffusionConfig,
    members: tuple[str, ...],
    steps: int,
    base_steps: int,
    episodes: int,
    workers: int,
) -> None:
    from kinema4d.data.dataset import open_dataset
    from kinema4d.evaluate import ablation as judging
    from kinema4d.train import ablation, direct_pack

    chosen = ablation.chosen(name, members)
    if both := set(open_dataset(test).ids) & set(open_dataset(data).ids):  # before hours of training
        raise ValueError(f"{len(both)} episodes of --test are learned from (--data): judge on others")
    with bar("shrinking", quiet=False) as progress:
        shards = direct_pack.make_pack(out / "pack", data, config, workers=workers, progress=progress)

    def tell(member: str, step: int, found: dict[str, float]) -> None:
        print(f"{member:12s}", end="")
        _say(step, found)

    weights = ablation.train_members(shards, out, config, chosen, steps=steps, base_steps=base_steps, tell=tell)
    entries = [
        judging.Entry(name=n, weights=str(weights[n]), disturb=m.disturb, paper=m.paper) for n, m in chosen.items()
    ]
    with bar("judging", quiet=False) as progress:
        rows = judging.judge(entries, test, out / "scores", episodes=episodes, workers=workers, progress=progress)
    about = {
        "ablation": name,
        "steps": steps,
        "from": f"{base_steps} steps told in every way by turns",
        "episodes": len(rows[ablation.OURS]),
    }
    print(judging.write(out, judging.table_of(rows, ablation.OURS), entries, ablation.OURS, about))
    print(f"{out / 'table.md'}, table.json and a plot of each column")


def _say(step: int, found: dict[str, float]) -> None:
    print(f"{step:6d}  " + "  ".join(f"{name} {value:.4g}" for name, value in found.items()), flush=True)
