"""The kinematics of an object that was never seen before, from its mesh alone.

Parts that keep their form are put on joints by the network of :mod:`.choose`, out of the joints that could be between them; what bends moves as the network of :mod:`.amortised` says.
A mesh is looked at several times, at other points of it and from other sides, and once more when it has moved as was foretold. How sure all this is shows in how far
the answers are apart: what is unlike anything that was learned from is refused by name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor

from kinema4d.objects.amortised import AmortisedConfig, ScrewNet
from kinema4d.objects.choose import ChooseConfig, ChooseNet, Tree, shown, tree
from kinema4d.objects.fit import Fitted, solid_as_one
from kinema4d.objects.look import Cut, box_of, cut, look_at
from kinema4d.objects.mates import POINTS, boxes, mates, surface
from kinema4d.objects.meshes import wound_both_ways
from kinema4d.objects.quick import moved_points_and_slopes
from kinema4d.objects.reduce import Freedom
from kinema4d.objects.screws import product_and_slopes
from kinema4d.objects.solid import Mesh, checked, parts, quadrature
from kinema4d.weights_file import fill_in, read_weights, write_weights

FORMAT = "kinema4d objects 3"
"""What a file of weights says it is."""
RETRAIN = "train one with kinema4d objects train"
MOST = 64
"""Parts of an object on joints."""
LOOKS, AGAIN = 4, 2
"""Times that an object is looked at, from other sides and at other points, to see whether the answers agree; and after it has moved as was foretold."""
MOVED = 0.7
"""How far it is moved then, in deviations of what was learned from."""
ALIKE = 0.5
"""Share of their motion by which answers may differ before an object is said to be unlike what was learned from."""
SPAN = 3.5
"""Range of a coordinate, in deviations of what was learned from."""
Bends = Literal["look", "none", "all"]
"""Which parts bend: those that look like it, or as the caller knows."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Foreteller:
    """What was learned."""

    joints: ChooseNet | None
    """Of what is on joints; None: it knows only what bends."""
    bends: ScrewNet | None
    """Of what bends; None: it knows only joints."""


def shipped() -> Path | None:
    """Weights that come with the package, if there are."""
    from importlib.resources import files

    file = Path(str(files("kinema4d.objects") / "weights" / "objects.safetensors"))
    return file if file.is_file() else None


def save_foreteller(path: str | Path, what: Foreteller, about: Mapping[str, Any]) -> str:
    """As float16, with the configurations; returns the hash."""
    nets = {n: net for n, net in (("joints", what.joints), ("bends", what.bends)) if net is not None}
    state = {f"{n}.{k}": v for n, net in nets.items() for k, v in net.state_dict().items()}
    return write_weights(path, state, FORMAT, {n: asdict(net.config) for n, net in nets.items()}, dict(about))


def load_foreteller(path: str | Path) -> tuple[Foreteller, dict[str, Any]]:
    """The networks, and what is known about them; a file that is damaged or of another kind is refused."""
    state, config, about = read_weights(path, FORMAT, RETRAIN)
    joints = ChooseNet(ChooseConfig(**config["joints"])) if "joints" in config else None
    bends = ScrewNet(AmortisedConfig(**config["bends"])) if "bends" in config else None
    fill_in({n: net for n, net in (("joints", joints), ("bends", bends)) if net is not None}, state, path, RETRAIN)
    return Foreteller(joints=joints, bends=bends), about


def kinematics(mesh: Mesh, weights: str | Path, *, density: float = 1000.0, bends: Bends = "look", free: bool = False, seed: int = 0) -> Fitted:  # fmt: skip
    """How an unseen mesh moves, without fitting. What looks different from different sides is unlike what was learned from, and refused; one solid is too, unless it is ``free``
    to move as a whole."""
    strange = [line for line in checked(mesh) if not line.startswith("it has")]
    if odd := wound_both_ways(mesh):
        strange.append(f"{odd} triangles look the other way than their neighbours")
    nets, _ = load_foreteller(weights)
    label = parts(mesh)
    count = int(label.max()) + 1
    rng = np.random.default_rng(seed)
    soft = np.full(count, bends == "all")
    if bends == "look" and nets.bends is not None and count <= nets.bends.config.pieces:
        soft = _soft(nets.bends, mesh, label, rng)
    if count == 1 and not soft.any():
        if free:
            return solid_as_one(mesh, density, "one part that keeps its form")
        raise ValueError("the mesh is one part that keeps its form: it has no motion of its own; let it move as a whole with --free, give one that bends, or say --bends all")  # fmt: skip
    known = nets.bends if soft.any() else nets.joints
    if known is None:
        raise ValueError(f"{Path(weights).name} knows nothing of {'what bends' if soft.any() else 'joints'}; {RETRAIN}")
    twists, piece, differ, why = _bending(known, mesh, label, soft, rng) if isinstance(known, ScrewNet) else _jointed(known, mesh, label, rng)  # fmt: skip
    if differ > ALIKE:
        also = f" The mesh itself is strange, too: {'; '.join(strange)}." if strange else ""
        raise ValueError(
            f"this object is unlike those that the model learned from: looked at {LOOKS + AGAIN} times, it answers {100 * differ:.0f} % apart (at most {100 * ALIKE:.0f} %).{also} Fit it: `kinema4d objects fit`{', or say --bends none if it keeps its form' * bool(soft.any() and bends == 'look')}"
        )
    k = twists.shape[1]
    why = f"{why}; looked at {LOOKS + AGAIN} times, it answers {100 * differ:.0f} % apart"
    return Fitted(
        mesh=mesh, weighed=quadrature(mesh, density=density), piece=piece, twists=twists.numpy(),
        freedom=Freedom(count=None if soft.any() else k, errors=(), ratios=(), why=why),
        reach=np.tile([-SPAN, SPAN], (k, 1)), errors=np.full(k, differ),
    )  # fmt: skip


