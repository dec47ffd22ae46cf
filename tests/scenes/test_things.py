"""Things look as large as they are, collide where they are seen, hold what is in them, and stay where they stand."""

from __future__ import annotations

import numpy as np
import pytest
from tables import bounds, is_closed, plain_scene, volume

from kinema4d.geometry.se3 import apply, place
from kinema4d.scenes import furniture, things
from kinema4d.scenes.grasp_tasks import _bead
from kinema4d.scenes.joint_tasks import moving_frame
from kinema4d.scenes.tasks import put
from kinema4d.scenes.things import Geom, Thing
from kinema4d.scenes.world import TIMESTEP, World

PLAIN = {**things.SMALL, **things.TALL, "bowl": things.bowl, "mark": things.mark}
JOINTED = {
    "drawer": furniture.drawer,
    "door": furniture.door,
    "lid": furniture.lid,
    "lever": furniture.lever,
}
SEEDS = range(5)


def corners(geom: Geom) -> np.ndarray:
    """Points that span a collision shape, in its body."""
    if geom.kind == "box":
        half = np.array(geom.size)
    else:
        half = np.array([geom.size[0], geom.size[0], geom.size[-1]])
    signs = np.array(np.meshgrid([-1, 1], [-1, 1], [-1, 1])).reshape(3, -1).T
    points = signs * half
    if geom.kind != "box":  # round: the corners of its bounding box are not part of it
        turn = np.linspace(0, 2 * np.pi, 16, endpoint=False)
        ring = half[0] * np.stack([np.cos(turn), np.sin(turn), 0 * turn], axis=1)
        axis = np.array([[0, 0, half[2]], [0, 0, -half[2]]])
        points = np.concatenate([ring + axis[0], ring + axis[1]] if geom.kind == "cylinder" else [ring, axis])
    return apply(geom.T_body_geom, points)


@pytest.mark.parametrize("kind", PLAIN)
@pytest.mark.parametrize("seed", SEEDS)
def test_plain_things_are_as_large_as_they_say(kind, seed):
    thing = PLAIN[kind](np.random.default_rng(seed), "red")
    assert (thing.kind, thing.name) == (kind, f"red {kind}")
    (body,) = thing.bodies
    low, high = bounds(body.meshes)
    np.testing.assert_allclose(high, thing.half, atol=1e-9)
    np.testing.assert_allclose(low, np.negative(thing.half), atol=1e-9)
    assert all(is_closed(m) and volume(m) > 0 for m in body.meshes)
    if kind == "mark":
        assert body.geoms == ()
        assert body.joint == "fixed"
        return
    assert body.mass > 0.001
    assert body.mass < 0.5
    felt = np.concatenate([corners(g) for g in body.geoms])
    np.testing.assert_allclose(felt.max(axis=0), thing.half, atol=0.002)
    np.testing.assert_allclose(felt.min(axis=0), np.negative(thing.half), atol=0.002)
    assert felt[:, 2].min() > -thing.half[2] - 1e-9  # what is felt below what is seen would lift it off the table
    if kind not in ("block", "plank"):  # round ones also between the axes
        assert np.hypot(felt[:, 0], felt[:, 1]).max() < thing.half[0] + 0.002
    assert thing.grip == pytest.approx(0.0 if kind == "bowl" else 2 * thing.half[0])
    assert thing.grip < 0.075


@pytest.mark.parametrize("kind", JOINTED)
@pytest.mark.parametrize("seed", SEEDS)
def test_furniture_collides_where_it_is_seen(kind, seed):
    thing = JOINTED[kind](np.random.default_rng(seed), "blue")
    low, high = bounds(thing.bodies[0].meshes)
    np.testing.assert_allclose(high, thing.half, atol=1e-9)  # the part that stands; the other one sticks out
    np.testing.assert_allclose(low, np.negative(thing.half), atol=1e-9)
    for body in thing.bodies:
        assert body.mass > 0
        low, high = bounds(body.meshes)
        felt = np.concatenate([corners(g) for g in body.geoms])
        np.testing.assert_allclose(felt.max(axis=0), high, atol=0.002)
        np.testing.assert_allclose(felt.min(axis=0), low, atol=0.002)
        assert all(is_closed(m) and volume(m) > 0 for m in body.meshes)
    body = thing.bodies[1]
    assert body.range[0] <= body.start <= body.range[1]
    low, high = bounds(body.meshes)
    for spot in thing.spots.values():  # places to touch are on the part that moves
        assert (spot[:3, 3] > low - 0.01).all()
        assert (spot[:3, 3] < high + 0.01).all()


def way(thing: Thing, spot: str, a: float, b: float) -> np.ndarray:
    """How a spot moves in the thing's frame when the joint goes from a to b."""
    return (moving_frame(thing, b) @ thing.spots[spot] - moving_frame(thing, a) @ thing.spots[spot])[:3, 3]


