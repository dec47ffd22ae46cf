"""The kinematics of an object that was never seen before, from its mesh alone (NeuROK's feed-forward model, sections 4.1 and 4.2).

A network looks at points of every connected part, parts look at each other, and each part says how every coordinate moves it: a screw. So its
deformations are rigid per part, as dual quaternions are, and the mean and slopes of the decoder are known in closed form. It also says how many
coordinates there are. The posterior of a pose is not guessed by a second network but solved for: the nearest coordinates. How it is taught is in
train/objects.py. Parts that bend are not in it: fit those.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float32, Float64
from torch import Tensor, nn
from torch.nn import functional as F

from kinema4d.objects.fit import Fitted
from kinema4d.objects.reduce import Freedom
from kinema4d.objects.solid import Mesh, checked, parts, quadrature
from kinema4d.weights_file import fill_in, read_weights, write_weights

FORMAT = "kinema4d objects 1"
"""What a file of weights says it is."""
AGAIN = "train one with kinema4d objects train"
JITTER, ROUND = 0.02, 0.02
"""Radians by which an object is turned at random; and what is so little square has no direction."""
STILL = 0.03
"""A part that goes less far than so much of what goes furthest stands still."""
LOOKS = 4
"""Times that an object is looked at, from other sides and at other points, to see whether the answers agree."""
ALIKE = 0.5
"""Share of their motion by which answers may differ before an object is said to be unlike what was learned from."""
SPAN = 3.5
"""Range of a coordinate, in deviations of what was learned from."""


@dataclass(frozen=True, kw_only=True)
class AmortisedConfig:
    """Of the network."""

    points: int = 12
    """Of every part that are looked at."""
    pieces: int = 24
    """Parts at most."""
    coordinates: int = 5
    """At most."""
    width: int = 96
    """Channels."""
    layers: int = 4
    """Blocks."""
    heads: int = 4
    """Of attention."""
    octaves: int = 5
    """Of the embedding of places."""


PRESETS = {
    "small": AmortisedConfig(),
    "large": AmortisedConfig(points=64, pieces=64, coordinates=16, width=512, layers=12, heads=8, octaves=8),
}
"""For a CPU, and for a GPU."""


def embedded(x: Tensor, octaves: int) -> Tensor:
    """[...,3] to [...,3 + 6 octaves]: positions, and their sines and cosines, each twice as fast."""
    fast = math.pi * 2.0 ** torch.arange(octaves, dtype=x.dtype, device=x.device)
    angle = (x[..., None] * fast).flatten(-2)
    return torch.cat([x, angle.sin(), angle.cos()], -1)


class Block(nn.Module):
    """Self-attention among all points, then a word from every part to its own."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
        self.part = nn.Linear(2 * width, width)

    def forward(self, x: Tensor, there: Tensor) -> Tensor:
        """[b,c,m,width] with parts ``there`` [b,c]."""
        b, c, m = x.shape[:3]
        flat = x.flatten(1, 2)
        q, k, v = (y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for y in self.qkv(self.norms[0](flat)).chunk(3, -1))  # fmt: skip
        mask = there[:, :, None].expand(b, c, m).flatten(1)[:, None, None]
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        flat = flat + self.out(y.transpose(1, 2).flatten(2))
        x = (flat + self.mlp(self.norms[1](flat))).unflatten(1, (c, m))
        return x + self.part(torch.cat([x.mean(2), x.amax(2)], -1))[:, :, None]


class ScrewNet(nn.Module):
    """From points of an object's parts in its unit box to the screws of every part."""

    def __init__(self, config: AmortisedConfig) -> None:
        super().__init__()
        self.config, w = config, config.width
        self.enter = nn.Linear(3 + 6 * config.octaves + 9, w)
        self.blocks = nn.ModuleList(Block(w, config.heads) for _ in range(config.layers))
        self.leave = nn.Sequential(nn.LayerNorm(w), nn.Linear(w, 2 * w), nn.GELU(), nn.Linear(2 * w, 6 * config.coordinates))  # fmt: skip
        self.count = nn.Sequential(nn.LayerNorm(w), nn.Linear(w, w), nn.GELU(), nn.Linear(w, config.coordinates))

    def matrices(self) -> list[nn.Parameter]:
        """Hidden matrices of the blocks, for optimisers that treat those in their own way."""
        return [p for p in self.blocks.parameters() if p.ndim == 2]

    def forward(self, x: Tensor, normal: Tensor, there: Tensor) -> tuple[Tensor, Tensor]:
        """Twists [b,c,k,6] for points and normals [b,c,m,3] of parts that are ``there`` [b,c]; and logarithms [b,k] of how likely it is that there are one,
        two, ... coordinates."""
        middle = x.mean(2, keepdim=True)
        large = (x - middle).abs().amax(2, keepdim=True).expand_as(x)
        y = self.enter(torch.cat([embedded(x, self.config.octaves), normal, x - middle, large], -1))
        for block in self.blocks:
            y = block(y, there)
        part = y.mean(2) * there[:, :, None]
        counted = self.count(
            part.sum(1) / there.sum(1)[:, None].clamp(min=1) + part.masked_fill(~there[:, :, None], -1e4).amax(1)
        )
        raw = self.leave(part).unflatten(-1, (self.config.coordinates, 6))
        w, u = 0.5 * raw[..., :3], 0.3 * raw[..., 3:]  # u: how the part's middle moves
        v = u - torch.linalg.cross(w, middle.expand_as(w))
        return torch.cat([w, v], -1) * there[:, :, None, None], counted


