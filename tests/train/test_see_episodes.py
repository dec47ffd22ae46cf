"""Pictures out of recorded episodes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from kinema4d.data.generate import Recipe, generate
from kinema4d.geometry.camera import project
from kinema4d.geometry.se3 import apply, invert
from kinema4d.train.see import CompleteTask, SegmentTask
from kinema4d.train.see_episodes import SIZE, add_episodes, furniture_of, pictures_from
from kinema4d.train.see_pack import ROBOT, read_pack
from kinema4d.world.small.complete import CompleteConfig, CompleteNet
from kinema4d.world.small.parts import JOINTS
from kinema4d.world.small.see import SeeConfig, SegmentNet


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    root = tmp_path_factory.mktemp("episodes") / "pushes"
    recipe = Recipe(episodes=1, robots=("k4arm",), tasks=("push",), failures=0, seed=5, height=96, width=168)
    generate(root, recipe, workers=1)
    return root


@pytest.fixture(scope="module")
def episode(data):
    from kinema4d.data.dataset import open_dataset

    dataset = open_dataset(data)
    return dataset.load(dataset.rows[0].id)


def test_pictures_show_the_things_where_their_middles_are(episode):
    pictures = pictures_from(episode, count=3)
    assert len(pictures) == 3
    for p in pictures:
        assert p.rgb.shape == (*SIZE, 3)
        assert (p.ids == ROBOT).any()
        for i in range(len(p.joint)):
            uv = project(p.camera.K, apply(invert(p.camera.T_world_camera), p.middle[i : i + 1]))[0]
            v, u = np.nonzero(p.ids == i + 1)
            assert np.abs(uv - [u.mean(), v.mean()]).max() < 12  # a pixel of 192 rows is about 4 mm
        table = (p.ids == 0) & (p.depth > 0)
        assert table.any()


def test_furniture_and_its_parts_stand_still(episode):
    a, b = [n for n in episode.label_names if n in {t.name for t in episode.tracks}][:2]
    other = {a: "cabinet_1", b: "cabinet_1_top"}
    renamed = replace(
        episode,
        label_names=tuple(other.get(n, n) for n in episode.label_names),
        tracks=tuple(replace(t, name=other.get(t.name, t.name)) for t in episode.tracks if t.name != a),
    )
    assert furniture_of(renamed) == {"cabinet_1", "cabinet_1_top"}
    assert furniture_of(episode) == set()
    before, after = ({int(j) for p in pictures_from(e, count=1) for j in p.joint} for e in (episode, renamed))
    assert before == {JOINTS.index("free")}
    assert JOINTS.index("fixed") in after


def test_a_raised_support_makes_no_difference(episode):
    camera = episode.clip.camera
    T = camera.T_world_camera.copy()
    T[2, 3] += 0.9
    raised = replace(episode, clip=replace(episode.clip, camera=replace(camera, T_world_camera=T)))
    a, b = (pictures_from(e, count=1)[0] for e in (episode, raised))
    np.testing.assert_allclose(a.middle, b.middle, atol=2e-3)
    np.testing.assert_allclose(a.camera.T_world_camera, b.camera.T_world_camera, atol=2e-3)


def test_the_segmenter_learns_from_them_and_completion_leaves_them(data, tmp_path):
    (shard,) = add_episodes(tmp_path, data, workers=1)
    made = shard.stat().st_mtime_ns
    assert add_episodes(tmp_path, data, workers=1) == (shard,)
    assert shard.stat().st_mtime_ns == made
    pictures = read_pack(tmp_path)
    torch.manual_seed(0)
    task = SegmentTask(SegmentNet(SeeConfig(widths=(8, 16))), pictures, pictures, size=2)
    assert torch.isfinite(task.loss(0))
    assert task.validate(task.model)["overlap"] >= 0
    with pytest.raises(ValueError, match="unseen sides"):
        CompleteTask(CompleteNet(CompleteConfig(width=16, code=16)), pictures, pictures, size=2)


def test_an_episode_without_labels_is_refused(episode):
    with pytest.raises(ValueError, match="no labels"):
        pictures_from(replace(episode, labels=None, label_names=()))
