"""Latent L2: the squared difference of two clips in the space of a video model's autoencoder.

It is the mean over all elements of the squared difference of the latents, as IRASim's evaluation computes it, whose
metrics the paper follows: latents are the mode of the posterior, scaled as the model's transformer gets them, and the
first latent step is left out, because it shows the given first frame. Values of different autoencoders do not compare.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float32, UInt8

from kinema4d.evaluate.score import NA, About, Pair, Scores, Value

Encode = Callable[[np.ndarray], np.ndarray]
"""From frames, float32 ``[t, h, w, 3]`` in [-1, 1], to latents with time first, ``[s, ...]``."""
CLASSES = ("AutoencoderKLWan", "AutoencoderKL", "AutoencoderKLCogVideoX")
"""Autoencoders of diffusers that :func:`load_vae` knows."""
FRAME_BATCH = 4
"""Frames that an image autoencoder takes at once."""

METRICS = {
    "l2_latent": About(label="L2 latent", unit="", better="lower", group="video", digits=4,
                       text="Mean squared difference of the autoencoder's latents, without the first latent step."),
    "l2_latent_temp": About(label="L2 latent (temp)", unit="", better="lower", group="video", digits=4,
                            text="Mean squared difference of each latent step of the prediction and its next: lower is "
                            "smoother, and a still image has almost 0; the truth row is the aim."),
}  # fmt: skip


def scores(pair: Pair, encode: Encode | None = None) -> Scores:
    """All of ``METRICS``; n/a without an autoencoder."""
    if encode is None:
        return dict.fromkeys(METRICS, NA("no autoencoder was given: pass the folder of one (--vae)"))
    predicted = _latents(pair.predicted.rgb, encode)
    return {
        "l2_latent": _distance(predicted, _latents(pair.truth.clip.rgb, encode)),
        "l2_latent_temp": _temporal(predicted),
    }


def latent_l2(pair: Pair, encode: Encode) -> Value:
    """Mean squared difference of the latents of prediction and truth, without the first latent step."""
    return _distance(_latents(pair.predicted.rgb, encode), _latents(pair.truth.clip.rgb, encode))


def latent_l2_temp(pair: Pair, encode: Encode) -> Value:
    """Mean squared difference of each latent step of the prediction and its next."""
    return _temporal(_latents(pair.predicted.rgb, encode))


def load_vae(path: str | Path) -> Encode:
    """Encoder of an autoencoder saved by diffusers: its own folder, or a pipeline's with a ``vae`` folder inside.

    Nothing is downloaded, and only safetensors are read. Clips whose length the autoencoder cannot compress evenly
    are continued with their last frame.
    """
    path = Path(path)
    folder = next((f for f in (path, path / "vae") if (f / "config.json").is_file()), None)
    if folder is None:
        raise ValueError(f"{path} is no folder with the config.json of an autoencoder saved by diffusers")
    name = json.loads((folder / "config.json").read_text()).get("_class_name", "nothing")
    if name not in CLASSES:
        raise ValueError(f"{folder} holds a {name}, expected one of {', '.join(CLASSES)}")
    if not sorted(folder.glob("*.safetensors")):
        raise ValueError(f"{folder} has no .safetensors file; other formats can run code and are not read")
    try:
        import diffusers
        import torch
    except ImportError as error:
        raise ValueError(f"autoencoders need {error.name}: pip install 'kinema4d[metrics]'") from None
    vae = getattr(diffusers, name).from_pretrained(
        folder, use_safetensors=True, local_files_only=True, torch_dtype=torch.float32, low_cpu_mem_usage=False
    )
    vae = vae.eval().requires_grad_(False)

    def encode(frames: Float32[np.ndarray, "t h w 3"]) -> Float32[np.ndarray, "s c y x"]:
        """Scaled latents of a clip, time first."""
        with torch.inference_mode():
            return _encode(vae, torch.from_numpy(frames).movedim(-1, 1)).numpy()

    return encode


def _encode(vae: Any, frames: Any) -> Any:
    """Latents ``[s, c, y, x]`` of ``[t, 3, h, w]``."""
    import torch

    config = vae.config
    patch = config.get("patch_size") or 1
    if frames.shape[2] % patch or frames.shape[3] % patch:
        raise ValueError(
            f"this autoencoder takes images whose sides are multiples of {patch}, got {frames.shape[2]}x{frames.shape[3]}"
        )
    if type(vae).__name__ == "AutoencoderKL":
        parts = [vae.encode(part).latent_dist.mode() for part in frames.split(FRAME_BATCH)]
        z = torch.cat(parts)
    else:
        factor = _temporal_factor(config)
        # The first frame stands alone and the others go in groups; an incomplete group would be dropped.
        extra = -(len(frames) - 1) % factor
        frames = torch.cat([frames, frames[-1:].expand(extra, -1, -1, -1)])
        z = vae.encode(frames.movedim(0, 1)[None]).latent_dist.mode()[0].movedim(0, 1)
    mean, std = config.get("latents_mean"), config.get("latents_std")
    shift = torch.tensor(mean).reshape(1, -1, 1, 1) if mean else config.get("shift_factor") or 0.0
    scale = config.get("scaling_factor") or 1.0
    return (z - shift) * (scale / torch.tensor(std).reshape(1, -1, 1, 1) if std else scale)


def _temporal_factor(config: Any) -> int:
    """Frames per latent step."""
    if "temperal_downsample" in config:  # so spelled in Wan's configuration
        return 2 ** sum(config["temperal_downsample"])
    return int(config["temporal_compression_ratio"])


def _latents(rgb: UInt8[np.ndarray, "t h w 3"], encode: Encode) -> np.ndarray:
    found = np.asarray(encode(rgb.astype(np.float32) / 127.5 - 1))
    if found.ndim < 2 or not np.isfinite(found).all():
        raise ValueError(f"the autoencoder gave latents of shape {list(found.shape)}, expected finite [time, ...]")
    return found.astype(np.float64)


def _distance(a: np.ndarray, b: np.ndarray) -> Value:
    if a.shape != b.shape:
        raise ValueError(f"the autoencoder gave latents of shapes {list(a.shape)} and {list(b.shape)} for one size")
    return float(np.square(a[1:] - b[1:]).mean()) if len(a) > 1 else _alone()


def _temporal(a: np.ndarray) -> Value:
    return float(np.square(a[1:] - a[:-1]).mean()) if len(a) > 1 else _alone()


def _alone() -> NA:
    return NA("the clip has one latent step, and that shows the given frame")
