"""Packs and the training of the diffusion transformer alone, on a handful of episodes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="training needs torch: pip install 'kinema4d[world]'")
import torch

from kinema4d.data.dataset import open_dataset
from kinema4d.data.generate import Recipe, generate
from kinema4d.train import direct, direct_pack, moves
from kinema4d.train.groups import split
from kinema4d.train.loop import Plan, train
from kinema4d.world.small.contact import lens_of
from kinema4d.world.small.diffusion import DiffusionNet
from kinema4d.world.small.diffusion_config import DiffusionConfig
from kinema4d.world.small.moves import Moves
from kinema4d.world.small.painter import painter_config
from kinema4d.world.small.patches import scale_of, unit

CONFIG = DiffusionConfig(height=24, width=40, patch=(4, 8, 8), channels=48, layers=2, heads=4)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("direct") / "data"
    generate(
        root, Recipe(episodes=3, failures=0, robots=("k4arm",), tasks=("push",), seed=5, height=48, width=80), workers=1
    )
    return root


@pytest.fixture(scope="module")
def takes(data: Path) -> list[direct_pack.Take]:
    return direct_pack.read_pack(direct_pack.make_pack(data.parent / "pack", data, CONFIG, workers=1))


def test_a_take_is_the_episode_at_the_model_s_size(data: Path, takes: list[direct_pack.Take]):
    dataset = open_dataset(data)
    episode, take = dataset.load(dataset.ids[0]), takes[0]
    assert take.rgb.shape == (49, 24, 40, 3)
    halves = episode.clip.rgb[5].reshape(24, 2, 40, 2, 3).mean(axis=(1, 3))
    assert np.abs(take.rgb[5] - halves).max() <= 1
    np.testing.assert_allclose(take.points, episode.clip.pointmap.points[:, 1::2, 1::2], atol=2e-3)
    assert episode.robot_mask is not None
    assert (take.there == episode.robot_mask[:, 1::2, 1::2]).mean() > 0.999
    assert take.text == episode.text
    assert take.changed[1:].any()
    assert not (take.changed & take.there).any()


def test_packs_go_on_and_are_of_one_size(data: Path, takes: list[direct_pack.Take], tmp_path: Path):
    paths = direct_pack.make_pack(tmp_path / "pack", data, CONFIG, workers=1)
    stamp = paths[0].stat().st_mtime_ns
    assert direct_pack.make_pack(tmp_path / "pack", data, CONFIG, workers=1) == paths
    assert paths[0].stat().st_mtime_ns == stamp
    with pytest.raises(ValueError, match="holds a pack made for .*24.* use another folder"):
        direct_pack.make_pack(tmp_path / "pack", data, replace(CONFIG, height=48))
    with pytest.warns(UserWarning, match="learns from 25 frames"):
        paths = direct_pack.make_pack(tmp_path / "other", data, replace(CONFIG, frames=25), workers=1)
    with pytest.raises(ValueError, match="no episode of this data set"):
        direct_pack.read_pack(paths)


def test_episodes_of_a_pack_are_read_when_they_are_needed(data: Path, takes: list[direct_pack.Take]):
    kept = direct_pack.index_pack(direct_pack.make_pack(data.parent / "pack", data, CONFIG, workers=1))
    assert [(k.group, k.robot_name) for k in kept] == [(t.group, t.robot_name) for t in takes]
    np.testing.assert_array_equal(kept[1].take().rgb, takes[1].rgb)
    tasks = [direct.DirectTask(DiffusionNet(CONFIG), some, some) for some in (kept, takes)]
    losses = []
    for task in tasks:
        torch.manual_seed(0)
        task.model.load_state_dict(tasks[0].model.state_dict())
        losses.append(float(task.loss(3).detach()))
    assert losses[0] == losses[1]


def test_a_mirrored_take_is_mirrored_in_space(takes: list[direct_pack.Take]):
    take = takes[0]
    other = direct.mirrored(take)
    np.testing.assert_array_equal(other.rgb[:, :, 0], take.rgb[:, :, -1])
    np.testing.assert_array_equal(other.points[3, 4, 0, 0], -take.points[3, 4, -1, 0])
    assert all(
        getattr(other, n).dtype == getattr(take, n).dtype for n in ("rgb", "points", "robot", "there", "changed")
    )
    again = direct.mirrored(other)
    np.testing.assert_array_equal(again.points, take.points)
    a, b = (unit(t.robot[t.there].astype(np.float32), scale_of(t.scene)) for t in (take, other))
    assert b.min() >= -1.001
    assert a.shape == b.shape


def test_a_mirrored_hand_is_the_hand_in_the_mirror(takes: list[direct_pack.Take]):
    """Position and turn go through the same mirror as points do; the hand's own left and right change places."""
    take = takes[0]
    other = direct.mirrored(take)
    mirror = np.diag([-1.0, 1, 1])
    for mine, theirs in zip(take.actions, other.actions, strict=True):
        a, b = (np.stack([x[3:6], x[6:9], np.cross(x[3:6], x[6:9])], axis=1) for x in (mine, theirs))
        np.testing.assert_allclose(b, mirror @ a @ mirror, atol=1e-5)
        np.testing.assert_allclose(theirs[:3], mirror @ mine[:3], atol=1e-6)
        assert mine[9] == theirs[9]
    near = np.linalg.norm(take.robot.astype(np.float32) - take.actions[:, None, None, :3], axis=-1)[take.there]
    assert near.min() < 0.1  # the hand is told where the camera sees it


