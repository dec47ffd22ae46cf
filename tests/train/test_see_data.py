from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from kinema4d.data.generate import Recipe
from kinema4d.geometry.camera import project
from kinema4d.geometry.se3 import apply, invert
from kinema4d.train import augment, see, see_pack
from kinema4d.train.loop import Plan, train
from kinema4d.world.small.complete import CompleteConfig, CompleteNet
from kinema4d.world.small.see import BlindNet, SeeConfig, SegmentNet, level_frame, segment_input
from kinema4d.world.small.surface import projection


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("see")
    recipe = Recipe(
        episodes=3,
        robots=("k4arm",),
        tasks=("pick_place", "open_drawer", "close_hinge"),
        failures=0,
        seed=3,
        height=96,
        width=144,
    )
    see_pack.make_pack(folder, recipe, views=2, workers=1)
    return folder


@pytest.fixture(scope="module")
def pictures(pack: Path) -> list[see_pack.Picture]:
    return see_pack.read_pack(pack)


def test_pixels_of_a_part_lie_on_its_solid(pictures):
    """Picture, camera, ids, poses and primitives agree."""
    checked = 0
    for p in pictures:
        T = p.camera.poses(1)[0]
        _, X = segment_input(p.rgb, p.depth, p.depth > 0, p.ids == see_pack.ROBOT, p.camera)
        world = X @ level_frame(p.camera) + [*T[:2, 3], 0]
        for i in range(len(p.joint)):
            own, mine = p.ids == i + 1, p.primitives[p.primitives[:, 0] == i]
            if own.sum() < 20 or not len(mine):
                continue
            d = see_pack.inside(mine, apply(invert(p.Ts_world_part[i].astype(np.float64)), world[own]))
            assert np.median(np.abs(d)) < 0.003
            checked += 1
    assert checked > 5


def test_a_pack_goes_on_and_is_the_same(pack, tmp_path):
    recipe = Recipe(episodes=1, robots=("k4arm",), tasks=("push",), failures=0, seed=4, height=48, width=72)
    (first,) = see_pack.make_pack(tmp_path, recipe, views=1, workers=1)
    before = first.stat().st_mtime_ns
    see_pack.make_pack(tmp_path, recipe, views=1, workers=1)
    assert first.stat().st_mtime_ns == before
    (other,) = see_pack.make_pack(tmp_path / "b", recipe, views=1, workers=1)
    assert first.read_bytes() == other.read_bytes()
    with pytest.raises(ValueError, match="no pictures"):
        see_pack.read_pack(tmp_path / "empty")


def test_signed_distance_of_primitives():
    T = np.eye(4)[:3].ravel()
    box, can, ball = ([0, k, *size, *T] for k, size in ((0, (0.1, 0.2, 0.3)), (1, (0.1, 0.3, 0)), (2, (0.2, 0, 0))))
    points = np.array([[0, 0, 0], [0.2, 0, 0], [0.2, 0.3, 0], [0, 0, 0.35]])
    np.testing.assert_allclose(
        see_pack.inside(np.array([box]), points), [-0.1, 0.1, np.hypot(0.1, 0.1), 0.05], atol=1e-6
    )
    np.testing.assert_allclose(see_pack.inside(np.array([can]), points)[[0, 1, 3]], [-0.1, 0.1, 0.05], atol=1e-6)
    np.testing.assert_allclose(see_pack.inside(np.array([ball]), points)[[0, 1]], [-0.2, 0.0], atol=1e-6)


