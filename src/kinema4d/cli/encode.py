"""``kinema4d data encode``: a data set as latents for the full-scale model."""

from __future__ import annotations

import json as json_module
from pathlib import Path
from typing import Annotated

import tyro

from kinema4d.cli.progress import bar


def encode(
    dataset: Annotated[Path, tyro.conf.Positional],
    /,
    *,
    vae: Path,
    out: Path,
    frames: int = 49,
    height: int = 480,
    width: int = 720,
    device: str = "auto",
    release: bool = False,
    json: bool = False,
) -> None:
    """Encode a data set for training the full-scale model. Run again after a kill, it goes on; under torchrun each process takes its share.

    Args:
        dataset: Folder that 'data generate' or 'data ingest' wrote.
        vae: Folder of Wan2.1-I2V as diffusers has it: its vae, image_encoder and image_processor are used.
        out: Folder to write, one file per episode.
        frames: Of a clip, 1 + a multiple of 4.
        height: Rows that the model sees.
        width: Columns.
        device: cuda, cuda:1, cpu; auto takes a GPU where there is one.
        release: Also write the layout of the official release, under OUT/release.
        json: Print one JSON object instead of text.
    """
    from kinema4d.world.small.machine import guard
    from kinema4d.world.wan.options import Setup

    guard()
    try:
        from kinema4d.train.encode import encode_dataset, measure
        from kinema4d.world.wan.latents import latent_shape
        from kinema4d.world.wan.load import eyes_of
    except ImportError as error:
        raise ValueError(f"encoding needs {error.name}: pip install 'kinema4d[wan]'") from None
    latent_shape(frames, height, width)
    coder, clip, eye = eyes_of(vae, Setup(device=device))
    with bar("encoding", quiet=json) as progress:
        done = encode_dataset(
            dataset, out, vae=coder, clip=clip, eye=eye, frames=frames, height=height, width=width, release=release, progress=progress,
        )  # fmt: skip
    stats = measure(out)
    found = {**done, "pointmap_mean": round(stats.mean, 4), "pointmap_std": round(stats.std, 4), "path": str(out)}
    if json:
        print(json_module.dumps(found))
        return
    print(f"encoded {done['encoded']} episodes, {done['kept']} were there already, {done['left_out']} left out: {out}")
    print(f"latents of pointmaps: mean {stats.mean:.3f}, deviation {stats.std:.3f} (the release has -0.17 and 1.36)")
