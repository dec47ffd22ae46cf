"""Examine a data set: every episode by every check, and the set as a whole. A damaged episode is a finding, never an
exception."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from kinema4d.data.checks import check_probe
from kinema4d.data.dataset import Dataset, Row, open_dataset
from kinema4d.data.meta_file import version
from kinema4d.data.pool import Progress, spread
from kinema4d.data.probe import probe
from kinema4d.data.store import read_meta
from kinema4d.data.thresholds import SEVERITIES, Finding, Severity, Thresholds, bad, thresholds_to_dict, worst_of

RESTORE = (
    "restore the folder from a copy; or delete it and run the generate or ingest command again, which fills the gap"
)
"""What to do about damaged files."""


@dataclass(frozen=True, kw_only=True)
class EpisodeReport:
    """What was found in one episode."""

    id: str
    """Which episode."""
    source: str
    """Where it came from."""
    folder: str
    """Where it lies."""
    findings: tuple[Finding, ...]
    """Every check's result."""
    missing_robots: tuple[str, ...] = ()
    """Robots whose files are not here, with what to do: image and robot were not compared."""
    rgb_sha256: str = ""
    """Hash of its colour video; empty where it cannot be read."""

    @property
    def severity(self) -> Severity:
        """The worst of its findings."""
        return worst_of(f.severity for f in self.findings)


@dataclass(frozen=True, kw_only=True)
class Report:
    """What was found in a data set."""

    root: str
    """The data set."""
    thresholds: Thresholds
    """The limits that were used."""
    findings: tuple[Finding, ...]
    """About the set as a whole."""
    episodes: tuple[EpisodeReport, ...]
    """About each episode, in the order of ids."""

    @property
    def counts(self) -> dict[Severity, int]:
        """How many episodes are ok, warn and bad."""
        found = Counter(e.severity for e in self.episodes)
        return {s: found[s] for s in SEVERITIES}

    @property
    def severity(self) -> Severity:
        """The worst of all findings."""
        return worst_of([*(f.severity for f in self.findings), *(e.severity for e in self.episodes)])


def doctor(
    root: str | Path,
    thresholds: Thresholds | None = None,
    *,
    episodes: Sequence[str] = (),
    workers: int = 2,
    assets: Path | None = None,
    progress: Progress | None = None,
) -> Report:
    """Examine every episode of a data set, or those named, and the set as a whole."""
    dataset, limits = open_dataset(root), thresholds or Thresholds()
    rows = [dataset.row(e) for e in episodes] if episodes else list(dataset.rows)
    work = partial(examine, dataset.root, limits, assets)
    reports = spread(work, [row.id for row in rows], workers=workers, progress=progress)
    findings = [*_folders(dataset), *_clocks(rows), *_copies(rows, reports), *_robots(reports)]
    return Report(root=str(dataset.root), thresholds=limits, findings=tuple(findings), episodes=tuple(reports))


def examine(root: Path, limits: Thresholds, assets: Path | None, id: str) -> EpisodeReport:
    """Every check on one episode."""
    dataset = opened(root)
    row, folder = dataset.row(id), dataset.folder(id)
    findings: list[Finding] = []
    wrong = dataset.verify(id)
    missing: tuple[str, ...] = ()
    video = ""
    try:
        video = str(read_meta(folder).get("rgb", {}).get("sha256", ""))
        look = probe(dataset.load(id), assets=assets, search=limits.sync_search)
    except (ValueError, OSError) as error:
        known = any(str(error).startswith(text.split(" (")[0]) for text in wrong)
        wrong = wrong if known else [str(error), *wrong]
    else:
        findings, missing = check_probe(look, limits), look.missing
    files = (
        bad("files", "; ".join(wrong), RESTORE, value=len(wrong), limit=0)
        if wrong
        else Finding(check="files", severity="ok", value=0, limit=0, message="all hashes are right")
    )
    return EpisodeReport(
        id=id,
        source=row.source,
        folder=str(folder),
        findings=(files, *findings),
        missing_robots=missing,
        rgb_sha256=video,
    )


def report_to_dict(report: Report) -> dict[str, Any]:
    """As JSON has it; an infinite value becomes null."""
    return {
        "root": report.root,
        "kinema4d_version": version(),
        "severity": report.severity,
        "counts": report.counts,
        "thresholds": thresholds_to_dict(report.thresholds),
        "findings": [finding_to_dict(f) for f in report.findings],
        "episodes": [
            {
                "id": e.id,
                "source": e.source,
                "folder": e.folder,
                "severity": e.severity,
                "missing_robots": list(e.missing_robots),
                "findings": [finding_to_dict(f) for f in e.findings],
            }
            for e in report.episodes
        ],
    }


