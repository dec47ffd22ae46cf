"""Weights out of the NumPy pickles that other projects publish: arrays and nothing else, in our networks' layout."""

from __future__ import annotations

import io
import pickle
from collections import OrderedDict
from typing import Any

import numpy as np


class _Arrays(pickle.Unpickler):
    """Reads NumPy arrays in plain containers; refuses everything else by name."""

    def find_class(self, module: str, name: str) -> Any:
        if module in ("numpy.core.multiarray", "numpy._core.multiarray") and name in ("_reconstruct", "scalar"):
            # Under its present name: the old one warns.
            from numpy._core import multiarray

            return getattr(multiarray, name)
        allowed = {("numpy", "ndarray"): np.ndarray, ("numpy", "dtype"): np.dtype}
        allowed["collections", "OrderedDict"] = OrderedDict
        if (module, name) not in allowed:
            raise ValueError(f"the pickle asks for {module}.{name}; weights may hold NumPy arrays and containers only")
        return allowed[module, name]

    def persistent_load(self, pid: Any) -> Any:
        raise ValueError("the pickle refers to an outside object; weights may hold NumPy arrays and containers only")


def unpickle(data: bytes) -> dict[str, np.ndarray]:
    """Arrays of a pickle of nested dicts, by their path joined with ``|``."""
    try:
        content = _Arrays(io.BytesIO(data)).load()
    except (pickle.UnpicklingError, EOFError, AttributeError, IndexError, KeyError, TypeError) as error:
        raise ValueError(f"the pickle cannot be read: {error}") from None
    arrays: dict[str, np.ndarray] = {}

    def walk(node: Any, path: tuple[str, ...]) -> None:
        if isinstance(node, dict):
            for key, value in node.items():
                walk(value, (*path, str(key)))
        elif isinstance(node, np.ndarray) and node.dtype == np.float32:
            arrays["|".join(path)] = node
        else:
            kind = f"array of {node.dtype}" if isinstance(node, np.ndarray) else type(node).__name__
            raise ValueError(f"the pickle holds a {kind} at {'/'.join(path) or 'its top'}, expected float32 arrays")

    walk(content, ())
    return arrays


def from_lpips(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Flax to torch: ``convs.<i>.weight`` [out, in, y, x], ``convs.<i>.bias`` [out], ``heads.<i>`` [channels]."""
    out = {}
    for key, array in arrays.items():
        module, layer, kind = key.split("|")
        if module.startswith("NetLinLayer_"):
            out[f"heads.{module.removeprefix('NetLinLayer_')}"] = array.reshape(-1)
        else:
            index = layer.removeprefix("Conv_")
            out[f"convs.{index}.{'bias' if kind == 'bias' else 'weight'}"] = (
                array if kind == "bias" else array.transpose(3, 2, 0, 1)
            )
    return out


def from_i3d(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Flax to torch, ``weight`` [out, in, t, y, x] and ``bias`` [out], with the batch norms folded in (in float64)."""
    out = {}
    for key in arrays:
        if not key.endswith("|Conv_0|kernel"):
            continue
        unit = key.removeprefix("params|").removesuffix("|Conv_0|kernel")
        weight = arrays[key].transpose(4, 3, 0, 1, 2).astype(np.float64)
        if unit.startswith("Logits"):
            out["logits.weight"] = weight[:, :, 0, 0, 0].astype(np.float32)
            out["logits.bias"] = arrays[f"params|{unit}|Conv_0|bias"]
            continue
        mean, var = (
            arrays[f"batch_stats|{unit}|BatchNorm_0|{x}"].reshape(-1).astype(np.float64) for x in ("mean", "var")
        )
        gain = 1 / np.sqrt(var + 1e-3)
        prefix = f"stem.{unit}"
        if "|" in unit:  # Mixed_3b|Branch_1/Conv3d_0b_3x3
            block, branch = unit.split("|")
            prefix = f"mixed.{block}.units.b{branch[len('Branch_')]}_{branch[-3:]}"
        out[f"{prefix}.weight"] = (weight * gain[:, None, None, None, None]).astype(np.float32)
        bias = arrays[f"params|{unit}|BatchNorm_0|bias"].astype(np.float64)
        out[f"{prefix}.bias"] = (bias - mean * gain).astype(np.float32)
    return out
