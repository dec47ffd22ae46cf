"""How something elastic can deform where it is held, from its shape alone: the shapes in which it rests under loads, and its slowest vibrations.

A vibration is a direction, and what bends far does not stay on it: a bar becomes shorter, a sheet folds. Coordinates that do not know this are stiffer than the material
(measured: docs/experiments.md). So the object is loaded, as its weight would load it lying on any side and as an uneven push would, so much that it bends far; the directions that matter most
in where it comes to rest are its coordinates, with the slowest vibrations beside them, which matter little in a shape and much in a motion. What turns about the places where it is held costs nothing
and may go any way: that is a joint of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float64
from scipy.linalg import eigh, solve_triangular
from scipy.optimize import minimize

from kinema4d.objects.elastic import Elastic, scattered, spline
from kinema4d.objects.solid import Mesh

CONTROLS = 150
"""Vertices at most that lead all others."""
SMALL = 1e-3
"""Of the size, by which slopes of forces are found."""
FAINT = 1e-9
"""Added, of the mean, so that nothing weighs nothing and nothing is without stiffness."""
WEAK = 1e-3
"""Stiffness of a vertex, of that of most, below which it is not held by anything around it."""
LOADS, GOES, ROUNDS = 20, (0.1, 0.8), 40
"""How many loads; how far the object would go under one, of its size, if it did not become stiffer on the way; and rounds in which it comes to rest."""
UNEVEN = 2.0
"""How much a load differs from one side to the other, beside how large it is."""
SHARE = 0.0075
"""Of the size, how far all vibrations go together, beside those shapes."""
LINE = 1e-3
"""Of the size: what is held within so much of one line, or of one point, lets it turn."""
FIRM = 1e3
"""Times all other stiffness, by which no shift is a turn."""
KEPT = 1e-5
"""Of the longest direction, below which one is none."""
BATCH = 64
"""Shapes at a time."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Ways:
    """In which it deforms, metres."""

    turns: Float64[np.ndarray, "j 6"]
    """Screws about where it is held."""
    shifts: Float64[np.ndarray, "k v 3"]
    """Of vertices, each of one deviation, those that matter most first."""


def ways(mesh: Mesh, held: Bool[np.ndarray, " v"], solid: Elastic, most: int) -> Ways:
    """Of a mesh, some of whose vertices are held, ``most`` shifts at most; if none is held, it flies, and only how it deforms is said. Only ratios of stiffness
    and mass count."""
    x, size = mesh.vertices, mesh.size
    turns = _turns(x[held], size) if held.any() else np.zeros((0, 6))
    lead = scattered(x, CONTROLS)
    to, stiff = _stiffness(x, held, lead, solid)
    own = stiff.diagonal().reshape(-1, 3).sum(axis=1)
    weak = own < WEAK * np.median(own)
    if weak.any():  # no tetrahedron has them: they follow the others
        lead = np.setdiff1d(lead, lead[~held[lead]][weak])
        to, stiff = _stiffness(x, held, lead, solid)
    at, n = x[lead][~held[lead]], to.shape[1]
    rows = solid.weighed.rows @ to
    mass = np.kron(rows.T @ (solid.weighed.mass[:, None] * rows), np.eye(3))
    ratio = np.trace(stiff) / np.trace(mass)
    mass += FAINT * np.trace(mass) / len(mass) * np.eye(len(mass))
    stiff = stiff + FAINT * ratio * mass
    joints = turns if held.any() else np.eye(6)
    firm = np.zeros_like(stiff)
    if len(joints):  # no shifts do what these do
        fast = np.cross(joints[:, None, :3], at) + joints[:, None, 3:]
        fast = mass @ fast.reshape(len(joints), -1).T
        firm = FIRM * ratio * fast @ np.linalg.solve(fast.T @ np.linalg.solve(mass, fast), fast.T)
    squares, basis = eigh(stiff + firm, mass, subset_by_index=(0, min(len(mass), most) - 1))
    # Each as long as with the same energy.
    way = basis / np.sqrt(squares) * SHARE * size * np.sqrt(solid.weighed.mass.sum() / (1 / squares).sum())
    hung = _hung(x, to, solid, stiff + firm, firm, mass)
    root = np.linalg.cholesky(mass)
    u, length, _ = np.linalg.svd(root.T @ np.concatenate([way, hung], axis=1), full_matrices=False)
    k = min(most, int((length > KEPT * length[0]).sum()))
    out = np.linalg.solve(root.T, u[:, :k] * length[:k])
    return Ways(turns=turns, shifts=np.einsum("vn,nik->kvi", to, out.reshape(n, 3, k)))