def test_targets_point_from_pixels_to_middles_and_axes(pictures):
    found = 0
    for p in pictures:
        _, X = segment_input(p.rgb, p.depth, p.depth > 0, p.ids == see_pack.ROBOT, p.camera)
        m = see.marks(p, X)
        assert ((m.kind == see.LOST) == (p.ids == see_pack.ROBOT)).all()
        R, foot = level_frame(p.camera), np.array([*p.camera.poses(1)[0][:2, 3], 0])
        for i in range(len(p.joint)):
            own = (p.ids == i + 1) & (m.kind > 0)
            if not own.any():
                continue
            middle = (X + m.vectors[:3].transpose(1, 2, 0))[own] @ R + foot
            np.testing.assert_allclose(middle, np.tile(p.middle[i], (own.sum(), 1)), atol=1e-4)
            if p.joint[i] >= 2:
                np.testing.assert_allclose(np.linalg.norm(m.vectors[6:, own], axis=0), 1, atol=1e-4)
                np.testing.assert_allclose(m.vectors[6:, own].T @ R, np.tile(p.axis[i], (own.sum(), 1)), atol=1e-4)
                found += 1
    assert found


def test_mirroring_twice_changes_nothing_and_mirrors_pictures(pictures):
    p = pictures[0]
    x, X = segment_input(p.rgb, p.depth, p.depth > 0, p.ids == see_pack.ROBOT, p.camera)
    m = see.marks(p, X)
    a, b = see.turned_over(see.turned_over(x, 5), 5), see.mirrored(see.mirrored(m))
    np.testing.assert_array_equal(a, x)
    np.testing.assert_array_equal(b.vectors, m.vectors)
    np.testing.assert_array_equal(b.kind, m.kind)
    np.testing.assert_array_equal(see.turned_over(x, 5)[0], x[0, :, ::-1])


def test_thinner_and_cropped_pictures_have_the_camera_of_their_pixels(pictures):
    p, rng = pictures[0], np.random.default_rng(0)
    T = invert(p.camera.poses(1)[0])
    point = apply(T, p.middle[:1].astype(np.float64))
    full = project(p.camera.K, point)[0]
    thin = augment.thinned(p, 2, (1, 0))
    np.testing.assert_allclose(project(thin.camera.K, point)[0], (full - [0, 1]) / 2)
    back = augment.enlarged(augment.thinned(p, 2), 2)
    np.testing.assert_allclose(project(back.camera.K, point)[0], full + 0.5)
    cut = augment.cropped(p, rng)
    shift = full - project(cut.camera.K, point)[0]
    r, c = round(shift[1]), round(shift[0])
    np.testing.assert_array_equal(cut.rgb, p.rgb[r : r + cut.rgb.shape[0], c : c + cut.rgb.shape[1]])


def test_the_projection_of_the_level_frame_is_the_cameras(pictures):
    p = pictures[0]
    _, X = segment_input(p.rgb, p.depth, p.depth > 0, p.ids == see_pack.ROBOT, p.camera)
    uvz = X.reshape(-1, 3).astype(np.float64) @ projection(p.camera)[:, :3].T + projection(p.camera)[:, 3]
    _, u = np.mgrid[: p.camera.height, : p.camera.width]
    known = p.depth.ravel() > 0
    np.testing.assert_allclose((uvz[:, 0] / uvz[:, 2])[known], u.ravel()[known], atol=0.01)
    np.testing.assert_allclose(uvz[:, 2][known], p.depth.ravel()[known], atol=1e-4)


@pytest.mark.parametrize("which", ["segment", "blind", "complete"])
def test_every_network_learns(which, pictures, tmp_path):
    torch.manual_seed(0)
    small = SeeConfig(widths=(8, 16, 24))
    task = {
        "segment": lambda: see.SegmentTask(SegmentNet(small), pictures, pictures[:2], size=2),
        "blind": lambda: see.BlindTask(BlindNet(small), pictures, pictures[:2], size=2),
        "complete": lambda: see.CompleteTask(
            CompleteNet(CompleteConfig(width=32, code=32)), pictures, pictures[:2], size=3
        ),
    }[which]()
    with torch.no_grad():
        before = np.mean([float(task.loss(s)) for s in range(200, 206)])
    train(task, Plan(steps=40, rate=3e-3, warmup=5, validate_every=40, log_every=20), tmp_path / which, config={"a": 1})
    with torch.no_grad():
        after = np.mean([float(task.loss(s)) for s in range(200, 206)])
    assert after < 0.85 * before
    assert all(np.isfinite(v) for v in task.validate(task.model).values())


