"""Meshes in the way, hands, and velocities at places: nothing goes through, nothing is gained, and what cannot be is said."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="objects need torch: pip install 'kinema4d[world]'")
import trimesh
from object_scenes import box, door, gained, mesh, rigid, turned

from kinema4d.geometry.deforming import ObjectMotion
from kinema4d.geometry.deforming_look import everything
from kinema4d.geometry.film import film, watching
from kinema4d.geometry.motion_folder import load_motion, save_motion
from kinema4d.geometry.se3 import apply, invert
from kinema4d.objects.obstacle import Obstacle
from kinema4d.simulate.object_places import places, samples
from kinema4d.simulate.object_wish import LeadAt, PushAt, VelocityAt, Wish, parse_lead, parse_velocity
from kinema4d.simulate.objects import simulate_object

NONE = (0.0, 0.0, 0.0)
EDGE = (0.55, -0.02, 0.0)
"""The far edge of the door's leaf, which turns about z at the origin."""


def obstacle(made: trimesh.Trimesh, name: str = "thing.glb") -> Obstacle:
    return Obstacle(name=name, mesh=mesh(made))


def size(motion: ObjectMotion) -> float:
    return float(np.linalg.norm(np.ptp(motion.rest, axis=0)))


@pytest.mark.parametrize("name", ["slope", "ball", "ridge", "notch"])
def test_a_box_that_falls_on_a_mesh_stays_out_and_gains_nothing(name: str):
    things = {
        "slope": [turned(box(2, 2, 0.1), 0.5, (0, 0, -0.05))],
        "ball": [turned(trimesh.creation.icosphere(3, 0.2), 0.0, (0.02, 0.01, -0.05))],
        "ridge": [turned(box(0.3, 0.3, 0.3), math.pi / 4, (0, 0, 0))],
        "notch": [turned(box(1, 1, 0.1), 0.3, (0, 0, -0.05)), turned(box(1, 1, 0.1), -0.9, (0, -0.3, -0.05))],
    }[name]
    begin = turned(box(0.2, 0.1, 0.05), 0.4, (0, 0, 0.3), about=(1, 0.4, 0.2))
    motion = simulate_object(rigid(begin), Wish(free=True, seconds=0.7, friction=0.3), obstacles=[obstacle(t) for t in things])  # fmt: skip
    assert motion.stopped is None
    assert motion.flags == ()
    assert float(motion.penetration.max()) < 0.001 * size(motion)
    assert gained(motion) < 0.01
    assert motion.energy[-1] < motion.energy[0] - 0.3 * np.ptp(motion.potential)  # it did meet it
    assert motion.obstacle.shape[0] == sum(len(t.vertices) for t in things)
    np.testing.assert_array_equal(motion.vertices[0], motion.rest)


@pytest.mark.parametrize("friction", [0.2, 0.5])
def test_friction_on_a_slope_of_triangles(friction: float):
    angle = math.radians(20)
    up = np.array([0, -math.sin(angle), math.cos(angle)])
    slope, begin = turned(box(4, 4, 0.2), angle, -0.1 * up), turned(box(0.2, 0.1, 0.05), angle, 0.025 * up)
    motion = simulate_object(rigid(begin), Wish(free=True, seconds=0.4, friction=friction), obstacles=[obstacle(slope)])
    way = float(np.linalg.norm(motion.place[-1] - motion.place[0]))
    want = 9.81 * (math.sin(angle) - friction * math.cos(angle)) * 0.4**2 / 2
    assert way == pytest.approx(want, rel=0.02) if want > 0 else way < 1e-6


def test_a_door_stops_at_a_post_between_its_vertices():
    """The post stands at the middle of the leaf, where there is no vertex for 0.2 m."""
    post = turned(box(0.04, 0.04, 0.3), 0.0, (0.3, 0.3, 0.0))
    motion = simulate_object(door(), Wish(gravity=NONE, speed=(3.0,), seconds=0.6), obstacles=[obstacle(post)])
    assert motion.penetration.max() < 0.005 * size(motion)
    assert gained(motion) < 0.01
    assert 0.4 < motion.q[-1, 0] < math.atan2(0.32, 0.28)
    assert motion.kinetic[-1] < 1e-6 * motion.kinetic[0]
    free = simulate_object(door(), Wish(gravity=NONE, speed=(3.0,), seconds=0.6))
    assert free.q[-1, 0] > 1.4


def test_nothing_fast_goes_through_what_is_thin():
    wall = turned(box(0.002, 1, 1), 0.0, (0.5, 0, 0))
    begin = rigid(turned(box(0.1, 0.1, 0.1), 0.3, NONE))
    fast = VelocityAt(place=(0, 0, 0.05), velocity=(8.0, 0, 0))  # 80 mm in a step, the wall has 2
    wish = Wish(free=True, gravity=NONE, seconds=0.15, velocities=(fast,))
    motion = simulate_object(begin, wish, obstacles=[obstacle(wall)])
    assert motion.vertices[..., 0].max() < 0.5
    assert motion.penetration.max() < 0.01 * size(motion)
    assert gained(motion) < 0.01
    assert simulate_object(begin, wish).place[-1, 0] > 0.9
    beside = turned(box(0.002, 1, 1), 0.0, (0.5, 0.65, 0))  # it only passes by
    past = simulate_object(begin, wish, obstacles=[obstacle(beside)])
    np.testing.assert_allclose(past.place, simulate_object(begin, wish).place, atol=1e-9)


