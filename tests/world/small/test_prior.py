from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from kinema4d.evaluate.changed import Changes, find_changes
from kinema4d.geometry.camera import from_depth, project
from kinema4d.geometry.se3 import invert
from kinema4d.robot.control import project as project_robot
from kinema4d.robot.zoo import load_robot
from kinema4d.scenes.episode import Wish, perform, record, set_stage
from kinema4d.types import Arm, Camera, Control, Episode, Trajectory
from kinema4d.world.fill import fill
from kinema4d.world.small.membrane import membrane
from kinema4d.world.small.parts import Part
from kinema4d.world.small.prior import Prior, render
from kinema4d.world.small.skin import FirstFrame, skin
from kinema4d.world.static import StaticWorld

H, W, F = 60, 90, 80.0
K = np.array([[F, 0, 44.5], [0, F, 29.5], [0, 0, 1]])
UPRIGHT = np.array([[1.0, 0, 0, 0], [0, 0, 1, 0], [0, -1, 0, 0], [0, 0, 0, 1]])
"""World z is up, the camera looks along world y."""
NEAR, WALL = 0.8, 1.2


def a_control(frames: int = 4) -> Control:
    """A robot that is a square at 1 m, rising on the right from behind the wall's lower edge."""
    camera = Camera(K=K, T_world_camera=UPRIGHT, height=H, width=W)
    v, u = np.mgrid[:H, :W]
    mask = np.stack([(v >= 40 - 8 * t) & (v < 52 - 8 * t) & (u >= 60) & (u < 72) for t in range(frames)])
    path = Trajectory(q=np.zeros((frames, 1)), joint_names=("j",), fps=10.0)
    still = {"converged": np.ones(frames, bool), "residual_m": np.zeros(frames), "residual_rad": np.zeros(frames)}
    return Control(
        camera=camera,
        pointmap=from_depth(K, np.full(mask.shape, 1.0, np.float32), mask),
        link_ids=mask.astype(np.uint16),
        link_names=("link",),
        arms=(Arm(robot="toy", trajectory=path, link_names=("link",), **still),),
        fps=10.0,
        rgb=np.where(mask[..., None], np.array([100, 80, 60], np.uint8), np.uint8(0)),
    )


def a_box(columns: tuple[int, int], rows: tuple[int, int], name: str = "box", thick: float = 0.02) -> Part:
    """A box whose front is at ``NEAR`` and covers exactly these pixels; its sides are too thin to be seen."""
    (left, right), (top, bottom) = columns, rows
    u, v = np.array([left - 0.5, right + 0.5]), np.array([top - 0.5, bottom + 0.5])
    x, y = (u - K[0, 2]) / F * NEAR, (v - K[1, 2]) / F * NEAR
    corners = np.array([[a, b, c] for c in (NEAR, NEAR + thick) for b in y for a in x])
    quads = [(0, 2, 3, 1), (4, 5, 7, 6), (0, 1, 5, 4), (2, 6, 7, 3), (0, 4, 6, 2), (1, 3, 7, 5)]
    faces = np.array([f for a, b, c, d in quads for f in ((a, b, c), (a, c, d))], np.int32)
    mask = np.zeros((H, W), bool)
    mask[top : bottom + 1, left : right + 1] = True
    return Part(name=name, joint="free", mask=mask, vertices=corners @ UPRIGHT[:3, :3].T, faces=faces)


