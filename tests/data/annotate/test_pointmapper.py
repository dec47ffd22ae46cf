"""Pointmaps from programs and from VGGT's own call sequence on a stand-in."""

from __future__ import annotations

import shlex
import sys
from dataclasses import replace
from types import ModuleType

import numpy as np
import pytest
from PIL import Image

from kinema4d.data.annotate import pointmapper
from kinema4d.data.annotate.pointmapper import CommandPointmap, VggtPointmap, to_pointmap
from kinema4d.geometry.camera import off_ray_px, unproject
from kinema4d.types import Camera, Clip, Episode, Pointmap

PYTHON = shlex.quote(sys.executable)


def run(truth, code: str, **options):
    command = f"{PYTHON} -c {shlex.quote('import sys, numpy as np; ' + code)} {{frames}} {{out}}"
    return CommandPointmap(command=command, **options)(truth.episode)


def test_outputs_are_checked(truth):
    with pytest.raises(ValueError, match="wrote no file"):
        run(truth, "pass")
    with pytest.raises(ValueError, match="not a readable npz"):
        run(truth, "open(sys.argv[2], 'w').write('hello')")
    with pytest.raises(ValueError, match="not a readable npz"):
        run(truth, "np.save(open(sys.argv[2], 'wb'), np.zeros(3))")
    with pytest.raises(ValueError, match="one of depth, disparity, points, got depths"):
        run(truth, "np.savez(sys.argv[2], depths=np.ones((8, 4, 6)))")
    with pytest.raises(
        ValueError, match=r"depth must be numbers of shape \[8, height, width\], got float64 \[7, 4, 6\]"
    ):
        run(truth, "np.savez(sys.argv[2], depth=np.ones((7, 4, 6)))")
    with pytest.raises(ValueError, match=r"points must be numbers of shape \[8, height, width, 3\]"):
        run(truth, "np.savez(sys.argv[2], points=np.ones((8, 4, 6, 2)))")
    with pytest.raises(ValueError, match=r"conf is \[5, 6\] but depth is \[4, 6\]"):
        run(truth, "np.savez(sys.argv[2], depth=np.ones((8, 4, 6)), conf=np.ones((8, 5, 6)))")
    with pytest.raises(ValueError, match="exit code 1"):
        run(truth, "raise SystemExit('out of memory')")


def test_what_is_not_known_is_not_valid(truth):
    depth = truth.depth.copy()
    depth[:, 0, 0], depth[:, 0, 1], depth[:, 0, 2] = np.nan, -1.0, np.inf
    conf = np.ones_like(depth)
    conf[:, 0, 3], conf[:, 0, 4] = 0.1, np.nan
    found = to_pointmap(truth.episode, {"depth": depth, "conf": conf}, min_conf=0.5)
    assert not found.valid[:, 0, :5].any()
    assert np.isfinite(found.points).all()
    np.testing.assert_array_equal(found.valid[:, 1:], truth.depth[:, 1:] > 0)
    np.testing.assert_allclose(found.depth[found.valid], truth.depth[found.valid], rtol=1e-6)
    assert off_ray_px(truth.episode.clip.camera.K, found) < 1e-3


def test_disparity_is_inverse_depth(truth):
    with np.errstate(divide="ignore"):
        disparity = np.where(truth.depth > 0, 1 / truth.depth, 0)
    found = to_pointmap(truth.episode, {"disparity": disparity})
    np.testing.assert_array_equal(found.valid, truth.depth > 0)
    np.testing.assert_allclose(found.depth[found.valid], truth.depth[found.valid], rtol=1e-5)


@pytest.mark.parametrize("factor", [2, 0.5])
def test_other_resolutions_land_on_the_clip_s_pixels(truth, factor):
    h, w = truth.depth.shape[1:]
    if factor == 2:
        raw, wanted = truth.depth.repeat(2, axis=1).repeat(2, axis=2), truth.depth
    else:
        raw = truth.depth[:, ::2, ::2]
        wanted = raw.repeat(2, axis=1).repeat(2, axis=2)
    found = to_pointmap(truth.episode, {"depth": raw})
    assert found.valid.shape[1:] == (h, w)
    np.testing.assert_allclose(found.depth, np.where(wanted > 0, wanted, 0), rtol=1e-6)