def test_a_tint_is_one_for_all_frames_and_for_the_robot(takes: list[direct_pack.Take]):
    take = takes[0]
    other = direct.tinted(take, np.random.default_rng(0))
    ratio = other.rgb.astype(float).sum((1, 2)) / take.rgb.astype(float).sum((1, 2))
    assert np.ptp(ratio, axis=0).max() < 0.02
    assert abs(ratio - 1).max() > 0.02
    np.testing.assert_array_equal(other.points, take.points)
    assert (other.robot_rgb != take.robot_rgb).any()


def test_what_moved_has_gone_where_the_track_says(data: Path):
    """Pixels of a pushed thing look at the end, where the track has taken them, as they did in the first frame."""
    dataset, size = open_dataset(data), replace(CONFIG, height=48, width=80)
    every = [direct_pack.take_of(dataset.load(id), size) for id in dataset.ids]
    most = max(every, key=lambda t: 0 if t.away is None else float(np.abs(t.away[-1].astype(np.float32)).sum()))
    for take in (most, direct.mirrored(most)):
        assert take.away is not None
        assert not take.away[0].any()
        fx, cx, fy, cy = lens_of(take.environment)
        pairs = []
        for t in range(1, 49):
            away = take.away[t].astype(np.float32)
            gone = np.linalg.norm(away, axis=-1) > 0.02
            x, y, z = (take.points[0].astype(np.float32) + away)[gone].T
            at = t, np.round(fy * y / z + cy).astype(int).clip(0, 47), np.round(fx * x / z + cx).astype(int).clip(0, 79)
            seen = ~take.there[at] & (
                np.abs(take.points[(*at, 2)].astype(np.float32) - z) < 0.01
            )  # neither hidden nor a rim
            every = take.rgb[at], take.rgb[0][gone], take.rgb[(0, *at[1:])]
            pairs.append([colour[seen].astype(int) for colour in every])
        here, before, stayed = (np.concatenate(c) for c in zip(*pairs, strict=True))
        assert len(here) > 10
        assert np.median(np.abs(here - before)) < 0.5 * np.median(np.abs(here - stayed))


def test_moves_are_taught_in_the_unit_of_the_model(takes: list[direct_pack.Take]):
    take = takes[0]
    metres = np.zeros((49, 24, 40, 3), np.float16)
    metres[7, 8, 16] = (0.1, 0, 0)
    away = moves.away_of(replace(take, away=metres), CONFIG)
    assert away.shape == (1, 13, 4, 24 * 40, 3)
    extent = float(np.ptp(unit(np.array([[0, 0, 0], [0.1, 0, 0]], np.float32), scale_of(take.scene))[:, 0]))
    assert float(away[0, 2, 2, 8 * 40 + 16, 0]) == pytest.approx(extent, rel=1e-3)  # frames 5 to 8 are the second group
    assert int((away != 0).sum()) == 1
    assert moves.away_of(replace(take, away=None), CONFIG).isnan().all()


