"""The annotation protocol with the simulator as oracle: how near do the stages come to the truth?"""

from __future__ import annotations

import json
import shlex
import sys
import textwrap
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from kinema4d.data.annotate.align import Alignment, apply
from kinema4d.data.annotate.kinematic_mask import KinematicMask
from kinema4d.data.annotate.pointmapper import CommandPointmap
from kinema4d.data.annotate.segmenter import CommandSegmenter
from kinema4d.data.annotate.stages import RECORD, Scaling, annotate
from kinema4d.geometry.camera import from_depth


def iou(a: np.ndarray, b: np.ndarray) -> float:
    return float((a & b).sum() / (a | b).sum())


def script(tmp_path: Path, code: str, arguments: str = "{frames} {out}") -> str:
    """A command that runs ``code``, as a user would write it."""
    file = tmp_path / "a program.py"  # a space, because users have them
    file.write_text("import sys, json, pathlib\nimport numpy as np\n" + textwrap.dedent(code))
    return f"{shlex.quote(sys.executable)} {shlex.quote(str(file))} {arguments}"


def with_depth(truth):
    return replace(truth.episode, clip=replace(truth.episode.clip, pointmap=truth.pointmap))


def test_kinematic_mask_is_exact_without_depth_where_nothing_hides_the_robot(truth):
    found = annotate(truth.episode, mask=KinematicMask())
    assert found.robot_mask is not None
    score = iou(found.robot_mask, truth.mask)
    assert score >= 0.99, f"IoU {score:.4f}"
    assert found.label_names == ("robot",)


def test_scene_depth_hides_what_stands_behind_things(occluded):
    blind = iou(KinematicMask()(occluded.episode), occluded.mask)
    seeing = iou(KinematicMask()(with_depth(occluded)), occluded.mask)
    assert blind < 0.95, f"IoU without depth {blind:.4f}: the occluder hides too little for this test"
    assert seeing >= 0.99, f"IoU with depth {seeing:.4f}, without {blind:.4f}"


def test_depth_of_unknown_scale_hides_nothing(occluded):
    episode = replace(with_depth(occluded), metric=False)
    np.testing.assert_array_equal(KinematicMask()(episode), KinematicMask()(occluded.episode))


def distorted(depth: np.ndarray, method: str) -> np.ndarray:
    """Depth of unknown scale, and shift of depth or inverse depth."""
    z = np.where(depth > 0, depth.astype(np.float64), 1e-9)
    if method == "scale":
        return 0.37 * z
    if method == "affine":
        return 0.37 * z + 0.21
    return 1 / (0.37 / z + 0.21)


