"""Do the generated clips, as a set, look like the true ones? FVD, FID, and a substitute for FID that says it is one.

All three are Fréchet distances between Gaussians fitted to features of two sets: of whole clips through I3D (FVD,
Unterthiner et al. 2018), of frames through FID's own Inception (FID, Heusel et al. 2017), of frames through AlexNet
(``fd_alexnet``; its numbers compare with nobody's FID). Few samples bias all of them upwards: with fewer than some
hundred clips, only compare values of the same number of clips, and give that number beside the value.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float, Float32, Float64

from kinema4d.evaluate import weights
from kinema4d.evaluate.score import NA, About, Value
from kinema4d.types import Clip

if TYPE_CHECKING:
    import torch

FRAME_BATCH = 8
"""Frames that go through an image network at once."""
FEW = "biased upwards with few clips, so compare at equal n only"

METRICS = {
    "fvd": About(label="FVD", unit="", better="lower", group="video", digits=1,
                 text="Fréchet distance of the 400 logits of I3D (Kinetics-400; frames at 224x224) between the sets of "
                 f"predicted and true clips; {FEW}."),
    "fid": About(label="FID", unit="", better="lower", group="video", digits=1,
                 text="Fréchet distance of FID's Inception features (2048; frames at 299x299) between all predicted and "
                 f"all true frames after the first; {FEW}."),
    "fd_alexnet": About(label="FD-AlexNet", unit="", better="lower", group="video", digits=2,
                        text="Not FID: Fréchet distance of AlexNet's last convolution (256, averaged over the image) "
                        f"between all predicted and all true frames after the first; {FEW}."),
}  # fmt: skip


def i3d_features(clip: Clip, *, folder: Path | None = None) -> Float32[np.ndarray, "400"]:
    """I3D's logits of a clip, mean over time, as FVD takes them."""
    net = weights.load_network("i3d", folder=folder)
    import torch

    from kinema4d.evaluate.networks import resize_tf1
    from kinema4d.evaluate.networks.i3d import SIDE

    with torch.inference_mode():
        frames = resize_tf1(_frames(clip.rgb), SIDE, SIDE)
        return net(frames * (2 / 255) - 1).numpy()


def inception_features(clip: Clip, *, folder: Path | None = None) -> Float32[np.ndarray, "t 2048"]:
    """What FID's Inception sees in every frame."""
    net = weights.load_network("inception", folder=folder)
    return _per_frame(clip, net)


def alexnet_features(clip: Clip, *, folder: Path | None = None) -> Float32[np.ndarray, "t 256"]:
    """AlexNet's last convolution in every frame, averaged over the image."""
    net = weights.load_network("lpips_alex", folder=folder)
    return _per_frame(clip, lambda x: net.taps(x / 127.5 - 1)[-1].mean((2, 3)))


def features(name: str, clip: Clip, *, folder: Path | None = None) -> Float32[np.ndarray, "n d"] | NA:
    """A clip's share in a set metric: rows to be collected over clips and given to :func:`distance`.

    FVD needs the motion out of the given first frame and sees all frames; the others leave the first one out.
    """
    if name not in METRICS:
        raise ValueError(f"set metrics are {', '.join(METRICS)}, got {name!r}")
    missing = _why_not(clip, name, folder)
    if missing:
        return NA(missing)
    if name == "fvd":
        return i3d_features(clip, folder=folder)[None]
    return (inception_features if name == "fid" else alexnet_features)(clip, folder=folder)[1:]


def distance(
    predicted: Float[np.ndarray, "n d"], truth: Float[np.ndarray, "m e"], *, clips: int | None = None
) -> Value:
    """Fréchet distance between the rows of two sets; n/a below two clips.

    Args:
        predicted: Rows of :func:`features` of all predicted clips.
        truth: The same of all true clips.
        clips: How many clips the smaller set has, where a clip has several rows.
    """
    count = min(len(predicted), len(truth)) if clips is None else clips
    return NA(f"needs at least 2 clips, got {count}") if count < 2 else frechet_distance(predicted, truth)


def fvd(predicted: Sequence[Clip], truth: Sequence[Clip], *, folder: Path | None = None) -> Value:
    """Fréchet video distance between two sets of clips."""
    return _of_sets("fvd", predicted, truth, folder)