def test_repainting_leaves_the_robot_and_changes_the_rest(pictures):
    picture = next(
        p for p in pictures if (p.ids == see_pack.ROBOT).any() and ((p.ids > 0) & (p.ids != see_pack.ROBOT)).any()
    )
    changed = np.zeros(picture.ids.shape, bool)
    for seed in range(4):
        new = augment.repainted(picture.rgb, picture.ids, np.random.default_rng(seed))
        changed |= (np.abs(new.astype(int) - picture.rgb) > 3).any(axis=-1)
    robot = picture.ids == see_pack.ROBOT
    assert not changed[robot].any()
    assert changed[~robot].mean() > 0.3


def test_what_covers_a_part_is_before_it(pictures):
    picture = max(pictures, key=lambda p: int(((p.ids > 0) & (p.ids != see_pack.ROBOT)).sum()))
    label = np.bincount(picture.ids[(picture.ids > 0) & (picture.ids != see_pack.ROBOT)]).argmax()
    whole = see.glimpse_of(picture, picture.ids == label, picture.depth)
    found = augment.covered(whole, np.random.default_rng(0))
    hidden = whole.own & ~found.own
    assert 0.02 < hidden.sum() / whole.own.sum() < 0.7
    assert (found.depth[hidden] < whole.depth[whole.own].min()).all()
    assert (found.depth[found.own] == whole.depth[found.own]).all()


def test_what_is_learned_without_a_sensor_does_not_depend_on_which_side_is_left(pictures, monkeypatch):
    """A network that says nothing guesses the support whatever it sees, so its loss is that of the mirrored picture."""
    net = BlindNet(SeeConfig(widths=(8, 16)))
    for name in ("varied", "recoloured"):
        monkeypatch.setattr(see, name, lambda x, _rng: x)
    monkeypatch.setattr(see, "repainted", lambda rgb, _ids, _rng: rgb)
    losses = []
    for flip in (0.0, 1.0):

        class Rng:
            def random(self, n=None, flip=flip):
                return 1.0 if n is None else np.full(n, flip)

        task = see.BlindTask(net, pictures, pictures[:1], size=2)
        monkeypatch.setattr(task, "_drawn", lambda _step, rng=Rng: (pictures[:2], rng()))
        losses.append(float(task.loss(0).detach()))
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)


def test_training_goes_on_from_weights_and_writes_them_again(pack, tmp_path):
    from kinema4d.train import presets
    from kinema4d.world.small.checkpoint import SHIPPED, load_small

    held_out = pack / "held_out"
    held_out.mkdir(exist_ok=True)
    for file in pack.glob("see-*.npz"):
        (held_out / file.name).write_bytes(file.read_bytes())
    out = tmp_path / "run"
    presets.run("small-segment", pack, out, steps=1, start=Path("small"))
    presets.replaced(SHIPPED, "small-segment", out, tmp_path / "new.safetensors", {"scenes": 3})
    (old, _, _), (new, _, about) = load_small(), load_small(tmp_path / "new.safetensors")
    assert about["small-segment"] == {"steps": 1, "scenes": 3}
    assert torch.equal(old.blind.net.net.state_dict()[k := next(iter(old.blind.net.net.state_dict()))], new.blind.net.net.state_dict()[k])  # fmt: skip
    a, b = (dict(e.segment.named_parameters()) for e in (old, new))
    gaps = [float((a[k] - b[k]).abs().max()) for k in a]
    assert 0 < max(gaps) < 0.1  # a step away from where it started


def test_a_start_is_for_one_network(tmp_path):
    from kinema4d.cli.train import train as command

    with pytest.raises(ValueError, match="--start is for presets of one network"):
        command(preset="small", data=tmp_path, out=tmp_path, start=tmp_path / "a.safetensors")