def noisy(z: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """As a network might see it: 2 % noise, 5 % nonsense."""
    z = z * (1 + 0.02 * rng.standard_normal(z.shape))
    wrong = rng.random(z.shape) < 0.05
    return np.where(wrong, rng.uniform(0.05, 3.0, z.shape), z).astype(np.float32)


@pytest.mark.parametrize("method", ["scale", "affine", "disparity"])
@pytest.mark.parametrize("which", ["truth", "occluded"])
def test_depth_after_alignment(which, method, request, tmp_path):
    truth = request.getfixturevalue(which)
    clean = distorted(truth.depth, method)
    raw = noisy(clean, np.random.default_rng(0))
    np.save(tmp_path / "raw.npy", raw)
    command = script(
        tmp_path,
        f"""
        frames = sorted(pathlib.Path(sys.argv[1]).glob("*.png"))
        raw = np.load({str(tmp_path / "raw.npy")!r})
        assert len(frames) == len(raw)
        np.savez(sys.argv[2], depth=raw)
        """,
    )
    stage = CommandPointmap(command=command)
    found = annotate(truth.episode, pointmap=stage, mask=KinematicMask(), scaling=Scaling(method=method))
    assert found.metric
    entry = found.facts[RECORD]["pointmap"]["alignment"]
    fit = Alignment(**{**entry, "scale": np.array(entry["scale"]), "shift": np.array(entry["shift"])})
    # The network's own 2 % are not the alignment's fault: what counts is where it puts the scene without them.
    seen = truth.depth > 0
    scene = apply(from_depth(truth.episode.clip.camera.K, clean.astype(np.float32), seen), fit).depth
    error = np.abs(scene[seen] / truth.depth[seen] - 1)
    robot = np.abs(scene[truth.mask] / truth.depth[truth.mask] - 1)
    said = f"{which} {method}: depth error {100 * error.mean():.3f} % (worst {100 * error.max():.3f} %, robot "
    said += f"{100 * robot.mean():.3f} %), inliers {fit.inliers:.3f}, residual {1e3 * fit.residual_m:.1f} mm"
    print(said)
    assert error.mean() < 0.01, said
    assert robot.mean() < 0.01, said
    assert fit.inliers > 0.75, said
    assert found.robot_mask is not None
    score = iou(found.robot_mask, truth.mask)
    print(f"{which} {method}: mask IoU with noisy depth {score:.4f}")
    assert score > 0.97, f"mask IoU with noisy depth {score:.4f}"


def test_per_frame_alignment_follows_a_scale_that_drifts(truth, tmp_path):
    drift = np.linspace(0.3, 0.6, len(truth.depth))[:, None, None]
    np.save(tmp_path / "raw.npy", (drift * truth.depth).astype(np.float32))
    code = f"""np.savez(sys.argv[2], depth=np.load({str(tmp_path / "raw.npy")!r}))"""
    stage = CommandPointmap(command=script(tmp_path, code))
    found = annotate(truth.episode, pointmap=stage, scaling=Scaling(method="scale", per_frame=True))
    seen = truth.depth > 0
    worst = np.abs(found.clip.pointmap.depth[seen] / truth.depth[seen] - 1).max()
    assert worst < 1e-3, f"worst relative error {worst:.5f}"
    np.save(tmp_path / "raw.npy", (np.linspace(0.1, 2.0, len(drift))[:, None, None] * truth.depth))
    with pytest.raises(ValueError, match="come within 10 %"):
        annotate(truth.episode, pointmap=stage, scaling=Scaling(method="scale"))


def test_segmenter_gets_prompts_and_its_masks_come_back(truth, tmp_path):
    rng = np.random.default_rng(1)
    flipped = truth.mask ^ (rng.random(truth.mask.shape) < 0.01)
    (tmp_path / "masks").mkdir()
    for i, mask in enumerate(flipped):
        Image.fromarray(mask.astype(np.uint8) * 255).save(tmp_path / "masks" / f"{i:05d}.png")
    command = script(
        tmp_path,
        f"""
        import shutil
        asked = json.loads(pathlib.Path(sys.argv[3]).read_text())
        assert asked["text"] == "robot arm", asked
        pathlib.Path({str(tmp_path / "asked.json")!r}).write_text(json.dumps(asked))
        for frame in pathlib.Path(sys.argv[1]).glob("*.png"):
            shutil.copy(pathlib.Path({str(tmp_path / "masks")!r}) / frame.name, sys.argv[2])
        """,
        "{frames} {out} {prompts}",
    )
    found = annotate(truth.episode, mask=CommandSegmenter(command=command))
    assert found.robot_mask is not None
    np.testing.assert_array_equal(found.robot_mask, flipped)
    score = iou(found.robot_mask, truth.mask)
    assert score > 0.85, f"IoU of an oracle with 1 % of pixels flipped: {score:.4f}"
    prompt = json.loads((tmp_path / "asked.json").read_text())["prompt"]
    on_robot = [bool(truth.mask[prompt["frame"], v, u]) for u, v in prompt["points"]]
    assert all(on_robot), f"prompt points beside the robot: {prompt}"
    left, top, right, bottom = prompt["box"]
    rows, columns = np.nonzero(truth.mask[prompt["frame"]])
    assert (left, top, right, bottom) == (columns.min(), rows.min(), columns.max(), rows.max())
