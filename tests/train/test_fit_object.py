"""One object from its own deforming mesh: its degrees of freedom are found, and it moves as MuJoCo moves it."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch", reason="objects need torch: pip install 'kinema4d[world]'")
pytest.importorskip("mujoco", reason="jointed objects are moved by MuJoCo: pip install 'kinema4d[mjcf]'")
import torch

from kinema4d.objects.body import at_rest
from kinema4d.objects.lagrange import Conditions, simulate
from kinema4d.objects.solid import Mesh
from kinema4d.scenes.jointed import draw, some_poses, swing
from kinema4d.train.fit_object import FitPlan, fit


def test_a_laptop_has_one_degree_of_freedom_and_falls_shut_as_it_does():
    thing = draw("laptop", 0)
    mesh = Mesh(vertices=thing.posed(np.zeros(1)), faces=thing.faces)
    got = fit(mesh, thing.posed(some_poses(thing, 300, 1)), FitPlan(steps=900, width=96))
    assert got.freedom.count == 1, got.freedom.why
    assert got.error < 0.005
    start = np.array([0.5])
    every = np.concatenate([thing.posed(start), got.weighed.points(thing.posed(start))])
    q = got.net.encode(torch.from_numpy((every - got.centre) / got.scale)[None])[0][:, :1]
    made = simulate(got.body(), at_rest(got.body(), q), Conditions(), seconds=0.12)
    assert made.stopped is None
    truth = thing.posed(swing(thing, start, np.zeros(1), seconds=0.12))
    off = np.linalg.norm(got.vertices(made.states[-1].q)[0].numpy() - truth[-1], axis=-1).mean() / mesh.size
    went = np.linalg.norm(truth[0] - truth[-1], axis=-1).mean() / mesh.size
    assert off < 0.15 * went < 0.15


def test_what_cannot_be_fitted_is_refused():
    thing = draw("laptop", 0)
    mesh = Mesh(vertices=thing.posed(np.zeros(1)), faces=thing.faces)
    poses = thing.posed(some_poses(thing, 20, 1))
    with pytest.raises(ValueError, match=r"poses are \[t,16,3\] for this mesh, got .*its topology must not change"):
        fit(mesh, poses[:, :10])
    with pytest.raises(ValueError, match="at least 16 poses, got 5"):
        fit(mesh, poses[:5])
    poses[3, 2, 0] = np.nan
    with pytest.raises(ValueError, match="vertices that are no numbers"):
        fit(mesh, poses)
