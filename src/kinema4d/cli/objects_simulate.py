"""``kinema4d objects simulate``: an object, pushed, under gravity."""

from __future__ import annotations

import json as json_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from kinema4d.cli.console import Clock, provenance, warn

if TYPE_CHECKING:
    from kinema4d.geometry.deforming import ObjectMotion
    from kinema4d.objects.fit import Fitted


def simulate_object_command(
    source: Annotated[Path, tyro.conf.Positional],
    /,
    *,
    out: Path,
    push: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = (),
    pin: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = (),
    lead: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = (),
    velocity: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = (),
    obstacle: Annotated[tuple[Path, ...], tyro.conf.UseAppendAction] = (),
    seconds: float = 3.0,
    step: float = 0.01,
    start: str | None = None,
    speed: str | None = None,
    gravity: str = "0,0,-9.81",
    damping: float = 0.0,
    ground: float | None = None,
    friction: float = 0.5,
    free: bool = False,
    anyway: bool = False,
    young: float | None = None,
    poisson: float = 0.3,
    thickness: float | None = None,
    strain_damping: float = 0.0,
    bends: Literal["look", "none", "all"] = "look",
    weights: Path | None = None,
    unit: Literal["m", "cm", "mm"] = "m",
    up: Literal["y", "z"] = "z",
    meshes: bool = True,
    video: bool = True,
    overwrite: bool = False,
    json: bool = False,
) -> None:
    """Simulate an object under pushes and gravity; write its meshes over time, a video, and a plot of its energy.

    Args:
        source: Mesh (glb, gltf, obj, ply, stl, off), whose motions the shipped model foretells; or the folder that 'objects fit' wrote.
        out: Folder to write.
        push: "x,y,z: fx,fy,fz @t0-t1s": a place on the mesh at rest in metres, a force in newton, from when to when; several --push for
            several. One that begins with a minus is written --push="-1,...".
        pin: "x,y,z": a place on the mesh at rest that is held; several --pin for several. What bends in a mesh that is foretold is held where it touches the rest, and there.
        lead: "x,y,z: x,y,z @t0-t1s": a place on the mesh at rest that a hand leads to a place in the world, smoothly, from t0 to t1, and then lets
            go; several --lead for several.
        velocity: "x,y,z: vx,vy,vz": a place on the mesh at rest and its velocity at the start, metres per second; several --velocity for several.
        obstacle: Closed mesh that stands still in the world, with --unit and --up as the object's; several --obstacle for several.
        seconds: How long.
        step: Seconds between frames.
        start: Coordinates to begin from, "q1,q2", in the order of 'objects fit'; default at rest.
        speed: Of the coordinates at the start, per second, "v1,v2".
        gravity: Metres per squared second, "x,y,z".
        damping: Of all motion, per second.
        ground: Height of a floor, metres.
        friction: Coulomb's coefficient on the floor and on obstacles.
        free: Let the whole move too; otherwise what does not move in the object's own motions is fixed.
        anyway: Simulate coordinates that are not minimal.
        young: Young's modulus of what bends, Pa (rubber 1e6 to 1e7); default 1e5, a soft foam.
        poisson: Its Poisson's ratio.
        thickness: Of open meshes such as cloth, metres; default 0.002. They are weighed with it, too.
        strain_damping: Of what is elastic, seconds: stress of a rate of strain, of that of the strain (MuJoCo's flex has 1e-4 to 3e-4 here).
        bends: Which parts of a mesh that is foretold bend: those that look like it, none, or all.
        weights: Of the model that foretells how a mesh moves, as 'objects train' writes them; default those of the package.
        unit: Of the mesh files.
        up: Which axis of the mesh files points up; many glTF files have y.
        meshes: Write a PLY file per frame.
        video: Write a video.
        overwrite: Replace an earlier motion at OUT.
        json: Print one JSON object instead of text.
    """
    from kinema4d import __version__
    from kinema4d.geometry.motion_folder import save_motion
    from kinema4d.objects.obstacle import read_obstacle
    from kinema4d.simulate.object_wish import Wish, numbers, parse_lead, parse_push, parse_velocity, vector
    from kinema4d.simulate.objects import simulate_object

    if out.exists() and not overwrite:
        raise ValueError(f"{out} exists; pass --overwrite to replace it, or choose another path")
    wish = Wish(
        seconds=seconds, step=step, gravity=vector(gravity, "--gravity"), damping=damping, ground=ground, friction=friction,
        pushes=tuple(parse_push(p) for p in push), pins=tuple(vector(p, "--pin") for p in pin),
        leads=tuple(parse_lead(p) for p in lead), velocities=tuple(parse_velocity(v) for v in velocity),
        start=None if start is None else numbers(start, "--start"), speed=None if speed is None else numbers(speed, "--speed"),
        free=free, anyway=anyway, young=young, poisson=poisson, thickness=thickness,
        strain_damping=strain_damping,
    )  # fmt: skip
    with Clock(quiet=json) as clock:
        clock.say("loading")
        fitted, model = _object(source, unit, up, weights, among=bool(obstacle), bends=bends, held=wish.pins, free=free)
        among = [read_obstacle(file, unit=unit, up=up) for file in obstacle]
        clock.lap("load")
        clock.say("simulating")
        names = ("source", "push", "pin", "lead", "velocity", "obstacle", "seconds", "step", "start", "speed", "gravity", "damping", "ground", "friction", "free", "anyway", "young", "poisson", "thickness", "strain_damping", "bends", "weights", "unit", "up")  # fmt: skip
        about = provenance(
            "objects simulate",
            {
                **locals(),
                "source": str(source),
                "weights": None if weights is None else str(weights),
                "obstacle": [str(o) for o in obstacle],
            },
            names,
        )
        motion = simulate_object(fitted, wish, obstacles=among, about={**about, "version": __version__, "model": model})
        clock.lap("simulate")
        clock.say("writing")
        save_motion(motion, out, meshes=meshes, video=video, overwrite=overwrite)
        clock.lap("write")
    for line in motion.flags:
        warn(line)
    _report(motion, out, clock, json)
    if motion.stopped is not None:
        warn(f"stopped early: {motion.stopped}; the frames until then are in {out}")
        raise SystemExit(1)


