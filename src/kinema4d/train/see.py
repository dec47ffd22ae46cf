"""Train what sees: parts, depth, unseen sides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from kinema4d.train.augment import covered, frayed, recoloured, repainted, thinned, varied, worn
from kinema4d.train.see_pack import ROBOT, Picture, inside
from kinema4d.world.small import complete as completing
from kinema4d.world.small.complete import CompleteNet, Glimpse
from kinema4d.world.small.see import (
    ROOM_UNIT,
    BlindNet,
    Said,
    SegmentNet,
    blind_input,
    level_frame,
    level_points,
    segment_input,
)
from kinema4d.world.small.surface import projection

DEPTH_UNIT = 50.0
"""Errors of depth count by their square up to one part in so many."""
LOST = -1
"""Class of pixels that are not learned from."""


@dataclass(frozen=True, eq=False)
class Marks:
    """What is true of every pixel, in the level frame."""

    kind: np.ndarray
    """[h,w] 0 nothing, 1 + index of the joint; ``LOST`` for robot pixels."""
    vectors: np.ndarray
    """[9,h,w] middle and pivot from the pixel's point in metres, axis."""
    room: np.ndarray
    """[2,h,w]."""


def marks(picture: Picture, X: np.ndarray) -> Marks:
    """Targets of the segmenter for pixels at ``X``, points in the level frame."""
    R = level_frame(picture.camera)
    origin = np.array([*picture.camera.poses(1)[0][:2, 3], 0.0])
    n = len(picture.joint)
    solid = np.zeros(n + 1, bool)
    solid[1 + np.unique(picture.primitives[:, 0]).astype(int)] = True  # marks on the table are no things
    kind = np.concatenate([[0], 1 + picture.joint]) * solid
    ids = np.where(picture.ids == ROBOT, 0, picture.ids).astype(int)
    along = ((picture.middle - picture.pivot) * picture.axis).sum(1, keepdims=True) * picture.axis
    places = [(p - origin) @ R.T for p in (picture.middle, picture.pivot + along)]
    middle, pivot, axis = (np.concatenate([np.zeros((1, 3)), p]) for p in (*places, picture.axis @ R.T))
    hinge = picture.joint == 3
    room = np.concatenate([np.zeros((1, 2)), picture.room / np.where(hinge, 1.0, ROOM_UNIT)[:, None]])
    vectors = np.concatenate([middle[ids] - X, pivot[ids] - X, axis[ids]], axis=-1)
    labels = np.where(picture.ids == ROBOT, LOST, kind[ids])
    return Marks(labels, vectors.transpose(2, 0, 1).astype(np.float32), room[ids].transpose(2, 0, 1).astype(np.float32))


_MIRROR = np.array([1, -1, 1, 1, -1, 1], np.float32)[:, None, None]


def mirrored(m: Marks) -> Marks:
    """Left for right. The axis of a hinge turns the other way round, that of a slide like any direction."""
    vectors = m.vectors[:, :, ::-1].copy()
    vectors[:6] *= _MIRROR
    kind = m.kind[:, ::-1]
    vectors[6:] *= np.where(kind == 4, np.array([-1, 1, -1])[:, None, None], np.array([1, -1, 1])[:, None, None])
    return Marks(kind, vectors, m.room[:, :, ::-1].copy())


def turned_over(x: np.ndarray, sideways: int) -> np.ndarray:
    """Channels [c,h,w] left for right; ``sideways`` is the one that holds a y."""
    x = x[:, :, ::-1].copy()
    x[sideways] *= -1
    return x


class _Task:
    """What the three tasks share."""

    def __init__(self, pictures: Sequence[Picture], held_out: Sequence[Picture], size: int, seed: int) -> None:
        self.pictures, self.held_out, self.size, self.seed = pictures, held_out, size, seed

    def _drawn(self, step: int) -> tuple[list[Picture], np.random.Generator]:
        """A batch, every second picture one with a joint in it where a second draw finds one: they are rarer and
        harder."""
        rng = np.random.default_rng([self.seed, step])
        out = []
        for n, (i, j) in enumerate(rng.integers(len(self.pictures), size=(self.size, 2))):
            other = self.pictures[j]
            out.append(other if n % 2 and (other.joint >= 2).any() else self.pictures[i])
        return out, rng


