"""Kill -9 at random moments: nothing is lost, nothing is doubled, and the finished set is the same byte for byte.

    python benchmarks/kill.py            # a table
    python benchmarks/kill.py --json     # one object

Generates a small data set in a process group of its own, kills the whole group (coordinator and workers) at random
moments and starts it again, ten times; then lets it finish and holds it against an uninterrupted run.
"""

from __future__ import annotations

import hashlib
import json as json_module
import os
import platform
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path

import tyro

from kinema4d.data.dataset import open_dataset
from kinema4d.data.generate import Recipe, generate, orders
from kinema4d.scenes.episode import TASKS

SIZE = (48, 72)


@dataclass(kw_only=True)
class Kill:
    """One kill and what it left."""

    after_s: float
    """Seconds after the start of the process."""
    hit: bool
    """Whether it still ran."""
    listed: int
    """Episodes in the manifest by then."""
    finished: int
    """Episode folders by then; more than listed where the kill came between writing and listing."""
    leftovers: int
    """Temporary files and folders by then."""
    torn: bool
    """Whether the manifest ended in the middle of a line."""


@dataclass(kw_only=True)
class Proof:
    """What came of it all."""

    episodes: int
    """Asked for."""
    kills: int
    """Processes that were killed while they ran."""
    moments: list[Kill] = field(default_factory=list)
    """Each kill."""
    seconds: float = 0.0
    """Of the uninterrupted run."""
    wrong: list[str] = field(default_factory=list)
    """Everything that is not as it should be; empty is the claim."""


def recipe(episodes: int) -> Recipe:
    tasks = tuple(task for task in TASKS if task != "pour")  # our small arm cannot reach that far
    return Recipe(robots=("k4arm",), tasks=tasks, episodes=episodes, failures=1, height=SIZE[0], width=SIZE[1])


def start(root: Path, episodes: int) -> subprocess.Popen[bytes]:
    """Generate in a process group of its own."""
    command = [sys.executable, __file__, "--root", str(root), "--episodes", str(episodes)]
    return subprocess.Popen(command, start_new_session=True, stdout=subprocess.DEVNULL)


def finish(root: Path, episodes: int) -> float:
    """Let it run to its end; how long it took."""
    begin = time.monotonic()
    code = start(root, episodes).wait()
    if code:
        raise RuntimeError(f"generate ended with code {code}")
    return time.monotonic() - begin


def prove(folder: Path, *, kills: int, episodes: int, seed: int) -> Proof:
    """Kill and go on, finish, and compare with a run that nobody killed."""
    proof, rng, root = Proof(episodes=episodes, kills=0), random.Random(seed), folder / "killed"
    proof.seconds = finish(folder / "calm", episodes)
    for left in reversed(range(kills)):
        # So many new episodes are waited for, and then a random time: a moment in start, physics, writing or listing,
        # on a machine of any speed, and with something left for the kills that follow.
        there = _finished(root)
        more = rng.randint(0, max((episodes - there) // (left + 2), 1 if there + 2 * left < episodes else 0))
        proof.moments.append(_kill(root, episodes, there + more, rng.uniform(0, 0.3 if more else 2.0)))
    proof.kills = sum(moment.hit for moment in proof.moments)
    finish(root, episodes)
    proof.wrong = check(root, folder / "calm", episodes)
    return proof


def _kill(root: Path, episodes: int, wanted: int, then_s: float) -> Kill:
    process, begin = start(root, episodes), time.monotonic()
    while process.poll() is None and _finished(root) < wanted:
        time.sleep(0.005)
    time.sleep(then_s)
    after_s, hit = time.monotonic() - begin, process.poll() is None
    if hit:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    manifest = root / "manifest.jsonl"
    content = manifest.read_bytes() if manifest.exists() else b""
    return Kill(
        after_s=round(after_s, 3),
        hit=hit,
        listed=content.count(b"\n"),
        finished=_finished(root),
        leftovers=len(_leftovers(root)),
        torn=bool(content) and not content.endswith(b"\n"),
    )


def _finished(root: Path) -> int:
    return sum(not f.name.startswith(".") for f in (root / "episodes").iterdir()) if (root / "episodes").exists() else 0


def check(root: Path, calm: Path, episodes: int) -> list[str]:
    """Everything that is wrong with a data set, by itself and against the one of a run that nobody killed."""
    wrong = []
    ids = [json_module.loads(line)["id"] for line in (root / "manifest.jsonl").read_text().splitlines()]
    wanted = {id for order in orders(recipe(episodes)) for id in order.ids}
    wrong += [f"{id} is listed {count} times" for id, count in Counter(ids).items() if count > 1]
    wrong += [f"{id} is not listed" for id in sorted(wanted - set(ids))]
    wrong += [f"{id} is listed but was not asked for" for id in sorted(set(ids) - wanted)]
    dataset = open_dataset(root)
    wrong += [text for id in dataset.ids for text in dataset.verify(id)]
    wrong += [f"{file} was left" for file in _leftovers(root)]
    ours, theirs = _contents(root), _contents(calm)
    wrong += [f"{name} differs" for name in sorted(set(ours) | set(theirs)) if ours.get(name) != theirs.get(name)]
    return wrong


def _leftovers(root: Path) -> list[Path]:
    hidden = [*root.glob(".*"), *root.glob("episodes/.*")] if root.exists() else []
    return [file for file in hidden if file.name != ".lock"]


def _contents(root: Path) -> dict[str, str]:
    """Hash of every file; of the manifest, whose lines come as jobs end, that of the sorted lines."""
    found = {}
    for file in (f for f in root.rglob("*") if f.is_file()):
        content = file.read_bytes()
        if file.name == "manifest.jsonl":
            content = b"\n".join(sorted(content.splitlines()))
        found[str(file.relative_to(root))] = hashlib.sha256(content).hexdigest()
    return found


def main(root: Path | None = None, kills: int = 10, episodes: int = 24, seed: int = 0, json: bool = False) -> None:
    """Kill -9 at random moments, and see what is left.

    Args:
        root: Only generate there, without a kill; what the killed processes do.
        kills: How many.
        episodes: To generate.
        seed: Of the moments.
        json: Print one object.
    """
    if root is not None:
        generate(root, recipe(episodes), workers=2)
        return
    with tempfile.TemporaryDirectory() as folder:
        proof = prove(Path(folder), kills=kills, episodes=episodes, seed=seed)
    if json:
        print(json_module.dumps(asdict(proof) | {"machine": platform.machine(), "cores": os.cpu_count()}))
    else:
        print(f"{episodes} episodes of {SIZE[0]}x{SIZE[1]}, 2 workers, {proof.seconds:.1f} s when nobody kills\n")
        print("kill   after s   listed   finished   leftovers   torn line")
        for number, moment in enumerate(proof.moments, start=1):
            print(
                f"{number:4d} {moment.after_s:9.2f} {moment.listed:8d} {moment.finished:10d} {moment.leftovers:11d}"
                f"   {'yes' if moment.torn else 'no'}"
            )
        print(
            f"\nthen finished: {len(proof.wrong)} things wrong (manifest, hashes, leftovers, bytes against a calm run)"
        )
        for text in proof.wrong:
            print(f"  {text}")
    if proof.wrong or proof.kills < kills:
        raise SystemExit(1)


if __name__ == "__main__":
    tyro.cli(main)
