"""What commands share: a clock with a sign of life, warnings, and the record of a run."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any


class Clock:
    """Wall time by stage, and a sign of life on a terminal."""

    def __init__(self, *, quiet: bool) -> None:
        from rich.console import Console

        self.seconds: dict[str, float] = {}
        self.last = time.perf_counter()
        console = Console(stderr=True)
        self.status = None if quiet or not console.is_terminal else console.status("starting")

    def say(self, text: str) -> None:
        """Show what is going on, where somebody watches."""
        if self.status is not None:
            self.status.update(text)
            self.status.start()

    def __enter__(self) -> Clock:
        return self

    def __exit__(self, *_: object) -> None:
        if self.status is not None:
            self.status.stop()

    def lap(self, stage: str) -> None:
        """Book the time since the last call to a stage."""
        now = time.perf_counter()
        self.seconds[stage] = self.seconds.get(stage, 0.0) + now - self.last
        self.last = now


def provenance(command: str, values: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """The configuration of a run, to lie beside its output."""
    config = {n: [str(v) for v in values[n]] if isinstance(values[n], tuple) else values[n] for n in names}
    return {"command": command, "config": config}


def warn(text: str) -> None:
    """One line about something that the user should know, while the run goes on."""
    print(f"kinema4d: warning: {text}", file=sys.stderr)