def test_moves_learn_first_and_go_on_exactly(takes: list[direct_pack.Take], tmp_path: Path):
    def task() -> moves.MovesTask:
        torch.manual_seed(0)
        return moves.MovesTask(Moves(replace(CONFIG, control="mixed")), takes[:2], takes[2:], size=2)

    one = task()
    known, away = one.batch(3)
    assert known.mask.shape[1] == 2 * 3 * 3 * 5  # two groups after the first, of both domains
    assert torch.equal(away.nan_to_num(), one.batch(3)[1].nan_to_num())
    plan = Plan(steps=12, rate=2e-3, warmup=2, validate_every=1000, log_every=1000, save_every=0)
    whole = train(one, plan, tmp_path / "a", config={"test": 3})
    figures = one.validate(whole)
    assert {"moved_cm", "first_moved_cm", "sure", "sure_stayed", "overlap"} <= figures.keys()
    half = task()
    with pytest.raises(KeyboardInterrupt):
        train(_Stops(half, 5), plan, tmp_path / "b", config={"test": 3})
    other = train(task(), plan, tmp_path / "b", config={"test": 3})
    for (name, a), b in zip(whole.state_dict().items(), other.state_dict().values(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0, msg=name)


def test_some_groups_of_frames_are_those_frames(takes: list[direct_pack.Take]):
    part, config = direct.some_groups(takes[0], [0, 2, 12], CONFIG)
    assert config.frames == len(part.rgb) == 9
    np.testing.assert_array_equal(part.rgb, takes[0].rgb[[0, 5, 6, 7, 8, 45, 46, 47, 48]])
    assert part.scale is not None
    assert np.array_equal(part.scale.minimum, scale_of(takes[0].scene).minimum)  # that of the whole clip
    task = direct.DirectTask(DiffusionNet(CONFIG), takes, takes)
    known, target, weight = task._batch(takes[:1], CONFIG, [0, 2, 12], 0)
    assert set(known.where[0, :, 0].tolist()) == {0, 2, 12}
    assert target.shape == weight.shape


def test_far_points_count_less(takes: list[direct_pack.Take]):
    take = takes[0]
    weight = direct.weights_of(take, CONFIG)
    colour, points = weight.chunk(2, 1)
    assert (points <= colour).all()
    far = take.points[..., 2] > 2 * np.median(take.points[..., 2][take.there])
    if far[1:].any():
        from kinema4d.world.small.patches import joined

        own = joined(points, CONFIG)[0, ..., 0].numpy()
        assert own[1:][far[1:]].max() <= 4 * 0.26


def test_scenes_are_split_whole(takes: list[direct_pack.Take]):
    mine, held_out = split(takes)
    assert len(mine) + len(held_out) == len(takes)
    assert not {t.group for t in mine} & {t.group for t in held_out}
    with pytest.raises(ValueError, match="at least 2"):
        split(takes[:1])


def test_training_lowers_the_loss_and_goes_on_exactly(takes: list[direct_pack.Take], tmp_path: Path):
    def run(steps: int, out: Path) -> DiffusionNet:
        torch.manual_seed(0)
        task = direct.DirectTask(DiffusionNet(CONFIG), takes[:2], takes[2:], size=2)
        plan = Plan(steps=steps, rate=2e-3, warmup=5, validate_every=1000, log_every=1000, save_every=0)
        net = train(task, plan, out, config={"test": 1})
        assert isinstance(net, DiffusionNet)
        return net

    first = DiffusionNet(CONFIG)
    net = run(30, tmp_path / "a")

    def loss_of(model: DiffusionNet) -> float:
        torch.manual_seed(1)
        with torch.no_grad():
            return float(direct.DirectTask(model, takes[:2], takes[2:], size=2).loss(999))

    assert loss_of(net) < 0.8 * loss_of(first)
    plan = Plan(steps=30, rate=2e-3, warmup=5, validate_every=1000, log_every=1000, save_every=0)
    half = direct.DirectTask(DiffusionNet(CONFIG), takes[:2], takes[2:], size=2)
    torch.manual_seed(0)
    half.model.load_state_dict(_started().state_dict())
    stopped = _Stops(half, 12)
    with pytest.raises(KeyboardInterrupt):
        train(stopped, plan, tmp_path / "b", config={"test": 1})
    other = train(half, plan, tmp_path / "b", config={"test": 1})
    for (name, a), b in zip(net.state_dict().items(), other.state_dict().values(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0, msg=name)
    figures = direct.DirectTask(net, takes[:2], takes[2:]).validate(net)
    assert {"psnr", "changed_psnr", "robot_psnr", "first_psnr", "points_cm"} <= figures.keys()


def test_painters_learn_from_what_the_small_world_draws(data: Path, tmp_path: Path):
    config = painter_config(height=24, width=40, channels=48, layers=2)
    takes = direct_pack.read_pack(direct_pack.make_pack(tmp_path / "pack", data, config, most=2, workers=1))
    assert len(takes) == 2
    take = takes[0]
    assert take.prior_rgb is not None
    assert take.prior_known is not None
    np.testing.assert_array_equal(take.prior_rgb[0], take.rgb[0])
    truth = np.abs(take.prior_rgb.astype(int) - take.rgb).mean()
    assert truth < np.abs(take.rgb[:1].astype(int) - take.rgb).mean()  # better than nothing moving
    with pytest.raises(ValueError, match="use another folder"):
        direct_pack.make_pack(tmp_path / "pack", data, replace(config, prior=False, attention="split"))
    torch.manual_seed(0)
    task = direct.DirectTask(DiffusionNet(config), takes, takes, size=2)
    known, target, _ = task._batch(takes, task.model.config, [0, 3, 9], 0)
    assert target.shape[1] == known.first.shape[1] == 2 * direct.PAINTED
    before = task.validate(task.model)
    assert before["changed_psnr"] == pytest.approx(before["prior_changed_psnr"], abs=1e-3)  # it starts as the prior
    plan = Plan(steps=30, rate=3e-3, warmup=5, validate_every=1000, log_every=1000, save_every=1000)
    net = train(task, plan, tmp_path / "run", config={"test": 2})
    after = task.validate(net)
    assert after["changed_psnr"] > before["changed_psnr"]


def _started() -> DiffusionNet:
    torch.manual_seed(0)
    return DiffusionNet(CONFIG)


class _Stops:
    """A task that is killed at a step."""

    def __init__(self, task: direct.DirectTask | moves.MovesTask, at: int) -> None:
        self.task, self.at, self.model = task, at, task.model

    def loss(self, step: int) -> torch.Tensor:
        if step == self.at:
            raise KeyboardInterrupt
        return self.task.loss(step)

    def validate(self, model: torch.nn.Module) -> dict[str, float]:
        return self.task.validate(model)
