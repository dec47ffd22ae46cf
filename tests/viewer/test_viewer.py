"""The pages in a real browser: do they draw, does time move, do the switches switch?"""

from __future__ import annotations

import io
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jaxtyping
import numpy as np
import pytest
from PIL import Image

from kinema4d.geometry.mesh import Mesh
from kinema4d.geometry.raster import assemble, rasterize
from kinema4d.geometry.se3 import apply, invert, look_at, rotvec_to_matrix, transform
from kinema4d.robot.kinematics import forward_kinematics
from kinema4d.robot.model import Robot
from kinema4d.robot.urdf import load_urdf
from kinema4d.types import Arm, Camera, Clip, Control, Episode, Pointmap, Rollout, Trajectory
from kinema4d.viewer.html import export_html
from kinema4d.viewer.meshes import MAX_COLORS, cluster, few_colors, pieces
from kinema4d.viewer.recording import depth_image, depth_range, focus, recording, spread, world_points
from kinema4d.viewer.scene import link_motion
from kinema4d.viewer.view import Viewer, view

FRAMES, HEIGHT, WIDTH = 5, 60, 80
CHROMIUM = shutil.which("chromium") or "/usr/bin/chromium"
FLAGS = [
    "--headless=new", "--no-sandbox", "--use-angle=swiftshader", "--enable-unsafe-swiftshader",
    "--ignore-gpu-blocklist", "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--no-first-run", "--disable-quic",
]  # fmt: skip
URDF = """<robot name="two_sticks">
  <link name="base"><visual><geometry><box size="0.2 0.2 0.1"/></geometry>
    <material name="red"><color rgba="0.9 0.1 0.1 1"/></material></visual></link>
  <link name="arm"><visual><origin xyz="0 0 0.25"/><geometry><cylinder radius="0.05" length="0.5"/></geometry>
    <material name="blue"><color rgba="0.1 0.2 0.9 1"/></material></visual></link>
  <joint name="hinge" type="revolute"><parent link="base"/><child link="arm"/><origin xyz="0 0 0.05"/>
    <axis xyz="0 1 0"/><limit lower="-2" upper="2" velocity="1" effort="1"/></joint>
</robot>"""


@pytest.fixture(scope="module")
def robot(tmp_path_factory: pytest.TempPathFactory) -> Robot:
    path = tmp_path_factory.mktemp("robot") / "two_sticks.urdf"
    path.write_text(URDF)
    return load_urdf(path)


@pytest.fixture(scope="module")
def control(robot: Robot) -> Control:
    K = np.array([[70.0, 0, 39.5], [0, 70, 29.5], [0, 0, 1]])
    T = look_at(np.array([1.0, -0.9, 0.6]), np.array([0, 0, 0.2]))
    camera = Camera(K=K, T_world_camera=T, height=HEIGHT, width=WIDTH)
    q = np.linspace(-1.2, 1.2, FRAMES)[:, None]
    seen = rasterize(
        assemble([(v.mesh, v.link) for v in robot.visuals]),
        invert(T) @ forward_kinematics(robot, q), camera, rgb=True,
    )  # fmt: skip
    arm = Arm(
        robot=robot.source, trajectory=Trajectory(q=q, joint_names=robot.joint_names, fps=5.0),
        link_names=robot.link_names, converged=np.ones(FRAMES, bool), residual_m=np.zeros(FRAMES),
        residual_rad=np.zeros(FRAMES),
    )  # fmt: skip
    return Control(
        camera=camera, pointmap=Pointmap(points=seen.points, valid=seen.valid), link_ids=seen.ids,
        link_names=robot.link_names, arms=(arm,), fps=5.0, rgb=seen.rgb,
    )  # fmt: skip


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed (pip install playwright)")
    if not Path(CHROMIUM).exists():
        pytest.skip(f"no Chromium at {CHROMIUM} (apt install chromium)")
    with sync_api.sync_playwright() as p:
        running = p.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield running
        running.close()


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    opened = browser.new_page(viewport={"width": 900, "height": 560})
    opened.errors = []
    opened.on("pageerror", lambda error: opened.errors.append(str(error)))
    yield opened
    errors = opened.errors
    opened.close()
    assert not errors


def until(what: str, condition: Callable[[], Any], seconds: float = 25.0) -> Any:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if result := condition():
            return result
        time.sleep(0.1)
    raise AssertionError(f"after {seconds:g} s still not: {what}")


def canvas(page: Any) -> np.ndarray:
    """The part of the 3D view that no panel covers."""
    clip = {"x": 290, "y": 0, "width": 265, "height": page.viewport_size["height"] - 60}
    return np.asarray(Image.open(io.BytesIO(page.screenshot(clip=clip))).convert("RGB")).astype(int)