def test_what_begins_inside_is_flagged_and_not_shot_out():
    block = obstacle(turned(box(0.3, 0.3, 0.3), 0.0, (0.3, 0, 0)), "block.glb")
    motion = simulate_object(door(), Wish(gravity=(0, 9.81, 0), seconds=0.2), obstacles=[block])
    assert any(f.startswith("it begins 0.13 m deep in the obstacle block.glb") for f in motion.flags)
    assert motion.stopped is None
    assert np.abs(motion.q).max() < 0.05


def test_samples_are_everywhere_and_follow_their_triangles():
    thing = mesh(box(0.5, 0.04, 0.9))
    rows, apart = samples(thing, np.ones(8, bool))
    x = places(thing, rows)
    assert apart <= 0.03 * thing.size
    assert 500 < len(x) < 6000
    on = np.asarray(trimesh.sample.sample_surface(box(0.5, 0.04, 0.9), 2000, seed=0)[0])
    nearest = np.linalg.norm(on[:, None] - x, axis=-1).min(axis=1)
    assert nearest.max() < apart
    np.testing.assert_allclose(rows.sum(axis=1), 1)
    assert len(samples(thing, np.zeros(8, bool))[0].indptr) == 1
    assert len(samples(mesh(trimesh.creation.icosphere(4)), np.ones(2562, bool))[0].indptr) < 6000


def test_a_hand_leads_and_its_work_is_in_the_books():
    lead = LeadAt(place=EDGE, goal=(0.38, 0.40, 0.0), begin=0.1, end=0.5)
    motion = simulate_object(door(), Wish(gravity=NONE, leads=(lead,), seconds=0.8))
    assert motion.force.shape == (81, 1, 3)
    np.testing.assert_allclose(motion.force_at[50, 0], lead.goal, atol=0.01)
    assert motion.about["energy_drift"] < 0.01
    np.testing.assert_allclose(motion.energy - motion.energy[0], motion.work, atol=0.01 * motion.kinetic.max())
    assert motion.work.max() > 0.5 * motion.kinetic.max() > 0.01
    on = np.abs(motion.force).sum(axis=(1, 2)) > 0
    assert not on[:9].any()
    assert on[11:49].all()
    assert not on[51:].any()
    assert any("came to 0.38,0.4,0 m, but the object cannot go there straight" in f for f in motion.flags)


def test_a_hand_carries_what_is_free():
    lead = LeadAt(place=(0, 0, 0.025), goal=(0.2, 0.1, 0.4), begin=0.0, end=0.5)
    motion = simulate_object(rigid(box(0.2, 0.1, 0.05)), Wish(free=True, leads=(lead,), seconds=0.5))
    np.testing.assert_allclose(motion.force_at[-1, 0], lead.goal, atol=1e-3)
    assert motion.energy[-1] - motion.energy[0] == pytest.approx(motion.work[-1], rel=0.01)
    assert motion.work[-1] > 0.9 * 1.0 * 9.81 * 0.3  # a kilogram, lifted
    assert motion.flags == ()


def test_a_hand_that_pulls_where_nothing_goes_is_told_and_explodes_nothing():
    far = LeadAt(place=EDGE, goal=(2.0, 1.0, 0.0), begin=0.1, end=0.5)
    motion = simulate_object(door(), Wish(gravity=NONE, leads=(far,), seconds=0.7))
    assert motion.stopped is None
    assert any("the hand at 0.55,-0.02,0 m pulled where the object cannot go: 1.6" in f for f in motion.flags)
    assert motion.q[49, 0] == pytest.approx(math.atan2(1, 2), abs=0.1)  # as near as it comes
    assert motion.about["energy_drift"] < 0.02
    post = turned(box(0.06, 0.06, 1.2), 0.0, (0.45, 0.3, 0.0))
    lead = LeadAt(place=EDGE, goal=(0.3, 0.45, 0.0), begin=0.1, end=0.5)
    held = simulate_object(door(), Wish(gravity=NONE, leads=(lead,), seconds=0.6), obstacles=[obstacle(post)])
    assert held.stopped is None
    assert held.penetration.max() < 0.01 * size(held)
    assert held.about["energy_drift"] < 0.01
    assert any("m off 0.3,0.45,0 m when it let go" in f for f in held.flags)
    still = simulate_object(door(), Wish(leads=(LeadAt(place=(0, 0.05, 0.3), goal=NONE, begin=0, end=1),), seconds=0.05))  # fmt: skip
    assert any("the hand at 0,0.05,0.3 m is on what stands still" in f for f in still.flags)
    assert still.force.shape[1] == 0


