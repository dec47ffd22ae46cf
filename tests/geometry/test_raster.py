"""The rasteriser against Embree, against a slow obvious reference, and against its own laws."""

from __future__ import annotations

import numpy as np
import pytest

from kinema4d.geometry.camera import off_ray_px, rays
from kinema4d.geometry.mesh import Mesh, cluster, corner_normals, weld
from kinema4d.geometry.raster import Light, Render, Surfaces, assemble, merge, rasterize
from kinema4d.geometry.se3 import invert, look_at, rotvec_to_matrix, transform
from kinema4d.robot.control import robot_surfaces
from kinema4d.robot.kinematics import forward_kinematics
from kinema4d.robot.meshfile import primitive
from kinema4d.robot.zoo import load_robot
from kinema4d.types import Camera, Pointmap


def camera(eye=(1.2, -0.7, 0.8), target=(0.1, 0, 0.35), height=120, width=180, focal=150.0) -> Camera:
    K = np.array([[focal, 0, (width - 1) / 2], [0, focal, (height - 1) / 2], [0, 0, 1.0]])
    return Camera(
        K=K, T_world_camera=look_at(np.array(eye, float), np.array(target, float)), height=height, width=width
    )


def poses(robot, view: Camera, frames: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    lower, upper = np.maximum(robot.lower, -2), np.minimum(robot.upper, 2)
    q = np.clip(robot.home + 0.5 * rng.standard_normal((frames, robot.dof)), lower, upper)
    return invert(view.T_world_camera) @ forward_kinematics(robot, q)


def in_camera(surfaces: Surfaces, Ts: np.ndarray) -> np.ndarray:
    T = Ts[surfaces.vertex_body]
    return np.einsum("vij,vj->vi", T[:, :3, :3], surfaces.vertices) + T[:, :3, 3]


def reference(surfaces: Surfaces, Ts: np.ndarray, view: Camera, near: float) -> tuple[np.ndarray, np.ndarray]:
    """Slow and obvious: every ray against every triangle (Moeller-Trumbore), nearest hit beyond the near plane."""
    xyz = in_camera(surfaces, Ts)
    a, b, c = (xyz[surfaces.faces[:, i]] for i in range(3))
    directions = rays(view.K, view.height, view.width).reshape(-1, 3)
    depth, ids = np.full(len(directions), np.inf), np.zeros(len(directions), np.uint16)
    e1, e2 = b - a, c - a
    for i, d in enumerate(directions):
        p = np.cross(d, e2)
        det = (e1 * p).sum(-1)
        with np.errstate(divide="ignore", invalid="ignore"):
            u = (-a * p).sum(-1) / det
            q = np.cross(-a, e1)
            v = (q @ d) / det
            z = (e2 * q).sum(-1) / det
        hit = (np.abs(det) > 1e-15) & (u >= -1e-9) & (v >= -1e-9) & (u + v <= 1 + 1e-9) & (z >= near)
        if hit.any():
            f = np.flatnonzero(hit)[z[hit].argmin()]
            depth[i], ids[i] = z[f], surfaces.face_body[f] + 1
    return depth.reshape(view.height, view.width), ids.reshape(view.height, view.width)


@pytest.mark.parametrize("eye", [(1.2, -0.7, 0.8), (0.12, -0.16, 0.45)], ids=["outside", "inside the arm's reach"])
def test_agrees_with_the_slow_reference(eye):
    robot = load_robot("k4arm")
    view = camera(eye=eye, height=30, width=44, focal=36.0)
    surfaces, Ts = robot_surfaces([robot]), poses(robot, view, 1)
    render = rasterize(surfaces, Ts, view)
    depth, ids = reference(surfaces, Ts[0], view, 1e-3)
    assert render.valid.sum() > 50
    np.testing.assert_array_equal(render.ids[0], ids)
    np.testing.assert_allclose(render.points[0, ..., 2][render.valid[0]], depth[render.valid[0]], rtol=1e-6)


def embree(surfaces: Surfaces, Ts: np.ndarray, view: Camera) -> tuple[np.ndarray, np.ndarray]:
    scene = pytest.importorskip("embreex.rtcore_scene").EmbreeScene(robust=True)
    from embreex.mesh_construction import TriangleMesh

    TriangleMesh(scene, in_camera(surfaces, Ts).astype(np.float32), surfaces.faces)
    directions = rays(view.K, view.height, view.width).reshape(-1, 3).astype(np.float32)
    hits = scene.run(np.zeros_like(directions), directions, output=True)
    shape = (view.height, view.width)
    triangle = hits["primID"].reshape(shape)
    return np.where(triangle >= 0, surfaces.face_body[triangle] + 1, 0), hits["tfar"].reshape(shape)


@pytest.mark.parametrize(
    "name", ["panda_hand/panda_v2.urdf", "google_robot/google_robot_meta_sim_fix_wheel_fix_fingertip.urdf"]
)
@pytest.mark.parametrize(
    "eye", [(1.4, -0.6, 0.9), (0.25, -0.25, 0.55), (0.02, 0.05, 0.4)], ids=["far", "near", "inside"]
)
def test_agrees_with_embree_on_real_robots(data, name, eye):
    robot = load_robot(data / "robots" / name)
    above = 0.6 if "google" in name else 0.0  # its arm sits on a mobile base
    view = camera(eye=np.add(eye, (0, 0, above)), target=(0.15, 0.0, 0.4 + above), height=240, width=360, focal=200.0)
    surfaces, Ts = robot_surfaces([robot]), poses(robot, view, 4)
    render = rasterize(surfaces, Ts, view)
    wrong = total = 0
    for t in range(4):
        ids, depth = embree(surfaces, Ts[t], view)
        same = ids == render.ids[t]
        wrong, total = wrong + (~same).sum(), total + same.size
        both = same & (ids > 0)
        assert np.abs(depth - render.points[t, ..., 2])[both].max(initial=0) <= 1e-5
    assert render.valid.sum() > 1000
    assert wrong / total <= 1e-5


def test_every_point_reprojects_to_its_own_pixel():
    robot, view = load_robot("k4arm"), camera(height=480, width=720, focal=600)
    render = rasterize(robot_surfaces([robot]), poses(robot, view, 2), view)
    assert off_ray_px(view.K, Pointmap(points=render.points, valid=render.valid)) <= 1e-3


def test_deterministic_and_independent_of_threads():
    robot, view = load_robot("k4arm"), camera()
    surfaces, Ts = robot_surfaces([robot]), poses(robot, view, 5)
    first = rasterize(surfaces, Ts, view, rgb=True, threads=3)
    second = rasterize(surfaces, Ts, view, rgb=True, threads=1)
    for name in ("points", "valid", "ids", "rgb"):
        np.testing.assert_array_equal(getattr(first, name), getattr(second, name))


def test_reused_buffers_hold_nothing_of_the_past():
    robot, view = load_robot("k4arm"), camera()
    surfaces = robot_surfaces([robot])
    one, two = poses(robot, view, 3, seed=1), poses(robot, view, 3, seed=2)
    fresh = rasterize(surfaces, two, view, rgb=True)
    used = rasterize(surfaces, one, view, rgb=True)
    again = rasterize(surfaces, two, view, rgb=True, out=used)
    assert again is used
    for name in ("points", "valid", "ids", "rgb"):
        np.testing.assert_array_equal(getattr(fresh, name), getattr(again, name))
    with pytest.raises(ValueError, match="out has shape"):
        rasterize(surfaces, two[:2], view, rgb=True, out=used)


def quad(z: float, size: float = 4.0, color=(200, 40, 40), **extra) -> Mesh:
    corners = np.array([[-1, -1, 0], [1, -1, 0], [1, 1, 0], [-1, 1, 0]]) * size / 2 + [0, 0, z]
    faces = np.array([[0, 1, 2], [0, 2, 3]], np.int32)
    return Mesh(vertices=corners, faces=faces, colors=np.tile(np.array(color, np.uint8), (2, 1)), **extra)


FRONT = Camera(K=np.array([[10.0, 0, 9.5], [0, 10.0, 7.5], [0, 0, 1]]), T_world_camera=np.eye(4), height=16, width=20)


def test_shared_edges_leave_no_crack_and_both_sides_show():
    for flip in (1, -1):  # the diagonal runs through pixel centres
        mesh = quad(1.0)
        turned = Mesh(vertices=mesh.vertices, faces=mesh.faces[:, ::flip].copy(), colors=mesh.colors)
        render = rasterize(assemble([(turned, 0)]), np.eye(4)[None, None], FRONT)
        assert render.valid.all()
        np.testing.assert_allclose(render.points[..., 2], 1)


def test_the_nearest_wins_and_ties_go_to_the_first():
    parts = assemble([(quad(2.0), 0), (quad(1.0, size=0.5), 1), (quad(2.0), 2)])
    render = rasterize(parts, np.broadcast_to(np.eye(4), (1, 3, 4, 4)), FRONT)
    assert set(np.unique(render.ids)) == {1, 2}
    assert render.ids[0, 8, 10] == 2
    assert render.ids[0, 0, 0] == 1


def test_triangles_through_the_near_plane_are_cut_there():
    # A floor below the camera, from behind it to far in front.
    floor = Mesh(
        vertices=np.array([[-50.0, 1, -20], [50, 1, -20], [50, 1, 80], [-50, 1, 80]]),
        faces=np.array([[0, 1, 2], [0, 2, 3]], np.int32),
        colors=np.full((2, 3), 90, np.uint8),
    )
    render = rasterize(assemble([(floor, 0)]), np.eye(4)[None, None], FRONT)
    v = np.arange(16)
    below = v > FRONT.K[1, 2]
    assert render.valid[0][below].all()
    assert not render.valid[0][~below].any()
    np.testing.assert_allclose(render.points[0, below, 10, 1], 1, rtol=1e-6)  # every seen point lies on the floor
    # With a near plane at 3 m the rows that see the floor closer than that are empty.
    cut = rasterize(assemble([(floor, 0)]), np.eye(4)[None, None], FRONT, near=3.0)
    np.testing.assert_array_equal(cut.valid[0, :, 10], below & (10.0 / np.maximum(v - 7.5, 1e-9) >= 3.0))


def test_everything_behind_the_camera_is_unseen():
    render = rasterize(assemble([(quad(-1.0), 0)]), np.eye(4)[None, None], FRONT)
    assert not render.valid.any()


def test_texture_lands_where_uv_says():
    texture = np.zeros((8, 8, 3), np.uint8)
    texture[:4] = (250, 0, 0)  # top half red, v in 0.5..1
    texture[4:] = (0, 250, 0)
    uv = np.array([[0, 1], [1, 1], [1, 0], [0, 0]], np.float32)  # image y is down: corner -y is the top
    mesh = quad(1.0, size=2.4)
    mesh = Mesh(vertices=mesh.vertices, faces=mesh.faces, colors=mesh.colors, uvs=uv[mesh.faces], texture=texture)
    flat = Light(direction_world=(0, 0, -1), ambient=1.0)
    render = rasterize(assemble([(mesh, 0)]), np.eye(4)[None, None], FRONT, rgb=True, light=flat)
    assert render.rgb is not None
    assert tuple(render.rgb[0, 3, 10]) == (250, 0, 0)
    assert tuple(render.rgb[0, 12, 10]) == (0, 250, 0)


def test_light_comes_from_its_direction_on_both_sides():
    towards, away = Light(direction_world=(0, 0, -1), ambient=0.2), Light(direction_world=(0, 0, 1), ambient=0.2)
    for flip in (1, -1):
        mesh = quad(1.0, color=(100, 100, 100))
        mesh = Mesh(vertices=mesh.vertices, faces=mesh.faces[:, ::flip].copy(), colors=mesh.colors)
        lit = rasterize(assemble([(mesh, 0)]), np.eye(4)[None, None], FRONT, rgb=True, light=towards)
        dark = rasterize(assemble([(mesh, 0)]), np.eye(4)[None, None], FRONT, rgb=True, light=away)
        assert lit.rgb is not None
        assert dark.rgb is not None
        assert (lit.rgb == 100).all()
        assert (dark.rgb == 20).all()


def scene_from_above(light: Light) -> np.ndarray:
    """A 2 m floor with a 40 cm square 50 cm above it, seen straight from above; brightness of the floor."""
    floor, roof = quad(0.0, size=2.0, color=(100, 100, 100)), quad(0.5, size=0.4, color=(200, 0, 0))
    T_world_camera = look_at(np.array([0.0, 0, 3.0]), np.zeros(3), up=(0, 1, 0))
    K = np.array([[150.0, 0, 99.5], [0, 150, 99.5], [0, 0, 1]])
    view = Camera(K=K, T_world_camera=T_world_camera, height=200, width=200)
    Ts = np.broadcast_to(invert(T_world_camera), (1, 2, 4, 4))
    render = rasterize(assemble([(floor, 0), (roof, 1)]), Ts, view, rgb=True, light=light)
    assert render.rgb is not None
    world = render.points[0] @ T_world_camera[:3, :3].T + T_world_camera[:3, 3]
    return np.concatenate([world, render.rgb[0, ..., :1], render.ids[0][..., None]], axis=-1)


def test_a_roof_casts_its_shadow_where_the_sun_says():
    light = Light(direction_world=(1.0, 0.0, 1.0), ambient=0.2, shadow_size=1024)
    x, y, _, brightness, ids = np.moveaxis(scene_from_above(light), -1, 0)
    floor = ids == 1
    # the sun stands at 45 degrees over +x, so the shadow of a square at height 0.5 lies 0.5 m towards -x
    deep = floor & (np.abs(x + 0.5) < 0.19) & (np.abs(y) < 0.19)
    outside = floor & ((np.abs(x + 0.5) > 0.21) | (np.abs(y) > 0.21)) & (np.abs(x) < 0.95) & (np.abs(y) < 0.95)
    lit = round(100 * (0.2 + 0.8 * np.sqrt(0.5)))
    assert deep.sum() > 200
    assert (brightness[deep] == 20).all()
    assert (np.abs(brightness[outside] - lit) <= 1).all()
    without = scene_from_above(Light(direction_world=(1.0, 0.0, 1.0), ambient=0.2))
    assert (np.abs(without[..., 3][floor] - lit) <= 1).all()


@pytest.mark.parametrize("direction", [(0.3, -0.4, 0.85), (0.0, 0.0, 1.0), (1.0, 0.2, 0.1)])
def test_a_ball_does_not_shade_its_own_lit_side(direction):
    ball = primitive("sphere", (0.3,), (200, 200, 200))
    view = camera(target=(0.0, 0.0, 0.0), height=150, width=150, focal=300.0)
    parts, Ts = assemble([(ball, 0)]), invert(view.T_world_camera)[None, None]
    plain = rasterize(parts, Ts, view, rgb=True, light=Light(direction_world=direction))
    shaded = rasterize(parts, Ts, view, rgb=True, light=Light(direction_world=direction, shadow_size=512))
    assert plain.rgb is not None
    assert shaded.rgb is not None
    n = np.array(direction) / np.linalg.norm(direction)
    world = plain.points[0] @ view.T_world_camera[:3, :3].T + view.T_world_camera[:3, 3]
    towards = plain.valid[0] & (world @ n / 0.3 > 0.25)
    assert towards.sum() > 100
    assert np.abs(plain.rgb[0].astype(int) - shaded.rgb[0])[towards].max() <= 1


def test_moving_camera_equals_moving_world():
    robot = load_robot("k4arm")
    surfaces = robot_surfaces([robot])
    Ts_world_link = forward_kinematics(robot, robot.home[None])
    eyes = [np.array([1.2, y, 0.8]) for y in (-0.7, -0.3, 0.4)]
    Ts = np.stack([look_at(e, np.array([0.1, 0, 0.3])) for e in eyes])
    view = camera()
    moving = Camera(K=view.K, T_world_camera=Ts, height=view.height, width=view.width)
    all_frames = rasterize(surfaces, invert(Ts)[:, None] @ Ts_world_link, moving, rgb=True)
    for t in range(3):
        still = Camera(K=view.K, T_world_camera=Ts[t], height=view.height, width=view.width)
        one = rasterize(surfaces, invert(Ts[t]) @ Ts_world_link, still, rgb=True)
        np.testing.assert_array_equal(one.points[0], all_frames.points[t])
        assert one.rgb is not None
        assert all_frames.rgb is not None
        np.testing.assert_array_equal(one.rgb[0], all_frames.rgb[t])


def test_bad_calls_are_named():
    parts = assemble([(quad(1.0), 3)])
    with pytest.raises(ValueError, match="4 bodies but 1 transforms"):
        rasterize(parts, np.eye(4)[None, None], FRONT)
    with pytest.raises(ValueError, match="near must be positive"):
        rasterize(assemble([(quad(1.0), 0)]), np.eye(4)[None, None], FRONT, near=0.0)
    with pytest.raises(ValueError, match="nothing to draw"):
        assemble([])
    with pytest.raises(ValueError, match="outside 0..3"):
        Mesh(vertices=quad(1).vertices, faces=np.array([[0, 1, 9]], np.int32), colors=np.zeros((1, 3), np.uint8))


def test_weld_finds_equal_rows():
    v = np.array([[0.0, 1, 2], [3, 4, 5], [0, 1, 2], [-0.0, 1, 2]])
    first, number = weld(v)
    np.testing.assert_array_equal(first, [0, 1])
    np.testing.assert_array_equal(number, [0, 1, 0, 0])
    rng = np.random.default_rng(0)
    many = rng.integers(0, 9, (5000, 3)).astype(float)
    first, number = weld(many)
    np.testing.assert_array_equal(many[first][number], many)
    assert len(first) == len(np.unique(many, axis=0))


def test_corner_normals_are_sharp_on_a_box_and_smooth_on_a_ball():
    box = primitive("box", (1.0, 2.0, 3.0), None)
    n = corner_normals(box)
    assert np.abs(np.abs(n).max(axis=-1) - 1).max() < 1e-6  # every corner keeps its face's axis
    ball = primitive("sphere", (0.5,), None)
    n = corner_normals(ball)
    outward = ball.vertices[ball.faces] / 0.5
    assert (n * outward).sum(-1).min() > 0.999


def test_transformed_body_moves_with_its_transform():
    T = transform(np.array([0.3, 0.0, 1.0]), rotvec_to_matrix(np.array([0.0, 0.4, 0.0])))
    still = Mesh(vertices=quad(0, 0.6).vertices @ T[:3, :3].T + T[:3, 3], faces=quad(0).faces, colors=quad(0).colors)
    a = rasterize(assemble([(quad(0, 0.6), 0)]), T[None, None], FRONT)
    b = rasterize(assemble([(still, 0)]), np.eye(4)[None, None], FRONT)
    assert isinstance(a, Render)
    np.testing.assert_array_equal(a.valid, b.valid)
    np.testing.assert_allclose(a.points, b.points, atol=1e-6)


SUN = Light(direction_world=(0.5, 0.3, 1.0), ambient=0.2, shadow_size=512)


def same_picture(a: Render, b: Render) -> None:
    np.testing.assert_array_equal(a.points, b.points)
    np.testing.assert_array_equal(a.valid, b.valid)
    np.testing.assert_array_equal(a.ids, b.ids)
    assert a.rgb is not None
    assert b.rgb is not None
    np.testing.assert_array_equal(a.rgb, b.rgb)


def bench() -> tuple[list[tuple[Mesh, int]], Camera, np.ndarray]:
    """A textured floor (body 2, last) under a ball and a box that move, seen over several frames."""
    rng = np.random.default_rng(0)
    uvs = np.array([[[0, 0], [1, 0], [1, 1]], [[0, 0], [1, 1], [0, 1]]], np.float32)
    pictures = [rng.integers(0, 256, (4, 6, 3)).astype(np.uint8) for _ in range(2)]
    floor = quad(0.0, size=1.5, uvs=uvs, texture=pictures[0])
    lid = quad(0.4, size=0.3, uvs=uvs, texture=pictures[1])
    parts = [(primitive("sphere", (0.1,), (200, 200, 200)), 0), (lid, 1), (primitive("box", (0.2,) * 3, None), 1)]
    view = camera(eye=(1.0, -0.6, 0.9), target=(0.0, 0, 0.1), height=90, width=120, focal=110.0)
    Ts = np.tile(np.eye(4), (5, 3, 1, 1))
    Ts[:, 0, :3, 3] = np.stack([np.linspace(-0.4, 0.4, 5), np.zeros(5), np.full(5, 0.25)], axis=1)
    Ts[:, 1, :3, :3] = rotvec_to_matrix(np.stack([np.zeros(5), np.zeros(5), np.linspace(0, 1, 5)], axis=1))
    return [*parts, (floor, 2)], view, invert(view.T_world_camera) @ Ts


def test_merged_scenes_look_like_assembled_ones():
    parts, view, Ts = bench()
    whole = assemble(parts)
    counted = [(assemble([parts[0]]), 0), (assemble([(m, b - 1) for m, b in parts[1:3]]), 1), (assemble([(parts[3][0], 0)]), 2)]  # fmt: skip
    merged = merge(counted)
    same_picture(rasterize(whole, Ts, view, rgb=True, light=SUN), rasterize(merged, Ts, view, rgb=True, light=SUN))
    for field in ("vertices", "vertex_body", "faces", "face_body", "texels", "texture_shape", "face_texture", "spans"):
        np.testing.assert_array_equal(getattr(merged, field), getattr(whole, field))
    assert len(merged.texture_shape) == 2


def test_only_casters_throw_shadows():
    parts, view, Ts = bench()
    everything = assemble(parts)
    movers, ball = assemble(parts[:3]), assemble(parts[:1])
    full = rasterize(everything, Ts, view, rgb=True, light=SUN)
    without_floor = rasterize(everything, Ts, view, rgb=True, light=SUN, casters=movers)
    only_ball = rasterize(everything, Ts, view, rgb=True, light=SUN, casters=ball)
    plain = rasterize(everything, Ts, view, rgb=True, light=Light(direction_world=SUN.direction_world, ambient=0.2))
    pictures = [r.rgb for r in (full, without_floor, only_ball, plain)]
    assert all(p is not None for p in pictures)
    a, b, c, d = (p.astype(int) for p in pictures if p is not None)
    for other in (without_floor, only_ball, plain):  # shadows change nothing but colour
        np.testing.assert_array_equal(other.points, full.points)
        np.testing.assert_array_equal(other.ids, full.ids)
    differs = (np.abs(a - b).max(axis=-1) > 1).mean()  # a floor shades nothing here; texels differ at edges of shadows
    assert differs < 0.01
    darker = [(np.abs(d - p).max(axis=-1) > 1).sum() for p in (b, c)]
    assert darker[0] > 1.5 * darker[1] > 100
    assert (b <= d + 1).all()


def test_casters_need_transforms_too():
    parts, view, Ts = bench()
    with pytest.raises(ValueError, match="shadows come from 8 bodies but 3 transforms"):
        rasterize(assemble(parts), Ts, view, rgb=True, light=SUN, casters=assemble([(parts[0][0], 7)]))


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_what_stands_still_is_drawn_as_if_each_frame_were_alone(threads):
    parts, view, Ts = bench()
    scene = assemble(parts)
    together = rasterize(scene, Ts, view, rgb=True, light=SUN, threads=threads)
    for t in range(len(Ts)):
        alone = rasterize(scene, Ts[t : t + 1], view, rgb=True, light=SUN)
        np.testing.assert_array_equal(together.points[t], alone.points[0])
        np.testing.assert_array_equal(together.ids[t], alone.ids[0])
        np.testing.assert_array_equal(together.boxes[t], alone.boxes[0])
        assert together.rgb is not None
        assert alone.rgb is not None
        np.testing.assert_array_equal(together.rgb[t], alone.rgb[0])
    still = rasterize(scene, np.repeat(Ts[:1], 3, axis=0), view, rgb=True, light=SUN, threads=threads)
    same_picture(still, rasterize(scene, np.repeat(Ts[:1], 3, axis=0), view, rgb=True, light=SUN, out=still))
    np.testing.assert_array_equal(still.ids[2], together.ids[0])


def test_still_floors_hide_what_is_below_and_nothing_above():
    parts = [(quad(-0.1, size=0.5), 0), (quad(0.001, size=0.3), 1), (quad(0.0, size=2.0), 2)]
    view = camera(eye=(0.4, -0.6, 0.9), target=(0.0, 0, 0.0), height=90, width=120)
    Ts = np.tile(np.eye(4), (3, 3, 1, 1))
    Ts[:, :2, 0, 3] = np.linspace(0, 0.1, 3)[:, None]  # both move; the floor stands still
    seen = rasterize(assemble(parts), invert(view.T_world_camera) @ Ts, view)
    assert not (seen.ids == 1).any()
    for t in range(3):
        alone = rasterize(assemble(parts[1:2]), invert(view.T_world_camera) @ Ts[t : t + 1], view)
        assert alone.valid.sum() > 100
        np.testing.assert_array_equal(seen.ids[t] == 2, alone.valid[0])


def test_clustering_moves_no_vertex_out_of_its_cell():
    ball = primitive("sphere", (0.3,), (200, 200, 200))
    coarse = cluster(ball, 0.1)
    assert 20 < len(coarse.faces) < len(ball.faces)
    assert np.abs(np.linalg.norm(coarse.vertices, axis=1) - 0.3).max() < 0.1
    a, b, c = coarse.faces.T
    assert ((a != b) & (b != c) & (c != a)).all()
    assert len(np.unique(np.sort(coarse.faces, axis=1), axis=0)) == len(coarse.faces)
    fine = cluster(ball, 1e-6)
    assert len(fine.vertices) == len(np.unique(np.round(ball.vertices, 7), axis=0))