class SegmentTask(_Task):
    """Teach :class:`SegmentNet`."""

    def __init__(
        self,
        model: SegmentNet,
        pictures: Sequence[Picture],
        held_out: Sequence[Picture],
        *,
        size: int = 8,
        seed: int = 0,
    ) -> None:
        super().__init__(pictures, held_out, size, seed)
        self.model = model

    def loss(self, step: int) -> Tensor:
        """Of one batch."""
        pictures, rng = self._drawn(step)
        inputs, truth = [], []
        for p in pictures:
            p = varied(p, rng)
            rgb = recoloured(repainted(p.rgb, p.ids, rng) if rng.random() < 0.5 else p.rgb, rng)
            depth, valid = worn(p.depth, rng)
            x, X = segment_input(rgb, depth, valid, p.ids == ROBOT, p.camera)
            m = marks(p, X)
            if rng.random() < 0.5:
                x, m = turned_over(x, 5), mirrored(m)  # y of the normal
            inputs.append(x)
            truth.append(m)
        x = torch.from_numpy(np.stack(inputs))
        return part_loss(self.model(x), truth, (x[:, 9] > 0).float())

    @torch.no_grad()
    def validate(self, model: nn.Module) -> dict[str, float]:
        """Figures of :func:`part_figures`."""
        assert isinstance(model, SegmentNet)
        found = []
        for p in self.held_out:
            x, X = segment_input(p.rgb, p.depth, p.depth > 0, p.ids == ROBOT, p.camera)
            found.append((marks(p, X), model(torch.from_numpy(x)[None])))
        return part_figures(found)


def part_loss(said: Said, truth: Sequence[Marks], known: Tensor) -> Tensor:
    """Of what is said about parts; places count where pixels are ``known`` [b,h,w]."""
    kind = torch.from_numpy(np.stack([m.kind for m in truth])).long()
    vectors = torch.from_numpy(np.stack([m.vectors for m in truth]))
    room = torch.from_numpy(np.stack([m.room for m in truth]))
    weight = torch.tensor([1.0, 2.0, 3.0, 4.0, 4.0])
    total = F.cross_entropy(said.kind, kind.clamp(min=0), weight=weight, reduction="none")
    total = (total * (kind >= 0)).mean() * 3
    thing, joint = (kind > 0).float(), (kind > 2).float()
    count, joints = thing.sum().clamp(min=1), joint.sum().clamp(min=1)
    middle, pivot, axis = vectors.split(3, 1)
    far = F.smooth_l1_loss(said.vote / 0.02, middle / 0.02, reduction="none").sum(1)
    total = total + (far * thing * known).sum() / count
    hinge = (kind == 4).float() * known
    far = F.smooth_l1_loss(said.pivot / 0.03, pivot / 0.03, reduction="none").sum(1)
    total = total + (far * hinge).sum() / hinge.sum().clamp(min=1)
    total = total + 3 * (F.smooth_l1_loss(said.axis, axis, reduction="none").sum(1) * joint).sum() / joints
    return total + 0.5 * (F.smooth_l1_loss(said.room, room, reduction="none").sum(1) * joint).sum() / joints


def part_figures(found: Sequence[tuple[Marks, Said]]) -> dict[str, float]:
    """Overlap of things with the truth, share of right joints, error of votes and axes, over pictures."""
    both = either = right = things = 0.0
    vote, pivot, turn = [], [], []
    for m, said in found:
        kind = said.kind[0].argmax(0).numpy()
        ok = m.kind >= 0
        a, b = (kind > 0) & ok, (m.kind > 0) & ok
        both, either = both + (a & b).sum(), either + (a | b).sum()
        right, things = right + (kind == m.kind)[b].sum(), things + b.sum()
        vote.append(np.linalg.norm(said.vote[0].numpy() - m.vectors[:3], axis=0)[b])
        hinge, joint = m.kind == 4, m.kind > 2
        pivot.append(np.linalg.norm(said.pivot[0].numpy() - m.vectors[3:6], axis=0)[hinge])
        axis = said.axis[0].numpy()
        cosine = (axis * m.vectors[6:]).sum(0) / np.maximum(np.linalg.norm(axis, axis=0), 1e-6)
        turn.append(np.degrees(np.arccos(np.clip(cosine[joint], -1, 1))))
    vote_m, pivot_m, axis_deg = (
        float(np.median(np.concatenate(a))) if sum(map(len, a)) else 0.0 for a in (vote, pivot, turn)
    )
    return {
        "overlap": float(both / max(either, 1)),
        "joint_right": float(right / max(things, 1)),
        "vote_mm": 1000 * vote_m,
        "pivot_mm": 1000 * pivot_m,
        "axis_deg": axis_deg,
    }


