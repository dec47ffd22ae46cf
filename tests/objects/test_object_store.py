"""A fitted object comes back from its folder as it was, and a damaged folder says so."""

from __future__ import annotations

import json

import numpy as np
import pytest

pytest.importorskip("torch", reason="objects need torch: pip install 'kinema4d[world]'")
import torch
import trimesh

from kinema4d.objects.fit import Fitted
from kinema4d.objects.reduce import Freedom
from kinema4d.objects.solid import Mesh, quadrature
from kinema4d.objects.store import is_fitted_folder, load_fitted, save_fitted


@pytest.fixture(scope="module")
def fitted() -> Fitted:
    """A leaf on a post, on a hinge about z."""
    post, leaf = trimesh.creation.box([0.1, 0.1, 1.0]), trimesh.creation.box([0.5, 0.04, 0.9])
    vertices = np.concatenate([post.vertices, leaf.vertices + np.array([0.3, 0.0, 0.0])])
    mesh = Mesh(vertices=np.asarray(vertices, np.float64), faces=np.concatenate([post.faces, leaf.faces + 8]).astype(np.int64))  # fmt: skip
    twists = np.zeros((2, 1, 6))
    twists[1, 0, 2] = 1.0
    found = Freedom(count=1, errors=(1e-5,), ratios=(), why="one hinge")
    return Fitted(
        mesh=mesh, weighed=quadrature(mesh), piece=np.repeat([0, 1], 8), twists=twists, freedom=found,
        reach=np.array([[-1.5, 1.5]]), errors=np.array([1e-5]),
    )  # fmt: skip


def test_it_comes_back_as_it_was(fitted, tmp_path):
    assert not is_fitted_folder(tmp_path)
    folder = save_fitted(fitted, tmp_path / "door", about={"seed": 3})
    assert sorted(f.name for f in tmp_path.iterdir()) == ["door"]
    assert sorted(f.name for f in folder.iterdir()) == ["fitted.npz", "meta.json"]
    assert is_fitted_folder(folder)
    back = load_fitted(folder)
    for name in ("piece", "twists", "reach", "errors"):
        np.testing.assert_array_equal(getattr(back, name), getattr(fitted, name))
    np.testing.assert_array_equal(back.mesh.faces, fitted.mesh.faces)
    assert back.freedom == fitted.freedom
    q = torch.tensor([[0.7]], dtype=torch.float64)
    torch.testing.assert_close(back.vertices(q), fitted.vertices(q), rtol=0, atol=0)
    torch.testing.assert_close(back.body().shape(q), fitted.body().shape(q), rtol=0, atol=0)
    torch.testing.assert_close(back.body().mass, fitted.body().mass, rtol=0, atol=0)


def test_only_our_own_folder_is_replaced(fitted, tmp_path):
    save_fitted(fitted, tmp_path / "door")
    with pytest.raises(ValueError, match="exists; pass overwrite"):
        save_fitted(fitted, tmp_path / "door")
    save_fitted(fitted, tmp_path / "door", overwrite=True)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("")
    with pytest.raises(ValueError, match="did not write it"):
        save_fitted(fitted, tmp_path / "mine", overwrite=True)
    with pytest.raises(ValueError, match="not JSON compliant"):
        save_fitted(fitted, tmp_path / "half", about={"x": float("nan")})
    assert not (tmp_path / "half").exists()


def test_damage_is_named(fitted, tmp_path):
    folder = save_fitted(fitted, tmp_path / "door")
    with pytest.raises(ValueError, match="is not a fitted object: it has no meta.json"):
        load_fitted(tmp_path)
    meta = json.loads((folder / "meta.json").read_text())
    for change, says in (
        ({"kind": "object-motion"}, "is not of a fitted object"),
        ({"version": 2}, "has version 2"),
        ({"freedom": {"count": 1}}, "must hold count, errors, ratios and why"),
        ({"sha256": []}, "'sha256' must be an object"),
    ):
        (folder / "meta.json").write_text(json.dumps({**meta, **change}))
        with pytest.raises(ValueError, match=says):
            load_fitted(folder)
    (folder / "meta.json").write_text("{")
    with pytest.raises(ValueError, match="not readable as JSON"):
        load_fitted(folder)
    (folder / "meta.json").write_text(json.dumps(meta))
    data = (folder / "fitted.npz").read_bytes()
    (folder / "fitted.npz").write_bytes(data[:-40])
    with pytest.raises(ValueError, match="was changed after it was written"):
        load_fitted(folder)
    (folder / "fitted.npz").unlink()
    with pytest.raises(ValueError, match=r"fitted.npz is missing"):
        load_fitted(folder)