def test_a_guessed_camera_takes_the_model_s_lens_and_a_known_one_does_not(truth):
    camera = truth.episode.clip.camera
    small = Camera(
        K=np.array([[60.0, 0, 44.5], [0, 60, 29.5], [0, 0, 1]]), T_world_camera=np.eye(4), height=60, width=90
    )
    raw = truth.depth[:, ::2, ::2]
    guessed = replace(truth.episode, camera_from="guessed")
    expected_K = small.resized(camera.height, camera.width).K
    for arrays in (
        {"depth": raw, "K": small.K},
        {"depth": raw, "K": np.stack([small.K] * 8)},
    ):
        assert off_ray_px(camera.K, to_pointmap(truth.episode, arrays)) < 1e-3
        assert off_ray_px(expected_K, to_pointmap(guessed, arrays)) < 1e-3
    points = unproject(small.K, raw)
    assert off_ray_px(camera.K, to_pointmap(truth.episode, {"points": points})) < 1e-3
    free = to_pointmap(guessed, {"points": points})
    np.testing.assert_allclose(free.points[:, ::2, ::2], points, rtol=1e-5, atol=1e-6)
    with pytest.raises(ValueError, match=r"K must be finite and \[3,3\]"):
        to_pointmap(guessed, {"depth": raw, "K": np.ones(4)})


# ---------------------------------------------------------------------- VGGT


class Tensor:
    """As much of a torch tensor as VGGT's answers are used for."""

    def __init__(self, array: np.ndarray) -> None:
        self.array, self.shape = array, array.shape

    def to(self, device: str) -> Tensor:
        assert device == "cpu"
        return self

    def float(self) -> Tensor:
        return self

    def cpu(self) -> Tensor:
        return self

    def numpy(self) -> np.ndarray:
        return self.array


class Nothing:
    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None


class Model:
    """VGGT's interface; its "depth" is the brightness of the image, so that pixels can be followed."""

    loaded: list[str] = []  # noqa: RUF012

    @classmethod
    def from_pretrained(cls, path: str) -> Model:
        cls.loaded.append(path)
        return cls()

    def to(self, device: str) -> Model:
        return self

    def eval(self) -> Model:
        return self

    def __call__(self, images: Tensor) -> dict[str, Tensor]:
        frames, channels, h, w = images.shape
        assert channels == 3
        assert h % 14 == 0
        assert w % 14 == 0
        depth = 1 + images.array.mean(axis=1)
        return {
            "pose_enc": Tensor(np.tile([0, 0, 0, 0, 0, 0, 1, 0.8, 1.0], (1, frames, 1))),
            "depth": Tensor(depth[None, ..., None]),
            "depth_conf": Tensor(1 + np.ones((1, frames, h, w))),
            "world_points": Tensor(np.zeros((1, frames, h, w, 3))),
            "world_points_conf": Tensor(np.ones((1, frames, h, w))),
            "images": Tensor(images.array[None]),
        }


