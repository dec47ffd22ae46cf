"""Geometry scores: hand-computed cases, SciPy as the independent judge, laws, degradations, and what has no score."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest
from scipy.spatial import cKDTree  # pyright: ignore[reportAttributeAccessIssue]

from kinema4d.evaluate.geometry import METRICS, chamfer, median_scale, scores
from kinema4d.evaluate.score import NA, Pair, value_or
from kinema4d.types import Camera, Clip, Episode, Pointmap

T, H, W = 4, 32, 48
K = np.array([[40.0, 0, 23.5], [0, 40, 15.5], [0, 0, 1]])
TEMPORAL = ("cd_l1_temp", "cd_l2_temp", "f_score_temp")


def pointmap(z, valid=None):
    v, u = np.mgrid[: z.shape[1], : z.shape[2]]
    points = np.stack([(u - K[0, 2]) / 40 * z, (v - K[1, 2]) / 40 * z, z], -1).astype(np.float32)
    return Pointmap(points=points, valid=np.ones(z.shape, bool) if valid is None else valid)


def scene():
    """A tilted table and a box that slides across it."""
    z = np.broadcast_to(1.4 - 0.5 * np.linspace(0, 1, H)[:, None], (T, H, W)).copy()
    for t in range(T):
        z[t, 12:22, 8 + 3 * t : 18 + 3 * t] -= 0.15
    return z


def clip(found, poses=None):
    camera = Camera(K=K, T_world_camera=np.eye(4) if poses is None else poses, height=H, width=W)
    return Clip(camera=camera, rgb=np.zeros((*found.valid.shape, 3), np.uint8), pointmap=found, fps=10.0)


def pair(predicted, truth=None, **more):
    truth = pointmap(scene()) if truth is None else truth
    return Pair(predicted=clip(predicted), truth=Episode(clip=clip(truth), **more))


def numbers(found):
    assert all(isinstance(v, NA) or np.isfinite(v) for v in found.values())
    return {name: v for name, v in found.items() if not isinstance(v, NA)}


def row_of(*points):
    points = np.array(points, np.float32)[None, None]
    return Pointmap(points=points, valid=np.ones(points.shape[:3], bool))


def test_two_points_by_hand():
    a = row_of((0, 0, 1), (0, 0, 2))
    b = row_of((0, 3, 1), (4, 0, 2))
    # From (0,0,1): 3 and sqrt(17); from (0,0,2): sqrt(10) and 4. Back: 3 and 4.
    found = chamfer(a, b, tau=3.1)
    there, back = (3 + np.sqrt(10)) / 2, (3 + 4) / 2
    assert found.accuracy == pytest.approx(there)
    assert found.completeness == pytest.approx(back)
    assert found.l1 == pytest.approx((there + back) / 2)
    assert found.l2 == pytest.approx(((9 + 10) / 2 + (9 + 16) / 2) / 2)
    assert (found.precision, found.recall, found.f_score, found.frames) == (0.5, 0.5, 0.5, 1)


def test_f_score_is_the_harmonic_mean_per_frame_and_zero_when_nothing_is_near():
    a, b = row_of((0, 0, 1), (0, 0, 1), (0, 0, 5)), row_of((0, 0, 1), (0, 0, 9), (0, 0, 9))
    assert chamfer(a, b, 0.1).f_score == pytest.approx(2 * (2 / 3) * (1 / 3))
    assert chamfer(row_of((0, 0, 1)), row_of((0, 0, 2)), 0.1).f_score == 0.0
    assert chamfer(row_of((0, 0, 1)), row_of((0, 0, 1.5)), 0.5).f_score == 0.0  # the threshold itself is not below it


def test_a_shifted_plane_by_hand():
    grid = np.stack([*np.meshgrid(np.arange(20) * 0.1, np.arange(20) * 0.1), np.ones((20, 20))], -1)[None]
    a = Pointmap(points=grid.astype(np.float32), valid=np.ones((1, 20, 20), bool))
    b = replace(a, points=a.points + np.array([0, 0, 0.02], np.float32))
    found = chamfer(b, a, 0.03)
    assert found.l1 == pytest.approx(0.02, rel=1e-5)
    assert found.l2 == pytest.approx(0.0004, rel=1e-5)
    assert found.f_score == 1.0
    assert chamfer(b, a, 0.01).f_score == 0.0


def test_scores_agree_with_scipy():
    rng = np.random.default_rng(0)
    z = scene()
    predicted = pointmap(1.1 * z + rng.normal(0, 0.01, z.shape), rng.random(z.shape) < 0.8)
    truth = pointmap(z, rng.random(z.shape) < 0.9)
    found = numbers(scores(pair(predicted, truth), tau=0.09))
    both = predicted.valid & truth.valid
    ratios = truth.depth[both].astype(np.float64) / predicted.depth[both]
    scale = np.median(ratios.astype(np.float32).astype(np.float64))
    assert found["alignment_scale"] == scale
    for mark, factor in (("", 1.0), ("_aligned", scale)):
        p = (predicted.points * factor).astype(np.float32).astype(np.float64)
        q = truth.points.astype(np.float64)
        ab = [cKDTree(q[t][truth.valid[t]]).query(p[t][predicted.valid[t]])[0] for t in range(T)]
        ba = [cKDTree(p[t][predicted.valid[t]]).query(q[t][truth.valid[t]])[0] for t in range(T)]
        pr, re = np.array([(d < 0.09).mean() for d in ab]), np.array([(d < 0.09).mean() for d in ba])
        expected = {
            "accuracy": np.mean([d.mean() for d in ab]),
            "completeness": np.mean([d.mean() for d in ba]),
            "cd_l1": np.mean([(x.mean() + y.mean()) / 2 for x, y in zip(ab, ba, strict=True)]),
            "cd_l2": np.mean([((x**2).mean() + (y**2).mean()) / 2 for x, y in zip(ab, ba, strict=True)]),
            "f_score": np.mean(2 * pr * re / (pr + re)),
        }
        zs = [
            (factor * predicted.depth[t][both[t]].astype(float), truth.depth[t][both[t]].astype(float))
            for t in range(T)
        ]
        expected["abs_rel"] = np.mean([np.mean(np.abs(a - b) / b) for a, b in zs])
        expected["delta_125"] = np.mean([np.mean(np.maximum(a / b, b / a) < 1.25) for a, b in zs])
        for name, value in expected.items():
            assert found[name + mark] == pytest.approx(value, rel=1e-9, abs=1e-12), name + mark
    p = predicted.points.astype(np.float64)
    temporal = []
    for t in range(T - 1):
        x, y = p[t][predicted.valid[t]], p[t + 1][predicted.valid[t + 1]]
        temporal.append((cKDTree(y).query(x)[0].mean() + cKDTree(x).query(y)[0].mean()) / 2)
    assert found["cd_l1_temp"] == pytest.approx(np.mean(temporal), rel=1e-9)
    assert found["depth_coverage"] == pytest.approx((both.sum()) / truth.valid.sum())
    assert found["geometry_frames"] == T


def test_the_truth_scores_perfectly_against_itself():
    found = numbers(scores(pair(pointmap(scene()))))
    assert set(found) == set(METRICS)
    for name in ("cd_l1", "cd_l2", "accuracy", "completeness", "abs_rel"):
        assert found[name] == found[f"{name}_aligned"] == 0.0
    for name in ("f_score", "delta_125"):
        assert found[name] == found[f"{name}_aligned"] == 1.0
    assert found["cd_l1_temp"] > 0  # the box moves
    assert found["alignment_scale"] == found["depth_coverage"] == 1.0


def test_swapping_the_sides_swaps_accuracy_and_completeness():
    rng = np.random.default_rng(1)
    a, b = pointmap(scene()), pointmap(scene() + 0.05, rng.random((T, H, W)) < 0.5)
    one, other = chamfer(a, b, 0.06), chamfer(b, a, 0.06)
    assert (one.accuracy, one.completeness) == (other.completeness, other.accuracy)
    assert (one.precision, one.recall) == (other.recall, other.precision)
    assert (one.l1, one.l2) == (other.l1, other.l2)
    assert one.f_score == pytest.approx(other.f_score, rel=1e-15)


def test_neither_threads_nor_the_order_of_pixels_matter():
    rng = np.random.default_rng(2)
    a, b = pointmap(scene()), pointmap(scene() + rng.normal(0, 0.01, (T, H, W)))
    found = chamfer(a, b, 0.01, threads=1)
    assert found == chamfer(a, b, 0.01, threads=3)
    order = rng.permutation(H * W)
    mixed = Pointmap(points=b.points.reshape(T, -1, 3)[:, order].reshape(T, H, W, 3), valid=b.valid)
    again = chamfer(a, mixed, 0.01)
    for field in fields(found):
        assert getattr(again, field.name) == pytest.approx(getattr(found, field.name), rel=1e-12)


@pytest.mark.parametrize("kind", ["noise", "shift", "scale", "delay", "wild pixels"])
def test_more_damage_never_improves_a_score(kind):
    rng = np.random.default_rng(3)
    z, noise, chosen = scene(), rng.normal(0, 1, (T, H, W)), rng.random((T, H, W))
    damaged = {
        "noise": lambda s: z + 0.03 * s * noise,
        "shift": lambda s: z + 0.03 * s,
        "scale": lambda s: z * (1 + 0.1 * s),
        "delay": lambda s: z[np.maximum(np.arange(T) - s, 0)],
        "wild pixels": lambda s: np.where(chosen < 0.1 * s, 3.0, z),
    }[kind]
    found = [numbers(scores(pair(pointmap(damaged(s))), tau=0.03)) for s in range(4)]
    for name in ("cd_l1", "cd_l2", "f_score", "accuracy", "abs_rel", "delta_125"):
        sign = 1 if METRICS[name].better == "lower" else -1
        values = sign * np.array([f[name] for f in found])
        assert (np.diff(values) >= -1e-9).all(), (name, values)
    assert found[3]["cd_l1"] > found[0]["cd_l1"]
    if kind == "noise":
        assert (np.diff([f["cd_l1_temp"] for f in found]) > 0).all()


def test_scale_is_forgiven_only_where_it_is_said():
    found = numbers(scores(pair(pointmap(2 * scene()))))
    assert found["alignment_scale"] == 0.5
    assert found["cd_l1_aligned"] == found["abs_rel_aligned"] == 0.0
    assert found["abs_rel"] == pytest.approx(1.0)
    assert found["f_score"] == 0.0
    assert found["f_score_aligned"] == 1.0


def test_the_scale_is_the_exact_median_and_ignores_wild_pixels():
    rng = np.random.default_rng(4)
    z = scene()
    for n in (1, 2, 5, T * H * W):
        valid = np.zeros(T * H * W, bool)
        valid[:n] = True
        valid = rng.permutation(valid).reshape(T, H, W)
        predicted = pointmap(z * np.exp(rng.normal(0, 0.3, z.shape)), valid)
        ratios = (pointmap(z).depth[valid].astype(np.float64) / predicted.depth[valid]).astype(np.float32)
        assert median_scale(predicted, pointmap(z)) == np.median(ratios.astype(np.float64))
    wild = 1.25 * z
    wild[:, :8] = 1000.0
    assert median_scale(pointmap(wild), pointmap(z)) == pytest.approx(0.8)
    assert median_scale(pointmap(-z), pointmap(z)) is None


def test_a_moving_camera_before_a_still_world_is_consistent():
    z = np.full((T, H, W), 1.0)
    poses = np.tile(np.eye(4), (T, 1, 1))
    poses[:, 0, 3] = np.arange(T) / 40  # one pixel per frame at one metre
    found = pointmap(z)
    truth = Episode(clip=clip(found, poses))
    moving = numbers(scores(Pair(predicted=clip(found, poses), truth=truth), aligned=False))
    # All but the column that comes or goes is found again; that one is a pixel (25 mm) away.
    assert moving["cd_l1_temp"] == pytest.approx(1 / 40 / W, rel=1e-3)
    assert numbers(scores(pair(found, found)))["cd_l1_temp"] == 0.0


def reasons(found):
    return {v.reason for v in found.values() if isinstance(v, NA)}


def test_what_has_no_score_says_why():
    truth, none = pointmap(scene()), np.zeros((T, H, W), bool)
    found = scores(pair(truth, pointmap(scene(), none)))
    assert not numbers(found)
    assert reasons(found) == {"the truth has no depth"}
    found = scores(pair(pointmap(scene(), none)))
    assert not numbers(found)
    assert reasons(found) == {"the prediction has no valid point"}
    holes = truth.valid.copy()
    holes[[1, 3]] = False
    found = scores(pair(pointmap(scene(), holes)))
    assert not numbers(found)
    assert reasons(found) == {"the prediction has no points in frames 1, 3, where the truth has some"}
    broken = pointmap(scene())
    broken.points[2, 0, 0] = np.nan
    found = scores(pair(broken))
    assert not numbers(found)
    assert reasons(found) == {"the prediction has points that are not finite in frame 2"}
    assert set(found) == set(METRICS)


def test_frames_without_truth_are_left_out_and_counted():
    some = np.ones((T, H, W), bool)
    some[1] = False
    for predicted_valid in (some, np.ones((T, H, W), bool)):
        found = scores(pair(pointmap(scene() + 0.1, predicted_valid), pointmap(scene(), some)))
        assert value_or(found, "geometry_frames", 0) == T - 1
        assert value_or(found, "cd_l1", 0) > 0
    assert isinstance(found["cd_l1_temp"], float)


def test_a_truth_without_scale_has_only_scores_without_a_unit():
    found = scores(pair(pointmap(2 * scene()), metric=False))
    assert {n for n, v in found.items() if isinstance(v, float)} == {
        "abs_rel_aligned", "delta_125_aligned", "depth_coverage", "alignment_scale", "geometry_frames",
    }  # fmt: skip
    assert reasons(found) == {"truth is not metric"}
    assert found["abs_rel_aligned"] == 0.0


def test_parts_can_be_missing_on_their_own():
    found = scores(pair(pointmap(scene())), aligned=False)
    assert reasons(found) == {"alignment was not asked for"}
    left, right = np.zeros((T, H, W), bool), np.zeros((T, H, W), bool)
    left[..., : W // 2], right[..., W // 2 :] = True, True
    found = scores(pair(pointmap(scene(), left), pointmap(scene(), right)))
    assert isinstance(found["cd_l1"], float)
    assert found["depth_coverage"] == 0.0
    assert isinstance(found["abs_rel"], NA)
    assert isinstance(found["cd_l1_aligned"], NA)
    one = pointmap(scene()[:1])
    found = scores(pair(one, one))
    assert found["cd_l1_temp"] == NA("the prediction has no two frames in a row with points")


def test_chamfer_refuses_what_it_cannot_compare():
    a = pointmap(scene())
    with pytest.raises(ValueError, match="same shape"):
        chamfer(a, pointmap(scene()[:2]))
    with pytest.raises(ValueError, match="tau must be a positive"):
        chamfer(a, a, 0.0)
    holes = a.valid.copy()
    holes[2] = False
    with pytest.raises(ValueError, match="only one of the two pointmaps has points in frame 2"):
        chamfer(pointmap(scene(), holes), a)
    with pytest.raises(ValueError, match="neither pointmap"):
        chamfer(pointmap(scene(), ~a.valid), pointmap(scene(), ~a.valid))
    assert chamfer(pointmap(scene(), holes), pointmap(scene(), holes)).frames == T - 1


def test_every_number_is_explained():
    assert all(about.group == "geometry" and about.text for about in METRICS.values())
    assert METRICS["f_score"].better == "higher"
    assert METRICS["cd_l1"].unit == "m"
