"""Shards for training: the episodes of a data set, decoded once and packed so that random windows are read fast.

``pack`` of :mod:`kinema4d.data.pack` writes them, ``batches`` of :mod:`kinema4d.data.batches` feeds a trainer, and this
module reads. Clip folders stay the truth: shards can be thrown away and packed again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int64, UInt8, UInt16

from kinema4d.data.meta_file import sha256
from kinema4d.data.shard_file import PACK_AGAIN, Shard
from kinema4d.data.store import command_window
from kinema4d.geometry.camera import rays
from kinema4d.types import Arm, Camera, Clip, Commands, Episode, Pointmap, Track, Trajectory, is_robot_label

FORMAT = "kinema4d shards"
"""What ``index.json`` says it is."""
VERSION = 1
"""Layout version this module reads."""
PARTS = ("rgb", "depth", "labels", "camera", "arms", "commands", "tracks")
"""What a sample can hold beside its texts."""
OPEN = 256
"""Shards that a reader keeps mapped: each holds a file descriptor, of which a process often has 1024."""
PER_FRAME = ("converged", "residual_m", "residual_rad")
"""What an arm has for every frame beside its joints."""
TEXTS = ("text", "outcome", "source", "task", "group", "view", "camera_from")
"""Words about an episode."""
Frames = slice | Sequence[int] | np.ndarray | None
"""Which frames: a slice, increasing numbers, or all."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Sample:
    """Some frames of an episode. A part that was not asked for is None, or empty."""

    id: str
    """Of the episode."""
    frames: Int64[np.ndarray, " t"]
    """Which frames of the packed episode these are."""
    fps: float
    """Frames per second of these frames."""
    parts: tuple[str, ...]
    """What was asked for."""
    rgb: UInt8[np.ndarray, "t h w 3"] | None
    """Colour."""
    codes: UInt16[np.ndarray, "t h w"] | UInt16[np.ndarray, "t h w 3"] | None
    """Depth: 0 is nothing here, else ``offset + (code - 1) * scale`` metres. For points that lie off the rays of their
    pixels: x, y and z as ``offset + code * scale``."""
    valid: Bool[np.ndarray, "t h w"] | None
    """Where ``codes`` mean something."""
    scale: Float[np.ndarray, "..."]
    """Metres per code, one, or one per axis."""
    offset: Float[np.ndarray, "..."]
    """Metres, one, or one per axis."""
    has_depth: bool
    """Whether any pixel of the whole episode has depth."""
    labels: UInt8[np.ndarray, "t h w"] | UInt16[np.ndarray, "t h w"] | None
    """0 environment, else 1 + index into ``label_names``. None also where the episode has none."""
    label_names: tuple[str, ...]
    """Links and objects behind ``labels``."""
    label_dtype: str
    """What an ``Episode`` has them in."""
    camera: Camera | None
    """Who is looking, at these frames."""
    arms: tuple[Arm, ...]
    """The robots and their motion."""
    commands: Commands | None
    """What was told during these frames."""
    tracks: tuple[Track, ...]
    """Where every movable thing was."""
    words: Mapping[str, str]
    """Text, outcome, source, task, group, view, and how the camera came about."""
    metric: bool
    """Whether the geometry is in metres."""
    facts: Mapping[str, Any]
    """What else its source said."""

    def __len__(self) -> int:
        return len(self.frames)

    @property
    def robot_mask(self) -> Bool[np.ndarray, "t h w"] | None:
        """Pixels that show a robot; None where they are not labelled."""
        seen = np.array([False, *(is_robot_label(name) for name in self.label_names)])
        return None if self.labels is None or not seen.any() else seen[self.labels]

    @property
    def track_labels(self) -> tuple[int, ...]:
        """The number in ``labels`` of each track; 0 where it has none."""
        ids = {name: i for i, name in enumerate(self.label_names, start=1)}
        return tuple(ids.get(track.name, 0) for track in self.tracks)

    def depth(self, out: Float[np.ndarray, "t h w"] | None = None) -> Float[np.ndarray, "t h w"]:
        """z in metres, float32, 0 where not valid; into ``out`` where given."""
        codes, valid = self._geometry()
        if codes.ndim == 4:
            z = np.where(valid, self.offset[2] + codes[..., 2] * self.scale[2], 0).astype(np.float32)
            return z if out is None else _copy(z, out)
        # All depths there can be, to pick from: exact as the store has it, and faster than float64 on every pixel.
        table = (self.offset + (np.arange(65536) - 1.0) * self.scale).astype(np.float32)
        table[0] = 0
        out = np.empty(codes.shape, np.float32) if out is None else out
        for code, z in zip(codes, out, strict=True):  # by frame: NumPy copies indices to eight bytes each
            np.take(table, code, out=z, mode="clip")
        return out

    def points(self) -> Float[np.ndarray, "t h w 3"]:
        """Points in the camera frame in metres, float32, 0 where not valid."""
        codes, valid = self._geometry()
        points = np.empty((*valid.shape, 3), np.float32)
        if codes.ndim == 4:
            for i, code in enumerate(codes):
                points[i] = np.where(valid[i][..., None], self.offset + code * self.scale, 0)
            return points
        if self.camera is None:
            raise ValueError("points need the camera: read with parts 'depth' and 'camera'")
        directions = rays(self.camera.K, *codes.shape[1:])
        for i, code in enumerate(codes):
            z = np.where(valid[i], self.offset + (code - 1.0) * self.scale, 0)
            np.multiply(z[..., None], directions, out=points[i], casting="same_kind")
        return points

    def episode(self) -> Episode:
        """The episode, or this window of it, as the store has it."""
        missing = [part for part in PARTS if part not in self.parts]
        if missing:
            raise ValueError(f"an episode needs all parts; {', '.join(missing)} of {self.id!r} were not read")
        assert self.camera is not None
        assert self.rgb is not None
        assert self.valid is not None
        pointmap = Pointmap(points=self.points(), valid=self.valid)
        return Episode(
            clip=Clip(camera=self.camera, rgb=self.rgb, pointmap=pointmap, fps=self.fps),
            arms=self.arms,
            labels=None if self.labels is None else self.labels.astype(self.label_dtype, copy=False),
            label_names=self.label_names,
            commands=self.commands,
            tracks=self.tracks,
            metric=self.metric,
            facts=self.facts,
            **self.words,
        )

    def _geometry(self) -> tuple[np.ndarray, np.ndarray]:
        if self.codes is None or self.valid is None:
            raise ValueError(f"the depth of {self.id!r} was not read: ask for the part 'depth'")
        return self.codes, self.valid


