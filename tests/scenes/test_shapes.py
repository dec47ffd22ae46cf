"""Surfaces are closed and wound outwards, with the volume that geometry says; looks tile and keep their names."""

from __future__ import annotations

import colorsys

import numpy as np
import pytest
from tables import is_closed, volume

from kinema4d.geometry.se3 import place, rotvec_to_matrix, transform
from kinema4d.scenes import looks
from kinema4d.scenes.shapes import ball, box, cylinder, joined, moved, revolve

RED = (200, 30, 30)
SEGMENTS = 28
POLYGON = SEGMENTS / (2 * np.pi) * np.sin(2 * np.pi / SEGMENTS)
"""Area of a regular polygon over that of the circle around it: what turning in steps takes off a volume."""
PICTURE = np.zeros((8, 8, 3), np.uint8)


def frusta(profile: np.ndarray) -> float:
    """Volume of a turned profile, by slices."""
    (r, z), (s, w) = profile[:-1].T, profile[1:].T
    return float((np.pi * (w - z) * (r * r + r * s + s * s) / 3).sum())


CUP = np.array([[0, -0.04], [0.03, -0.04], [0.03, 0.04], [0.026, 0.04], [0.026, -0.036], [0, -0.036]])
BOTTLE = np.array([[0, -0.07], [0.02, -0.07], [0.02, 0.03], [0.01, 0.05], [0.01, 0.07], [0, 0.07]])
LATITUDES = np.linspace(-np.pi / 2, np.pi / 2, 15)


@pytest.mark.parametrize(
    ("mesh", "expected"),
    [
        (box((0.1, 0.2, 0.3), RED), 8 * 0.006),
        (box((0.1, 0.2, 0.3), RED, centre=(5, 6, 7), texture=PICTURE), 8 * 0.006),
        (cylinder(0.2, 0.5, RED), POLYGON * np.pi * 0.04),
        (ball(0.3, RED), POLYGON * 0.027 * frusta(np.stack([np.cos(LATITUDES), np.sin(LATITUDES)], axis=1))),
        (revolve(CUP, RED), POLYGON * frusta(CUP)),
        (revolve(BOTTLE, RED, texture=PICTURE), POLYGON * frusta(BOTTLE)),
        (revolve(np.array([[0, 0], [0.1, 0], [0, 0.2]]), RED), POLYGON * np.pi * 0.01 * 0.2 / 3),
    ],
    ids=["box", "moved box", "cylinder", "ball", "cup", "bottle", "cone"],
)
def test_surfaces_are_closed_outward_and_of_the_right_volume(mesh, expected):
    assert is_closed(mesh)
    assert volume(mesh) == pytest.approx(expected, rel=1e-6)


def test_a_ball_has_nearly_the_volume_of_a_sphere():
    assert volume(ball(0.3, RED)) == pytest.approx(4 / 3 * np.pi * 0.027, rel=0.03)


def test_moving_and_joining_keep_volume():
    T = transform(np.array([0.3, -2.0, 0.1]), rotvec_to_matrix(np.array([0.3, 0.8, -1.0])))
    parts = (moved(box((0.1, 0.2, 0.3), RED), T), moved(ball(0.1, RED), place(3, 0, 0)))
    vertices, faces = joined(parts)
    both = np.einsum("fi,fi->", vertices[faces[:, 0]], np.cross(vertices[faces[:, 1]], vertices[faces[:, 2]])) / 6
    assert both == pytest.approx(8 * 0.006 + volume(ball(0.1, RED)), rel=1e-9)
    assert faces.dtype == np.int32


@pytest.mark.parametrize("profile", [[[0.1, 0], [0.1, 1], [0, 1]], [[0, 0], [0.1, 0], [0.1, 1]]])
def test_open_profiles_are_refused(profile):
    with pytest.raises(ValueError, match="start and end on the axis"):
        revolve(np.array(profile, float), RED)


@pytest.mark.parametrize("make", [lambda t: cylinder(0.2, 0.5, RED, texture=t), lambda t: ball(0.2, RED, texture=t)])
def test_a_texture_goes_around_once_without_a_tear(make):
    mesh = make(PICTURE)
    assert np.isfinite(mesh.uvs).all()
    u = mesh.uvs[..., 0]
    assert (np.ptp(u, axis=1) < 1.01 / SEGMENTS).all()  # no triangle holds more than its own share of the picture
    at = mesh.vertices[mesh.faces]
    off_axis = np.hypot(at[..., 0], at[..., 1]) > 1e-9
    angle = np.arctan2(at[..., 1], at[..., 0]) / (2 * np.pi)
    assert np.abs((u - angle + 0.5) % 1 - 0.5)[off_axis].max() < 1e-6
    assert mesh.uvs[..., 1].min() == pytest.approx(0)
    assert mesh.uvs[..., 1].max() == pytest.approx(1)


def test_a_box_repeats_its_texture_by_length():
    mesh = box((0.1, 0.2, 0.3), RED, texture=PICTURE, texel=0.05)
    assert mesh.uvs is not None
    assert np.isfinite(mesh.uvs).all()
    at = mesh.vertices[mesh.faces]
    for a, b in ((0, 1), (1, 2)):  # metres along an edge are texture widths along it
        metres = np.linalg.norm(at[:, a] - at[:, b], axis=1)
        np.testing.assert_allclose(np.linalg.norm(mesh.uvs[:, a] - mesh.uvs[:, b], axis=1), metres / 0.05, rtol=1e-5)


@pytest.mark.parametrize("kind", looks.KINDS)
@pytest.mark.parametrize("seed", [0, 1, 2, 3])
def test_textures_tile_without_a_seam(kind, seed):
    picture = looks.texture(np.random.default_rng(seed), kind, (180, 140, 90)).astype(int)
    assert picture.shape == (looks.SIDE, looks.SIDE, 3)
    for axis in (0, 1):
        steps = np.abs(np.diff(picture, axis=axis)).mean(axis=(1 - axis, 2))
        seam = np.abs(np.take(picture, 0, axis) - np.take(picture, -1, axis)).mean()
        assert seam <= steps.max() + 1  # the step over the edge is like a step inside
    assert picture.std() > 0.5  # and there is something to see


def test_looks_follow_the_seed_and_unknown_ones_are_refused():
    a, b, c = (looks.texture(np.random.default_rng(s), "wood", RED) for s in (0, 0, 1))
    np.testing.assert_array_equal(a, b)
    assert (a != c).any()
    with pytest.raises(ValueError, match="unknown texture 'marble'; known are wood, cloth"):
        looks.texture(np.random.default_rng(0), "marble", RED)


@pytest.mark.parametrize("name", looks.NAMED)
def test_named_colours_are_never_taken_for_another(name):
    rng = np.random.default_rng(0)

    def cone(h, s, v):  # hue counts the more, the more colour there is
        return np.array([s * v * np.cos(2 * np.pi * h), s * v * np.sin(2 * np.pi * h), v])

    known = {n: cone(*hsv) for n, hsv in looks.NAMED.items()}
    for _ in range(100):
        color = looks.named_color(rng, name)
        assert all(0 <= c <= 255 for c in color)
        h, s, v = colorsys.rgb_to_hsv(*(c / 255 for c in color))
        assert min(known, key=lambda n: np.linalg.norm(known[n] - cone(h, s, v))) == name
        if name != "white":
            assert abs((h - looks.NAMED[name][0] + 0.5) % 1 - 0.5) < 0.05
