"""Keep or drop: a score per episode from the doctor's findings, written beside the data set with every reason.

The score is the product over checks of the worst score of that check; a finding scores 1 up to its ``warn`` limit, 0.5
at its ``bad`` limit and 0 as far again beyond it (``Finding.score``). An episode is kept when none of its findings is
bad, its score reaches ``keep_score``, and it is the best of those with the very same video.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kinema4d.data.dataset import Dataset, open_dataset
from kinema4d.data.doctor import EpisodeReport, Report, copies, doctor, finding_to_dict
from kinema4d.data.meta_file import version
from kinema4d.data.pool import Progress
from kinema4d.data.thresholds import Finding, Thresholds, thresholds_to_dict
from kinema4d.files import whole_file

FORMAT = "kinema4d curation"
"""What ``curation.json`` says it is."""
VERSION = 1
"""Layout version."""


@dataclass(frozen=True, kw_only=True)
class Decision:
    """Keep or drop one episode."""

    id: str
    """Which episode."""
    sha256: str
    """Hash of the ``meta.json`` that was judged."""
    score: float
    """0 to 1."""
    keep: bool
    """Whether to train on it."""
    reasons: tuple[Finding, ...]
    """Findings that are not ok."""


@dataclass(frozen=True, kw_only=True)
class Curation:
    """All decisions."""

    thresholds: Thresholds
    """The limits that were used."""
    decisions: tuple[Decision, ...]
    """In the order of ids."""

    @property
    def kept(self) -> tuple[str, ...]:
        """Ids to train on."""
        return tuple(d.id for d in self.decisions if d.keep)

    @property
    def reasons(self) -> dict[str, dict[str, int]]:
        """Per check: how many episodes it calls bad, and how many it warns about."""
        out: dict[str, Counter[str]] = {}
        for decision in self.decisions:
            for check, severity in {(f.check, f.severity) for f in decision.reasons}:
                out.setdefault(check, Counter())[severity] += 1
        return {check: {"bad": out[check]["bad"], "warn": out[check]["warn"]} for check in sorted(out)}


def curate(
    root: str | Path,
    thresholds: Thresholds | None = None,
    *,
    report: Report | None = None,
    workers: int = 2,
    assets: Path | None = None,
    progress: Progress | None = None,
) -> Curation:
    """Judge every episode and write ``curation.json``. A ``report`` of the doctor on the whole set saves the checks."""
    dataset = open_dataset(root)
    report = report or doctor(root, thresholds, workers=workers, assets=assets, progress=progress)
    if [e.id for e in report.episodes] != dataset.ids:
        raise ValueError("the doctor's report must be of all episodes of the data set; run the doctor again")
    scores = {e.id: score(e.findings) for e in report.episodes}
    doubles: dict[str, str] = {}
    for found in copies(dataset.rows, [e.rgb_sha256 for e in report.episodes]):
        best = max(found, key=lambda row: scores[row.id]).id
        doubles |= {row.id: best for row in found if row.id != best}
    decisions = tuple(_decide(dataset, e, report.thresholds, doubles.get(e.id)) for e in report.episodes)
    curation = Curation(thresholds=report.thresholds, decisions=decisions)
    with whole_file(dataset.root / "curation.json", overwrite=True) as temporary:
        temporary.write_text(json.dumps(curation_to_dict(curation), indent=1, allow_nan=False) + "\n", encoding="utf-8")
    return curation


def score(findings: Sequence[Finding]) -> float:
    """Product over checks of the worst score of each."""
    worst: dict[str, float] = {}
    for finding in findings:
        worst[finding.check] = min(worst.get(finding.check, 1.0), finding.score)
    out = 1.0
    for value in worst.values():
        out *= value
    return out


def curation_to_dict(curation: Curation) -> dict[str, Any]:
    """As ``curation.json`` has it."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "kinema4d_version": version(),
        "thresholds": thresholds_to_dict(curation.thresholds),
        "counts": {"keep": len(curation.kept), "drop": len(curation.decisions) - len(curation.kept)},
        "reasons": curation.reasons,
        "episodes": {
            d.id: {
                "sha256": d.sha256,
                "score": round(d.score, 4),
                "keep": d.keep,
                "reasons": [finding_to_dict(f) for f in d.reasons],
            }
            for d in curation.decisions
        },
    }


def kept_ids(dataset: Dataset) -> tuple[list[str], list[str]] | None:
    """Episodes that curation keeps, and those it has not judged as they are now; None where it never ran."""
    file = dataset.root / "curation.json"
    if not file.exists():
        return None
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        if content.get("format") != FORMAT or content.get("version") != VERSION:
            raise ValueError(f'it must say "format": "{FORMAT}", "version": {VERSION}')
        judged = {id: (entry["sha256"], bool(entry["keep"])) for id, entry in content["episodes"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{file} is damaged ({error}); run 'kinema4d data curate {dataset.root}' again") from None
    fresh = {row.id for row in dataset.rows if judged.get(row.id, ("",))[0] == row.sha256}
    return [id for id in dataset.ids if id in fresh and judged[id][1]], [id for id in dataset.ids if id not in fresh]


def _decide(dataset: Dataset, found: EpisodeReport, limits: Thresholds, double_of: str | None) -> Decision:
    reasons = [f for f in found.findings if f.severity != "ok"]
    if double_of is not None:
        text = f"the very same video as {double_of}"
        reasons.append(
            Finding(check="copies", severity="bad", message=text, remedy="nothing: the best of them is kept", score=0.0)
        )
    value = score([*found.findings, *reasons])
    keep = value >= limits.keep_score and all(f.severity != "bad" for f in reasons)
    return Decision(id=found.id, sha256=dataset.row(found.id).sha256, score=value, keep=keep, reasons=tuple(reasons))