def _copy(a: np.ndarray, out: np.ndarray) -> np.ndarray:
    out[...] = a
    return out


class Shards:
    """A folder of shards, open to read, also from several threads. Pickles as its path: every process maps the files
    itself. With ``len`` and ``[i]`` it is a map-style data set as torch's loader takes them."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.index = read_index(self.path)
        self.config: Mapping[str, Any] = self.index["config"]
        """How it was packed."""
        self.height, self.width = int(self.config["height"]), int(self.config["width"])
        self.ids: tuple[str, ...] = tuple(id for shard in self.index["shards"] for id in shard["ids"])
        """Every episode, in the order of packing."""
        self.frames = np.array([n for shard in self.index["shards"] for n in shard["frames"]])
        """How many frames each has."""
        self._starts = np.cumsum([0, *(len(shard["ids"]) for shard in self.index["shards"])])
        self._numbers = {id: i for i, id in enumerate(self.ids)}
        self._shard = lru_cache(maxsize=OPEN)(self._open)

    def __reduce__(self) -> tuple[Any, ...]:
        return open_shards, (self.path,)

    def __len__(self) -> int:
        return len(self.ids)

    def __contains__(self, id: str) -> bool:
        return id in self._numbers

    def __getitem__(self, episode: int | str) -> Sample:
        if isinstance(episode, int) and not 0 <= episode < len(self):
            raise IndexError(episode)
        return self.read(episode)

    def number(self, episode: int | str) -> int:
        """Where an episode is in ``ids``."""
        if isinstance(episode, str):
            if episode not in self._numbers:
                near = [id for id in self.ids if episode in id][:3]
                hint = f"did you mean {', '.join(near)}?" if near else f"its first ids are {', '.join(self.ids[:3])}"
                raise ValueError(f"{self.path} has no episode {episode!r}; {hint}")
            return self._numbers[episode]
        if not 0 <= episode < len(self):
            raise ValueError(f"{self.path} has {len(self)} episodes, 0 to {len(self) - 1}; got {episode}")
        return int(episode)

    def read(self, episode: int | str, frames: Frames = None, parts: Sequence[str] = PARTS) -> Sample:
        """Some ``frames`` of an episode, by default all. What is not among ``parts`` is not read."""
        return self.read_into(episode, frames, parts, {})

    def read_into(
        self, episode: int | str, frames: Frames, parts: Sequence[str], out: Mapping[str, np.ndarray]
    ) -> Sample:
        """As :meth:`read`; the images named in ``out`` (``rgb``, ``labels``) land there."""
        strangers = [part for part in parts if part not in PARTS]
        if strangers:
            raise ValueError(f"unknown part {', '.join(map(repr, strangers))}; there are {', '.join(PARTS)}")
        number = self.number(episode)
        which = int(np.searchsorted(self._starts, number, side="right")) - 1
        shard, place = self._shard(which), number - int(self._starts[which])
        head = shard.head(place)
        chosen, gap = _select(head["frames"], frames)
        window = None if frames is None else chosen
        fields: dict[str, Any] = dict.fromkeys(("rgb", "codes", "valid", "labels", "camera", "commands"))
        geometry = head["geometry"]
        if "rgb" in parts:
            fields["rgb"] = shard.images(place, head, "rgb", chosen, out.get("rgb"))
        if "depth" in parts:
            fields["codes"] = codes = shard.images(place, head, geometry["kind"], chosen)
            exact = "valid" in head["images"]
            fields["valid"] = shard.images(place, head, "valid", chosen).view(bool) if exact else codes > 0
        if "labels" in parts and "labels" in head["images"]:
            fields["labels"] = shard.images(place, head, "labels", chosen, out.get("labels"))
        if "camera" in parts:
            fields["camera"] = _camera(head, shard.arrays(place, head, "camera"), chosen)
        if "commands" in parts and head["commands"] is not None:
            fields["commands"] = _commands(head, shard.arrays(place, head, "commands"), window)
        arms: tuple[Arm, ...] = ()
        if "arms" in parts and head["arms"]:
            arms = _arms(head, shard.arrays(place, head, "arms"), window, gap)
        tracks: tuple[Track, ...] = ()
        if "tracks" in parts and head["tracks"]:
            tracks = _tracks(head, shard.arrays(place, head, "tracks"), chosen)
        return Sample(
            id=head["id"],
            frames=chosen,
            fps=head["fps"] / gap,
            parts=tuple(parts),
            scale=np.array(geometry["scale"]),
            offset=np.array(geometry["offset"]),
            has_depth=head["has_depth"],
            label_names=tuple(head["label_names"]),
            label_dtype=head["label_dtype"],
            arms=arms,
            tracks=tracks,
            words=head["words"],
            metric=head["metric"],
            facts=head["facts"],
            **fields,
        )

    def verify(self) -> list[str]:
        """What is wrong with the files, by their hashes; empty when all is right. Reads every byte."""
        wrong = []
        for found in self.index["shards"]:
            file = self.path / found["file"]
            if not file.is_file():
                wrong.append(f"{file} is missing; {PACK_AGAIN}")
            elif sha256(file) != found["sha256"]:
                wrong.append(f"{file} was changed after it was packed (its SHA-256 differs); {PACK_AGAIN}")
        return wrong

    def _open(self, which: int) -> Shard:
        found = self.index["shards"][which]
        file = self.path / found["file"]
        shard = Shard(file)
        if len(shard.bytes) != found["bytes"] or [e["id"] for e in shard.episodes] != found["ids"]:
            raise ValueError(f"{file} is not the shard that index.json lists (size or episodes differ); {PACK_AGAIN}")
        return shard


def open_shards(path: str | Path) -> Shards:
    """Open a folder of shards that ``kinema4d data shards`` wrote."""
    return Shards(path)


def read_index(path: Path) -> dict[str, Any]:
    """The ``index.json`` of a folder of shards."""
    file = path / "index.json"
    if not file.is_file():
        unfinished = any(path.glob("shard-*.k4s"))
        why = "packing was not finished: run it again" if unfinished else "make one with 'kinema4d data shards DATASET'"
        raise ValueError(f"{path} is not a folder of shards: it has no index.json; {why}")
    try:
        index = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{file} is not readable as JSON: {error}; {PACK_AGAIN}") from None
    if not isinstance(index, dict) or index.get("format") != FORMAT:
        raise ValueError(f'{file} is not of kinema4d shards: it must say "format": "{FORMAT}"')
    if index.get("version") != VERSION:
        raise ValueError(f"{file} has version {index.get('version')!r}, this kinema4d reads {VERSION}; pack again")
    return index


def _select(count: int, frames: Frames) -> tuple[np.ndarray, float]:
    """Numbers of the frames, and their mean distance."""
    if frames is None:
        return np.arange(count), 1.0
    if isinstance(frames, slice):
        wanted = range(count)[frames]
        if not len(wanted) or wanted.step < 1:
            raise ValueError(f"frames must select at least one of the {count} frames, forwards; got {frames}")
        return np.array(wanted), float(wanted.step)
    chosen = np.asarray(frames)
    if chosen.ndim != 1 or chosen.dtype.kind not in "iu" or not len(chosen):
        raise ValueError(f"frames must be a slice or a list of whole numbers, got {frames!r:.80}")
    chosen = chosen.astype(np.int64)
    if chosen[0] < 0 or chosen[-1] >= count or (np.diff(chosen) < 1).any():
        raise ValueError(f"frames must increase and lie within 0 to {count - 1}, got {chosen.tolist()!s:.80}")
    return chosen, float(chosen[-1] - chosen[0]) / (len(chosen) - 1) if len(chosen) > 1 else 1.0


def _camera(head: Mapping[str, Any], arrays: Mapping[str, np.ndarray], chosen: np.ndarray) -> Camera:
    T = arrays["T_world_camera"]
    T = T[chosen] if T.ndim == 3 else T
    return Camera(K=arrays["K"], T_world_camera=T, height=head["height"], width=head["width"])


def _arms(
    head: Mapping[str, Any], arrays: Mapping[str, np.ndarray], chosen: np.ndarray | None, gap: float
) -> tuple[Arm, ...]:
    arms = []
    for i, found in enumerate(head["arms"]):
        values = {key: arrays[f"{key}{i}"] for key in ("q", *PER_FRAME)}
        if chosen is not None:
            if len(values["q"]) != head["frames"]:
                raise ValueError(
                    f"episode {head['id']!r}: the arm has {len(values['q'])} states for {head['frames']} frames: read "
                    "it whole, or without the part 'arms'"
                )
            values = {key: value[chosen] for key, value in values.items()}
        path = Trajectory(
            q=values.pop("q"),
            joint_names=tuple(found["joint_names"]),
            fps=found["fps"] / gap,
            T_world_base=arrays[f"T_world_base{i}"],
        )
        arms.append(Arm(robot=found["robot"], trajectory=path, link_names=tuple(found["link_names"]), **values))
    return tuple(arms)


def _commands(head: Mapping[str, Any], arrays: Mapping[str, np.ndarray], chosen: np.ndarray | None) -> Commands:
    found = head["commands"]
    commands = Commands(values=arrays["values"], **{**found, "names": tuple(found["names"])})
    # The store's own rule, so that both give the same commands.
    return commands if chosen is None else command_window(commands, slice(chosen[0], chosen[-1] + 1), head["fps"])


def _tracks(head: Mapping[str, Any], arrays: Mapping[str, np.ndarray], chosen: np.ndarray) -> tuple[Track, ...]:
    tracks = []
    for i, name in enumerate(head["tracks"]):
        surface = {key: arrays.get(f"{key}{i}") for key in ("vertices", "faces")}
        tracks.append(Track(name=name, Ts_world_object=arrays["Ts_world_object"][i, chosen], **surface))
    return tuple(tracks)