def told(twists: Tensor, x: Tensor, there: Tensor) -> Tensor:
    """[b,3n,k] how fast all points [b,c,m,3] move with each coordinate."""
    w, v = (t[:, :, None] for t in twists.split(3, -1))  # b c 1 k 3
    way = (
        torch.linalg.cross(w.expand(*x.shape[:3], *w.shape[3:]), x[:, :, :, None].expand(*x.shape[:3], *w.shape[3:]))
        + v
    )
    return (way * there[:, :, None, None, None]).movedim(3, -1).flatten(1, 3)


@dataclass(frozen=True, kw_only=True, eq=False)
class Look:
    """Points of an object's parts, in its unit box."""

    points: Float32[np.ndarray, "*p c m 3"]
    """Of one pose or of several."""
    normals: Float32[np.ndarray, "c m 3"]
    """In the first."""
    there: np.ndarray
    """[c] which parts exist."""
    turn: Float64[np.ndarray, "3 3"]
    """By which the object was turned."""


def look_at(
    poses: Float64[np.ndarray, "p v 3"], faces: np.ndarray, label: np.ndarray, config: AmortisedConfig, rng: np.random.Generator, *, quarter: int | None = None
) -> Look:  # fmt: skip
    """Draw points on every part; the first pose is the one that is seen, its box the unit, and all are turned about the vertical so that most of what is
    upright looks along an axis, and by so many quarters (at random without)."""
    count = int(label.max()) + 1
    if count > config.pieces:
        raise ValueError(f"the object has {count} parts that do not touch; the model knows at most {config.pieces}")
    m = config.points
    out = np.zeros((len(poses), config.pieces, m, 3))
    normals = np.zeros((config.pieces, m, 3))
    for c in range(count):
        mine = faces[label[faces[:, 0]] == c]
        corner = poses[0][mine]
        up = np.cross(corner[:, 1] - corner[:, 0], corner[:, 2] - corner[:, 0])
        area = np.linalg.norm(up, axis=1)
        which = rng.choice(len(mine), m, p=area / area.sum())
        cut = np.sort(rng.random((m, 2)), axis=1)
        share = np.stack([cut[:, 0], cut[:, 1] - cut[:, 0], 1 - cut[:, 1]], 1)
        out[:, c] = np.einsum("mk,pmkx->pmx", share, poses[:, mine[which]])
        normals[c] = up[which] / area[which, None]
    middle, size = box_of(poses[0])
    if quarter is None:
        quarter = int(rng.integers(4))
    a = quarter * np.pi / 2 - squared(poses[0], faces) + JITTER * rng.normal()
    turn = np.array([[np.cos(a), -np.sin(a), 0], [np.sin(a), np.cos(a), 0], [0, 0, 1]])
    there = np.arange(config.pieces) < count
    out = np.where(there[:, None, None], (out - middle) / size @ turn.T, 0)
    return Look(points=out.astype(np.float32), normals=(normals @ turn.T).astype(np.float32), there=there, turn=turn)


def squared(vertices: Float64[np.ndarray, "v 3"], faces: np.ndarray) -> float:
    """Angle about the vertical, within an eighth of a turn, by which most of the upright surface is off the axes (0 for what is round)."""
    a, b, c = (vertices[faces[:, i]] for i in range(3))
    up = np.cross(b - a, c - a)
    flat = np.hypot(up[:, 0], up[:, 1])
    total = (flat * np.exp(4j * np.arctan2(up[:, 1], up[:, 0]))).sum()
    return float(np.angle(total) / 4) if abs(total) > ROUND * flat.sum() else 0.0


def box_of(vertices: Float64[np.ndarray, "v 3"]) -> tuple[Float64[np.ndarray, "3"], float]:
    """Middle and diagonal of the box around an object."""
    low, high = vertices.min(axis=0), vertices.max(axis=0)
    return (low + high) / 2, float(np.linalg.norm(high - low))


# ---------------------------------------------------------------------- files


def shipped() -> Path | None:
    """Weights that come with the package, if there are."""
    file = Path(str(files("kinema4d.objects") / "weights" / "objects.safetensors"))
    return file if file.is_file() else None


def save_model(path: str | Path, net: ScrewNet, about: Mapping[str, Any]) -> str:
    """As float16, with the configuration; returns the hash."""
    return write_weights(path, net.state_dict(), FORMAT, asdict(net.config), dict(about))