def a_view(control: Control, parts: list[Part]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Spotted boxes before an even wall, and the robot."""
    rng = np.random.default_rng(0)
    image, depth = np.full((H, W, 3), (40, 160, 60), np.uint8), np.full((H, W), WALL)
    image[control.mask[0]], depth[control.mask[0]] = (200, 160, 120), 1.0
    for part in parts:
        image[part.mask], depth[part.mask] = rng.integers(90, 250, (int(part.mask.sum()), 3)), NEAR
    return image, depth, depth > 0


def still(parts: int, frames: int = 4) -> np.ndarray:
    return np.tile(np.eye(4), (parts, frames, 1, 1))


def shifted(pixels: list[int]) -> np.ndarray:
    """Motion to the right by whole pixels of a plane at ``NEAR``."""
    Ts = still(1, len(pixels))
    Ts[0, :, 0, 3] = np.array(pixels) * NEAR / F
    return Ts


def inner(part: Part) -> np.ndarray:
    """Its pixels without their border."""
    m = part.mask
    return m & np.roll(m, 1, 0) & np.roll(m, -1, 0) & np.roll(m, 1, 1) & np.roll(m, -1, 1)


def test_the_faces_of_the_toy_look_outwards():
    part = a_box((20, 31), (20, 35))
    a, b, c = (part.vertices[part.faces[:, i]] for i in range(3))
    away = (a + b + c) / 3 - part.vertices.mean(axis=0)
    assert ((np.cross(b - a, c - a) * away).sum(axis=1) > 0).all()
    uv = project(K, (part.vertices @ UPRIGHT[:3, :3])[:4])  # its front; the camera is at the origin
    np.testing.assert_allclose([uv[:, 0].min(), uv[:, 0].max()], [19.5, 31.5], atol=1e-9)


def test_where_nothing_moves_it_is_the_static_world():
    control, part = a_control(), a_box((20, 31), (20, 35))
    image, depth, has_depth = a_view(control, [part])
    static = StaticWorld().simulate(image, control, depth=depth).clip
    alone = render(image, depth, has_depth, [], np.zeros((0, 4, 4, 4)), control)
    np.testing.assert_allclose(alone.rgb.astype(int), static.rgb, atol=1)
    np.testing.assert_allclose(alone.pointmap.points, static.pointmap.points, atol=1e-4)
    with_part = render(image, depth, has_depth, [part], still(1), control)
    for prior in (alone, with_part):
        np.testing.assert_array_equal(prior.rgb[0], image)
        assert not prior.part_ids.any()
        for t in range(1, 4):
            same = prior.known[t] & ~control.mask[t]
            np.testing.assert_array_equal(prior.rgb[t][same], image[same])
            np.testing.assert_array_equal(prior.rgb[t][prior.known[t]], static.rgb[t][prior.known[t]])
        guessed = np.zeros((H, W), bool)
        guessed[39:53, 59:73] = True
        np.testing.assert_array_equal(prior.known[3], ~guessed | control.mask[3])


def test_a_membrane_is_the_slow_one():
    rng = np.random.default_rng(1)
    values, known = rng.uniform(0, 255, (33, 47, 3)), rng.random((33, 47)) < 0.3
    known[5:20, 10:30] = False
    np.testing.assert_allclose(membrane(values, known), fill(values, known), atol=0.5)
    np.testing.assert_array_equal(membrane(values, known)[known], values[known])


def test_a_shift_of_whole_pixels_shifts_the_picture():
    control, part = a_control(), a_box((20, 31), (20, 35))
    image, depth, has_depth = a_view(control, [part])
    prior = render(image, depth, has_depth, [part], shifted([0, 0, 9, 25]), control)
    np.testing.assert_array_equal(prior.rgb[1][part.mask], image[part.mask])  # it has not moved yet
    assert prior.known[1][part.mask].all()
    for t, by in ((2, 9), (3, 25)):
        place, core = np.roll(part.mask, by, axis=1), np.roll(inner(part), by, axis=1)
        np.testing.assert_array_equal(prior.part_ids[t] == 1, place)
        np.testing.assert_array_equal(prior.rgb[t][core], image[inner(part)])
        np.testing.assert_allclose(prior.pointmap.depth[t][place], NEAR, atol=1e-6)
        assert prior.known[t][core].all()
        # The wall is where it was, also at its edges; nobody has seen it there.
        left = part.mask & ~place
        np.testing.assert_allclose(prior.rgb[t][left].astype(int), np.tile((40, 160, 60), (left.sum(), 1)), atol=2)
        np.testing.assert_allclose(prior.pointmap.depth[t][left], WALL, atol=5e-3)
        assert not prior.known[t][left].any()
        far = ~(part.mask | np.roll(part.mask, 1, 0) | np.roll(part.mask, -1, 0)) & ~place
        far[:, 16:36] = False
        far &= ~control.mask[t] & ~control.mask[0]
        far[39:53, 59:73] = False
        np.testing.assert_array_equal(prior.rgb[t][far], image[far])


def test_the_robot_is_exact_behind_and_before_what_moves():
    control, part = a_control(), a_box((20, 31), (20, 35))
    image, depth, has_depth = a_view(control, [part])
    prior = render(image, depth, has_depth, [part], shifted([0, 10, 20, 36]), control)
    for t in range(4):
        hidden = prior.part_ids[t] > 0  # the part is nearer
        shown = control.mask[t] & ~hidden
        np.testing.assert_array_equal(prior.pointmap.points[t][shown], control.pointmap.points[t][shown])
        assert prior.known[t][shown].all()
    assert (control.mask[3] & (prior.part_ids[3] == 1)).sum() > 20
    beside = prior.rgb[3][control.mask[3] & (prior.part_ids[3] == 0)].astype(int)
    np.testing.assert_allclose(beside, np.tile((200, 160, 120), (len(beside), 1)), atol=2)  # as bright as at first
    back = replace(control, pointmap=from_depth(K, np.full(control.mask.shape, 0.5, np.float32), control.mask))
    front = render(image, depth, has_depth, [part], shifted([0, 10, 20, 36]), back)
    assert not (front.part_ids[1:] > 0)[control.mask[1:]].any()


def test_unseen_sides_take_colours_of_the_seen_one():
    control, part = a_control(), a_box((20, 31), (20, 35))
    image, depth, has_depth = a_view(control, [part])
    image[part.mask] = (200, 60, 20)
    image[28:, :][part.mask[28:, :]] = (20, 60, 200)  # red above, blue below
    middle = (part.vertices.min(axis=0) + part.vertices.max(axis=0)) / 2
    Ts = still(1)
    Ts[0, 1:, :3, :3] = np.diag([-1.0, -1.0, 1.0])  # half a turn about the vertical
    Ts[0, 1:, :3, 3] = middle - Ts[0, 1, :3, :3] @ middle
    prior = render(image, depth, has_depth, [part], Ts, control)
    behind = prior.part_ids[2] == 1
    assert behind.sum() > 0.7 * part.mask.sum()
    assert not prior.known[2][behind].any()
    rows = np.nonzero(behind)[0]
    colours = prior.rgb[2][behind].astype(int)
    np.testing.assert_allclose(colours[rows < 25], np.tile((200, 60, 20), ((rows < 25).sum(), 1)), atol=35)
    np.testing.assert_allclose(colours[rows > 31], np.tile((20, 60, 200), ((rows > 31).sum(), 1)), atol=35)


def test_the_border_of_a_mask_does_not_colour_the_part():
    control, part = a_control(), a_box((20, 31), (20, 35))
    image, depth, has_depth = a_view(control, [part])
    image[part.mask] = (200, 60, 20)
    image[part.mask & ~inner(part)] = (120, 110, 40)  # half of it is wall
    look = skin(part, FirstFrame(image=image, depth=depth, has_depth=has_depth, camera=control.camera))
    assert (look.texture == (200, 60, 20)).all()
    assert (look.volume == (200, 60, 20)).all()


def test_things_that_stand_still_neither_bleed_nor_end_behind_what_left():
    control = a_control()
    front, back = a_box((20, 31), (20, 35)), a_box((14, 37), (24, 31), name="back")
    back = replace(back, vertices=back.vertices + np.array([0, 0.15, 0]), mask=back.mask & ~front.mask)
    image, depth, has_depth = a_view(control, [back, front])
    image[back.mask], depth[back.mask] = (30, 40, 220), 0.95
    prior = render(
        image, depth, has_depth, [front, back], np.concatenate([shifted([0, 40, 40, 40]), still(1)]), control
    )
    last = prior.rgb[2].astype(int)
    assert prior.part_ids[2].max() == 1
    np.testing.assert_allclose(last[27, 25], (30, 40, 220), atol=3)
    np.testing.assert_allclose(prior.pointmap.depth[2, 27, 25], 0.95, atol=1e-3)
    np.testing.assert_allclose(last[34, 25], (40, 160, 60), atol=3)
    assert not prior.known[2, 27, 25]


def test_a_part_does_not_show_through_where_the_sensor_is_blind():
    control, part = a_control(), a_box((20, 31), (20, 35))
    image, depth, has_depth = a_view(control, [part])
    image[25:30, 40:50], depth[25:30, 40:50] = (250, 250, 250), 0.5  # something nearer
    has_depth = depth > 0
    has_depth[27, 44:46] = False
    prior = render(image, np.where(has_depth, depth, 0), has_depth, [part], shifted([0, 10, 22, 22]), control)
    np.testing.assert_array_equal(prior.rgb[2, 25:30, 40:50], image[25:30, 40:50])
    assert not prior.pointmap.valid[2, 27, 44:46].any()


def test_memory_can_be_used_again():
    control, part = a_control(), a_box((20, 31), (20, 35))
    image, depth, has_depth = a_view(control, [part])
    once = render(image, depth, has_depth, [part], shifted([0, 0, 9, 25]), control)
    other = render(image, depth, has_depth, [part], shifted([0, 30, 3, 2]), control)
    again = render(image, depth, has_depth, [part], shifted([0, 0, 9, 25]), control, out=other)
    assert again.rgb is other.rgb
    for a, b in ((again.rgb, once.rgb), (again.known, once.known), (again.part_ids, once.part_ids)):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(again.pointmap.points, once.pointmap.points)


def test_a_part_out_of_sight_is_no_trouble():
    control, part = a_control(), a_box((20, 31), (20, 35))
    image, depth, has_depth = a_view(control, [part])
    Ts = still(1)
    Ts[0, 2, :3, 3] = (0, -2.0, 0)  # behind the camera
    Ts[0, 3, :3, 3] = (9.0, 0, 0)
    prior = render(image, depth, has_depth, [part], Ts, control)
    assert not prior.part_ids.any()
    unseen = replace(part, mask=np.zeros((H, W), bool), vertices=part.vertices + np.array([0, 0.6, 0]))
    hidden = render(image, depth, has_depth, [unseen], shifted([0, 0, 0, 9]), control)
    np.testing.assert_array_equal(hidden.rgb[2][part.mask], image[part.mask])


def test_bad_input_is_refused():
    control, part = a_control(), a_box((20, 31), (20, 35))
    image, depth, has_depth = a_view(control, [part])
    with pytest.raises(ValueError, match=r"motions must be \[1, 4, 4, 4\]"):
        render(image, depth, has_depth, [part], still(1, 3), control)
    with pytest.raises(ValueError, match="moved 0.05 m there already"):
        render(image, depth, has_depth, [part], shifted([5, 5, 5, 5]), control)
    with pytest.raises(ValueError, match="not a positive number"):
        render(image, np.zeros_like(depth), has_depth, [part], still(1), control)
    with pytest.raises(ValueError, match="no pixel of the first image has depth"):
        render(image, depth, np.zeros_like(has_depth), [part], still(1), control)
    with pytest.raises(ValueError, match="without colour"):
        render(image, depth, has_depth, [part], still(1), replace(control, rgb=None))
    bare = replace(part, faces=part.faces[:0])
    with pytest.raises(ValueError, match="'box' moves but has no surface"):
        render(image, depth, has_depth, [bare], shifted([0, 1, 2, 3]), control)
    moving = replace(control.camera, T_world_camera=np.tile(UPRIGHT, (4, 1, 1)))
    with pytest.raises(ValueError, match="moving camera"):
        render(image, depth, has_depth, [part], still(1), replace(control, camera=moving))


@cache
def an_episode(task: str) -> tuple[Episode, Control]:
    """An expert's episode whose target the first frame shows well."""
    robot = load_robot("panda")
    for seed in range(1, 9):
        stage = set_stage(robot, Wish(task=task, seed=seed))
        truth = record(stage, perform(stage), source="test", facts={}, threads=1)
        assert truth.labels is not None
        if (truth.labels[0] == truth.label_names.index(truth.tracks[0].name) + 1).sum() > 80:
            return truth, project_robot([robot], truth.arms, truth.clip.camera)
    raise AssertionError("no seed shows the target")


def played(task: str) -> tuple[Episode, Control, Prior, Changes]:
    """The prior of the true parts and motions."""
    truth, control = an_episode(task)
    parts, motions = [], []
    assert truth.labels is not None
    for track in truth.tracks:
        assert track.vertices is not None
        assert track.faces is not None
        T = track.Ts_world_object[0]
        mask = truth.labels[0] == truth.label_names.index(track.name) + 1
        vertices = track.vertices @ T[:3, :3].T + T[:3, 3]
        parts.append(Part(name=track.name, joint="free", mask=mask, vertices=vertices, faces=track.faces))
        motions.append(track.Ts_world_object @ invert(T))
    clip = truth.clip
    prior = render(clip.rgb[0], clip.pointmap.depth[0], clip.pointmap.valid[0], parts, np.stack(motions), control)
    changes = find_changes(truth, [truth.tracks[0].name])
    assert isinstance(changes, Changes)
    return truth, control, prior, changes


def psnr(a: np.ndarray, b: np.ndarray, where: np.ndarray) -> float:
    return float(10 * np.log10(255**2 / np.mean((a[where].astype(float) - b[where]) ** 2)))


@pytest.mark.parametrize("task", ["pick_place", "topple"])
def test_it_beats_the_static_world_on_what_moved(task: str):
    truth, control, prior, changes = played(task)
    clip = truth.clip
    static = StaticWorld().simulate(clip.rgb[0], control, depth=clip.pointmap.depth[0]).clip
    for where, margin in ((changes.covered, 3.0), (changes.changed, 0.0), (changes.disoccluded, 0.0)):
        assert psnr(prior.rgb, clip.rgb, where) > psnr(static.rgb, clip.rgb, where) + margin
    # Where the truth shows the moved thing, so does the prior, at its true depth.
    assert truth.labels is not None
    own = truth.labels == truth.label_names.index(truth.tracks[0].name) + 1
    last = own[-1] & (prior.part_ids[-1] == 1)
    assert last.sum() > 0.9 * own[-1].sum()
    assert np.abs(prior.pointmap.depth[-1] - clip.pointmap.depth[-1])[last].mean() < 0.001
    robot = control.mask & (prior.pointmap.depth == control.pointmap.depth)
    assert robot.sum() > 0.9 * control.mask.sum()
    np.testing.assert_array_equal(prior.pointmap.points[robot], control.pointmap.points[robot])


def test_what_was_uncovered_is_not_known():
    _, _, prior, changes = played("pick_place")
    assert prior.known[changes.disoccluded].mean() < 0.02
    quiet = ~changes.changed & ~changes.robot
    assert prior.known[quiet].mean() > 0.97
