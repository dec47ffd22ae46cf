"""How different two clips look to people, as far as a network knows: LPIPS v0.1 with AlexNet and with VGG16.

The networks are in :mod:`kinema4d.evaluate.networks.lpips`; weights come from ``kinema4d weights --fetch``.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float64, UInt8

from kinema4d.evaluate import weights
from kinema4d.evaluate.score import NA, About, Pair, Scores

if TYPE_CHECKING:
    import torch

NETWORKS = {"alex": "AlexNet", "vgg": "VGG16"}
"""Backbones by the name that metrics carry."""
BATCH_PIXELS = 2**18
"""Pixels that go through a network at once, or one frame: a process with VGG16 at 480x720 peaks at 1.3 GB."""

METRICS = {
    "lpips_alex": About(label="LPIPS", unit="", better="lower", group="video",
                        text="LPIPS v0.1 with AlexNet per frame after the first, mean over frames."),
    "lpips_vgg": About(label="LPIPS (VGG)", unit="", better="lower", group="video",
                       text="LPIPS v0.1 with VGG16 per frame after the first, mean over frames."),
    "lpips_alex_temp": About(label="LPIPS (temp)", unit="", better="lower", group="video",
                             text="LPIPS (AlexNet) of each frame of the prediction against its next: lower is smoother, "
                             "and a still image has 0; the truth row is the aim."),
}  # fmt: skip


def scores(pair: Pair, *, networks: Sequence[str] = ("alex", "vgg"), folder: Path | None = None) -> Scores:
    """The ``METRICS`` of the given backbones. The first frame is given to every world, so it does not count.

    Args:
        pair: Prediction and truth.
        networks: Backbones to use.
        folder: Folder of weights instead of the default one.
    """
    for name in networks:
        if name not in NETWORKS:
            raise ValueError(f"LPIPS backbones are {', '.join(NETWORKS)}, got {name!r}")
    out: Scores = {}
    for name in networks:
        wanted = [m for m in METRICS if m.startswith(f"lpips_{name}")]
        missing = _why_not(pair, name, folder)
        if missing:
            out |= dict.fromkeys(wanted, NA(missing))
            continue
        against, temporal = distances(
            pair.predicted.rgb,
            pair.truth.clip.rgb,
            network=name,
            folder=folder,
            temporal=f"lpips_{name}_temp" in wanted,
        )
        out[f"lpips_{name}"] = float(against[1:].mean())
        if temporal is not None:
            out[f"lpips_{name}_temp"] = float(temporal.mean())
    return out


def distances(
    predicted: UInt8[np.ndarray, "t h w 3"],
    truth: UInt8[np.ndarray, "s y x 3"],
    *,
    network: str = "alex",
    folder: Path | None = None,
    temporal: bool = False,
) -> tuple[Float64[np.ndarray, " t"], Float64[np.ndarray, " r"] | None]:
    """LPIPS of every frame against its truth, and where asked of every predicted frame against the next.

    Each frame goes through the network once; memory does not grow with the length of the clip.
    """
    if predicted.shape != truth.shape:
        raise ValueError(f"LPIPS compares clips of one shape, got {list(predicted.shape)} and {list(truth.shape)}")
    net = weights.load_network(f"lpips_{network}", folder=folder)
    import torch

    step = max(1, BATCH_PIXELS // (predicted.shape[1] * predicted.shape[2]))
    against: list[torch.Tensor] = []
    between: list[torch.Tensor] = []
    previous: list[torch.Tensor] | None = None
    with torch.inference_mode():
        for start in range(0, len(predicted), step):
            seen = net.features(_signed(predicted[start : start + step]))
            against.append(net.distance(seen, net.features(_signed(truth[start : start + step]))))
            if temporal:
                if previous is not None:
                    between.append(net.distance(previous, [x[:1] for x in seen]))
                between.append(net.distance([x[:-1] for x in seen], [x[1:] for x in seen]))
                previous = [x[-1:].clone() for x in seen]
    joined = torch.cat(against).double().numpy()
    return joined, torch.cat(between).double().numpy() if temporal else None


def _signed(rgb: UInt8[np.ndarray, "t h w 3"]) -> torch.Tensor:
    import torch

    return torch.from_numpy(rgb.astype(np.float32) / 127.5 - 1).movedim(-1, 1)


def _why_not(pair: Pair, network: str, folder: Path | None) -> str:
    """Why there is no score, or nothing."""
    rgb = pair.predicted.rgb
    if len(rgb) < 2:
        return "the clip has one frame, and that is given"
    name = f"lpips_{network}"
    if weights.find(name, folder=folder) is None:
        return f"weights absent: {weights.remedy(name)}"
    weights.need_torch()
    from kinema4d.evaluate.networks.lpips import SMALLEST

    least = SMALLEST[network]
    if min(rgb.shape[1:3]) < least:
        return f"the image is {rgb.shape[1]}x{rgb.shape[2]} and {NETWORKS[network]} needs {least}x{least} pixels"
    return ""
