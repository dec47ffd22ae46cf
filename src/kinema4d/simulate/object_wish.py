"""What is wished of the motion of one object, and the words of a command for it."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from kinema4d.objects.elastic import THICK, Material

FORM = '"x,y,z: fx,fy,fz @t0-t1s" (metres on the mesh at rest, newton, seconds), such as "0.4,0,1.1: 5,0,0 @0-0.2s"'
LEAD_FORM = '"x,y,z: x,y,z @t0-t1s" (a place on the mesh at rest, where it is led in the world, seconds), such as "0.5,0,1: 0.2,0.4,1 @0-1s"'
VELOCITY_FORM = '"x,y,z: vx,vy,vz" (metres on the mesh at rest, metres per second), such as "0.5,0,1: 0,0.3,0"'
_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"

Vector = tuple[float, float, float]


@dataclass(frozen=True, kw_only=True)
class PushAt:
    """A force on a place for some time."""

    place: Vector
    """On the mesh at rest, metres; it moves with the surface."""
    force: Vector
    """In the world, newton."""
    begin: float = 0.0
    """Seconds."""
    end: float = float("inf")
    """Seconds."""


@dataclass(frozen=True, kw_only=True)
class LeadAt:
    """A hand that leads a place somewhere, and then lets go."""

    place: Vector
    """On the mesh at rest, metres; it moves with the surface."""
    goal: Vector
    """In the world, metres."""
    begin: float
    """Seconds."""
    end: float
    """Seconds: by then it is there."""


@dataclass(frozen=True, kw_only=True)
class VelocityAt:
    """With which a place begins."""

    place: Vector
    """On the mesh at rest, metres."""
    velocity: Vector
    """In the world, metres per second."""


@dataclass(frozen=True, kw_only=True)
class Wish:
    """What is simulated."""

    seconds: float = 3.0
    """How long."""
    step: float = 0.01
    """Seconds between frames."""
    gravity: Vector = (0.0, 0.0, -9.81)
    """Metres per squared second."""
    pushes: tuple[PushAt, ...] = ()
    """Forces."""
    pins: tuple[Vector, ...] = ()
    """Places on the mesh at rest, metres, that are held where they are at the start."""
    leads: tuple[LeadAt, ...] = ()
    """Hands."""
    velocities: tuple[VelocityAt, ...] = ()
    """At places, at the start."""
    start: tuple[float, ...] | None = None
    """Coordinates; None: at rest."""
    speed: tuple[float, ...] | None = None
    """Of the coordinates, per second; None: none."""
    damping: float = 0.0
    """Of all motion, per second."""
    ground: float | None = None
    """Height of a floor, metres; None: there is none."""
    friction: float = 0.5
    """Coulomb's coefficient on the floor and on obstacles."""
    free: bool = False
    """Whether the whole moves too; otherwise what stands still in all poses is fixed in the world."""
    anyway: bool = False
    """Simulate coordinates that are not minimal."""
    young: float | None = None
    """Young's modulus of what bends, Pa; None: that of a soft foam."""
    poisson: float = 0.3
    """Its Poisson's ratio."""
    thickness: float | None = None
    """Of open meshes, metres; None: two millimetres, as they were weighed."""
    strain_damping: float = 0.0
    """Of what is elastic: stress of a rate of strain, of that of the strain, seconds."""

    @property
    def material(self) -> Material | None:
        """What bends is made of."""
        if self.young is None:
            return None
        thick = THICK if self.thickness is None else self.thickness
        return Material(young=self.young, poisson=self.poisson, thickness=thick, damping=self.strain_damping)

    def __post_init__(self) -> None:
        for name in ("seconds", "step"):
            if not (np.isfinite(value := getattr(self, name)) and value > 0):
                raise ValueError(f"{name} must be positive, got {value}")
        for name in ("damping", "friction"):
            if not (np.isfinite(value := getattr(self, name)) and value >= 0):
                raise ValueError(f"{name} must not be negative, got {value}")
        if self.young is None and (self.thickness is not None or self.poisson != 0.3 or self.strain_damping):
            name = "thickness" if self.thickness is not None else "poisson" if self.poisson != 0.3 else "strain_damping"
            raise ValueError(f"{name} says how what is elastic bends, got {getattr(self, name)} without young (Young's modulus, Pa)")  # fmt: skip
        _ = self.material  # refuses what is no material
        given = [*self.gravity, *(self.start or ()), *(self.speed or ()), *([] if self.ground is None else [self.ground])]  # fmt: skip
        given += [v for p in self.pushes for v in (*p.place, *p.force, p.begin)] + [v for p in self.pins for v in p]
        given += [v for p in self.leads for v in (*p.place, *p.goal, p.begin, p.end)]
        given += [v for p in self.velocities for v in (*p.place, *p.velocity)]
        if not np.isfinite(given).all():
            raise ValueError(f"the wish has values that are no numbers: {self}")
        for push in self.pushes:
            if not 0 <= push.begin < push.end:
                raise ValueError(f"a push begins at 0 s or later and ends after that, got {push.begin:g}-{push.end:g} s; write {FORM}")  # fmt: skip
            if push.begin >= self.seconds:
                raise ValueError(f"a push begins at {push.begin:g} s, the simulation ends at {self.seconds:g} s")
        for lead in self.leads:
            if not 0 <= lead.begin < lead.end:
                raise ValueError(f"a hand begins at 0 s or later and ends after that, got {lead.begin:g}-{lead.end:g} s; write {LEAD_FORM}")  # fmt: skip
            if lead.end - lead.begin < 2 * self.step:
                raise ValueError(f"a hand leads for {lead.end - lead.begin:g} s, which must be two steps of {self.step:g} s or more")  # fmt: skip
            if lead.begin >= self.seconds:
                raise ValueError(f"a hand begins at {lead.begin:g} s, the simulation ends at {self.seconds:g} s")
        if self.velocities and self.speed is not None:
            raise ValueError(
                "velocities at places and speed of the coordinates both say how it begins: give one of them"
            )