def colorful(image: np.ndarray) -> int:
    """Number of saturated pixels: the robot is red and blue, the rest of the page is grey."""
    return int((np.ptp(image, axis=2) > 90).sum())


def moved(a: np.ndarray, b: np.ndarray) -> int:
    """Number of 5x5 blocks that differ. Blocks, because viser lowers its resolution while things move."""
    h, w = (n // 5 * 5 for n in a.shape[:2])
    means = [x[:h, :w].reshape(h // 5, 5, w // 5, 5, 3).mean(axis=(1, 3)) for x in (a, b)]
    return int((np.abs(means[0] - means[1]).max(axis=2) > 60).sum())


def settled(page: Any) -> np.ndarray:
    """The 3D view once three looks in a row agree."""
    looks = [canvas(page), canvas(page)]

    def still() -> bool:
        time.sleep(0.3)  # viser fades in slowly
        looks.append(canvas(page))
        return bool(np.ptp(looks[-3:], axis=0).max() < 8)

    until("the page is still", still)
    return looks[-1]


@pytest.mark.timeout(90)
def test_live_page_draws_and_obeys(control: Control, robot: Robot, page: Any) -> None:
    with view(control, robots=[robot], port=0, block=False) as viewer:
        page.goto(viewer.url)
        page.add_style_tag(content="[class*=Notifications-root] {display: none}")  # warns of slow software rendering
        until("the robot is drawn", lambda: colorful(canvas(page)) > 500)
        page.get_by_role("checkbox", name="Camera").click()  # its image is coloured, too
        page.get_by_role("checkbox", name="Grid").click()  # slow to draw without a GPU
        first = settled(page)
        assert len(np.unique(first.reshape(-1, 3), axis=0)) > 50

        slider = page.get_by_role("slider").first
        track = slider.locator("xpath=..").bounding_box()
        page.mouse.click(track["x"] + track["width"] - 1, track["y"] + track["height"] / 2)
        until("a click on the end of the slider shows the last frame", lambda: viewer.frame == FRAMES - 1)
        until("the canvas moves", lambda: moved(canvas(page), first) > 50)
        page.mouse.click(track["x"] + 1, track["y"] + track["height"] / 2)
        until("a click on its start shows the first", lambda: viewer.frame == 0)
        until("the first view is back", lambda: moved(canvas(page), first) == 0)

        page.get_by_role("checkbox", name="Robot mesh").click()
        until("the mesh is gone", lambda: not viewer.scene.mesh.visible)
        with_points = colorful(settled(page))
        page.get_by_role("checkbox", name="Robot points").click()
        until("the points are gone", lambda: colorful(canvas(page)) < with_points / 4)
        empty = canvas(page)
        page.get_by_role("checkbox", name="Robot mesh").click()
        until("the mesh alone is back", lambda: moved(canvas(page), empty) > 30)
        assert page.get_by_role("checkbox", name="Environment").is_disabled()

        page.get_by_role("button", name="Play").click()
        seen: set[int] = set()
        until("play shows every frame", lambda: seen.add(viewer.frame) or len(seen) == FRAMES)
        page.get_by_role("button", name="Pause").click()
        until("pause holds", lambda: not viewer.playing)
        viewer.show(0)
        until("the browser's slider follows", lambda: slider.get_attribute("aria-valuenow") == "0")
        slider.press("ArrowRight")  # last, because viser turns the view with the same key
        until("the arrow key moves to frame 1", lambda: viewer.frame == 1)


@pytest.mark.timeout(90)
def test_exported_page_plays_from_disk(control: Control, robot: Robot, page: Any, tmp_path: Path) -> None:
    path = export_html(control, tmp_path / "robot.html", robots=[robot])
    assert [p.name for p in tmp_path.iterdir()] == ["robot.html"]  # no half-written file beside it
    page.context.set_offline(True)
    page.set_viewport_size({"width": 600, "height": 360})
    page.goto(path.as_uri())
    until("the robot is drawn", lambda: colorful(canvas(page)) > 500)
    first = canvas(page)
    assert len(np.unique(first.reshape(-1, 3), axis=0)) > 50
    until("it plays", lambda: moved(canvas(page), first) > 20)


def test_export_replaces_the_old_page_or_leaves_it(control: Control, robot: Robot, tmp_path: Path) -> None:
    path = tmp_path / "clip.html"
    path.write_text("old")
    with pytest.raises(ValueError, match="2 robots were given"):
        export_html(control, path, robots=[robot, robot])
    assert path.read_text() == "old"
    with pytest.raises(ValueError, match=r"must be named \.html"):
        export_html(control, tmp_path / "clip.mp4")
    with pytest.raises(ValueError, match="no folder"):
        export_html(control, tmp_path / "nowhere" / "clip.html")


def test_points_are_where_the_world_has_them(control: Control) -> None:
    """A still scene seen by a moving camera has still world points."""
    pixels = np.stack([np.full((HEIGHT, WIDTH), 1.0), *np.indices((HEIGHT, WIDTH)) / 50.0], axis=-1)
    Ts = transform(np.arange(6.0).reshape(2, 3), rotvec_to_matrix(np.array([[0.1, 0.7, 0], [0, -1.0, 0.4]])))
    points = np.stack([apply(invert(T), pixels.reshape(-1, 3)).reshape(HEIGHT, WIDTH, 3) for T in Ts])
    clip = Clip(
        camera=replace(control.camera, T_world_camera=Ts), rgb=np.zeros((2, HEIGHT, WIDTH, 3), np.uint8),
        pointmap=Pointmap(points=points, valid=np.ones((2, HEIGHT, WIDTH), bool)), fps=5.0,
    )  # fmt: skip
    for frame in range(2):
        world, _, robot = world_points(recording(clip), frame, HEIGHT * WIDTH)
        np.testing.assert_allclose(world, pixels.reshape(-1, 3), atol=1e-5)
        assert not robot.any()
    np.testing.assert_allclose(focus(recording(clip)), [1, 59 / 100, 79 / 100], atol=0.05)


def test_the_thinned_cloud_keeps_the_budget_and_covers_the_image() -> None:
    valid = np.random.default_rng(0).random((120, 160)) < 0.8
    index = spread(valid, 1000)
    assert len(index) == 1000 == len(np.unique(index))
    assert valid.reshape(-1)[index].all()
    np.testing.assert_array_equal(index, spread(valid, 1000))
    np.testing.assert_array_equal(spread(valid, 10**6), np.flatnonzero(valid))
    kept = np.zeros(valid.size, bool)
    kept[index] = True
    per_block = kept.reshape(6, 20, 8, 20).sum(axis=(1, 3))
    assert per_block.min() >= 12
    assert per_block.max() <= 30  # 20.8 on average; a random choice ranges over 8..35


def test_robot_and_environment(control: Control) -> None:
    assert recording(control).robot_mask(0).sum() == control.mask[0].sum()
    bare = recording(replace(control, rgb=None))
    assert len(np.unique(bare.image(0)[control.mask[0]], axis=0)) == 2  # one colour per link

    rgb = control.rgb
    assert rgb is not None
    everywhere = replace(control.pointmap, valid=np.ones_like(control.mask))
    clip = Clip(camera=control.camera, rgb=rgb, pointmap=everywhere, fps=5.0)
    names = ("cube", *(f"robot:{link}" for link in control.link_names))
    labels = np.where(control.mask, control.link_ids + 1, 0)
    labels[:, 0, 0] = 1
    episode = Episode(clip=clip, arms=control.arms, labels=labels, label_names=names, text="push <b>")
    np.testing.assert_array_equal(recording(episode).robot_mask(2), control.mask[2])  # a cube is not a robot
    assert not recording(Rollout(clip=clip)).robot_mask(2).any()
    np.testing.assert_array_equal(recording(Rollout(clip=clip), control).robot_mask(2), control.mask[2])
    with pytest.raises(ValueError, match="label 3 but only 1 label names"):
        recording(replace(episode, label_names=("cube",)))
    with pytest.raises(ValueError, match="already says where its robot is"):
        recording(episode, control)


def test_depth_is_warm_near_and_cold_far(control: Control) -> None:
    rec = recording(control)
    near, far = depth_range(rec)
    assert near < far
    image = depth_image(rec, 0, near, far).astype(int)
    depth, valid = control.pointmap.depth[0], control.mask[0]
    warm = (image[..., 0] - image[..., 2])[valid]
    assert np.corrcoef(warm, depth[valid])[0, 1] < -0.8
    assert (image[~valid] == 235).all()


def test_the_mesh_moves_with_the_arm(control: Control, robot: Robot) -> None:
    T = transform(np.array([1.0, 2, 3]), rotvec_to_matrix(np.array([0, 0, 0.5])))
    arm = replace(control.arms[0], trajectory=replace(control.arms[0].trajectory, T_world_base=T))
    Ts = link_motion(robot, arm, FRAMES)
    np.testing.assert_allclose(Ts, T @ forward_kinematics(robot, arm.trajectory.q))
    with pytest.raises(ValueError, match="5 joint positions but the recording has 4 frames"):
        link_motion(robot, arm, 4)
    with pytest.raises(ValueError, match="order of the recorded arms"):
        link_motion(robot, replace(arm, trajectory=replace(arm.trajectory, joint_names=("other",))), FRAMES)


def area(vertices: np.ndarray, faces: np.ndarray) -> float:
    a, b, c = (vertices[faces[:, i]] for i in range(3))
    return float(np.linalg.norm(np.cross(b - a, c - a), axis=1).sum() / 2)


def test_pieces_keep_surface_and_colour(robot: Robot) -> None:
    got = pieces(robot)
    assert {p.color for p in got} == {tuple(int(c) for c in v.mesh.colors[0]) for v in robot.visuals}
    assert sum(area(p.vertices, p.faces) for p in got) == pytest.approx(
        sum(area(v.mesh.vertices, v.mesh.faces) for v in robot.visuals), rel=1e-4
    )
    colors, which = few_colors(np.arange(300, dtype=np.uint8).reshape(100, 3))
    assert len(colors) == MAX_COLORS
    assert which.max() < MAX_COLORS


def test_a_huge_mesh_is_simplified() -> None:
    n = 200
    v, u = np.divmod(np.arange(n * n), n)
    corner = (v * n + u).reshape(n, n)
    a, b, c, d = corner[:-1, :-1].ravel(), corner[:-1, 1:].ravel(), corner[1:, :-1].ravel(), corner[1:, 1:].ravel()
    faces = np.concatenate([np.stack([a, b, c], 1), np.stack([b, d, c], 1)]).astype(np.int32)
    vertices = np.stack([u / n, v / n, 0 * u], axis=1)
    mesh = Mesh(vertices=vertices, faces=faces, colors=np.full((len(faces), 3), 9, np.uint8))
    small = cluster(mesh, 0.02)
    assert len(small.faces) < len(faces) / 10
    assert area(small.vertices, small.faces) == pytest.approx(area(vertices, faces), rel=0.1)


def test_errors_say_what_to_do(control: Control, robot: Robot, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as m:
        m.setattr(jaxtyping.config, "jaxtyping_disable", True)  # users run without the checks of the tests
        with pytest.raises(ValueError, match="give a Control, Clip, Episode or Rollout"):
            recording("clip.mp4")  # type: ignore[arg-type]
    nothing = replace(control, pointmap=replace(control.pointmap, valid=np.zeros_like(control.mask)))
    with pytest.raises(ValueError, match="none of its 5 frames has a valid point"):
        view(nothing, port=0, block=False)
    none = Pointmap(points=np.zeros((0, HEIGHT, WIDTH, 3)), valid=np.zeros((0, HEIGHT, WIDTH), bool))
    with pytest.raises(ValueError, match="no frames"):
        view(Clip(camera=control.camera, rgb=np.zeros((0, HEIGHT, WIDTH, 3), np.uint8), pointmap=none, fps=5.0))
    with pytest.raises(ValueError, match="point_budget must be at least 1, got 0"):
        view(control, point_budget=0, block=False)
    with pytest.raises(ValueError, match="1 robots were given but the 4d clip holds the motion of 0"):
        view(control.clip, robots=[robot], port=0, block=False)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(ValueError, match=rf"port {taken.getsockname()[1]} .* is in use; .*--port"):
            view(control, port=taken.getsockname()[1], block=False)
    with pytest.raises(ValueError, match=r"cannot open a page at 203\.0\.113\.7"):
        view(control, host="203.0.113.7", block=False)
    monkeypatch.setitem(sys.modules, "viser", None)
    with pytest.raises(ValueError, match=r"pip install 'kinema4d\[view\]'"):
        view(control, port=0, block=False)


def test_a_single_frame_and_a_bad_frame(control: Control) -> None:
    one = replace(
        control, link_ids=control.link_ids[:1], arms=(), rgb=None,
        pointmap=Pointmap(points=control.pointmap.points[:1], valid=control.mask[:1]),
    )  # fmt: skip
    with view(one, port=0, block=False) as viewer:
        assert isinstance(viewer, Viewer)
        assert viewer.port > 0
        with pytest.raises(ValueError, match=r"frame must be in 0\.\.0, got 1"):
            viewer.show(1)


def test_viser_is_loaded_only_when_a_page_opens() -> None:
    code = "import sys, kinema4d, kinema4d.viewer.view, kinema4d.viewer.html; sys.exit('viser' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
