"""The kinematics of an object that was never seen before, from its mesh alone, by the network of :mod:`kinema4d.objects.amortised`.

The mesh is looked at from four sides; answers are brought into the same coordinates and averaged. Pieces on joints are then hung on each other
(:mod:`.hang`). How sure this is shows in how far the answers are apart, also about the same object when it has moved as was foretold: what is unlike
anything that was learned from is refused by name.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor

from kinema4d.objects.amortised import ScrewNet, load_model
from kinema4d.objects.fit import Fitted
from kinema4d.objects.hang import hung
from kinema4d.objects.look import Cut, box_of, cut, look_at
from kinema4d.objects.meshes import wound_both_ways
from kinema4d.objects.reduce import Freedom
from kinema4d.objects.screws import product_and_slopes
from kinema4d.objects.solid import Mesh, checked, parts, quadrature

LOOKS, AGAIN = 4, 2
"""Times that an object is looked at, from other sides and at other points, to see whether the answers agree; and after it has moved as was foretold."""
MOVED = 0.7
"""How far it is moved then, in deviations of what was learned from."""
ALIKE = 0.5
"""Share of their motion by which answers may differ before an object is said to be unlike what was learned from."""
SPAN = 3.5
"""Range of a coordinate, in deviations of what was learned from."""
STILL = 0.03
"""A part that goes less far than so much of what goes furthest stands still."""
Bends = Literal["look", "none", "all"]
"""Which parts bend: those that look like it, or as the caller knows."""


def kinematics(mesh: Mesh, weights: str | Path, *, density: float = 1000.0, bends: Bends = "look", seed: int = 0) -> Fitted:  # fmt: skip
    """How an unseen mesh moves, without fitting. What looks different from different sides is unlike what was learned from, and refused."""
    strange = [line for line in checked(mesh) if not line.startswith("it has")]
    if odd := wound_both_ways(mesh):
        strange.append(f"{odd} triangles look the other way than their neighbours")
    net, _ = load_model(weights)
    label = parts(mesh)
    rng = np.random.default_rng(seed)
    whole = cut(mesh.vertices, mesh.faces, label, np.zeros(int(label.max()) + 1, bool), net.config.pieces)
    soft = _soft(net, mesh, whole, rng) if bends == "look" else np.full(whole.count, bends == "all")
    if whole.count == 1 and not soft.any():
        raise ValueError("the mesh is one part that keeps its form: it has no motion of its own; give one that bends, or say --bends all")  # fmt: skip
    pieces = cut(mesh.vertices, mesh.faces, label, soft, net.config.pieces) if soft.any() else whole
    seen = _View(net, mesh, pieces, mesh.vertices)
    answers = [seen.look(rng, quarter=n) for n in range(LOOKS)]
    votes = torch.stack([a.counted for a in answers]).sum(0)
    if not soft.any():  # joints need links to be between
        votes[pieces.count - 1 :] = -torch.inf
    count = int(votes.argmax()) + 1
    twists = [a.twists[:, :count] for a in answers]
    own = [seen.moves(t) for t in twists]
    differ = _apart(own)
    unit, loose = _agreed(twists, own), 0.0
    if not soft.any():
        unit, loose = _held(unit, seen)
    metres = _metres(unit, torch.from_numpy(seen.middle), seen.size)
    follow, piece = _followed(metres, pieces)
    differ = max(differ, loose, _again(net, mesh, pieces, follow[piece], rng))
    if differ > ALIKE:
        also = f" The mesh itself is strange, too: {'; '.join(strange)}." if strange else ""
        raise ValueError(
            f"this object is unlike those that the model learned from: looked at {LOOKS + AGAIN} times, it answers {100 * differ:.0f} % apart (at most {100 * ALIKE:.0f} %).{also} Fit it: `kinema4d objects fit`"
        )
    sure = float(votes.softmax(0).max())
    why = f"{count} coordinates ({100 * sure:.0f} % sure), foretold from the shape; looked at {LOOKS + AGAIN} times, it answers {100 * differ:.0f} % apart"
    if soft.any():
        why += f"; it bends ({int(soft.sum())} of {whole.count} parts)"
    return Fitted(
        mesh=mesh, weighed=quadrature(mesh, density=density), piece=piece, twists=follow.numpy(),
        freedom=Freedom(count=None if soft.any() else count, errors=(), ratios=(), why=why),
        reach=np.tile([-SPAN, SPAN], (count, 1)), errors=np.full(count, differ),
    )  # fmt: skip


@dataclass(frozen=True, eq=False)
class _Answer:
    twists: Tensor
    """[c,k,6] in the unit box of the pose that is seen, as it stands."""
    counted: Tensor
    """[k] logarithms."""


@dataclass(frozen=True, eq=False)
class _View:
    """An object in a pose."""

    net: ScrewNet
    mesh: Mesh
    pieces: Cut
    vertices: Float64[np.ndarray, "v 3"]

    @property
    def middle(self) -> Float64[np.ndarray, "3"]:
        return box_of(self.vertices)[0]

    @property
    def size(self) -> float:
        return box_of(self.vertices)[1]

    def look(self, rng: np.random.Generator, quarter: int) -> _Answer:
        """One answer of the network."""
        c = self.net.config
        look = look_at(self.vertices[None], self.mesh.faces, self.pieces, rng, points=c.points, most=c.pieces, quarter=quarter)  # fmt: skip
        with torch.no_grad():
            said = self.net(
                *(torch.from_numpy(v)[None] for v in (look.points[0], look.normals, look.boxes, look.patch, look.there))
            )
        turn = torch.from_numpy(look.turn)
        twists = said.twists[0, : self.pieces.count].double()
        own = torch.cat([twists[..., :3] @ turn, twists[..., 3:] @ turn], -1)  # as seen before the turn
        return _Answer(own, said.counted[0].double().log_softmax(0))

    def moves(self, twists: Tensor) -> Tensor:
        """[v,k,3] how fast every vertex moves with every coordinate of pieces' twists [c,k,6], in sizes."""
        x = torch.from_numpy((self.vertices - self.middle) / self.size)[:, None]
        own = torch.einsum("vc,cka->vka", torch.from_numpy(self.pieces.share), twists)
        return torch.linalg.cross(own[..., :3], x.expand_as(own[..., :3])) + own[..., 3:]

    def points(self, many: int = 60) -> Tensor:
        """[c,m,3] vertices of each piece in the unit box, over and over where there are few."""
        x = (self.vertices - self.middle) / self.size
        mine = [np.flatnonzero(s > 0) for s in self.pieces.share.T]
        return torch.from_numpy(np.stack([x[m[np.linspace(0, len(m) - 1, many).round().astype(int)]] for m in mine]))


