from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from evaluate.learned import KINDS, degraded, generated, one_thread, pair_of, smooth

from kinema4d.evaluate import latent
from kinema4d.evaluate.score import NA

torch = pytest.importorskip("torch")
diffusers = pytest.importorskip("diffusers")


def tiny(name: str, folder: Path, **more: object) -> Path:
    """A random autoencoder of the named class, saved as diffusers does."""
    one_thread()
    torch.manual_seed(0)
    if name == "AutoencoderKLWan":
        options = {"base_dim": 4, "z_dim": 4, "dim_mult": [1, 1, 1, 1], "num_res_blocks": 1}
        options |= {"latents_mean": [0.5] * 4, "latents_std": [2.0] * 4}
    elif name == "AutoencoderKL":
        options = {"block_out_channels": (4, 4), "norm_num_groups": 2, "latent_channels": 4, "scaling_factor": 0.5}
        options |= {"down_block_types": ("DownEncoderBlock2D",) * 2, "up_block_types": ("UpDecoderBlock2D",) * 2}
    else:
        options = {
            "block_out_channels": (4, 4, 4, 4),
            "norm_num_groups": 2,
            "latent_channels": 4,
            "layers_per_block": 1,
        }
    getattr(diffusers, name)(**{**options, **more}).save_pretrained(folder)
    return folder


def by_hand(clip: np.ndarray) -> np.ndarray:
    """An encoder whose latents are known: mean colour of each frame."""
    return clip.mean((1, 2))


def test_it_is_the_mean_squared_difference_without_the_first_step():
    truth = np.full((3, 8, 8, 3), 51, np.uint8)
    predicted = truth.copy()
    predicted[0] = 255  # the given frame does not count
    predicted[2, ..., 0] = 102
    step = 51 / 127.5
    pair = pair_of(predicted, truth)
    assert latent.latent_l2(pair, by_hand) == pytest.approx(step**2 / 6)
    scored = latent.scores(pair_of(truth, predicted), by_hand)
    assert scored["l2_latent"] == pytest.approx(step**2 / 6)
    assert scored["l2_latent_temp"] == 0
    assert latent.latent_l2_temp(pair_of(predicted[1:], truth[1:]), by_hand) == pytest.approx(step**2 / 3)


@pytest.mark.parametrize("name", latent.CLASSES)
def test_autoencoders_of_diffusers(name: str, tmp_path: Path):
    encode = latent.load_vae(tiny(name, tmp_path))
    clip = smooth(16, 24, 1, 9)
    frames = clip.astype(np.float32) / 127.5 - 1
    found = encode(frames)
    factor = {"AutoencoderKL": 2}.get(name, 8)
    assert found.shape == (9 if name == "AutoencoderKL" else 3, 4, 16 // factor, 24 // factor)
    np.testing.assert_array_equal(encode(frames), found)  # the mode, no sample
    vae = getattr(diffusers, name).from_pretrained(tmp_path).eval()
    x = torch.from_numpy(frames)
    with torch.inference_mode():
        if name == "AutoencoderKL":
            wanted = vae.encode(x.permute(0, 3, 1, 2)).latent_dist.mode() * 0.5
        else:
            z = vae.encode(x.permute(3, 0, 1, 2)[None]).latent_dist.mode()[0].transpose(0, 1)
            wanted = (z - 0.5) / 2 if name == "AutoencoderKLWan" else z * vae.config.scaling_factor
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)
    pair = pair_of(clip, clip)
    assert latent.latent_l2(pair, encode) == 0


@pytest.mark.parametrize("name", ["AutoencoderKLWan", "AutoencoderKLCogVideoX"])
def test_no_frame_is_dropped(name: str, tmp_path: Path):
    """Seven frames do not go into groups of four after the first: the last one is repeated, not ignored."""
    encode = latent.load_vae(str(tiny(name, tmp_path)))
    truth = smooth(16, 16, 1, 7)
    predicted = truth.copy()
    predicted[6] = 255 - predicted[6]
    value = latent.latent_l2(pair_of(predicted, truth), encode)
    assert isinstance(value, float)
    assert value > 0


def test_more_degradation_never_comes_closer(tmp_path: Path):
    """With an untrained autoencoder, so for small changes only: its latents know no large ones."""
    encode = latent.load_vae(tiny("AutoencoderKL", tmp_path))
    truth = generated()[::8, 16:80, 40:104]
    for kind in KINDS:
        values = [0.0]
        for amount in (1, 2):
            value = latent.latent_l2(pair_of(degraded(truth, kind, amount), truth), encode)
            assert isinstance(value, float)
            values.append(value)
        assert (np.diff(values) > 0).all(), (kind, values)


def test_a_pipeline_folder_and_image_statistics(tmp_path: Path):
    tiny("AutoencoderKL", tmp_path / "vae", shift_factor=0.25)
    encode = latent.load_vae(tmp_path)
    plain = latent.load_vae(tiny("AutoencoderKL", tmp_path / "plain"))
    frames = smooth(16, 16, 1, 2).astype(np.float32) / 127.5 - 1
    np.testing.assert_allclose(encode(frames), plain(frames) - 0.25 * 0.5, atol=1e-6)


def test_without_an_autoencoder_there_is_no_score():
    clip = smooth(16, 16, 1)
    assert all(isinstance(v, NA) and "--vae" in v.reason for v in latent.scores(pair_of(clip, clip)).values())
    one = smooth(16, 16, 1, 1)
    assert all(isinstance(v, NA) for v in latent.scores(pair_of(one, one), by_hand).values())


def test_folders_that_hold_no_autoencoder(tmp_path: Path):
    with pytest.raises(ValueError, match="no folder with the config.json"):
        latent.load_vae(tmp_path / "nowhere")
    (tmp_path / "config.json").write_text(json.dumps({"_class_name": "UNet2DModel"}))
    with pytest.raises(ValueError, match="holds a UNet2DModel, expected one of AutoencoderKLWan"):
        latent.load_vae(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"_class_name": "AutoencoderKL"}))
    (tmp_path / "diffusion_pytorch_model.bin").write_bytes(b"anything")
    with pytest.raises(ValueError, match="no .safetensors file"):
        latent.load_vae(tmp_path)


def test_encoders_that_misbehave():
    clip = smooth(16, 16, 1)
    with pytest.raises(ValueError, match="finite"):
        latent.latent_l2(pair_of(clip, clip), lambda frames: np.full((2, 3), np.nan))
