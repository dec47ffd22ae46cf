"""Physics and picture of one scene: distances, labels, depth and shadows, and MuJoCo's own renderer as a witness."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from tables import plain_scene, robot_named

from kinema4d.geometry.camera import project
from kinema4d.geometry.raster import Light
from kinema4d.geometry.se3 import apply, invert
from kinema4d.robot.kinematics import forward_kinematics
from kinema4d.scenes import furniture, things
from kinema4d.scenes.episode import Wish, perform, set_stage
from kinema4d.scenes.picture import draw, label_names
from kinema4d.scenes.tasks import put
from kinema4d.scenes.world import World, pose_of, surface_of
from kinema4d.types import ROBOT_LABEL

mujoco = pytest.importorskip("mujoco")


def some_things():
    rng = np.random.default_rng(1)
    return (
        put(things.block(rng, "red"), 0.0, 0.15, yaw=0.3),
        put(things.can(rng, "blue"), 0.1, -0.15),
        put(things.bowl(rng, "green"), 0.2, 0.05),
        put(things.bottle(rng, "white"), -0.1, -0.05),
        put(furniture.drawer(rng, "yellow", start=0.05), -0.2, 0.2, yaw=0.2),
        put(things.mark(rng, "pink"), 0.0, -0.3),
    )


def test_poses_follow_positions():
    scene = plain_scene(*some_things())
    world = World(scene)
    qpos = world.data.qpos[None].copy()
    Ts = world.transforms(qpos)[0]
    links = len(scene.robot.link_names)
    assert len(Ts) == links + len(world.names) == links + 7
    q = world.q_of(qpos)
    np.testing.assert_allclose(q[0], scene.q_start, atol=1e-3)
    expected = scene.T_world_base @ forward_kinematics(scene.robot, q)[0]
    np.testing.assert_allclose(Ts[:links, :3, 3], expected[:, :3, 3], atol=1e-3)  # a mimic finger gives a little
    for name in ("red block/body", "blue can/body"):
        at = world.model.joint(name).qposadr[0]
        np.testing.assert_allclose(pose_of(qpos[0, at : at + 7]), Ts[links + world.names.index(name)], atol=1e-9)


def test_reset_brings_the_same_start_back():
    scene = plain_scene(*some_things())
    world = World(scene)
    start = world.data.qpos.copy()
    away = np.tile(scene.q_start + 0.3, (200, 1))
    first = world.run(away, 50)
    assert first.shape == (5, len(start))
    np.testing.assert_array_equal(first[0], start)
    world.reset()
    np.testing.assert_array_equal(world.data.qpos, start)
    np.testing.assert_array_equal(world.run(away, 50), first)


@pytest.mark.parametrize(
    ("aside", "below", "touching"),
    [(0.0, 0.35, False), (0.0, 0.15, False), (0.03, 0.07, False), (0.0, 0.02, False), (0.05, 0.01, True)],
    ids=["far", "below", "near a finger", "between the fingers", "in a finger"],
)
def test_gaps_are_distances_between_surfaces(aside, below, touching):
    """Against points all over the robot's surface and the exact distance of each from the block."""
    block = put(things.block(np.random.default_rng(0), "red"), 0.0, 0.0, yaw=0.4)
    scene = plain_scene(block)
    world = World(scene)
    qpos = world.data.qpos[None].copy()
    T_tool = world.transforms(qpos)[0, scene.robot.link_index("tool")]
    at = world.model.joint("red block/body").qposadr[0]
    qpos[0, at : at + 3] = (T_tool @ [0.0, aside, below, 1.0])[:3]
    (gap,) = world.gaps(qpos, block)
    Ts = world.transforms(qpos)[0]
    share = np.array([(a, b, 30 - a - b) for a in range(31) for b in range(31 - a)]) / 30
    nearest, inside = np.inf, False
    for visual in scene.robot.visuals:
        triangles = apply(invert(Ts[-1]) @ Ts[visual.link], visual.mesh.vertices)[visual.mesh.faces]
        beyond = np.abs((share @ triangles).reshape(-1, 3)) - block.half
        inside |= bool((beyond < 0).all(axis=1).any())
        nearest = min(nearest, float(np.linalg.norm(np.maximum(beyond, 0), axis=1).min()))
    assert inside == touching
    if touching:
        assert -0.06 < gap < -0.001
    else:
        assert gap == pytest.approx(min(nearest, 0.2), abs=0.002)


