"""Segmenters: programs that fail in every way, and SAM2's own call sequence on a stand-in."""

from __future__ import annotations

import shlex
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from PIL import Image

from kinema4d.data.annotate import segmenter
from kinema4d.data.annotate.segmenter import CommandSegmenter, Sam2Segmenter, prompt_of, read_masks

PYTHON = shlex.quote(sys.executable)
NOTHING = "import sys, pathlib; pathlib.Path(sys.argv[2]).touch()"


def run(truth, code: str, **options):
    command = f"{PYTHON} -c {shlex.quote(code)} {{frames}} {{out}}"
    return CommandSegmenter(command=command, **options)(truth.episode)


def test_a_failing_program_is_quoted(truth):
    with pytest.raises(ValueError, match="exit code 3: no GPU here"):
        run(truth, "import sys; print('no GPU here', file=sys.stderr); sys.exit(3)")
    with pytest.raises(ValueError, match=r"did not end within 0\.3 s"):
        run(truth, "import time; time.sleep(20)", timeout_s=0.3)
    with pytest.raises(ValueError, match="cannot start the command .*no-such-program"):
        CommandSegmenter(command="no-such-program {frames} {out}")(truth.episode)
    with pytest.raises(ValueError, match=r"must contain \{frames\} and \{out\}"):
        CommandSegmenter(command="python my_sam2.py {frames}")
    with pytest.raises(ValueError, match="cannot split"):
        CommandSegmenter(command="python 'my_sam2.py {frames} {out}")


def test_masks_are_checked(truth, tmp_path):
    with pytest.raises(ValueError, match="wrote masks for 0 of 8 frames"):
        run(truth, NOTHING)
    zeros = "import sys, numpy as np; np.save(sys.argv[2] + '/masks.npy', np.zeros((8, 120, 180), bool))"
    with pytest.raises(ValueError, match="found no robot in any frame"):
        run(truth, zeros)
    with pytest.raises(ValueError, match=r"float64 \[8, 120, 180\]"):
        run(truth, zeros.replace("bool", "float"))
    with pytest.raises(ValueError, match=r"must be bool or whole numbers and \[8, 120, 180\]"):
        run(truth, zeros.replace("180", "90"))
    (tmp_path / "masks.npy").write_bytes(b"not an array")
    with pytest.raises(ValueError, match="not readable"):
        read_masks(tmp_path, (1, 4, 5))


def test_every_kind_of_mask_image(tmp_path):
    wanted = np.zeros((4, 5), bool)
    wanted[1:3, 2:4] = True
    palette = Image.fromarray(wanted.astype(np.uint8), "P")
    palette.putpalette([0, 0, 0, 128, 0, 0])
    images = [Image.fromarray(wanted), Image.fromarray(wanted.astype(np.uint8) * 255), palette]
    for i, image in enumerate(images):
        image.save(tmp_path / f"{i:05d}.png")
    np.testing.assert_array_equal(read_masks(tmp_path, (3, 4, 5)), np.stack([wanted] * 3))
    images[1].convert("RGB").save(tmp_path / "00002.png")
    with pytest.raises(ValueError, match=r"00002.png is \[4, 5, 3\] of mode RGB"):
        read_masks(tmp_path, (3, 4, 5))
    images[1].resize((10, 8)).save(tmp_path / "00002.png")
    with pytest.raises(ValueError, match=r"00002.png is \[8, 10\] .*\[4, 5\]"):
        read_masks(tmp_path, (3, 4, 5))
    (tmp_path / "00002.png").write_bytes(b"\x89PNG broken")
    with pytest.raises(ValueError, match="00002.png is not readable as an image"):
        read_masks(tmp_path, (3, 4, 5))


def test_an_unknown_camera_leaves_the_text_as_only_prompt(truth, tmp_path):
    code = (
        "import sys, json, pathlib, numpy as np;"
        "asked = json.loads(pathlib.Path(sys.argv[3]).read_text());"
        "assert asked['prompt'] is None and asked['height'] == 120, asked;"
        "np.save(sys.argv[2] + '/masks.npy', np.ones((8, 120, 180), np.uint8))"
    )
    command = f"{PYTHON} -c {shlex.quote(code)} {{frames}} {{out}} {{prompts}}"
    guessed = replace(truth.episode, camera_from="guessed")
    assert CommandSegmenter(command=command)(guessed).all()


# ---------------------------------------------------------------------- SAM2