class BlindTask(_Task):
    """Teach :class:`BlindNet`: depth, and parts as seen from where that depth has them."""

    def __init__(
        self, model: BlindNet, pictures: Sequence[Picture], held_out: Sequence[Picture], *, size: int = 8, seed: int = 0
    ) -> None:
        super().__init__(pictures, held_out, size, seed)
        self.model = model

    def loss(self, step: int) -> Tensor:
        """Of one batch."""
        pictures, rng = self._drawn(step)
        pictures, rows, flip = [varied(p, rng) for p in pictures], [], rng.random(self.size) < 0.5
        for p, f in zip(pictures, flip, strict=True):
            rgb = recoloured(repainted(p.rgb, p.ids, rng) if rng.random() < 0.4 else p.rgb, rng)
            robot = p.ids == ROBOT
            x, reference = blind_input(rgb, robot, p.depth, p.camera)
            truth = [reference, p.inverse * np.float32(5.0 / 65535), (p.ids > 0) & ~robot, robot]
            x, truth = (turned_over(x, 7), [a[:, ::-1] for a in truth]) if f else (x, truth)  # y of the rays
            rows.append((x, *truth))
        x, reference, inverse, thing, robot = (torch.from_numpy(np.stack([r[i] for r in rows])) for i in range(5))
        guess, said = self.model(x, reference)
        far = (1 / guess.detach().clamp(min=1e-3)).numpy()
        m = [
            marks(p, level_points(z[:, ::-1] if f else z, p.camera))
            for p, z, f in zip(pictures, far, flip, strict=True)
        ]
        m = [mirrored(a) if f else a for a, f in zip(m, flip, strict=True)]
        return depth_loss(guess, inverse, thing, robot) + part_loss(said, m, (inverse > 0).float())

    @torch.no_grad()
    def validate(self, model: nn.Module) -> dict[str, float]:
        """Figures of :func:`part_figures`, and median error in depth of things and of the rest within reach."""
        assert isinstance(model, BlindNet)
        things, rest, found = [], [], []
        for p in self.held_out:
            robot = p.ids == ROBOT
            x, reference = blind_input(p.rgb, robot, p.depth, p.camera)
            guess, said = model(torch.from_numpy(x)[None], torch.from_numpy(reference)[None])
            z = 1 / guess[0].numpy()
            error = np.abs(z - p.depth)
            things.append(error[(p.ids > 0) & ~robot])
            rest.append(error[(p.ids == 0) & (p.depth > 0) & (p.depth < 1.5)])
            found.append((marks(p, level_points(z, p.camera)), said))
        thing, around = np.concatenate(things), np.concatenate(rest)
        return {
            "thing_mm": 1000 * float(np.median(thing)),
            "thing_p90_mm": 1000 * float(np.percentile(thing, 90)),
            "table_mm": 1000 * float(np.median(around)),
            **part_figures(found),
        }


def depth_loss(guess: Tensor, inverse: Tensor, thing: Tensor, robot: Tensor) -> Tensor:
    """Of the logarithm of depth, things and edges more than the rest."""
    known = ((inverse > 0) & ~robot).float()
    error = (guess.clamp(min=1e-3).log() - inverse.clamp(min=1e-3).log()) * DEPTH_UNIT
    weight = known * (1 + 5 * thing)
    total = (F.smooth_l1_loss(error, torch.zeros_like(error), reduction="none") * weight).sum() / weight.sum()
    for axis in (-1, -2):
        slope = torch.diff(error, dim=axis)
        n = slope.shape[axis]
        w = weight.narrow(axis, 0, n) * weight.narrow(axis, 1, n)
        total = total + (slope.abs() * w).sum() / w.sum().clamp(min=1)
    return total


# ---------------------------------------------------------------------- unseen sides


def glimpse_of(picture: Picture, own: np.ndarray, depth: np.ndarray) -> Glimpse:
    """What a picture shows of the pixels ``own``."""
    x, X = segment_input(picture.rgb, depth, depth > 0, picture.ids == ROBOT, picture.camera)
    return Glimpse(own, depth, X, x[4:7].transpose(1, 2, 0), projection(picture.camera))