def test_gaps_see_every_part_of_a_thing():
    drawer = put(furniture.drawer(np.random.default_rng(0), "red", start=0.0), 0.0, 0.0)
    scene = plain_scene(drawer)
    world = World(scene)
    qpos = np.tile(world.data.qpos, (2, 1))
    qpos[1, world.model.joint("red drawer/drawer").qposadr[0]] = 0.1
    a, b = world.gaps(qpos, drawer, most=0.6)
    assert a - 0.11 < b < a - 0.03  # the drawer comes towards the robot


def picture(scene):
    world = World(scene)
    Ts = world.transforms(world.data.qpos[None].copy())
    return draw(scene, Ts), Ts[0]


def test_labels_are_where_their_bodies_are():
    scene = plain_scene(*some_things())
    seen, Ts = picture(scene)
    names = label_names(scene)
    links = len(scene.robot.link_names)
    assert names[:links] == tuple(f"{ROBOT_LABEL}:{n}" for n in scene.robot.link_names)
    assert seen.ids.max() <= len(names)
    T_camera_world = invert(scene.camera.T_world_camera)
    bodies = [b for t in scene.things for b in t.bodies]
    hits = 0
    for n, name in enumerate(names):
        rows, columns = np.nonzero(seen.ids[0] == n + 1)
        if n < links or not len(rows):
            continue
        vertices, _ = surface_of(bodies[n - links])
        world = apply(Ts[n], vertices)
        pixels = project(scene.camera.K, apply(T_camera_world, world))
        assert columns.min() >= pixels[:, 0].min() - 0.5, name  # no pixel of it outside its outline
        assert columns.max() <= pixels[:, 0].max() + 0.5, name
        assert rows.min() >= pixels[:, 1].min() - 0.5, name
        assert rows.max() <= pixels[:, 1].max() + 0.5, name
        x, y = np.rint(pixels.mean(axis=0)).astype(int)
        hits += int(seen.ids[0, y, x] == n + 1)
        local = apply(invert(Ts[n]) @ scene.camera.T_world_camera, seen.points[0][rows, columns].astype(float))
        low, high = vertices.min(axis=0) - 1e-4, vertices.max(axis=0) + 1e-4  # and every point of it is on the body
        assert ((local > low) & (local < high)).all(), name
    assert hits >= 5  # those that nothing hides show their middle


def test_the_table_lies_at_its_depth():
    scene = plain_scene(*some_things())
    seen, _ = picture(scene)
    world = apply(scene.camera.T_world_camera, seen.points[0].reshape(-1, 3).astype(float)).reshape(96, 144, 3)
    top = seen.valid[0] & (seen.ids[0] == 0)
    assert top.mean() > 0.4
    assert np.abs(world[top][:, 2]).max() < 1e-5
    assert (np.abs(world[top][:, :2]) < 1.0).all()


def test_things_throw_shadows_on_the_table():
    can = put(things.can(np.random.default_rng(0), "blue"), 0.0, 0.0)
    light = Light(direction_world=(-0.5, -0.3, 0.8), ambient=0.5)  # from behind it, as the camera sees it
    scene = replace(plain_scene(can, base_x=-0.9), light=light)
    seen, _ = picture(scene)
    assert seen.rgb is not None
    world = apply(scene.camera.T_world_camera, seen.points[0].reshape(-1, 3).astype(float)).reshape(96, 144, 3)
    table = seen.valid[0] & (seen.ids[0] == 0)
    sun = np.array(scene.light.direction_world)
    middle = -1.5 * can.half[2] * sun[:2] / sun[2]  # where the shadow of its upper half falls
    away = np.hypot(*np.moveaxis(world[..., :2] - middle, -1, 0))
    shade, lit = table & (away < 0.012), table & (away > 0.1) & (world[..., 0] > 0.1)
    assert shade.sum() >= 3
    brightness = seen.rgb[0].astype(float).mean(axis=-1)
    assert brightness[shade].max() < 0.75 * brightness[lit].min()


