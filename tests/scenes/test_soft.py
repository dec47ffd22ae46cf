"""Soft objects: one topology, pins that hold, ropes that keep their length, runs that a seed repeats."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest

from kinema4d.objects.mate_kernels import gaps
from kinema4d.objects.obstacle import Skins, skins
from kinema4d.objects.solid import Mesh, parts
from kinema4d.scenes.soft import EARTH, Soft, Start, run, some_poses
from kinema4d.scenes.soft_kinds import KINDS, draw
from kinema4d.scenes.soft_pieces import SIDES, grid, sheet, surface, tetrahedra

HOOK = 8
"""Vertices of what a rope hangs from; they come first."""
pytest.importorskip("mujoco", reason="soft objects are moved by MuJoCo: pip install 'kinema4d[mjcf]'")


@lru_cache
def _case(kind: str) -> tuple[Soft, np.ndarray]:
    """An object and some of its poses."""
    thing = draw(kind, 1)
    return thing, some_poses(thing, 6, 1, each=3)


def _lengths(vertices: np.ndarray, edges: np.ndarray) -> np.ndarray:
    return np.linalg.norm(vertices[..., edges[:, 0], :] - vertices[..., edges[:, 1], :], axis=-1)


def _edges(faces: np.ndarray) -> np.ndarray:
    return np.unique(np.sort(faces[:, [0, 1, 1, 2, 2, 0]].reshape(-1, 2), axis=1), axis=0)


@pytest.mark.parametrize("kind", KINDS)
def test_poses_share_a_mesh_that_is_sound(kind: str):
    thing, poses = _case(kind)
    count = len(thing.vertices)
    assert poses.shape == (6, count, 3)
    assert count <= 600
    assert np.isfinite(poses).all()
    assert set(np.unique(thing.faces)) == set(range(count))
    moved = np.linalg.norm(poses - thing.vertices, axis=2).max(axis=1)
    assert (moved > 0.01 * thing.size).any(), "nothing moves"
    assert np.abs(poses[0] - poses[-1]).max() > 1e-3, "every pose is the same"
    edges = _edges(thing.faces)
    stretch = _lengths(poses, edges) / _lengths(thing.vertices, edges)
    assert 0.1 < stretch.min() <= stretch.max() < 2


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_pinned_stays_and_what_is_rigid_keeps_its_lengths(kind: str):
    thing, poses = _case(kind)
    assert len(thing.pinned) or kind == "rigid"
    np.testing.assert_allclose(poses[:, thing.pinned], np.broadcast_to(thing.vertices[thing.pinned], poses[:, thing.pinned].shape), atol=1e-9)  # fmt: skip
    edges = _edges(thing.faces)
    solid = edges[(thing.rigid[edges[:, 0]] >= 0) & (thing.rigid[edges[:, 0]] == thing.rigid[edges[:, 1]])]
    if thing.category in ("rigid", "mixed"):
        assert len(solid) > 10
        np.testing.assert_allclose(_lengths(poses, solid), np.broadcast_to(_lengths(thing.vertices, solid), (6, len(solid))), rtol=1e-9)  # fmt: skip
    if thing.category == "rigid":
        assert (thing.rigid >= 0).all()
    if thing.category in ("elastic", "cloth"):
        assert set(np.flatnonzero(thing.rigid >= 0)) < set(thing.pinned.tolist())


def _rope_length(vertices: np.ndarray) -> np.ndarray:
    middles = vertices[..., HOOK:-2, :].reshape(*vertices.shape[:-2], -1, SIDES, 3).mean(axis=-2)
    return np.linalg.norm(np.diff(middles, axis=-2), axis=-1).sum(axis=-1)


def test_a_rope_keeps_its_length_and_hangs_on():
    thing, poses = _case("rope")
    np.testing.assert_allclose(_rope_length(poses), _rope_length(thing.vertices), rtol=0.02)
    np.testing.assert_allclose(poses[:, HOOK : HOOK + SIDES].mean(axis=1), 0, atol=1e-9)


def test_a_cloth_hardly_stretches():
    thing, poses = _case("cloth")
    edges = _edges(thing.faces)
    stretch = _lengths(poses, edges) / _lengths(thing.vertices, edges)
    assert stretch.mean() == pytest.approx(1, abs=0.03)
    assert 0.8 < stretch.min() <= stretch.max() < 1.2


def test_a_lid_stays_on_its_box():
    thing, poses = _case("box-cloth")
    corners = np.flatnonzero(thing.rigid < 0)[[0, -1]]
    solid = np.flatnonzero(thing.rigid == thing.rigid.max())[:40]  # of the box, not of what holds it
    pairs = np.array([(c, s) for c in corners for s in solid])
    np.testing.assert_allclose(_lengths(poses, pairs), np.broadcast_to(_lengths(thing.vertices, pairs), (6, len(pairs))), atol=1e-9)  # fmt: skip


@pytest.mark.parametrize("kind", ["bar", "blob", "plate", "cloth", "box-cloth"])
@pytest.mark.parametrize("seed", range(4))
def test_what_holds_it_touches_it_where_it_is_held_and_nowhere_else(kind: str, seed: int):
    thing = draw(kind, seed)
    soft = np.flatnonzero(thing.rigid < 0)
    poses = some_poses(thing, 8, 1, each=2)
    carrier = np.flatnonzero(thing.rigid == thing.rigid.max())
    pairs = np.linalg.norm(poses[:, soft, None] - poses[:, None, carrier], axis=3)
    fixed = np.abs(pairs - np.linalg.norm(thing.vertices[soft, None] - thing.vertices[carrier], axis=2)).max(axis=(0, 2)) < 1e-9  # fmt: skip
    skin = skins(thing.vertices, thing.faces, parts(Mesh(vertices=thing.vertices, faces=thing.faces)))
    stiff = np.array([thing.rigid[thing.faces[(np.abs(skin.corners[n, 0] - thing.vertices[thing.faces[:, 0]]) < 1e-12).all(1)][0, 0]] >= 0 for n in _firsts(skin)])  # fmt: skip
    away = gaps(thing.vertices[soft], skin.corners, skin.normals, skin.boxes, skin.nodes, skin.roots[stiff]).min(axis=1)
    np.testing.assert_array_equal(away < 0.002, fixed)


def _firsts(skin: Skins) -> list[int]:
    """A triangle of each part."""
    return [int(skin.nodes[root, 1]) for root in skin.roots]


def test_a_thrown_body_falls_as_galilei_says():
    thing = draw("rigid", 2)
    way = run(thing, Start(seed=4), seconds=0.5)
    assert len(way.vertices) == 51
    faces, t = thing.faces, np.arange(51) * 0.01
    a, b, c = (way.vertices[:, faces[:, i]] for i in range(3))
    volume = np.einsum("tfi,tfi->tf", a, np.cross(b, c)) / 6
    middle = (volume[..., None] * (a + b + c) / 4).sum(axis=1) / volume.sum(axis=1)[:, None]
    want = middle[0] + t[:, None] * way.speed[:3] + 0.5 * t[:, None] ** 2 * np.array(EARTH)
    np.testing.assert_allclose(middle, want, atol=2e-3)


def test_a_seed_repeats_and_another_does_not():
    for kind in KINDS:
        np.testing.assert_array_equal(draw(kind, 5).vertices, draw(kind, 5).vertices)
        assert (
            not np.array_equal(draw(kind, 5).vertices.mean(axis=0), draw(kind, 6).vertices.mean(axis=0))
            or kind == "rigid"
        )
    for kind in ("bar", "rope"):
        a, b, c = (run(draw(kind, 5), Start(seed=seed, push=5.0), seconds=0.05).vertices for seed in (1, 1, 2))
        np.testing.assert_array_equal(a, b)
        assert np.abs(a - c).max() > 1e-5


def test_a_run_starts_at_rest_and_ends_at_a_limit():
    thing = draw("box-cloth", 0)
    way = run(thing, Start(seed=0, stir=8.0), seconds=1.0)
    np.testing.assert_allclose(way.vertices[0], thing.vertices, atol=1e-12)
    assert 1 <= len(way.vertices) < 101


def test_grids_fill_their_box():
    x = grid((3, 4, 2))
    cells = tetrahedra((3, 4, 2), x)
    a, b, c, d = (x[cells[:, i]] for i in range(4))
    volume = np.einsum("ei,ei->e", np.cross(b - a, c - a), d - a) / 6
    assert (volume > 0).all()
    assert volume.sum() == pytest.approx(8)
    nodes, faces = surface(cells)
    p, q, r = (x[nodes][faces[:, i]] for i in range(3))
    assert np.einsum("fi,fi->", p, np.cross(q, r)) / 6 == pytest.approx(8)  # closed, and outwards
    flat = grid((1, 4, 5))
    p, q, r = (flat[sheet(4, 5)[:, i]] for i in range(3))
    assert np.linalg.norm(np.cross(q - p, r - p), axis=1).sum() / 2 == pytest.approx(4)


def test_bad_input_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)  # where MuJoCo leaves its log
    with pytest.raises(ValueError, match="unknown kind of soft object 'boat'; known are bar"):
        draw("boat", 0)
    thing = draw("rope", 0)
    with pytest.raises(ValueError, match="seconds must be above 0 and every at least 0.0005, got 0 and 0.01"):
        run(thing, Start(), seconds=0)
    with pytest.raises(ValueError, match="count and each must be at least 1, got 0 and 8"):
        some_poses(thing, 0)
    with pytest.raises(ValueError, match=r"MuJoCo lost rope within .* s: it blew up"):
        run(thing, Start(stir=1e6), seconds=0.2)