# ---------------------------------------------------------------------- on joints


def _jointed(net: ChooseNet, mesh: Mesh, label: np.ndarray, rng: np.random.Generator) -> tuple[Tensor, np.ndarray, float, str]:  # fmt: skip
    """Twists [c,k,6] of parts in metres, the parts, how far answers are apart, and what was found in words."""
    if (count := int(label.max()) + 1) > MOST:
        raise ValueError(f"the object has {count} parts that do not touch; the model knows at most {MOST}")
    found = [_tree(net, mesh, mesh.vertices, label, rng) for _ in range(LOOKS)]
    best = max(found, key=lambda f: float(f[0].sure.prod()) * f[0].bonds)
    twists, piece = best[1], torch.from_numpy(label)
    rest = torch.from_numpy(mesh.vertices)
    slopes = lambda t, x, q: moved_points_and_slopes(x, piece, t, q)  # noqa: E731
    none = torch.zeros(1, twists.shape[1], dtype=twists.dtype)
    own = [slopes(t, rest, torch.zeros(1, t.shape[1], dtype=t.dtype))[1][0].transpose(1, 2) for _, t in found]
    differ, again = _apart(own), list[float]()
    for _ in range(AGAIN):
        q = none + torch.from_numpy(MOVED * rng.choice((-1.0, 1.0), none.shape))
        at, true = slopes(twists, rest, q)
        _, now = _tree(net, mesh, at[0].numpy(), label, rng)
        seen = slopes(now, at[0], torch.zeros(1, now.shape[1], dtype=now.dtype))[1][0].transpose(1, 2)
        again.append(_apart([true[0].transpose(1, 2), seen]))
    kinds = Counter("hinge" if bool(t[:, :3].any()) else "slide" for t in twists.movedim(1, 0))
    each = " and ".join(f"{n} {kind}{'s' * (n > 1)}" for kind, n in sorted(kinds.items()))
    sure = float(best[0].sure.min()) * best[0].bonds
    return twists, label, max(differ, float(np.mean(again))), f"{each} ({100 * sure:.0f} % sure), foretold from the shape"  # fmt: skip


def _tree(net: ChooseNet, mesh: Mesh, vertices: Float64[np.ndarray, "v 3"], label: np.ndarray, rng: np.random.Generator) -> tuple[Tree, Tensor]:  # fmt: skip
    """One answer about an object with its vertices somewhere, and its twists in metres."""
    middle, size = box_of(vertices)
    unit = (vertices - middle) / size
    points, normals = surface(unit, mesh.faces, label, POINTS, rng)
    m = mates(points, normals, boxes(unit, label))
    with torch.no_grad():
        found = tree(m, net(shown([m])), points)
    return found, _metres(torch.from_numpy(found.twists), torch.from_numpy(middle), size)


# ---------------------------------------------------------------------- what bends


def _bending(net: ScrewNet, mesh: Mesh, label: np.ndarray, soft: np.ndarray, rng: np.random.Generator) -> tuple[Tensor, np.ndarray, float, str]:  # fmt: skip
    """Twists [g,k,6] in metres, whose each vertex has, how far answers are apart, and what was found in words."""
    pieces = cut(mesh.vertices, mesh.faces, label, soft, net.config.pieces)
    seen = _View(net, mesh, pieces, mesh.vertices)
    answers = [seen.look(rng, quarter=n) for n in range(LOOKS)]
    votes = torch.stack([a.counted for a in answers]).sum(0)
    count = int(votes.argmax()) + 1
    twists = [a.twists[:, :count] for a in answers]
    own = [seen.moves(t) for t in twists]
    metres = _metres(_agreed(twists, own), torch.from_numpy(seen.middle), seen.size)
    follow, piece = _followed(metres, pieces)
    differ = max(_apart(own), _again(net, mesh, pieces, follow[piece], rng))
    sure = 100 * float(votes.softmax(0).max())
    return follow, piece, differ, f"{count} coordinates ({sure:.0f} % sure), foretold from the shape; it bends ({int(soft.sum())} of {len(soft)} parts)"  # fmt: skip


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


def _soft(net: ScrewNet, mesh: Mesh, label: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """[parts] which of them look as if they bend."""
    whole = cut(mesh.vertices, mesh.faces, label, np.zeros(int(label.max()) + 1, bool), net.config.pieces)
    c, odds = net.config, np.zeros(whole.count)
    for n in range(LOOKS):
        look = look_at(mesh.vertices[None], mesh.faces, whole, rng, points=c.points, most=c.pieces, quarter=n)
        with torch.no_grad():
            said = net(
                *(torch.from_numpy(v)[None] for v in (look.points[0], look.normals, look.boxes, look.patch, look.there))
            )
        odds += said.bends[0, : whole.count].numpy()
    return odds > 0


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