def _soft(net: ScrewNet, mesh: Mesh, whole: Cut, rng: np.random.Generator) -> np.ndarray:
    """[parts] which of them look as if they bend."""
    c, odds = net.config, np.zeros(whole.count)
    for n in range(LOOKS):
        look = look_at(mesh.vertices[None], mesh.faces, whole, rng, points=c.points, most=c.pieces, quarter=n)
        with torch.no_grad():
            said = net(
                *(torch.from_numpy(v)[None] for v in (look.points[0], look.normals, look.boxes, look.patch, look.there))
            )
        odds += said.bends[0, : whole.count].numpy()
    return odds > 0


def _held(unit: Tensor, seen: _View) -> tuple[Tensor, float]:
    """On joints that hold, and how much of the motion they do not make."""
    found = hung(unit, seen.points())
    if found is not None:
        return found.twists, found.loose
    goes = seen.moves(unit).square().sum((1, 2)).sqrt()
    label = torch.from_numpy(seen.pieces.share.argmax(axis=1))
    far = torch.zeros(len(unit), dtype=goes.dtype).scatter_reduce(0, label, goes, "amax")
    return torch.where((far < STILL * far.max())[:, None, None], 0.0, unit), 0.0  # what hardly moves is fixed


def _agreed(answers: list[Tensor], own: list[Tensor]) -> Tensor:
    """The mean of the answers, each in the coordinates of the first."""
    flat = [m.movedim(1, 0).flatten(1).T for m in own]  # [3v,k]
    return torch.stack([t.transpose(1, 2) @ torch.linalg.lstsq(f, flat[0]).solution for t, f in zip(answers, flat, strict=True)]).mean(0).transpose(1, 2)  # fmt: skip


def _metres(twists: Tensor, middle: Tensor, size: float) -> Tensor:
    """From the unit box to the frame of the mesh."""
    w = twists[..., :3]
    return torch.cat([w, size * twists[..., 3:] + torch.linalg.cross(middle.expand_as(w), w)], -1)


def _followed(twists: Tensor, pieces: Cut) -> tuple[Tensor, np.ndarray]:
    """Twists [g,k,6] and whose each vertex has [v]: those of its rigid piece, or its own mean of the patches around it."""
    rigid = np.flatnonzero(~pieces.patch)
    first = pieces.share.argmax(axis=1)
    soft = np.flatnonzero(pieces.patch[first])
    mean = torch.einsum("vc,cka->vka", torch.from_numpy(pieces.share[soft]), twists)
    piece = np.zeros(len(first), np.int64)
    piece[soft] = len(rigid) + np.arange(len(soft))
    stiff = ~pieces.patch[first]
    piece[stiff] = np.searchsorted(rigid, first[stiff])
    return torch.cat([twists[torch.from_numpy(rigid)], mean]), piece


def _again(net: ScrewNet, mesh: Mesh, pieces: Cut, twists: Tensor, rng: np.random.Generator) -> float:
    """How far what is said of the object after it has moved as was foretold is from how it should move on."""
    k, out = twists.shape[1], []
    for n in range(AGAIN):
        q = torch.from_numpy(MOVED * rng.choice((-1.0, 1.0), (1, k)))
        at, slopes = product_and_slopes(torch.from_numpy(mesh.vertices), twists, q)
        view = _View(net, mesh, pieces, at[0].numpy())
        now = view.moves(view.look(rng, quarter=n).twists[:, :k])
        out.append(_apart([slopes[0].transpose(1, 2) / view.size, now]))
    return float(np.mean(out))


def _apart(own: list[Tensor]) -> float:
    """How much of what one look says moves is not among what another says (root of the share of the mean square), on average."""
    flat = [m.movedim(1, 0).flatten(1).T for m in own]  # [3v,k]
    every = [torch.linalg.qr(f)[0] for f in flat]
    rest = [a - basis @ (basis.T @ a) for i, a in enumerate(flat) for j, basis in enumerate(every) if i != j]
    left = torch.stack([r.square().sum() for r in rest]).sum()
    return float(left / (torch.stack([a.square().sum() for a in flat]).sum() * (len(flat) - 1))) ** 0.5
