"""Some frames of a control signal, signals one after the other, and at another size."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from kinema4d.geometry.camera import picks
from kinema4d.types import Arm, Control, Pointmap, Solid


def window(control: Control, frames: slice | np.ndarray) -> Control:
    """Some frames of a control signal. The camera of a still view stays as it is."""
    camera = control.camera
    if camera.moving:
        camera = replace(camera, T_world_camera=camera.T_world_camera[frames])
    return replace(
        control,
        camera=camera,
        pointmap=Pointmap(points=control.pointmap.points[frames], valid=control.pointmap.valid[frames]),
        link_ids=control.link_ids[frames],
        rgb=None if control.rgb is None else control.rgb[frames],
        arms=tuple(_arm(a, frames) for a in control.arms),
        solids=tuple(replace(s, Ts_world_link=s.Ts_world_link[frames]) for s in control.solids),
    )


def at_size(control: Control, height: int, width: int) -> Control:
    """A control signal at another size, by the nearest pixel; its camera goes along."""
    rows, columns = picks((control.camera.height, control.camera.width), (height, width))
    pick = lambda a: a[:, rows][:, :, columns]  # noqa: E731
    return replace(
        control,
        camera=control.camera.resized(height, width),
        pointmap=Pointmap(points=pick(control.pointmap.points), valid=pick(control.pointmap.valid)),
        link_ids=pick(control.link_ids),
        rgb=None if control.rgb is None else pick(control.rgb),
    )


def _arm(arm: Arm, frames: slice | np.ndarray) -> Arm:
    return replace(
        arm,
        trajectory=replace(arm.trajectory, q=arm.trajectory.q[frames]),
        converged=arm.converged[frames],
        residual_m=arm.residual_m[frames],
        residual_rad=arm.residual_rad[frames],
    )


def followed(first: Control, then: Control) -> Control:
    """``first`` and after it ``then``, signals of the same robots before the same camera."""
    if first.link_names != then.link_names or len(first.solids) != len(then.solids):
        raise ValueError("these control signals are not of the same robots")
    if first.camera.moving or then.camera.moving:
        raise ValueError("control signals of moving cameras cannot be joined")
    join = lambda a, b: np.concatenate([a, b])  # noqa: E731
    rgb = None if first.rgb is None or then.rgb is None else join(first.rgb, then.rgb)
    points, valid = (join(getattr(first.pointmap, k), getattr(then.pointmap, k)) for k in ("points", "valid"))
    return replace(
        first,
        pointmap=Pointmap(points=points, valid=valid),
        link_ids=join(first.link_ids, then.link_ids),
        rgb=rgb,
        arms=tuple(_after(a, b) for a, b in zip(first.arms, then.arms, strict=True)),
        solids=solids_after(first.solids, then.solids),
    )


def solids_after(first: tuple[Solid, ...], then: tuple[Solid, ...]) -> tuple[Solid, ...]:
    """Solids that go ``first`` this way and ``then`` that."""
    return tuple(
        replace(a, Ts_world_link=np.concatenate([a.Ts_world_link, b.Ts_world_link]))
        for a, b in zip(first, then, strict=True)
    )


def _after(a: Arm, b: Arm) -> Arm:
    return replace(
        a,
        trajectory=replace(a.trajectory, q=np.concatenate([a.trajectory.q, b.trajectory.q])),
        converged=np.concatenate([a.converged, b.converged]),
        residual_m=np.concatenate([a.residual_m, b.residual_m]),
        residual_rad=np.concatenate([a.residual_rad, b.residual_rad]),
    )
