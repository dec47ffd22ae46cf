"""How what keeps its form is foretold: on joints that the network of :mod:`.choose` chooses out of those that could be."""

from __future__ import annotations

from collections import Counter

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor

from kinema4d.objects.choose import ChooseNet, Tree, shown, tree
from kinema4d.objects.look import box_of
from kinema4d.objects.mates import mates, survey
from kinema4d.objects.quick import moved_points_and_slopes
from kinema4d.objects.screws import in_metres
from kinema4d.objects.solid import Mesh

MOST = 64
"""Parts of an object on joints."""
LOOKS, AGAIN = 4, 2
"""Times that an object is looked at, from other sides and at other points, to see whether the answers agree; and after it has moved as was foretold."""
MOVED = 0.7
"""How far it is moved then, in deviations of what was learned from."""


def on_joints(net: ChooseNet, mesh: Mesh, label: np.ndarray, rng: np.random.Generator, *, moving: bool = True) -> tuple[Tensor, np.ndarray, float, str]:  # fmt: skip
    """Twists [c,k,6] of parts in metres, the parts, how far answers are apart, and what was found in words. If nothing has to be ``moving``, there may be no joints."""
    if (count := int(label.max()) + 1) > MOST:
        raise ValueError(f"the object has {count} parts that do not touch; the model knows at most {MOST}")
    found = [_tree(net, mesh, mesh.vertices, label, rng, moving=moving) for _ in range(LOOKS)]
    if not any(t.shape[1] for _, t in found):
        return found[0][1], label, 0.0, "no joints"
    best = max(found, key=lambda f: float(f[0].sure.prod()) * f[0].bonds)
    twists, piece = best[1], torch.from_numpy(label)
    rest = torch.from_numpy(mesh.vertices)
    slopes = lambda t, x, q: moved_points_and_slopes(x, piece, t, q)  # noqa: E731
    none = torch.zeros(1, twists.shape[1], dtype=twists.dtype)
    own = [slopes(t, rest, torch.zeros(1, t.shape[1], dtype=t.dtype))[1][0].transpose(1, 2) for _, t in found]
    differ, again = apart(own, rest), list[float]()
    for _ in range(AGAIN):
        q = none + torch.from_numpy(MOVED * rng.choice((-1.0, 1.0), none.shape))
        at, true = slopes(twists, rest, q)
        _, now = _tree(net, mesh, at[0].numpy(), label, rng, moving=moving)
        seen = slopes(now, at[0], torch.zeros(1, now.shape[1], dtype=now.dtype))[1][0].transpose(1, 2)
        again.append(apart([true[0].transpose(1, 2), seen], at[0]))
    kinds = Counter("hinge" if bool(t[:, :3].any()) else "slide" for t in twists.movedim(1, 0))
    each = " and ".join(f"{n} {kind}{'s' * (n > 1)}" for kind, n in sorted(kinds.items())) or "no joints"
    sure = float(best[0].sure.min(initial=1.0)) * best[0].bonds
    return twists, label, max(differ, float(np.mean(again))), f"{each} ({100 * sure:.0f} % sure), foretold from the shape"  # fmt: skip


def _tree(net: ChooseNet, mesh: Mesh, vertices: Float64[np.ndarray, "v 3"], label: np.ndarray, rng: np.random.Generator, *, moving: bool) -> tuple[Tree, Tensor]:  # fmt: skip
    """One answer about an object with its vertices somewhere, and its twists in metres."""
    middle, size = box_of(vertices)
    unit = (vertices - middle) / size
    one = survey(unit, mesh.faces, label, rng)
    m = mates(one)
    with torch.no_grad():
        found = tree(m, net(shown([m])), one.points, moving=moving)
    return found, in_metres(torch.from_numpy(found.twists), torch.from_numpy(middle), size)


def apart(own: list[Tensor], x: Tensor) -> float:
    """How much of what one look says moves of places [v,3] is not among what another says (root of the share of the mean square), on average; whichever link is said to
    stand still, as of the blades of scissors it may be either."""
    turns = torch.linalg.cross(torch.eye(3, dtype=x.dtype)[:, None].expand(3, *x.shape), x.expand(3, *x.shape))
    shifts = torch.eye(3, dtype=x.dtype)[:, None].expand(3, *x.shape)
    whole = torch.linalg.qr(torch.cat([turns, shifts]).flatten(1).T)[0]  # [3v,6]
    flat = [m.movedim(1, 0).flatten(1).T for m in own]  # [3v,k]
    flat = [f - whole @ (whole.T @ f) for f in flat]
    every = [torch.linalg.qr(f)[0] for f in flat]
    rest = [a - basis @ (basis.T @ a) for i, a in enumerate(flat) for j, basis in enumerate(every) if i != j]
    left = torch.stack([r.square().sum() for r in rest]).sum()
    return float(left / (torch.stack([a.square().sum() for a in flat]).sum() * (len(flat) - 1))) ** 0.5