def parse_push(text: str) -> PushAt:
    """Out of ``x,y,z: fx,fy,fz @t0-t1s``; without the time it lasts."""
    said = f"a push is {FORM}; "
    place, force, when = _said(text, said, "force")
    begin, end = (0.0, float("inf")) if when is None else _times(when, said)
    return PushAt(place=place, force=force, begin=begin, end=end)


def parse_lead(text: str) -> LeadAt:
    """Out of ``x,y,z: x,y,z @t0-t1s``."""
    said = f"a lead is {LEAD_FORM}; "
    place, goal, when = _said(text, said, "target")
    if when is None:
        raise ValueError(f"{said}{text!r} does not say from when to when")
    begin, end = _times(when, said)
    return LeadAt(place=place, goal=goal, begin=begin, end=end)


def parse_velocity(text: str) -> VelocityAt:
    """Out of ``x,y,z: vx,vy,vz``."""
    said = f"a velocity is {VELOCITY_FORM}; "
    place, velocity, when = _said(text, said, "velocity")
    if when is not None:
        raise ValueError(f"{said}it is of the start, and {'@' + when!r} is no part of it")
    return VelocityAt(place=place, velocity=velocity)


def _said(text: str, said: str, what: str) -> tuple[Vector, Vector, str | None]:
    """A place, a vector there, and when."""
    place, colon, rest = text.partition(":")
    vector_, at, when = rest.partition("@")
    if not colon:
        raise ValueError(f"{said}{text!r} has no colon between the place and the {what}")
    return vector(place, f"{said}its place"), vector(vector_, f"{said}its {what}"), when if at else None


def _times(when: str, said: str) -> tuple[float, float]:
    found = re.fullmatch(rf"\s*({_NUMBER})\s*-\s*({_NUMBER})\s*s?\s*", when)
    if found is None:
        raise ValueError(f"{said}{when.strip()!r} is no time from-to in seconds")
    begin, end = float(found[1]), float(found[2])
    if not 0 <= begin < end:
        raise ValueError(f"{said}{when.strip()!r} ends before it begins")
    return begin, end


def vector(text: str, what: str) -> Vector:
    """Three numbers with commas."""
    found = numbers(text, what)
    if len(found) != 3:
        raise ValueError(f"{what} must be three numbers x,y,z, got {text.strip()!r}")
    return found[0], found[1], found[2]


def numbers(text: str, what: str) -> tuple[float, ...]:
    """With commas between."""
    words = [w.strip() for w in text.split(",")]
    if not all(re.fullmatch(_NUMBER, w) for w in words):
        raise ValueError(f"{what} must be numbers with commas between them, got {text.strip()!r}")
    return tuple(float(w) for w in words)
