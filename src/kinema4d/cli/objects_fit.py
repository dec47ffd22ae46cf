"""``kinema4d objects fit``: the degrees of freedom of one object out of its own deforming meshes."""

from __future__ import annotations

import json as json_module
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from kinema4d.cli.console import Clock, provenance, warn


def fit_object_command(
    sequence: Annotated[Path, tyro.conf.Positional],
    /,
    *,
    out: Path,
    most: int = 16,
    error: float = 2e-3,
    density: float = 1000.0,
    unit: Literal["m", "cm", "mm"] = "m",
    up: Literal["y", "z"] = "z",
    seed: int = 0,
    overwrite: bool = False,
    json: bool = False,
) -> None:
    """Find the degrees of freedom of one object from meshes of it in many poses, and write what is needed to simulate it.

    Args:
        sequence: Folder of meshes (glb, gltf, obj, ply, stl, off) with the same vertices, the first by name at rest; an npz file with
            vertices [t,v,3] and faces; or the folder of an object of a data set that 'objects generate' made.
        out: Folder to write, for 'objects simulate'.
        most: Coordinates at most.
        error: Mean error, of the object's size, that is good enough for what bends.
        density: kg per cubic metre.
        unit: Of the files.
        up: Which axis of the files points up.
        seed: Of the choice of poses and points.
        overwrite: Replace an earlier object at OUT.
        json: Print one JSON object instead of text.
    """
    from kinema4d import __version__
    from kinema4d.objects.fit import FitPlan, fit
    from kinema4d.objects.meshes import read_sequence, wound_both_ways
    from kinema4d.objects.solid import checked
    from kinema4d.objects.store import save_fitted

    if out.exists() and not overwrite:
        raise ValueError(f"{out} exists; pass --overwrite to replace it, or choose another path")
    if most < 1 or not error > 0 or not 0 < density < float("inf"):
        raise ValueError(f"--most must be at least 1, --error and --density positive; got {most}, {error} and {density}")  # fmt: skip
    with Clock(quiet=json) as clock:
        clock.say("reading")
        mesh, poses = read_sequence(sequence, unit=unit, up=up)
        strange = checked(mesh, str(sequence))
        if odd := wound_both_ways(mesh):
            strange.append(f"{odd} triangles look the other way than their neighbours: masses are wrong there")
        clock.lap("read")
        if not json:
            print(f"{len(poses)} poses of {len(mesh.vertices)} vertices and {len(mesh.faces)} triangles, {mesh.size:.3g} m large")  # fmt: skip
        clock.say("fitting")
        tell = None if json else lambda k, e: print(f"{k} coordinate{'s'[: k > 1]}: {100 * e:.3g} % of the size", flush=True)  # fmt: skip
        found = fit(mesh, poses, FitPlan(most=most, error=error, seed=seed), density=density, tell=tell)
        clock.lap("fit")
        names = ("sequence", "most", "error", "density", "unit", "up", "seed")
        about: dict[str, Any] = provenance("objects fit", {**locals(), "sequence": str(sequence)}, names)
        save_fitted(found, out, about={**about, "version": __version__, "poses": len(poses), "strange": strange}, overwrite=overwrite)  # fmt: skip
        clock.lap("write")
    for line in strange:
        warn(line)
    free, mass = found.freedom, float(found.weighed.mass.sum())
    if json:
        told = {"out": str(out), "freedom": free.count, "coordinates": len(found.errors), "why": free.why, "errors": found.errors.tolist()}  # fmt: skip
        print(json_module.dumps(told | {"reach": found.reach.tolist(), "mass": mass, "strange": strange, "seconds": {k: round(v, 3) for k, v in clock.seconds.items()}}))  # fmt: skip
        return
    print(f"degrees of freedom: {'not settled' if free.count is None else free.count} ({free.why})")
    for i, (low, high) in enumerate(found.reach):
        print(f"coordinate {i + 1}: from {low:.3g} to {high:.3g}")
    print(f"mass: {mass:.3g} kg at {density:g} kg/m3; fitted in {clock.seconds['fit']:.1f} s")
    print(f"wrote {out}: kinema4d objects simulate {out} --out motion/")
