"""Options of the full-scale world. Loads without torch."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any


def processes() -> tuple[int, int]:
    """Which process this is and of how many, as torchrun says; 0 of 1 without."""
    return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


OFFLOADS, QUANTISED = ("none", "model", "sequential"), ("none", "fp8", "int8")


@dataclass(frozen=True, kw_only=True)
class Setup:
    """How the model is put on a machine."""

    device: str = "auto"
    """``cuda``, ``cuda:1``, ``cpu``; auto takes a GPU where there is one."""
    dtype: str = "auto"
    """``bfloat16`` or ``float32``; auto is bfloat16 on a GPU."""
    offload: str = "none"
    """What waits in the machine's memory: none; model by model; or block by block, which fits small cards and is slow."""
    quantise: str = "none"
    """How weights are kept: as they are, in 8-bit floats (cast block by block), or in 8-bit integers (torchao)."""
    tiling: bool = False
    """Whether the VAE works in tiles: less memory, seams where the picture is large."""
    compile: bool = False
    """Whether blocks are compiled, once for all of them."""
    attention: str | None = None
    """Which attention of diffusers: ``flash``, ``sage``, ``native``..."""
    frames: int = 49
    """Of a clip."""
    height: int = 480
    """Rows."""
    width: int = 720
    """Columns."""
    lora: tuple[Path, ...] = ()
    """More LoRAs, as few-step ones of the community, added at scale 1."""
    parallel: int = 1
    """Processes of torchrun that share every clip, each with its part of the sequence (Ulysses attention)."""

    def __post_init__(self) -> None:
        if self.offload not in OFFLOADS:
            raise ValueError(f"unknown offload {self.offload!r}; known are {', '.join(OFFLOADS)}")
        if self.quantise not in QUANTISED:
            raise ValueError(f"unknown quantise {self.quantise!r}; known are {', '.join(QUANTISED)}")
        if self.dtype not in ("auto", "bfloat16", "float32"):
            raise ValueError(f"unknown dtype {self.dtype!r}; known are auto, bfloat16, float32")
        if self.parallel < 1:
            raise ValueError(f"a clip is shared by at least 1 process, got {self.parallel}")

    @property
    def load(self) -> dict[str, Any]:
        """What decides how much memory is needed, for ``memory.load_of``."""
        kept = {"none": "float32" if self.dtype == "float32" else "bfloat16", "fp8": "float8", "int8": "int8"}
        size = {"frames": self.frames, "height": self.height, "width": self.width}
        return {
            **size,
            "weights": kept[self.quantise],
            "offload": self.offload,
            "tiling": self.tiling,
            "parallel": self.parallel,
        }


SOLVERS = ("unipc", "euler")


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How a clip is drawn."""

    steps: int = 50
    """Of the flow; 4 to 8 with a few-step LoRA."""
    shift: float = 3.0
    """Of the times towards noise."""
    solver: str = "unipc"
    """UniPC of second order, or Euler."""
    guidance: str = "single"
    """One pass per step, or the release's two."""
    scale: float = 5.0
    """Of ``official``."""

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ValueError(f"the flow needs at least 1 step, got {self.steps}")
        if not self.shift > 0:
            raise ValueError(f"the shift of the flow must be positive, got {self.shift}")
        if self.solver not in SOLVERS:
            raise ValueError(f"unknown solver {self.solver!r}; known are {', '.join(SOLVERS)}")
        if self.guidance not in ("single", "official"):
            raise ValueError(f"unknown guidance {self.guidance!r}; known are single, official")

    @property
    def evaluations(self) -> int:
        """How often the transformer runs for one clip."""
        return self.steps * (2 if self.guidance == "official" else 1)