def finding_to_dict(finding: Finding) -> dict[str, Any]:
    """As JSON has it."""
    values = asdict(finding)
    for key in ("value", "limit"):
        if values[key] is not None:
            values[key] = round(float(values[key]), 6) if abs(values[key]) < 1e300 else None
    return values


def opened(root: Path) -> Dataset:
    """The data set, opened once per process and again when its manifest changes."""
    manifest = root / "manifest.jsonl"
    state = manifest.stat() if manifest.exists() else None
    return _opened(root, state and (state.st_mtime_ns, state.st_size, state.st_ino))


@lru_cache(maxsize=2)
def _opened(root: Path, state: object) -> Dataset:
    del state
    return open_dataset(root)


# ---------------------------------------------------------------------- the set as a whole


def _folders(dataset: Dataset) -> list[Finding]:
    out = []
    inside = dataset.root / "episodes"
    names = sorted(p.name for p in inside.iterdir()) if inside.is_dir() else []
    lost = [n for n in names if not n.startswith(".") and n not in dataset]
    if lost:
        out.append(
            _warn(
                "manifest",
                len(lost),
                f"{len(lost)} folders are not in the manifest: {_some(lost)}",
                "run the generate or ingest command again: it lists what a killed run finished",
            )
        )
    leftovers = [n for n in names if n.startswith(".")]
    if leftovers:
        out.append(
            _warn(
                "leftovers",
                len(leftovers),
                f"{len(leftovers)} temporary folders in {inside}: {_some(leftovers)}",
                "a run is writing now, or was killed; when none is running, the next writing command removes them",
            )
        )
    manifest = dataset.root / "manifest.jsonl"
    if manifest.exists() and manifest.stat().st_size and not manifest.read_bytes().endswith(b"\n"):
        out.append(_warn("manifest", 1, f"the last line of {manifest} is torn", "the next writing command mends it"))
    if not len(dataset):
        out.append(_warn("manifest", 0, f"{dataset.root} has no episode", "generate or ingest some"))
    return out


def _clocks(rows: Sequence[Row]) -> list[Finding]:
    """Views of one recording must share its clock."""
    rates: dict[str, dict[float, str]] = defaultdict(dict)
    for row in rows:
        rates[row.source or row.group or row.id][round(row.fps, 3)] = row.id
    out = []
    for source, seen in rates.items():
        if len(seen) > 1:
            which = ", ".join(f"{id} at {fps:g}" for fps, id in sorted(seen.items()))
            out.append(
                bad(
                    "fps",
                    f"recording {source!r} has views of different frame rates: {which}",
                    "give every view the true rate of its camera, resample to one, and ingest again",
                    value=len(seen),
                    limit=1,
                )
            )
    return out


def copies(rows: Sequence[Row], hashes: Sequence[str]) -> list[list[Row]]:
    """Episodes with the very same colour video, where there are several."""
    same: dict[str, list[Row]] = defaultdict(list)
    for row, video in zip(rows, hashes, strict=True):
        if video:
            same[video].append(row)
    return [found for found in same.values() if len(found) > 1]


def _copies(rows: Sequence[Row], reports: Sequence[EpisodeReport]) -> list[Finding]:
    out = []
    for found in copies(rows, [r.rgb_sha256 for r in reports]):
        groups = sorted({row.group for row in found})
        what = f"in {len(groups)} groups ({_some(groups)}): they would leak across splits" if len(groups) > 1 else ""
        out.append(
            _warn(
                "copies",
                len(found),
                f"{_some([row.id for row in found])} have the very same video {what}".rstrip(),
                "keep one; 'kinema4d data curate' drops the others and 'split' keeps them together",
            )
        )
    return out


def _robots(reports: Sequence[EpisodeReport]) -> list[Finding]:
    found = Counter(text for report in reports for text in report.missing_robots)
    return [
        _warn(
            "robots", n, f"{text} ({n} episodes; image and robot were not compared)", "get the robot's files as it says"
        )
        for text, n in sorted(found.items())
    ]


def _warn(check: str, value: float, message: str, remedy: str) -> Finding:
    return Finding(check=check, severity="warn", value=value, message=message, remedy=remedy, score=0.75)


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
