"""The kinematics of an object that was never seen before, from its mesh alone.

A network sees which parts bend (:mod:`.limp`). Those that keep their form are put on joints (:mod:`.foretell_joints`); what bends does what its form allows where it is held
(:mod:`.foretell_bends`). A mesh is looked at several times, at other points of it and from other sides, and once more when it has moved as was foretold. How sure
its joints are shows in how far the answers are apart: what is unlike anything that was learned from is refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Bool, Int64

from kinema4d.objects.choose import ChooseConfig, ChooseNet
from kinema4d.objects.fit import Fitted, solid_as_one
from kinema4d.objects.foretell_bends import on_modes
from kinema4d.objects.foretell_joints import AGAIN, LOOKS, MOST, on_joints
from kinema4d.objects.limp import LimpConfig, LimpNet, shown
from kinema4d.objects.look import look_at
from kinema4d.objects.meshes import wound_both_ways
from kinema4d.objects.reduce import Freedom
from kinema4d.objects.solid import Mesh, checked, parts, quadrature
from kinema4d.weights_file import fill_in, read_weights, write_weights

FORMAT = "kinema4d objects 4"
"""What a file of weights says it is."""
RETRAIN = "train one with kinema4d objects train"
ALIKE = 0.5
"""Share of their motion by which answers may differ before an object is said to be unlike what was learned from."""
SPAN = 3.5
"""Range of a coordinate, in deviations of what was learned from."""
Place = tuple[float, float, float]
Bends = Literal["look", "none", "all"]
"""Which parts bend: those that look like it, or as the caller knows."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Foreteller:
    """What was learned."""

    joints: ChooseNet | None
    """Of what is on joints; None: it knows only what bends."""
    limp: LimpNet | None
    """Of what bends; None: it takes all for parts that keep their form."""


def shipped() -> Path | None:
    """Weights that come with the package, if there are."""
    from importlib.resources import files

    file = Path(str(files("kinema4d.objects") / "weights" / "objects.safetensors"))
    return file if file.is_file() else None


def save_foreteller(path: str | Path, what: Foreteller, about: Mapping[str, Any]) -> str:
    """As float16, with the configurations; returns the hash."""
    nets = {n: net for n, net in (("joints", what.joints), ("limp", what.limp)) if net is not None}
    state = {f"{n}.{k}": v for n, net in nets.items() for k, v in net.state_dict().items()}
    return write_weights(path, state, FORMAT, {n: asdict(net.config) for n, net in nets.items()}, dict(about))


def load_foreteller(path: str | Path) -> tuple[Foreteller, dict[str, Any]]:
    """The networks, and what is known about them; a file that is damaged or of another kind is refused."""
    state, config, about = read_weights(path, FORMAT, RETRAIN)
    joints = ChooseNet(ChooseConfig(**config["joints"])) if "joints" in config else None
    limp = LimpNet(LimpConfig(**config["limp"])) if "limp" in config else None
    fill_in({n: net for n, net in (("joints", joints), ("limp", limp)) if net is not None}, state, path, RETRAIN)
    return Foreteller(joints=joints, limp=limp), about


def kinematics(
    mesh: Mesh, weights: str | Path, *, density: float = 1000.0, bends: Bends = "look", held: Sequence[Place] = (), free: bool = False, seed: int = 0
) -> Fitted:  # fmt: skip
    """How an unseen mesh moves, without fitting. What bends is held where it touches the rest and at places ``held`` (metres); what nothing holds is refused, and so is one solid, unless
    it is ``free`` to move as a whole. Joints that look different from different sides are unlike what was learned from, and refused."""
    strange = [line for line in checked(mesh) if not line.startswith("it has")]
    if odd := wound_both_ways(mesh):
        strange.append(f"{odd} triangles look the other way than their neighbours")
    nets, _ = load_foreteller(weights)
    label = parts(mesh)
    count = int(label.max()) + 1
    rng = np.random.default_rng(seed)
    soft = np.full(count, bends == "all")
    if bends == "look" and nets.limp is not None and count <= MOST:
        soft = looks_limp(nets.limp, mesh, label, rng)
    if count == 1 and not soft.any():
        if free:
            return solid_as_one(mesh, density, "one part that keeps its form")
        raise ValueError("the mesh is one part that keeps its form: it has no motion of its own; let it move as a whole with --free, give one that bends, or say --bends all")  # fmt: skip
    if soft.any():
        twists, piece, spans, differ, why = on_modes(nets.joints, mesh, label, soft, held, rng, free=free)
    elif nets.joints is None:
        raise ValueError(f"{Path(weights).name} knows nothing of joints; {RETRAIN}")
    else:
        twists, piece, differ, why = on_joints(nets.joints, mesh, label, rng)
        spans = np.ones(twists.shape[1])
    if differ > ALIKE:
        also = f" The mesh itself is strange, too: {'; '.join(strange)}." if strange else ""
        raise ValueError(
            f"this object is unlike those that the model learned from: looked at {LOOKS + AGAIN} times, it answers {100 * differ:.0f} % apart (at most {100 * ALIKE:.0f} %).{also} Fit it: `kinema4d objects fit`{', or say --bends none if it keeps its form' * bool(soft.any() and bends == 'look')}"
        )
    k = twists.shape[1]
    why = f"{why}; looked at {LOOKS + AGAIN} times, it answers {100 * differ:.0f} % apart"
    return Fitted(
        mesh=mesh, weighed=quadrature(mesh, density=density), piece=piece, twists=twists.numpy(),
        freedom=Freedom(count=None if soft.any() else k, errors=(), ratios=(), why=why, bends=bool(soft.any())),
        reach=SPAN * spans[:, None] * [-1.0, 1.0], errors=np.full(k, differ),
    )  # fmt: skip


def looks_limp(net: LimpNet, mesh: Mesh, label: Int64[np.ndarray, " v"], rng: np.random.Generator) -> Bool[np.ndarray, " c"]:  # fmt: skip
    """Which parts look as if they bend."""
    looks = [look_at(mesh.vertices, mesh.faces, label, rng, points=net.config.points, quarter=n) for n in range(LOOKS)]
    x, normals, boxes, there = shown(looks)
    with torch.no_grad():
        odds = net(x, normals, boxes, there).sum(0)
    return (odds > 0).numpy()
