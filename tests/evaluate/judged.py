"""A small made-up evaluation: three worlds, a few metrics, missing scores, hostile names."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from PIL import Image

from kinema4d.evaluate.report import Report, Row
from kinema4d.evaluate.score import NA, About, Scores

EVIL = '<script>alert("1")</script> & [bold]push[/bold]'
ABOUT = {
    "psnr": About(label="PSNR", unit="dB", better="higher", group="video", text="Peak signal to noise.", digits=2),
    "fvd": About(label="FVD", unit="", better="lower", group="video", text="Of all clips.", digits=1),
    "fid": About(label="FID", unit="", better="lower", group="video", text="Of all frames.", digits=1),
    "fscore": About(label="F<0.01>", unit="%", better="higher", group="geometry", text="Share within 1 cm.", digits=1),
    "delay": About(label="delay", unit="frames", better="none", group="following", text="Best shift.", digits=2),
    "object_end": About(label="end error", unit="m", better="lower", group="interaction", text="Of moved objects."),
    "right": About(
        label="outcome", unit="%", better="higher", group="interaction", text="Right or wrong.", digits=0, yes_no=True
    ),
    "touch": About(label="touch", unit="m", better="lower", group="interaction", text="Never there."),
}


def report(
    *, n: int = 24, seed: int = 0, error: float = 1.0, evil: bool = True, config: dict[str, Any] | None = None
) -> Report:
    """``error`` scales what the prediction does wrong; the static world has 2."""
    rows = []
    for i in range(n):
        hard = np.random.default_rng(i).uniform(0.5, 1.5)
        rng = np.random.default_rng([seed, i])
        for world, e in (("prediction", error), ("static", 2.0), ("truth", 0.0)):
            wrong = e * hard * rng.uniform(0.8, 1.2)
            scores: Scores = {
                "psnr": 30 - 5 * wrong if e else 100.0,
                "fscore": float(np.clip(1 - 0.3 * wrong, 0, 1)),
                "delay": float(rng.integers(-1, 2)),
                "object_end": NA("no object moved") if i % 6 == 0 else 0.03 * wrong,
                "right": float(rng.random() < 1 - 0.3 * e),
                "touch": NA("no contact in the truth"),
            }
            frames = [None if i == 1 else 0.01 * wrong * t for t in range(5)]
            rows.append(
                Row(
                    world=world,
                    episode=f"e{i:03d}",
                    seed=0,
                    source="tabletop" if i % 2 else "libero",
                    task=(EVIL if evil else "stack", "pick", "")[i % 3],
                    outcome=("success", "failure")[i % 2],
                    group=f"scene{i // 2}",
                    robot="panda",
                    scenario="noisy" if i % 2 else "demonstration",
                    scores=scores,
                    details={
                        "interaction": {"along": {"object_end": frames}},
                        "links": {"link0": 0.01 * wrong, "hand": 0.02 * wrong},
                        "reliability": {EVIL: [[2, 0.4, 1], [0, 0, 0], [3, 2.4, 2]]},
                        "fault": EVIL,
                    },
                )
            )
    settings = {
        "settings": {"tau": 0.01, "metrics": ["video", "geometry"]},
        "versions": {"kinema4d": "1"},
        "truth": {f"e{i:03d}": f"hash{i}" for i in range(n)},
    }
    sets: dict[str, Scores] = {
        w: {"fvd": v, "fid": NA(f"no weights {EVIL}")}
        for w, v in (("prediction", 100.0 * error), ("static", 300.0), ("truth", 0.0))
    }
    return Report(rows=tuple(rows), set_scores=sets, about=ABOUT, config=settings | (config or {}))


def picture(episode: str) -> bytes | None:
    """A small PNG or JPEG by turns, and none for some."""
    number = int(episode[1:])
    if number % 5 == 0:
        return None
    buffer = io.BytesIO()
    Image.new("RGB", (40, 10), (number * 9 % 255, 90, 160)).save(buffer, "PNG" if number % 2 else "JPEG")
    return buffer.getvalue()