def _hung(x: np.ndarray, to: np.ndarray, solid: Elastic, stiff: np.ndarray, firm: np.ndarray, mass: np.ndarray) -> Float64[np.ndarray, "m l"]:  # fmt: skip
    """Where what leads is at rest under loads, away from where it is without; all loads together count as one shape."""
    rng, size, n = np.random.default_rng(0), float(np.linalg.norm(np.ptp(x, axis=0))), to.shape[1]
    root, out = np.linalg.cholesky(stiff), []
    places = (to.T @ x) / to.sum(axis=0)[:, None]
    places = (places - places.mean(axis=0)) / size
    for far in np.linspace(*GOES, LOADS):
        load = mass @ (rng.normal(size=3) + UNEVEN * places @ rng.normal(size=(3, 3))).ravel()
        load *= far * size / np.abs(np.linalg.solve(stiff, load)).max()
        unit = float(load @ np.linalg.solve(stiff, load))

        def cost(y: np.ndarray, load: np.ndarray = load, unit: float = unit) -> tuple[float, np.ndarray]:
            """In coordinates in which all directions are as stiff at rest, so that few rounds are enough."""
            shift = solve_triangular(root, y, lower=True, trans=1)
            now = torch.from_numpy(x + to @ shift.reshape(n, 3))[None]
            pull, turned = (to.T @ solid.force(now, torch.zeros_like(now))[0].numpy()).ravel(), firm @ shift
            energy = float(solid.energy(now)[0]) + shift @ turned / 2 - load @ shift
            return energy / unit, solve_triangular(root, pull + turned - load, lower=True) / unit

        found = minimize(cost, np.zeros(3 * n), jac=True, method="L-BFGS-B", options={"maxiter": ROUNDS})
        out.append(solve_triangular(root, found.x, lower=True, trans=1))
    return np.stack(out, 1) / LOADS**0.5


def _stiffness(x: np.ndarray, held: np.ndarray, lead: np.ndarray, solid: Elastic) -> tuple[Float64[np.ndarray, "v n"], Float64[np.ndarray, "m m"]]:  # fmt: skip
    """How vertices follow those that ``lead`` and are not held, and the stiffness of these at rest."""
    to = spline(x[lead], x)[0] if len(lead) < len(x) else np.eye(len(x))
    to[held] = 0
    to = to[:, ~held[lead]]
    far = SMALL * float(np.linalg.norm(np.ptp(x, axis=0)))
    unit = far * np.eye(3 * to.shape[1]).reshape(-1, to.shape[1], 3)
    stiff = (_forces(x, to, solid, unit) - _forces(x, to, solid, -unit)) / (2 * far)
    return to, (stiff + stiff.T) / 2


def _forces(x: np.ndarray, to: np.ndarray, solid: Elastic, shifts: Float64[np.ndarray, "b n 3"]) -> Float64[np.ndarray, "b m"]:  # fmt: skip
    """On what leads, where that is shifted."""
    out = []
    for some in np.array_split(shifts, -(-len(shifts) // BATCH)):
        now = torch.from_numpy(x + to @ some)
        out.append((to.T @ solid.force(now, torch.zeros_like(now)).numpy()).reshape(len(some), -1))
    return np.concatenate(out)


def _turns(x: Float64[np.ndarray, "h 3"], size: float) -> Float64[np.ndarray, "j 6"]:
    """Screws that leave places where they are: three about one point, one about a line."""
    middle = x.mean(axis=0)
    axes = np.linalg.svd(x - middle)[2]
    far = np.abs((x - middle) @ axes.T).max(axis=0)
    if far[1] > LINE * size:
        return np.zeros((0, 6))
    about = np.eye(3) if far[0] <= LINE * size else axes[:1]
    return np.concatenate([about, np.cross(middle, about)], axis=1)
