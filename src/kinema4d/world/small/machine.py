"""What torch may use on this machine: some advertise bf16 units that kill the process."""

from __future__ import annotations

import os
import platform
from pathlib import Path

VARIABLE = "ONEDNN_MAX_CPU_ISA"
"""oneDNN's own switch, read when torch loads."""


def hides_amx(cpuinfo: str | None = None) -> bool:
    """Whether the processor says it has AMX tiles while hiding how they are made (CPUID leaf 0x1D): bf16 products die
    with SIGILL there. Some virtual machines do."""
    if cpuinfo is None:
        file = Path("/proc/cpuinfo")
        if platform.machine() != "x86_64" or not file.exists():
            return False
        cpuinfo = file.read_text()
    lines = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in cpuinfo.splitlines())}
    level = lines.get("cpuid level", "")
    return "amx_tile" in lines.get("flags", "").split() and level.isdigit() and int(level) < 0x1D


def guard() -> None:
    """Keep oneDNN off units that this machine only pretends to have. Call before torch is imported."""
    if hides_amx():
        os.environ.setdefault(VARIABLE, "AVX10_1_512")
