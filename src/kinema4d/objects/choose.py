"""The network that chooses an object's joints among those that could be (:mod:`.mates`), and what is made of its choice: links, a tree, one screw per joint.

Candidates tell their pair of pieces what they would do, pairs tell their pieces, pieces tell pairs, three times over. Then every pair says whether its two are one
body, on a joint, or neither; every piece whether it stands still; every candidate how likely it is, and how far it goes. Pieces that are one body are a link;
from what stands still outwards each link is hung on the other by the likeliest joint between them. Joints so hold exactly, and there are as many coordinates as joints.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float64, Int64
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import squareform
from torch import Tensor, nn
from torch.nn import functional as F

from kinema4d.objects.mates import MATE, PAIR, PIECE, Mates

APART, JOINT, ONE = 0, 1, 2
"""What two pieces are to each other."""
MOST = 7.0
"""A fact that is further from zero says no more."""
FARTHEST = 3.0
"""Radians or sizes that a joint goes at most (root of the mean square)."""
ALIKE = 0.03
"""Share of its motion by which a candidate may differ from another that is the same joint."""


@dataclass(frozen=True, kw_only=True)
class ChooseConfig:
    """Of the network."""

    width: int = 96
    """Channels."""
    rounds: int = 3
    """Of telling."""


PRESETS = {"small": ChooseConfig(), "large": ChooseConfig(width=384, rounds=6)}
"""For a CPU, and for a GPU."""


class Shown(NamedTuple):
    """Objects one after the other."""

    piece: Tensor
    """[c,f] facts of pieces."""
    pairs: Tensor
    """[e,2] pieces."""
    pair: Tensor
    """[e,g] facts of them."""
    meet: Tensor
    """[n] pairs that meet."""
    mate: Tensor
    """[n,m,h] facts of their candidates."""
    whose: Tensor
    """[c] object of each piece."""
    many: int
    """Objects."""


class Chosen(NamedTuple):
    """What the network says, as logarithms of odds."""

    still: Tensor
    """[c] that a piece stands still."""
    bond: Tensor
    """[e,3] what two pieces are to each other."""
    odds: Tensor
    """[n,m] of candidates, beside the others between the same links."""
    far: Tensor
    """[n,m] logarithm of how far a candidate goes, radians or sizes (root of the mean square)."""


def shown(some: list[Mates]) -> Shown:
    """Side by side."""
    at, pairs, meet, whose = 0, list[np.ndarray](), list[np.ndarray](), list[np.ndarray]()
    edges = 0
    for n, one in enumerate(some):
        pairs.append(one.pairs + at)
        meet.append(one.meet + edges)
        whose.append(np.full(len(one.piece), n))
        at, edges = at + len(one.piece), edges + len(one.pairs)
    joined = lambda every: torch.from_numpy(np.concatenate(every))  # noqa: E731
    return Shown(
        joined([o.piece for o in some]).float(), joined(pairs), joined([o.pair for o in some]).float(), joined(meet),
        joined([o.mate for o in some]).float(), joined(whose), len(some),
    )  # fmt: skip


def _mlp(inner: int, width: int, out: int) -> nn.Sequential:
    return nn.Sequential(nn.LayerNorm(inner), nn.Linear(inner, width), nn.GELU(), nn.Linear(width, out))


class Round(nn.Module):
    """Candidates tell pairs, pairs tell pieces and the object, these tell pairs."""

    def __init__(self, w: int) -> None:
        super().__init__()
        self.look, self.ask = nn.Linear(w, 1), nn.Linear(w, w)
        self.pair, self.piece = _mlp(6 * w, w, w), _mlp(4 * w, w, w)
        self.say = nn.Linear(w, 2 * w)

    def forward(self, s: Shown, piece: Tensor, pair: Tensor, mate: Tensor) -> tuple[Tensor, Tensor]:
        """Pieces [c,w], pairs [e,w], candidates [n,m,w]."""
        share = self.look(F.gelu(mate + self.ask(pair[s.meet])[:, None])).softmax(1)
        told = torch.zeros(len(pair), 2 * piece.shape[1], dtype=pair.dtype).index_copy(0, s.meet, torch.cat([(share * mate).sum(1), mate.amax(1)], 1))  # fmt: skip
        a, b = s.pairs.unbind(1)
        whole = _mean(piece, s.whose, s.many)
        pair = pair + self.pair(torch.cat([pair, told, piece[a], piece[b], whole[s.whose[a]]], 1))
        say = self.say(pair)
        one, other = say.chunk(2, 1)
        to, what = torch.cat([a, b]), torch.cat([one, other])
        most = torch.full_like(piece, -10.0).scatter_reduce(0, to[:, None].expand_as(what), what, "amax")
        piece = piece + self.piece(torch.cat([piece, _mean(what, to, len(piece)), most, whole[s.whose]], 1))
        return piece, pair


def _mean(x: Tensor, whose: Tensor, many: int) -> Tensor:
    total = torch.zeros(many, x.shape[1], dtype=x.dtype).index_add(0, whose, x)
    return total / torch.bincount(whose, minlength=many).clamp(min=1)[:, None]


class ChooseNet(nn.Module):
    """From what is known of pieces, pairs and candidates to what they are."""

    def __init__(self, config: ChooseConfig) -> None:
        super().__init__()
        self.config, w = config, config.width
        self.piece, self.pair = nn.Linear(PIECE, w), nn.Linear(PAIR, w)
        self.mate = nn.Sequential(nn.Linear(MATE, w), nn.GELU(), nn.Linear(w, w), nn.GELU(), nn.Linear(w, w))
        self.rounds = nn.ModuleList(Round(w) for _ in range(config.rounds))
        self.still, self.bond = _mlp(w, w, 1), _mlp(w, w, 3)
        self.mine, self.ours = nn.Linear(w, w), nn.Linear(w, w)
        self.odds = nn.Sequential(nn.GELU(), nn.Linear(w, w), nn.GELU(), nn.Linear(w, 2))

    def forward(self, s: Shown) -> Chosen:
        """What it says."""
        piece, pair, mate = (enter(v.clamp(-MOST, MOST)) for enter, v in ((self.piece, s.piece), (self.pair, s.pair), (self.mate, s.mate)))  # fmt: skip
        for tell in self.rounds:
            piece, pair = tell(s, piece, pair, mate)
        odds = self.odds(self.mine(mate) + self.ours(pair[s.meet])[:, None])
        return Chosen(self.still(piece)[:, 0], self.bond(pair), odds[..., 0], odds[..., 1])


# ---------------------------------------------------------------------- what is made of it


@dataclass(frozen=True, kw_only=True, eq=False)
class Tree:
    """Pieces on joints."""

    link: Int64[np.ndarray, " c"]
    """Which link a piece is of; 0 stands still."""
    twists: Float64[np.ndarray, "c k 6"]
    """Of pieces; each coordinate is a joint, of unit mean square, those nearer to what stands still first."""
    sure: Float64[np.ndarray, " k"]
    """How likely each joint is, given that there is one between its two links."""
    bonds: float
    """How likely the links are: of the least likely of all pairs of pieces."""


def tree(m: Mates, said: Chosen, points: Float64[np.ndarray, "c p 3"], *, moving: bool = True) -> Tree:
    """The likeliest links and joints of one object whose pieces have ``points``; one joint at least if something is ``moving``."""
    bond = said.bond.double().softmax(1).numpy()
    link = _links(m, bond, said.still.double().sigmoid().numpy(), moving=moving)
    a, b = link[m.pairs[m.meet, 0]], link[m.pairs[m.meet, 1]]
    jointed = bond[m.meet, JOINT]
    on: dict[int, list[tuple[int, np.ndarray]]] = {0: []}  # joints on the way to each link, and their screws
    sure: list[float] = []
    while len(on) <= link.max():
        ready = np.isin(a, list(on)) ^ np.isin(
            b, list(on)
        )  # one of both hangs already; pieces that meet connect all of them
        best = int(np.flatnonzero(ready)[jointed[ready].argmax()])
        inner, outer = (a[best], b[best]) if a[best] in on else (b[best], a[best])
        rows = np.flatnonzero(((a == inner) & (b == outer)) | ((a == outer) & (b == inner)))
        screw, chance = _joint(m, said, rows, points[link == outer].reshape(-1, 3))
        on[int(outer)] = [*on[int(inner)], (len(sure), screw)]
        sure.append(chance)
    twists = np.zeros((len(link), len(sure), 6))
    for i, joints in on.items():
        for j, screw in joints:
            twists[link == i, j] = screw
    first, second = link[m.pairs].T
    still = (first == 0) & (second == 0)  # two that stand still need not touch
    certain = np.where(first == second, bond[:, ONE] + still, 1 - bond[:, ONE]).clip(max=1)
    return Tree(link=link, twists=twists, sure=np.array(sure), bonds=float(certain.min(initial=1.0)))


def _links(m: Mates, bond: np.ndarray, still: np.ndarray, *, moving: bool) -> Int64[np.ndarray, " c"]:
    """Pieces that are one body, that which stands still first; at least two if something is moving."""
    c = len(still)
    far = np.zeros((c, c))
    far[m.pairs[:, 0], m.pairs[:, 1]] = far[m.pairs[:, 1], m.pairs[:, 0]] = 1 - bond[:, ONE]
    both = np.minimum(still[:, None], still)
    far = np.minimum(far, np.where(both > 0.5, 1 - both, 1))
    np.fill_diagonal(far, 0)
    hung = linkage(squareform(far, checks=False), "average")
    found = fcluster(hung, 0.5, "distance") - 1
    if found.max() == 0 and moving:  # where all are as likely, what is least still
        found = fcluster(hung, 2, "maxclust") - 1
    if found.max() == 0 and moving:
        found = (np.arange(c) == int(still.argmin())).astype(np.int64)
    mean = np.array([still[found == i].mean() for i in range(found.max() + 1)])
    order = np.argsort(-mean, kind="stable")
    return np.argsort(order)[found].astype(np.int64)


def _joint(m: Mates, said: Chosen, rows: np.ndarray, x: Float64[np.ndarray, "p 3"]) -> tuple[np.ndarray, float]:
    """The screw of the joint between two links, as far as it goes on average, and how likely it is: candidates that move points alike are one."""
    odds = said.odds[torch.from_numpy(rows)].double().flatten()
    share = odds.softmax(0).numpy()
    screws = m.screws[rows].reshape(-1, 6)
    far = said.far[torch.from_numpy(rows)].double().flatten().numpy()
    some = np.argsort(-share)[:64]
    way = (np.cross(screws[some, None, :3], x) + screws[some, None, 3:]).reshape(len(some), -1)
    way /= np.linalg.norm(way, axis=1, keepdims=True) + 1e-12
    alike = np.square(way @ way.T) > 1 - ALIKE**2
    total = alike @ share[some]
    first = int(total.argmax())
    mine = some[alike[first]]
    best = mine[share[mine].argmax()]
    return screws[best] * min(float(np.exp(np.average(far[mine], weights=share[mine]))), FARTHEST), float(total[first])
