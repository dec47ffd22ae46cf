"""What a 4D diffusion transformer is: every ablation of the paper is a field here. Loads without torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

CONTROLS = ("pointmap", "pointmap+rgb", "rgb", "mask", "depth", "embedding", "text", "none")
"""What may tell the model of the robot (Tables 4 and VI)."""
MIXED = ("pointmap", "pointmap+rgb", "rgb", "mask", "embedding", "text")
"""What ``mixed`` is: a model that every batch tells in another of these ways, for all of them to start from."""
TOLD = ("pointmap", "pointmap+rgb", "depth", "mixed")
"""Those that tell of the robot's geometry."""
STRIDE = 2
"""Pixels between the places of the first frame that may be touched."""
TELLS = ("near", "touched", "brought", "gripped")
"""What is told of contact, of each place and frame (:mod:`.contact`)."""
ACTION = 10
"""Numbers of an action embedding per frame: hand position, the first two columns of its rotation, opening."""
WORDS, LONGEST = 1024, 16
"""Of the text: hashed words, and how many of an instruction are read."""


@dataclass(frozen=True, kw_only=True)
class DiffusionConfig:
    """One model. Every ablation of the paper is one of these fields."""

    frames: int = 49
    """Of a clip, 1 + a multiple of ``patch[0]``."""
    height: int = 48
    """Rows."""
    width: int = 72
    """Columns."""
    patch: tuple[int, int, int] = (4, 8, 8)
    """Frames (after the first), rows and columns of a token."""
    channels: int = 192
    """Width of the network."""
    layers: int = 6
    """Blocks."""
    heads: int = 6
    """Of attention."""
    detail: int = 24
    """Width of the head that finishes each pixel by what is known of it; 0 for none."""
    attention: Literal["full", "split"] = "split"
    """Over the whole clip at once (the paper's), or by turns over each time and each place, at half the cost."""
    moves: bool = True
    """Say where in space each pixel of the first frame has gone, and begin with those drawn anew (:mod:`.moves`)."""
    control: str = "pointmap"
    """What tells of the robot, one of ``CONTROLS``, or ``mixed``."""
    output: Literal["4d", "2d"] = "4d"
    """Colour and pointmap, or colour alone."""
    layout: Literal["width", "channel"] = "width"
    """Domains as tokens side by side (the paper's), or stacked in the channels of one token."""
    mask: Literal["none", "hard", "soft"] = "soft"
    """Of the robot."""
    soft_ratio: float = 0.1
    """Share of the robot's positions at which a soft mask says 0.5."""
    environment: bool = True
    """Also the first frame's pointmap of the whole scene (Table VI, ``add env. pm``): a small model cannot guess a room to the
    centimetre, and what stands still need not be guessed."""
    contact: bool = True
    """Also how near the robot comes to each place of the first frame: what a 4D control can tell, where both pointmaps are known."""
    prior: bool = False
    """Painter: also the moved prior, which the answer is a correction of."""

    def __post_init__(self) -> None:
        t, h, w = self.patch
        if (self.frames - 1) % t or self.height % h or self.width % w:
            size = f"{self.frames}x{self.height}x{self.width} cannot be cut into patches of {t}x{h}x{w}"
            raise ValueError(f"{size}: frames must be 1 + a multiple of {t}, rows of {h}, columns of {w}")
        if self.control not in (*CONTROLS, "mixed"):
            raise ValueError(f"unknown control {self.control!r}; known are {', '.join(CONTROLS)} and mixed")
        if self.channels % self.heads or (self.channels // self.heads) % 2:
            raise ValueError(f"{self.channels} channels cannot be shared by {self.heads} heads in pairs")
        if self.prior and self.attention == "split":
            raise ValueError("a painter works on some tokens only, which split attention cannot: use attention='full'")
        if self.moves and not (self.prior or self.detail):
            raise ValueError("moves need a head per pixel (detail) that finishes them: use moves=False")
        if (self.moves or self.contact) and not self.prior and (h % 4 or w % 4):
            raise ValueError(f"moves and contact need patches of a multiple of 4 rows and columns, got {h}x{w}")
        if not 0 <= self.soft_ratio <= 1:
            raise ValueError(f"soft_ratio must be between 0 and 1, got {self.soft_ratio}")

    @property
    def touches(self) -> bool:
        """Whether it is told of contacts."""
        return self.contact and self.environment and not self.prior and self.control in TOLD

    @property
    def moving(self) -> bool:
        """Whether it draws moved places of the first frame: it must know where they were."""
        return self.moves and self.environment and not self.prior

    @property
    def grid(self) -> tuple[int, int, int]:
        """Tokens of one domain along time, rows and columns."""
        t, h, w = self.patch
        return 1 + (self.frames - 1) // t, self.height // h, self.width // w

    @property
    def domains(self) -> int:
        """1 where only colour is made."""
        return 2 if self.output == "4d" else 1

    @property
    def stacked(self) -> int:
        """Domains in one token."""
        return self.domains if self.layout == "channel" else 1

    @property
    def pixels(self) -> int:
        """Of a patch."""
        t, h, w = self.patch
        return t * h * w


def manner(control: str) -> str:
    """In which form a control is read by cross-attention."""
    return {"embedding": "actions", "text": "words", "none": "nothing"}.get(control, "patches")