@pytest.mark.parametrize("seed", SEEDS)
def test_joints_move_their_part_as_the_words_say(seed):
    rng = np.random.default_rng(seed)
    np.testing.assert_allclose(way(furniture.drawer(rng, "red"), "handle", 0, 0.1), [-0.1, 0, 0], atol=1e-12)
    door = way(furniture.door(rng, "red"), "handle", 0, 0.5)  # towards the robot about an upright axis
    assert door[0] < -0.02
    assert abs(door[2]) < 1e-12
    lid = furniture.lid(rng, "red")
    up = way(lid, "handle", 0, 1.0)  # up, and over towards the robot
    assert up[2] > 0.03
    assert up[0] < -0.01
    assert abs(up[1]) < 1e-12
    lever = furniture.lever(rng, "red")
    assert way(lever, "edge", -0.5, 0.5)[0] > 0.05  # over, away from the robot
    assert (moving_frame(lever, -0.5) @ lever.spots["edge"])[0, 3] < -0.02  # it leaned to the robot
    for make in JOINTED.values():  # physics moves it as the experts think
        thing = put(make(rng, "red"), 0.1, 0.0, yaw=0.4)
        world = World(plain_scene(thing))
        qpos = np.tile(world.data.qpos, (2, 1))
        address = world.model.joint(f"{thing.name}/{thing.bodies[1].name}").qposadr[0]
        qpos[:, address] = [thing.bodies[1].start, 0.3 * thing.bodies[1].range[1]]
        seen = world.transforms(qpos)[:, -1]
        for T, row in zip(seen, qpos, strict=True):
            np.testing.assert_allclose(T, moving_frame(thing, row[address]), atol=1e-9)
        np.testing.assert_array_equal(world.joint_of(thing, qpos), qpos[:, address])


@pytest.mark.parametrize("kind", ["cup", "bowl"])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_hollow_things_hold_a_bead(kind, seed):
    rng = np.random.default_rng(seed)
    vessel = put(PLAIN[kind](rng, "red"), 0.1, 0.05, yaw=0.3)
    bead = _bead(rng, vessel, "blue", seed)
    above = bead.T_world_thing.copy()
    above[2, 3] = 2 * vessel.half[2] + 0.03  # dropped from above the rim
    scene = plain_scene(vessel, Thing(**{**bead.__dict__, "T_world_thing": above}))
    world = World(scene)
    end = world.run(np.tile(scene.q_start, (600, 1)), 600)[-1:]
    T_vessel, T_bead = world.transforms(end)[0, -2:]
    at = np.linalg.inv(T_vessel)[:3] @ T_bead[:, 3]
    assert np.hypot(at[0], at[1]) < vessel.half[0]
    assert -vessel.half[2] < at[2] < vessel.half[2]
    assert at[2] - bead.half[0] > -vessel.half[2]  # on its ground, not through it
    assert T_vessel[2, 2] > 0.9999


def everything() -> list[Thing]:
    """One of each, furniture shut and open, on a grid."""
    rng = np.random.default_rng(3)
    makers = [lambda c, m=m: m(rng, c) for m in PLAIN.values()]
    makers += [lambda c, m=m: m(rng, c) for m in (furniture.drawer, furniture.door, furniture.lid, furniture.lever)]
    half_open = {furniture.drawer: (0.06,), furniture.door: (1.0,), furniture.lid: (0.8, 1.1), furniture.lever: (0.4,)}
    makers += [lambda c, m=m, s=s: m(rng, c, start=s) for m, starts in half_open.items() for s in starts]
    colours = ["red", "orange", "yellow", "green", "teal", "blue", "purple", "pink", "white", "brown"] * 2
    grid = [(x, y) for x in (-0.1, 0.3, 0.7) for y in np.linspace(-0.8, 0.8, 6)]
    turned = rng.uniform(-3, 3, len(makers))
    return [put(m(c), x, float(y), yaw=a) for m, c, (x, y), a in zip(makers, colours, grid, turned, strict=False)]


def test_nothing_moves_by_itself():
    scene = plain_scene(*everything())
    world = World(scene)
    links, start = len(scene.robot.link_names), world.data.qpos[None].copy()
    first = [sum(len(t.bodies) for t in scene.things[:n]) for n in range(len(scene.things))]
    for thing, T in zip(scene.things, world.transforms(start)[0, links:][first], strict=True):
        assert np.linalg.norm(T[:3, 3] - thing.T_world_thing[:3, 3]) < 0.001, thing.name  # settling moves it no more
        assert T[:3, 2] @ thing.T_world_thing[:3, 2] > 0.9999, thing.name
    world.reset()
    after = world.run(np.tile(scene.q_start, (round(2 / TIMESTEP), 1)), 100)
    shift = np.linalg.norm(np.diff(world.transforms(after[[0, -1]])[:, links:, :3, 3], axis=0), axis=-1)[0]
    still = np.array([b.joint in ("free", "fixed") for t in scene.things for b in t.bodies])
    assert shift[still].max() < 0.001
    for thing in scene.things:
        if len(thing.bodies) > 1:
            joint = world.joint_of(thing, after)
            assert np.abs(joint - joint[0]).max() < 0.01, thing.name
            assert abs(joint[0] - thing.bodies[1].start) < 0.01, thing.name


def test_put_stands_on_the_table():
    thing = put(things.block(np.random.default_rng(0), "red"), 0.1, -0.2, yaw=0.5)
    np.testing.assert_allclose(thing.T_world_thing, place(0.1, -0.2, thing.half[2] + 2e-4, yaw=0.5))