def load_and_preprocess_images(image_path_list, mode="crop"):
    """The resizing of VGGT's own loader, in NumPy."""
    out = []
    for path in image_path_list:
        with Image.open(path) as opened:
            img = opened.convert("RGB")
        width, height = img.size
        if mode == "pad" and width < height:
            new = (round(width * (518 / height) / 14) * 14, 518)
        else:
            new = (518, round(height * (518 / width) / 14) * 14)
        a = np.asarray(img.resize(new, Image.Resampling.BICUBIC), np.float64).transpose(2, 0, 1) / 255
        if mode == "crop" and new[1] > 518:
            start = (new[1] - 518) // 2
            a = a[:, start : start + 518]
        if mode == "pad":
            rows, columns = 518 - a.shape[1], 518 - a.shape[2]
            sides = ((0, 0), (rows // 2, rows - rows // 2), (columns // 2, columns - columns // 2))
            a = np.pad(a, sides, constant_values=1.0)
        out.append(a)
    return Tensor(np.stack(out))


def pose_encoding_to_extri_intri(pose_encoding, image_size_hw=None, pose_encoding_type="absT_quaR_FoV"):
    assert image_size_hw is not None
    h, w = image_size_hw
    fov_h, fov_w = pose_encoding.array[..., 7], pose_encoding.array[..., 8]
    K = np.zeros((*fov_h.shape, 3, 3))
    K[..., 0, 0], K[..., 1, 1] = w / 2 / np.tan(fov_w / 2), h / 2 / np.tan(fov_h / 2)
    K[..., 0, 2], K[..., 1, 2], K[..., 2, 2] = w / 2, h / 2, 1
    return Tensor(np.zeros((*fov_h.shape, 3, 4))), Tensor(K)


@pytest.fixture
def vggt(monkeypatch, tmp_path):
    """A ``vggt`` package, as much of torch as it takes, and a folder of weights."""
    torch = ModuleType("torch")
    torch.cuda = ModuleType("torch.cuda")  # type: ignore[attr-defined]
    torch.cuda.is_available = lambda: False  # type: ignore[attr-defined]
    torch.no_grad = Nothing  # type: ignore[attr-defined]
    contents = {
        "vggt": {},
        "vggt.models": {},
        "vggt.utils": {},
        "vggt.models.vggt": {"VGGT": Model},
        "vggt.utils.load_fn": {"load_and_preprocess_images": load_and_preprocess_images},
        "vggt.utils.pose_enc": {"pose_encoding_to_extri_intri": pose_encoding_to_extri_intri},
    }
    monkeypatch.setitem(sys.modules, "torch", torch)
    for name, content in contents.items():
        module = ModuleType(name)
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, name, module)
    (tmp_path / "config.json").write_text("{}")
    Model.loaded.clear()
    pointmapper._vggt.cache_clear()
    yield tmp_path
    pointmapper._vggt.cache_clear()


def picture(height: int, width: int, camera_from: str) -> Episode:
    """A clip that grows brighter to the right and downwards."""
    ramp = np.add.outer(np.linspace(0, 100, height), np.linspace(0, 155, width))
    rgb = np.repeat(ramp[None, ..., None], 3, axis=-1).astype(np.uint8)[[0, 0]]
    K = np.array([[200.0, 0, (width - 1) / 2], [0, 200, (height - 1) / 2], [0, 0, 1]])
    camera = Camera(K=K, T_world_camera=np.eye(4), height=height, width=width)
    nothing = Pointmap(points=np.zeros((2, height, width, 3), np.float32), valid=np.zeros((2, height, width), bool))
    return Episode(clip=Clip(camera=camera, rgb=rgb, pointmap=nothing, fps=5.0), camera_from=camera_from)


@pytest.mark.parametrize(("height", "width"), [(120, 180), (180, 120), (100, 100)])
@pytest.mark.parametrize("camera_from", ["exact", "guessed"])
def test_vggt_depth_lands_on_the_right_pixels(vggt, height, width, camera_from):
    episode = picture(height, width, camera_from)
    stage = VggtPointmap(weights=vggt)
    found = stage(episode)
    assert found.valid.all()
    expected = 1 + episode.clip.rgb.mean(axis=-1) / 255
    assert np.abs(found.depth - expected).max() < 0.03  # resampling, not misplacement: a row is worth 0.003
    assert np.abs(found.depth - expected).mean() < 0.005
    if camera_from == "exact":
        assert off_ray_px(episode.clip.camera.K, found) < 1e-3
    stage(episode)
    assert Model.loaded == [str(vggt)]


def test_vggt_confidence_and_absence(vggt, monkeypatch, tmp_path):
    assert not VggtPointmap(weights=vggt, min_conf=3.0)(picture(60, 90, "exact")).valid.any()
    with pytest.raises(ValueError, match=r"not a folder of VGGT weights.*huggingface-cli"):
        VggtPointmap(weights=tmp_path / "missing")
    monkeypatch.setitem(sys.modules, "vggt.models.vggt", None)
    with monkeypatch.context() as broken:
        broken.setattr(Model, "__call__", lambda *_: (_ for _ in ()).throw(RuntimeError("CUDA out of memory")))
        with pytest.raises(ValueError, match="VGGT failed: RuntimeError: CUDA out of memory"):
            VggtPointmap(weights=vggt)(picture(60, 90, "exact"))
    pointmapper._vggt.cache_clear()
    with pytest.raises(ValueError, match="VGGT is not installed .* pip install"):
        VggtPointmap(weights=vggt)(picture(60, 90, "exact"))