def test_places_begin_with_velocities_and_what_cannot_be_is_told():
    wish = Wish(gravity=NONE, velocities=(VelocityAt(place=(0.55, 0.0, 0.2), velocity=(0, 1.1, 0)),), seconds=0.1)
    motion = simulate_object(door(), wish)
    assert (motion.q[1, 0] - motion.q[0, 0]) / motion.step == pytest.approx(2.0, rel=1e-3)
    assert not any("velocity" in f for f in motion.flags)
    odd = Wish(gravity=NONE, velocities=(VelocityAt(place=(0.55, 0.0, 0.2), velocity=(0.3, 1.1, 0)),), seconds=0.1)
    said = " ".join(simulate_object(door(), odd).flags)
    assert "the velocity 0.3,1.1,0 m/s at 0.55,0,0.2 m is not met by 0.3 m/s" in said
    assert "it is 0,1.1,0" in said


def test_words_become_hands_and_velocities():
    assert parse_lead("0.5,0,1: 0.2,.4,1 @0-1.5s") == LeadAt(place=(0.5, 0, 1), goal=(0.2, 0.4, 1), begin=0, end=1.5)
    assert parse_velocity("0.5,0,1: 0,0.3,0") == VelocityAt(place=(0.5, 0, 1), velocity=(0, 0.3, 0))
    for parse, text, says in (
        (parse_lead, "0,0,0: 1,0,0", "does not say from when to when"),
        (parse_lead, "0,0,0 1,0,0 @0-1s", "has no colon between the place and the target"),
        (parse_lead, "0,0,0: 1,0 @0-1s", "its target must be three numbers"),
        (parse_lead, "0,0,0: 1,0,0 @2-1s", "ends before it begins"),
        (parse_velocity, "0,0,0", "has no colon between the place and the velocity"),
        (parse_velocity, "0,0,0: 1,0,x", "its velocity must be numbers"),
        (parse_velocity, "0,0,0: 1,0,0 @0-1s", "it is of the start"),
    ):
        with pytest.raises(ValueError, match=says) as told:
            parse(text)
        assert 'such as "0.5,0,1: 0' in str(told.value)
    at = (0.0, 0.0, 0.0)
    for wish, says in (
        ({"leads": (LeadAt(place=at, goal=at, begin=1, end=0.5),)}, "ends after that, got 1-0.5 s"),
        ({"leads": (LeadAt(place=at, goal=at, begin=5, end=6),)}, "begins at 5 s, the simulation ends at 3 s"),
        ({"leads": (LeadAt(place=at, goal=at, begin=0, end=0.01),)}, "two steps of 0.01 s or more"),
        ({"leads": (LeadAt(place=at, goal=(0, 0, math.nan), begin=0, end=1),)}, "no numbers"),
        ({"velocities": (VelocityAt(place=at, velocity=(0, 0, math.inf)),)}, "no numbers"),
        ({"velocities": (VelocityAt(place=at, velocity=at),), "speed": (1.0,)}, "give one of them"),
    ):
        with pytest.raises(ValueError, match=says):
            Wish(**wish)  # pyright: ignore[reportArgumentType]


def test_obstacles_are_kept_and_seen(tmp_path: Path):
    post = turned(box(0.06, 0.06, 1.2), 0.0, (0.45, 0.3, 0.0))
    push = PushAt(place=EDGE, force=(0, 60.0, 0))
    motion = simulate_object(door(), Wish(gravity=NONE, pushes=(push,), seconds=0.1), obstacles=[obstacle(post), obstacle(turned(post, 0, (1, 0, 0)))])  # fmt: skip
    assert motion.obstacle_faces.shape == (24, 3)
    back = load_motion(save_motion(motion, tmp_path / "out", video=False))
    np.testing.assert_array_equal(back.obstacle, motion.obstacle)
    np.testing.assert_array_equal(back.obstacle_faces, motion.obstacle_faces)
    assert len(trimesh.load_mesh(tmp_path / "out" / "obstacles.ply", process=False).faces) == 24
    seen = everything(motion)
    assert seen[:, 2].max() == pytest.approx(0.6, abs=1e-6)  # the post, which is higher than the door
    camera = watching(motion, 120, 160)
    middle = apply(invert(camera.T_world_camera), np.array([[1.45, 0.27, 0.2]])) @ camera.K.T
    u, v = (middle[0, :2] / middle[0, 2]).round().astype(int)
    picture, without = (next(film(m, [0], height=120, width=160)).astype(int)[v, u] for m in (motion, replace(motion, obstacle_faces=motion.obstacle_faces[:0])))  # fmt: skip
    assert np.ptp(picture) < 20  # grey, and darker than the sky and the floor behind
    assert picture.max() < without.min() - 40
    bare = simulate_object(door(), Wish(gravity=NONE, pushes=(push,), seconds=0.1))
    assert not len(load_motion(save_motion(bare, tmp_path / "bare", video=False, meshes=False)).obstacle)
    assert not (tmp_path / "bare" / "obstacles.npz").exists()