def fid(predicted: Sequence[Clip], truth: Sequence[Clip], *, folder: Path | None = None) -> Value:
    """Fréchet inception distance between the frames of two sets of clips."""
    return _of_sets("fid", predicted, truth, folder)


def fd_alexnet(predicted: Sequence[Clip], truth: Sequence[Clip], *, folder: Path | None = None) -> Value:
    """Fréchet distance of AlexNet features between the frames of two sets of clips. This is not FID."""
    return _of_sets("fd_alexnet", predicted, truth, folder)


def frechet_distance(a: Float[np.ndarray, "n d"], b: Float[np.ndarray, "m e"]) -> float:
    """Squared 2-Wasserstein distance between the Gaussians fitted to two sets of rows (covariances over n - 1).

    |mu_a - mu_b|² + tr A'A + tr B'B - 2 tr sqrt(A'A B'B), with A and B the centred rows over sqrt(n - 1). The last trace
    is the sum of the singular values of A B', so no root of a d x d matrix is taken, which fails for n < d.
    """
    for rows in (a, b):
        if len(rows) < 2:
            raise ValueError(f"a Gaussian needs at least 2 samples, got {len(rows)}")
        if not np.isfinite(rows).all():
            raise ValueError("features have a non-finite value")
    if a.shape[1] != b.shape[1]:
        raise ValueError(f"features must have one length, got {a.shape[1]} and {b.shape[1]}")
    mean_a, A = _centred(a)
    mean_b, B = _centred(b)
    shared = np.linalg.svd(A @ B.T, compute_uv=False).sum()
    distance = np.square(mean_a - mean_b).sum() + np.square(A).sum() + np.square(B).sum() - 2 * shared
    return max(0.0, float(distance))  # rounding can fall below


def _centred(rows: Float[np.ndarray, "n d"]) -> tuple[Float64[np.ndarray, " d"], Float64[np.ndarray, "r d"]]:
    rows = rows.astype(np.float64)
    mean = rows.mean(0)
    scaled = (rows - mean) / np.sqrt(len(rows) - 1)
    if len(rows) <= rows.shape[1]:
        return mean, scaled
    # Many samples: R of the QR decomposition has the same covariance in d rows.
    return mean, np.asarray(np.linalg.qr(scaled, mode="r"))


def _of_sets(name: str, predicted: Sequence[Clip], truth: Sequence[Clip], folder: Path | None) -> Value:
    clips = min(len(predicted), len(truth))
    if clips < 2:
        return NA(f"needs at least 2 clips, got {clips}")
    sets = [[features(name, clip, folder=folder) for clip in clips] for clips in (predicted, truth)]
    for found in (*sets[0], *sets[1]):
        if isinstance(found, NA):
            return found
    a, b = (np.concatenate([rows for rows in found if not isinstance(rows, NA)]) for found in sets)
    return distance(a, b, clips=clips)


def _frames(rgb: np.ndarray) -> torch.Tensor:
    import torch

    return torch.from_numpy(rgb.astype(np.float32)).movedim(-1, 1)


def _per_frame(clip: Clip, see: Callable[[torch.Tensor], torch.Tensor]) -> Float32[np.ndarray, "t d"]:
    import torch

    with torch.inference_mode():
        parts = [see(_frames(clip.rgb[i : i + FRAME_BATCH])) for i in range(0, len(clip), FRAME_BATCH)]
        return torch.cat(parts).numpy()


def _why_not(clip: Clip, metric: str, folder: Path | None) -> str:
    """Why a clip has no features, or nothing."""
    if len(clip) < 2:
        return "the clip has one frame, and that is given"
    name = {"fvd": "i3d", "fid": "inception", "fd_alexnet": "lpips_alex"}[metric]
    if weights.find(name, folder=folder) is None:
        return f"weights absent: {weights.remedy(name)}"
    weights.need_torch()
    from kinema4d.evaluate.networks.i3d import LEAST_FRAMES
    from kinema4d.evaluate.networks.lpips import SMALLEST

    if metric == "fvd" and len(clip) < LEAST_FRAMES:
        return f"I3D needs at least {LEAST_FRAMES} frames, the clip has {len(clip)}"
    least, size = SMALLEST["alex"], clip.rgb.shape[1:3]
    if metric == "fd_alexnet" and min(size) < least:
        return f"the image is {size[0]}x{size[1]} and AlexNet needs {least}x{least} pixels"
    return ""
