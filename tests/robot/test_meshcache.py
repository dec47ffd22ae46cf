"""The mesh cache: the same meshes, sooner; never wrong, never in the way."""

from __future__ import annotations

import numpy as np
import pytest
import trimesh

from kinema4d.robot import meshcache
from kinema4d.robot.meshfile import load_mesh_file


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv(meshcache.VARIABLE, str(tmp_path / "cache"))
    return tmp_path / "cache"


def read(path):
    return load_mesh_file(path, scale=np.array([1.0, 2.0, 1.0]), color=None)


@pytest.mark.parametrize("suffix", ["stl", "ply", "dae"])
def test_a_hit_equals_the_parse(tmp_path, cache, suffix, monkeypatch):
    path = tmp_path / f"m.{suffix}"
    trimesh.creation.icosphere(subdivisions=2).export(path)
    fresh = read(path)
    assert len(list(cache.iterdir())) == 1
    import kinema4d.robot.meshparse

    monkeypatch.setattr(kinema4d.robot.meshparse, "parse", lambda *_: pytest.fail("parsed again"))
    again = read(path)
    for a, b in zip(fresh, again, strict=True):
        np.testing.assert_array_equal(a.vertices, b.vertices)
        np.testing.assert_array_equal(a.faces, b.faces)
        np.testing.assert_array_equal(a.colors, b.colors)
    painted = load_mesh_file(path, scale=np.ones(3), color=(1, 2, 3))
    assert (painted[0].colors == [1, 2, 3]).all()


def test_other_bytes_are_another_mesh(tmp_path, cache):
    path = tmp_path / "m.stl"
    trimesh.creation.box(extents=(1, 1, 1)).export(path)
    read(path)
    trimesh.creation.box(extents=(3, 1, 1)).export(path)
    assert np.ptp(read(path)[0].vertices[:, 0]) == pytest.approx(3)


def test_damage_is_repaired(tmp_path, cache):
    path = tmp_path / "m.stl"
    trimesh.creation.box().export(path)
    read(path)
    kept = next(cache.iterdir())
    for damage in (b"", b"nonsense", kept.read_bytes()[:-40]):
        kept.write_bytes(damage)
        assert len(read(path)[0].faces) == 12
        assert kept.stat().st_size > 100


def test_files_that_do_not_stand_alone_are_not_kept(tmp_path, cache):
    (tmp_path / "m.obj").write_text("mtllib m.mtl\nv 0 0 0\nv 1 0 0\nv 0 1 0\nusemtl x\nf 1 2 3\n")
    for r, wanted in (("1 0 0", (255, 0, 0)), ("0 1 0", (0, 255, 0))):
        (tmp_path / "m.mtl").write_text(f"newmtl x\nKd {r}\n")
        assert tuple(read(tmp_path / "m.obj")[0].colors[0]) == wanted
    assert not cache.exists()


def test_where_it_lies(tmp_path, monkeypatch):
    monkeypatch.delenv(meshcache.VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert meshcache.folder() == tmp_path / "kinema4d" / "meshes"
    monkeypatch.delenv("XDG_CACHE_HOME")

    def nobody():
        raise RuntimeError("no home")

    monkeypatch.setattr("pathlib.Path.home", nobody)
    assert meshcache.folder() is None


def test_it_can_be_off_or_unwritable(tmp_path, monkeypatch):
    path = tmp_path / "m.stl"
    trimesh.creation.box().export(path)
    monkeypatch.setenv(meshcache.VARIABLE, "")
    assert meshcache.folder() is None
    assert len(read(path)[0].faces) == 12
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv(meshcache.VARIABLE, str(tmp_path / "file"))
    assert len(read(path)[0].faces) == 12