def _object(
    source: Path,
    unit: str,
    up: str,
    weights: Path | None,
    *,
    among: bool,
    bends: Literal["look", "none", "all"],
    held: tuple[tuple[float, float, float], ...],
    free: bool,
) -> tuple[Fitted, str | None]:
    """And the name of the weights that foretold it, if they did. ``unit`` and ``up`` are also of the obstacles that it is ``among``."""
    from kinema4d.objects.meshes import SUFFIXES, read_mesh
    from kinema4d.objects.store import load_fitted

    if source.is_dir():
        if weights is not None:
            raise ValueError(f"--weights foretell meshes; {source} is a fitted object, which needs none")
        if bends != "look":
            raise ValueError(f"--bends is for meshes that are foretold; of the fitted object {source} it is known")
        if (unit != "m" or up != "z") and not among:
            raise ValueError(f"--unit and --up are for mesh files; {source} is in metres and z up")
        return load_fitted(source), None
    if source.suffix.lower() not in SUFFIXES or not source.is_file():
        why = "is no mesh that is read" if source.exists() else "does not exist"
        raise ValueError(f"{source} {why}: give a mesh ({' '.join(SUFFIXES)}) or a folder that 'kinema4d objects fit' wrote")  # fmt: skip
    mesh = read_mesh(source, unit=unit, up=up)
    from kinema4d.objects.foretell import kinematics, shipped

    file = weights or shipped()
    if file is None:
        raise ValueError("this installation has no weights that foretell meshes: give --weights, or fit it with `kinema4d objects fit`")  # fmt: skip
    from kinema4d.objects.field import FORMAT
    from kinema4d.weights_file import said_to_be

    if said_to_be(file) == FORMAT:
        raise ValueError(
            f"{file} is a field, which has no screws for this command to simulate: use kinema4d.objects.field_object.field_body and kinema4d.objects.lagrange.simulate"
        )
    return kinematics(mesh, file, bends=bends, held=held, free=free), file.name


def _report(motion: ObjectMotion, out: Path, clock: Clock, json: bool) -> None:
    drift, lost = float(motion.about["energy_drift"]), [f for f in motion.flags if "came to the end" in f]
    gained, done = float(motion.energy[-1] - motion.energy[0]), float(motion.work[-1])
    files = sorted(f.name + "/" * f.is_dir() for f in out.iterdir())
    if json:
        told: dict[str, Any] = {
            "out": str(out), "frames": len(motion), "stopped": motion.stopped, "flags": list(motion.flags), "energy_gained": gained,
            "work": done, "energy_drift": drift, "penetration": float(motion.penetration.max()), "files": files,
            "q": motion.q[-1].tolist(), "seconds": {k: round(v, 3) for k, v in clock.seconds.items()},
        }  # fmt: skip
        print(json_module.dumps(told))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_row("motion", f"{len(motion)} frames of {len(motion.rest)} vertices, {motion.seconds[-1]:g} s, {motion.q.shape[1]} coordinates")  # fmt: skip
    table.add_row("energy", f"{gained:+.3g} J; pushes and hands did {done:+.3g} J; drift {100 * drift:.2g} %{' until its range ended' * bool(lost)}")  # fmt: skip
    table.add_row("penetration", f"{1000 * motion.penetration.max():.3g} mm at most")
    table.add_row("files", f"{out}: {', '.join(files)}")
    table.add_row("time", ", ".join(f"{k} {v:.2f} s" for k, v in clock.seconds.items()))
    table.add_row("look", f"kinema4d view {out}")
    Console(soft_wrap=True).print(table, highlight=False)