class Tensor:
    """As much of a torch tensor as SAM2's answers are used for."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def __getitem__(self, index: int) -> Tensor:
        return Tensor(self.array[index])

    def __gt__(self, value: float) -> Tensor:
        return Tensor(self.array > value)

    def cpu(self) -> Tensor:
        return self

    def numpy(self) -> np.ndarray:
        return self.array


class Predictor:
    """Signatures and order of events of SAM2VideoPredictor; it "tracks" by looking at the truth."""

    def __init__(self, truth) -> None:
        self.truth, self.calls = truth, []

    def init_state(
        self, video_path, offload_video_to_cpu=False, offload_state_to_cpu=False, async_loading_frames=False
    ):
        assert isinstance(video_path, str)
        names = [p.name for p in Path(video_path).iterdir()]
        assert all(Path(n).suffix in (".jpg", ".jpeg", ".JPG", ".JPEG") for n in names), names
        names.sort(key=lambda p: int(Path(p).stem))
        with Image.open(Path(video_path) / names[0]) as image:
            size = image.size
        return {"num_frames": len(names), "video_width": size[0], "video_height": size[1], "prompted": None}

    def add_new_points_or_box(
        self,
        inference_state,
        frame_idx,
        obj_id,
        points=None,
        labels=None,
        clear_old_points=True,
        normalize_coords=True,
        box=None,
    ):
        assert points is not None
        assert labels is not None
        assert box is not None
        assert points.shape == (len(labels), 2)
        assert box.shape == (4,)
        assert (labels == 1).all()
        inference_state["prompted"] = (frame_idx, obj_id)
        return frame_idx, [obj_id], self._logits(frame_idx)

    def propagate_in_video(self, inference_state, start_frame_idx=None, max_frame_num_to_track=None, reverse=False):
        frame, obj_id = inference_state["prompted"]
        start = frame if start_frame_idx is None else start_frame_idx
        self.calls.append((start, reverse))
        if reverse:
            order = range(start, -1, -1) if start > 0 else []
        else:
            order = range(start, inference_state["num_frames"])
        for index in order:
            yield index, [obj_id], self._logits(index)

    def reset_state(self, inference_state):
        inference_state.clear()
        self.calls.append("reset")

    def _logits(self, index: int) -> Tensor:
        return Tensor(np.where(self.truth.mask[index], 4.0, -4.0)[None, None])


class Nothing:
    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None


@pytest.fixture
def sam2(truth, monkeypatch):
    """A ``sam2`` package and as much of torch as it takes."""
    predictor, built = Predictor(truth), []
    torch, package, build = ModuleType("torch"), ModuleType("sam2"), ModuleType("sam2.build_sam")

    def build_sam2_video_predictor(
        config_file,
        ckpt_path=None,
        device="cuda",
        mode="eval",
        hydra_overrides_extra=(),
        apply_postprocessing=True,
        vos_optimized=False,
        **kwargs,
    ):
        built.append((config_file, ckpt_path, device))
        return predictor

    torch.cuda = ModuleType("torch.cuda")  # type: ignore[attr-defined]
    torch.cuda.is_available = lambda: False  # type: ignore[attr-defined]
    torch.inference_mode = Nothing  # type: ignore[attr-defined]
    build.build_sam2_video_predictor = build_sam2_video_predictor  # type: ignore[attr-defined]
    for module in (torch, package, build):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    segmenter._sam2.cache_clear()
    yield predictor, built
    segmenter._sam2.cache_clear()


def test_sam2_is_called_as_its_authors_do(sam2, truth, tmp_path):
    predictor, built = sam2
    weights = tmp_path / "sam2.1_hiera_small.pt"
    weights.touch()
    stage = Sam2Segmenter(config="configs/sam2.1/sam2.1_hiera_s.yaml", checkpoint=weights)
    for _ in range(2):
        np.testing.assert_array_equal(stage(truth.episode), truth.mask)
    assert built == [("configs/sam2.1/sam2.1_hiera_s.yaml", str(weights), "cpu")], "weights are loaded once"
    frame = prompt_of(truth.episode).frame
    passes = [(frame, False), (frame, True)] if frame > 0 else [(frame, False)]
    assert predictor.calls == [*passes, "reset"] * 2


def test_a_sam2_that_runs_out_of_memory_fails_one_episode(sam2, truth, tmp_path, monkeypatch):
    predictor, _ = sam2
    (tmp_path / "there.pt").touch()

    def init_state(video_path):
        raise RuntimeError("CUDA out of memory")

    monkeypatch.setattr(predictor, "init_state", init_state)
    with pytest.raises(ValueError, match="SAM2 failed: RuntimeError: CUDA out of memory"):
        Sam2Segmenter(config="a.yaml", checkpoint=tmp_path / "there.pt")(truth.episode)


def test_sam2_without_package_weights_or_prompt(truth, tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="checkpoint .* does not exist"):
        Sam2Segmenter(config="a.yaml", checkpoint=tmp_path / "missing.pt")
    (tmp_path / "there.pt").touch()
    stage = Sam2Segmenter(config="a.yaml", checkpoint=tmp_path / "there.pt")
    monkeypatch.setitem(sys.modules, "sam2", None)
    monkeypatch.setitem(sys.modules, "torch", ModuleType("torch"))
    segmenter._sam2.cache_clear()
    with pytest.raises(ValueError, match="SAM2 is not installed .* pip install"):
        stage(truth.episode)
    with pytest.raises(ValueError, match="camera is only guessed"):
        stage(replace(truth.episode, camera_from="guessed"))