@pytest.mark.parametrize(("task", "scenario"), [("pick_place", "dynamic"), ("open_drawer", "cluttered")])
def test_every_pixel_of_a_sampled_room_is_valid(task, scenario):
    for seed in range(3):
        stage = set_stage(robot_named("k4arm"), Wish(task=task, scenario=scenario, seed=seed))
        Ts = stage.world.transforms(stage.world.data.qpos[None].copy())
        seen = draw(stage.scene, Ts)
        assert seen.valid.all()
        tall = draw(set_stage(robot_named("k4arm"), Wish(task=task, seed=seed, height=120, width=80)).scene, Ts[:, : len(stage.scene.robot.link_names) + sum(len(t.bodies) for t in stage.cast.things)])  # fmt: skip
        assert tall.valid.all()


GL = """
import sys, mujoco, numpy as np
folder, height, width = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
model = mujoco.MjModel.from_binary_path(folder + "/model.mjb")
data, option = mujoco.MjData(model), mujoco.MjvOption()
option.geomgroup[:] = 0
option.geomgroup[0] = 1  # what is seen, not what is felt
depths, bodies = [], []
with mujoco.Renderer(model, height, width) as renderer:
    for row in np.load(folder + "/qpos.npy"):
        data.qpos[:] = row
        mujoco.mj_forward(model, data)
        renderer.update_scene(data, "main", option)
        renderer.enable_depth_rendering()
        depths.append(renderer.render().copy())
        renderer.disable_depth_rendering()
        renderer.enable_segmentation_rendering()
        geom = renderer.render()[..., 0]
        renderer.disable_segmentation_rendering()
        bodies.append(np.where(geom >= 0, model.geom_bodyid[np.maximum(geom, 0)], -1))
np.savez(folder + "/seen.npz", depth=np.array(depths), body=np.array(bodies))
"""
"""In a process of its own, for MuJoCo chooses its GL when it is imported."""


def gl_pictures(scene, qpos, folder):
    """Depth and body of every pixel by MuJoCo's own renderer."""
    model = World(scene, visuals=True).model
    model.vis.global_.offheight, model.vis.global_.offwidth = scene.camera.height, scene.camera.width
    model.vis.quality.offsamples = 0
    mujoco.mj_saveModel(model, str(folder / "model.mjb"))
    np.save(folder / "qpos.npy", qpos)
    size = [str(scene.camera.height), str(scene.camera.width)]
    command, gl = [sys.executable, "-c", GL, str(folder), *size], os.environ.get("MUJOCO_GL") or "egl"
    ran = subprocess.run(command, env={**os.environ, "MUJOCO_GL": gl}, capture_output=True, text=True, check=False)
    if not (folder / "seen.npz").is_file():
        last = ran.stderr.strip().splitlines()[-1:]
        if any(word in ran.stderr for word in ("EGL", "egl", "OpenGL", "gladLoadGL", "OSMesa", "GLFW")):
            pytest.skip(f"MuJoCo has no GL here (MUJOCO_GL={gl}; apt install libegl1): {last}")
        pytest.fail(f"MuJoCo did not render: {ran.stderr[-2000:]}")
    with np.load(folder / "seen.npz") as seen:
        return seen["depth"], seen["body"]


@pytest.mark.parametrize(
    ("robot", "task", "scenario"),
    [("k4arm", "pick_place", "dynamic"), ("panda", "open_drawer", "cluttered"), ("ur5+k4grip", "pour", "canonical")],
)
def test_mujoco_sees_the_same(robot, task, scenario, tmp_path):
    wish = Wish(task=task, scenario=scenario, seed=1, height=240, width=360)
    stage = set_stage(robot_named(robot), wish)
    outcome = perform(stage)
    frames = [0, 24, 48]
    ours = draw(stage.scene, outcome.Ts_world_body[frames])
    bodies = np.concatenate([[0], stage.world.link_ids, stage.world.body_ids])
    depth, body = gl_pictures(stage.scene, outcome.qpos[frames], tmp_path)
    same = bodies[ours.ids] == body
    near = np.abs(depth - ours.points[..., 2]) < 0.001 + 0.001 * depth
    agreement = (same & near).mean(axis=(1, 2))  # of all pixels, edges included
    print(f"{robot} {task}: labels {same.mean():.5f}, depth {near.mean():.5f}, both {agreement}")
    assert agreement.min() > 0.999
