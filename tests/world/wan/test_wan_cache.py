"""Latents on disk: the release's layout is written, read and taken over, and what is damaged is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("diffusers", reason="the full-scale model needs diffusers: pip install 'kinema4d[wan]'")
import torch
from PIL import Image
from safetensors.torch import save_file
from wan_cases import some_latents

from kinema4d.train.encode import encode_dataset, measure
from kinema4d.world.wan import cache, tiny
from kinema4d.world.wan.condition import first_latents

SIZE: dict[str, Any] = {"frames": 9, "height": 48, "width": 48}


@pytest.fixture
def latents(tmp_path: Path) -> cache.Latents:
    some_latents(tmp_path / "own", 1)
    return cache.read(cache.listed(tmp_path / "own")[0])


def test_the_official_names_and_keys_are_written_and_read(latents: cache.Latents, tmp_path: Path):
    cache.write_release(tmp_path / "r", "7", latents)
    files = {p.relative_to(tmp_path / "r").as_posix() for p in (tmp_path / "r").rglob("7.*")}
    assert files == {
        "video_latents/7.safetensors", "mask_video_latents/7.safetensors", "pointmap_latents/7.pt", "mask_pointmap_latents/7.pt"
    }  # fmt: skip
    found = cache.read_release(tmp_path / "r", "7")
    assert found.keys() == set(cache.RELEASE_PARTS)
    for name, value in found.items():
        torch.testing.assert_close(value, getattr(latents, name).float(), msg=name)
    # What the release's own inference writes: another key, and a batch of one.
    save_file({"latents": latents.colour[None].contiguous()}, tmp_path / "r" / "video_latents" / "8.safetensors")
    torch.testing.assert_close(cache.read_release(tmp_path / "r", "8")["colour"], latents.colour.float())
    with pytest.raises(ValueError, match="holds no latents of '9'"):
        cache.read_release(tmp_path / "r", "9")
    save_file({"smell": latents.colour}, tmp_path / "r" / "video_latents" / "9.safetensors")
    with pytest.raises(ValueError, match=r"holds \['smell'\], expected 'encoded_video' or 'latents'"):
        cache.read_release(tmp_path / "r", "9")
    torch.save(torch.zeros(3, 4), tmp_path / "r" / "pointmap_latents" / "7.pt")
    with pytest.raises(ValueError, match=r"a tensor of \[3, 4\], expected latents"):
        cache.read_release(tmp_path / "r", "7")


def test_a_folder_of_the_release_is_taken_over_to_learn_from(latents: cache.Latents, tmp_path: Path):
    root, coder = tmp_path / "r", tiny.vae()
    rng = np.random.default_rng(0)
    picture = rng.integers(0, 255, (48, 48, 3), np.uint8)
    there = np.zeros((9, 48, 48, 1), np.uint8)
    there[5, 8:16, 24:32] = 1
    for name in ("1", "2"):
        cache.write_release(root, name, latents)
    for folder in ("arm_masks_npy", "first_frames"):
        (root / folder).mkdir()
    np.save(root / "arm_masks_npy" / "1.npy", there)
    Image.fromarray(picture).save(root / "first_frames" / "1.png")
    with pytest.warns(UserWarning, match=r"left out 2: .*arm_masks_npy.2.npy is missing"):
        count = encode_dataset(root, tmp_path / "out", vae=coder, clip=None, eye=None, **SIZE)
    assert count == {"encoded": 1, "kept": 0, "left_out": 1}
    read = cache.read(cache.listed(tmp_path / "out")[0])
    torch.testing.assert_close(read.robot_points.float(), latents.robot_points.float())
    assert read.mask.nonzero().tolist() == [[2, 1, 3]]  # the fifth frame is in the second group of four
    torch.testing.assert_close(read.first, first_latents(coder, picture, 9)[0].bfloat16())
    assert measure(tmp_path / "out").std == pytest.approx(float(latents.points.float().std(correction=0)), rel=1e-4)


def test_what_is_no_latents_of_ours_is_refused(latents: cache.Latents, tmp_path: Path):
    file = tmp_path / "x.safetensors"
    save_file({"colour": latents.colour}, file)
    with pytest.raises(ValueError, match="says it is None, expected 'kinema4d latents 1'"):
        cache.read(file)
    file.write_bytes(cache.listed(tmp_path / "own")[0].read_bytes()[:-100])
    with pytest.raises(ValueError, match="downloaded only in part"):
        cache.read(file)
    with pytest.raises(ValueError, match="holds no latents: encode a data set"):
        cache.listed(tmp_path / "r")