def load_model(path: str | Path) -> tuple[ScrewNet, dict[str, Any]]:
    """The network, and what is known about it; a file that is damaged or of another kind is refused."""
    state, config, about = read_weights(path, FORMAT, AGAIN)
    net = ScrewNet(AmortisedConfig(**config))
    fill_in({"net": net}, {f"net.{n}": v for n, v in state.items()}, path, AGAIN)
    return net.eval().requires_grad_(False), about


# ---------------------------------------------------------------------- one unseen object


def kinematics(mesh: Mesh, weights: str | Path, *, density: float = 1000.0, seed: int = 0) -> Fitted:
    """How an unseen mesh moves, without fitting. What looks different from different sides is unlike what was learned from, and refused."""
    checked(mesh)
    net, _ = load_model(weights)
    label = parts(mesh)
    rng = np.random.default_rng(seed)
    middle, size = box_of(mesh.vertices)
    answers, votes = [], torch.zeros(net.config.coordinates)
    for n in range(LOOKS):
        look = look_at(mesh.vertices[None], mesh.faces, label, net.config, rng, quarter=n)
        twists, counted = net(*(torch.from_numpy(v)[None] for v in (look.points[0], look.normals)), torch.from_numpy(look.there)[None])  # fmt: skip
        votes += counted[0].log_softmax(0)
        answers.append(_untwisted(twists[0, : int(label.max()) + 1].double(), torch.from_numpy(look.turn)))
    count = int(votes.argmax()) + 1
    answers = [t[:, :count] for t in answers]
    own = [_moves(t, mesh, middle, size, label) for t in answers]
    differ = _apart(own)
    if differ > ALIKE:
        raise ValueError(
            f"this object is unlike those that the model learned from: looked at {LOOKS} times, it answers {100 * differ:.0f} % apart (at most {100 * ALIKE:.0f} %). Fit it: `kinema4d objects fit`"
        )
    unit = _agreed(answers, own)
    goes = _moves(unit, mesh, middle, size, label).square().sum((1, 2)).sqrt()
    far = torch.zeros(len(unit), dtype=goes.dtype).scatter_reduce(0, torch.from_numpy(label), goes, "amax")
    unit[far < STILL * far.max()] = 0  # what hardly moves is fixed
    metres = _metres(unit, torch.from_numpy(middle), size)
    sure = float(votes.softmax(0).max())
    why = f"{count} coordinates ({100 * sure:.0f} % sure), foretold from the shape; looked at {LOOKS} times, it answers {100 * differ:.0f} % apart"
    return Fitted(
        mesh=mesh, weighed=quadrature(mesh, density=density), piece=label, twists=metres.numpy(),
        freedom=Freedom(count=count, errors=(), ratios=(), why=why), reach=np.tile([-SPAN, SPAN], (count, 1)), errors=np.full(count, differ),
    )  # fmt: skip


def _agreed(answers: list[Tensor], own: list[Tensor]) -> Tensor:
    """The mean of the answers, each in the coordinates of the first."""
    flat = [m.movedim(1, 0).flatten(1).T for m in own]  # [3v,k]
    return torch.stack([t.transpose(1, 2) @ torch.linalg.lstsq(f, flat[0]).solution for t, f in zip(answers, flat, strict=True)]).mean(0).transpose(1, 2)  # fmt: skip


def _untwisted(twists: Tensor, turn: Tensor) -> Tensor:
    """Twists as seen before the turn."""
    return torch.cat([twists[..., :3] @ turn, twists[..., 3:] @ turn], -1)


def _metres(twists: Tensor, middle: Tensor, size: float) -> Tensor:
    """From the unit box to the frame of the mesh."""
    w = twists[..., :3]
    return torch.cat([w, size * twists[..., 3:] + torch.linalg.cross(middle.expand_as(w), w)], -1)


def _moves(twists: Tensor, mesh: Mesh, middle: np.ndarray, size: float, label: np.ndarray) -> Tensor:
    """[v,k,3] how fast every vertex moves with every coordinate, in sizes."""
    x = torch.from_numpy((mesh.vertices - middle) / size)[:, None]
    own = twists[torch.from_numpy(label)]
    return torch.linalg.cross(own[..., :3], x.expand_as(own[..., :3])) + own[..., 3:]


def _apart(own: list[Tensor]) -> float:
    """How much of what one look says moves is not among what another says (root of the share of the mean square), on average."""
    flat = [m.movedim(1, 0).flatten(1).T for m in own]  # [3v,k]
    every = [torch.linalg.qr(f)[0] for f in flat]
    rest = [a - basis @ (basis.T @ a) for i, a in enumerate(flat) for j, basis in enumerate(every) if i != j]
    return (
        float(
            torch.stack([r.square().sum() for r in rest]).sum()
            / (torch.stack([a.square().sum() for a in flat]).sum() * (len(flat) - 1))
        )
        ** 0.5
    )
