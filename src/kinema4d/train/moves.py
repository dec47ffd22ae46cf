"""Teach how the first frame's pixels move (:class:`kinema4d.world.small.moves.Moves`), before the transformer that begins with them drawn anew."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor, nn

from kinema4d.train.direct import mirrored, some_groups, taken, tinted, with_contact
from kinema4d.train.direct_pack import Kept, Take
from kinema4d.world.small.diffusion import Known
from kinema4d.world.small.diffusion_config import MIXED, DiffusionConfig
from kinema4d.world.small.moves import Moves
from kinema4d.world.small.patches import at_groups, grouped, known_of, lengths, moved_loss, scale_of

GROUPS = 2
"""Of the groups of frames of a clip, so many are learned from at a time."""
MOVED_M = 0.02
"""What has gone further by the end counts as moved, metres."""


def away_of(take: Take, config: DiffusionConfig) -> Tensor:
    """[1,times,frames,k,3] how far the first frame's pixels have gone, in the model's unit; NaN where nobody knows."""
    p, (times, _, _) = config.patch[0], config.grid
    if take.away is None:
        return torch.full((1, times, p, config.height * config.width, 3), torch.nan)
    return grouped(lengths(take.away.astype(np.float32), scale_of(take.scene)), config)


@dataclass(eq=False)
class MovesTask:
    """Teach :class:`Moves` by tracks. A batch is made while the one before it is learned from."""

    model: Moves
    """What is trained."""
    takes: Sequence[Take | Kept]
    """To learn from."""
    held_out: Sequence[Take | Kept]
    """To validate on."""
    size: int = 8
    """Clips per batch."""
    seed: int = 0
    """Of the batches."""
    _made: dict[int, Future[tuple[Known, Tensor]]] = field(default_factory=dict)
    _pool: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1))

    def loss(self, step: int) -> Tensor:
        """Of one batch."""
        known, away = self._made.pop(step).result() if step in self._made else self.batch(step)
        self._made = {step + 1: self._pool.submit(self.batch, step + 1)}
        return moved_loss(self.model(known), away)

    def batch(self, step: int) -> tuple[Known, Tensor]:
        """Drawn by the number of the step alone."""
        rng = np.random.default_rng([self.seed, step, 3])
        config = self.model.config
        if config.control == "mixed":
            config = replace(config, control=str(rng.choice(MIXED)))
        takes = [taken(self.takes[i]) for i in rng.integers(len(self.takes), size=self.size)]
        takes = [mirrored(t) if rng.random() < 0.5 else t for t in takes]
        groups = [0, *sorted((1 + rng.permutation(config.grid[0] - 1)[:GROUPS]).tolist())]
        parts = [_some(t, groups, config) for t in takes]
        takes, config = [tinted(t, rng) for t, _ in parts], parts[0][1]
        return at_groups(known_of([t.scene for t in takes], config, seed=step), groups), torch.cat(
            [away_of(t, config) for t in takes]
        )

    @torch.no_grad()
    def validate(self, model: nn.Module, most: int = 48) -> dict[str, float]:
        """At the end of clips: by how many centimetres it is off where moved things are, beside how far they moved and how far the hand would have
        carried them; how sure it is that they have gone, and of what stayed; and the overlap of what it thinks has gone with what has."""
        assert isinstance(model, Moves)
        found: dict[str, list[float]] = {}
        both = either = 0
        config = model.config if model.config.control != "mixed" else replace(model.config, control=MIXED[0])
        last = config.grid[0] - 1
        for take in map(taken, self.held_out[:most]):
            if take.away is None:
                continue
            true = take.away[-1].reshape(-1, 3).astype(np.float32)
            far = np.linalg.norm(true, axis=-1)
            part, config_of_some = _some(take, [0, last], config)
            moved = model(at_groups(known_of([part.scene], config_of_some), [0, last]))
            unit = lengths(np.ones(3, np.float32), scale_of(take.scene))
            sure, gone = torch.sigmoid(moved.gone[0, -1, -1]).numpy(), far > MOVED_M
            found.setdefault("sure_stayed", []).append(float(sure[~gone].mean()))
            both, either = both + int(((sure > 0.5) & gone).sum()), either + int(((sure > 0.5) | gone).sum())
            if gone.any():
                off = np.linalg.norm(moved.away[0, -1, -1].numpy() / unit - true, axis=-1)[gone]
                for name, value in {
                    "moved_cm": 100 * off,
                    "first_moved_cm": 100 * far[gone],
                    "sure": sure[gone],
                }.items():
                    found.setdefault(name, []).append(float(value.mean()))
        return {k: float(np.mean(v)) for k, v in found.items()} | {"overlap": both / max(either, 1)}


def _some(take: Take, groups: Sequence[int], config: DiffusionConfig) -> tuple[Take, DiffusionConfig]:
    """Some groups of frames, told of contact first where it is: what is carried depends on all frames."""
    return some_groups(with_contact(take) if config.touches else take, groups, config)