class CompleteTask(_Task):
    """Teach :class:`CompleteNet`."""

    queries: int = 384
    """Per part."""

    def __init__(
        self,
        model: CompleteNet,
        pictures: Sequence[Picture],
        held_out: Sequence[Picture],
        *,
        size: int = 12,
        seed: int = 0,
    ) -> None:
        pictures, held_out = ([p for p in all_ if (p.primitives[:, 1] >= 0).any()] for all_ in (pictures, held_out))
        if not pictures:
            raise ValueError("none of these pictures says what its things' unseen sides are")
        super().__init__(pictures, held_out, size, seed)
        self.model = model

    def loss(self, step: int) -> Tensor:
        """Signed distance, and on which side."""
        pictures, rng = self._drawn(step)
        rows = [r for p in pictures for r in self._parts(p, rng, most=3)]
        return self._loss(rows)

    def _loss(self, rows: list[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]]) -> Tensor:
        points, present, queries, truth = (torch.from_numpy(np.stack([r[i] for r in rows])) for i in range(4))
        said = self.model.decode(self.model.encode(points, present), queries)
        clipped = truth.clamp(-2, 2)
        distance = F.smooth_l1_loss(said.clamp(-2.5, 2.5), clipped, beta=0.1)
        side = F.binary_cross_entropy_with_logits(-said * 4, (truth < 0).float())
        return distance + side

    def _parts(
        self, p: Picture, rng: np.random.Generator, *, most: int, clean: bool = False
    ) -> list[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]]:
        if not clean and rng.random() < 0.35:
            r, c = rng.integers(2, size=2).tolist()
            p = thinned(p, 2, (r, c))
        solid = set(np.unique(p.primitives[p.primitives[:, 1] >= 0, 0]).astype(int).tolist())
        counts = np.bincount(p.ids.ravel(), minlength=256)
        can = [i for i in range(len(p.joint)) if i in solid and counts[i + 1] >= 8]
        chosen = rng.permutation(can)[:most] if can else []
        depth = p.depth if clean else worn(p.depth, rng)[0]
        out = []
        base = glimpse_of(p, np.zeros(p.ids.shape, bool), depth)
        R, foot = level_frame(p.camera), np.array([*p.camera.poses(1)[0][:2, 3], 0.0])
        for i in chosen:
            own = p.ids == i + 1
            if not clean and rng.random() < 0.4:
                own = frayed(own, rng)
            g = replace(base, own=own)
            if not clean and rng.random() < 0.35:
                g = covered(g, rng)
            points, normals = completing.seen_points(g, rng)
            if len(points) < 6:
                continue
            origin = completing.middle_of(points)
            T = p.Ts_world_part[i].astype(np.float64)
            mine = p.primitives[p.primitives[:, 0] == i]
            q = self._queries(rng, points, T, R, foot, mine)
            world = q @ R + foot
            truth = inside(mine, (world - T[:3, 3]) @ T[:3, :3]) / completing.DISTANCE_UNIT
            features = np.zeros((completing.POINTS, completing.POINT_FEATURES), np.float32)
            features[: len(points)] = completing.point_features(points, normals, origin)
            present = np.arange(completing.POINTS) < len(points)
            out.append((features, present, completing.query_features(g, q, points, normals, origin), truth))
        return out

    def _queries(
        self,
        rng: np.random.Generator,
        points: np.ndarray,
        T: np.ndarray,
        R: np.ndarray,
        foot: np.ndarray,
        mine: np.ndarray,
    ) -> np.ndarray:
        """Half near the true surface, some near what is seen, some anywhere around."""
        n = self.queries
        centres = (mine[:, 5:].reshape(-1, 3, 4)[..., 3] @ T[:3, :3].T + T[:3, 3] - foot) @ R.T
        reach = np.maximum(mine[:, 2:5].max(axis=1, keepdims=True), 0.01)
        low = np.minimum((centres - 1.2 * reach).min(axis=0), points.min(axis=0)) - 0.015
        high = np.maximum((centres + 1.2 * reach).max(axis=0), points.max(axis=0)) + 0.015
        low[2] = max(low[2], -0.006)
        many = rng.uniform(low, high, (6 * n, 3))
        d = np.abs(inside(mine, ((many @ R + foot) - T[:3, 3]) @ T[:3, :3]))
        near = many[d < 0.008][: n // 2]
        around = points[rng.integers(len(points), size=n // 4)] + rng.normal(0, 0.006, (n // 4, 3))
        rest = many[: n - len(near) - len(around)]
        return np.concatenate([near, around, rest]).astype(np.float32)

    @torch.no_grad()
    def validate(self, model: nn.Module) -> dict[str, float]:
        """Overlap of solids, by points near their surface, and error of the distance there."""
        assert isinstance(model, CompleteNet)
        rng = np.random.default_rng(5)
        both = either = 0.0
        errors = []
        for p in self.held_out:
            for points, present, queries, truth in self._parts(p, rng, most=2, clean=True):
                to = lambda a: torch.from_numpy(a)[None]  # noqa: E731
                said = model.decode(model.encode(to(points), to(present)), to(queries))[0].numpy()
                both += ((said < 0) & (truth < 0)).sum()
                either += ((said < 0) | (truth < 0)).sum()
                errors.append(np.abs(said - truth)[np.abs(truth) < 0.8])
        return {"overlap": both / max(either, 1), "surface_mm": 10 * float(np.mean(np.concatenate(errors)))}
