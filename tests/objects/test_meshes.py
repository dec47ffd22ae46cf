"""Meshes and sequences out of files, and every file that is none by its name."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import trimesh

from kinema4d.geometry.motion_folder import ply
from kinema4d.objects.meshes import SUFFIXES, read_mesh, read_sequence, wound_both_ways
from kinema4d.objects.solid import Mesh, parts

BOX = trimesh.creation.box([0.2, 0.3, 0.4])
FACES = np.asarray(BOX.faces, np.int64)


def volume(mesh: Mesh) -> float:
    a, b, c = (mesh.vertices[mesh.faces[:, i]] for i in range(3))
    return float(np.einsum("fi,fi->", np.cross(a, b), c) / 6)


def sequence(folder: Path, count: int = 16, suffix: str = "ply") -> Path:
    folder.mkdir()
    for i in range(count):
        moved = trimesh.Trimesh(BOX.vertices + np.array([0.01 * i, 0, 0]), FACES, process=False)
        moved.export(folder / f"{i}.{suffix}")
    return folder


@pytest.mark.parametrize("suffix", [s for s in SUFFIXES if s != ".gltf"])
def test_formats_give_the_same_closed_box(suffix, tmp_path):
    BOX.export(tmp_path / f"box{suffix}")
    mesh = read_mesh(tmp_path / f"box{suffix}")
    assert (len(mesh.vertices), len(mesh.faces)) == (8, 12)  # STL has 36 corners
    assert volume(mesh) == pytest.approx(0.024, rel=1e-5)


def test_a_scene_is_flattened_and_its_parts_stay_apart(tmp_path):
    scene = trimesh.Scene()
    torn = trimesh.Trimesh(BOX.triangles.reshape(-1, 3), np.arange(36).reshape(-1, 3), process=False)
    scene.add_geometry(torn, node_name="a")
    scene.add_geometry(torn, node_name="b", transform=trimesh.transformations.translation_matrix([0.2, 0, 0]))
    scene.add_geometry(torn, node_name="c", transform=np.diag([-1.0, 1, 1, 1]))
    scene.export(tmp_path / "two.glb")
    mesh = read_mesh(tmp_path / "two.glb")
    assert len(mesh.vertices) == 24  # the boxes touch and coincide, and are three all the same
    assert parts(mesh).max() == 2
    assert volume(mesh) == pytest.approx(3 * 0.024, rel=1e-5)
    np.testing.assert_allclose(np.ptp(mesh.vertices, axis=0), [0.4, 0.3, 0.4], rtol=1e-5)


def test_units_axes_and_sides(tmp_path):
    trimesh.Trimesh(1000 * BOX.vertices, FACES[:, ::-1], process=False).export(tmp_path / "mm.ply")
    mesh = read_mesh(tmp_path / "mm.ply", unit="mm", up="y")
    assert volume(mesh) == pytest.approx(0.024, rel=1e-5)  # it was inside out
    np.testing.assert_allclose(np.ptp(mesh.vertices, axis=0), [0.2, 0.4, 0.3], rtol=1e-5)
    with pytest.raises(ValueError, match="400 m large; .* say so with --unit mm"):
        read_mesh(tmp_path / "mm.ply")
    BOX.copy().apply_scale(1e-3).export(tmp_path / "tiny.ply")
    with pytest.raises(ValueError, match="0.0004 m large"):
        read_mesh(tmp_path / "tiny.ply")
    with pytest.raises(ValueError, match="unknown unit 'inch'"):
        read_mesh(tmp_path / "mm.ply", unit="inch")
    assert wound_both_ways(mesh) == 0
    assert wound_both_ways(Mesh(vertices=mesh.vertices, faces=np.concatenate([mesh.faces[:1, ::-1], mesh.faces[1:]]))) > 0  # fmt: skip


def test_bad_meshes_are_named(tmp_path):
    with pytest.raises(ValueError, match="there is no mesh file"):
        read_mesh(tmp_path / "none.glb")
    (tmp_path / "a.txt").write_text("x")
    with pytest.raises(ValueError, match="is no mesh file that is read"):
        read_mesh(tmp_path / "a.txt")
    for name in ("bad.ply", "bad.glb", "bad.obj"):
        (tmp_path / name).write_bytes(b"no mesh at all")
        with pytest.raises(ValueError, match=r"cannot read the mesh file|has no triangles"):
            read_mesh(tmp_path / name)
    nan = BOX.vertices.copy()
    nan[3, 1] = np.nan
    trimesh.Trimesh(nan, FACES, process=False).export(tmp_path / "nan.ply")
    with pytest.raises(ValueError, match="1 vertices that are no numbers"):
        read_mesh(tmp_path / "nan.ply")
    (tmp_path / "flat.ply").write_bytes(ply(np.linspace([0, 0, 0], [1, 1, 1], 8), FACES))
    with pytest.raises(ValueError, match="every triangle .* is flat"):
        read_mesh(tmp_path / "flat.ply")
    line = np.concatenate([BOX.vertices, [[0, 0, 0], [0.1, 0, 0], [0.2, 0, 0]]])
    (tmp_path / "line.ply").write_bytes(ply(line, np.concatenate([FACES, [[8, 9, 10]]])))
    with pytest.raises(ValueError, match="degenerate: its part 1 .1 triangles near 0.1,0,0. has no area"):
        read_mesh(tmp_path / "line.ply")


@pytest.mark.parametrize("suffix", ["ply", "glb", "obj", "stl"])
def test_a_folder_is_read_in_the_order_of_numbers(suffix, tmp_path):
    mesh, poses = read_sequence(sequence(tmp_path / "s", suffix=suffix))
    assert poses.shape == (16, 8, 3)
    np.testing.assert_allclose(mesh.vertices, poses[0], atol=1e-7)
    np.testing.assert_allclose((poses - poses[0])[:, 0, 0], 0.01 * np.arange(16), atol=1e-6)


def test_arrays_and_objects_of_a_data_set(tmp_path):
    poses = np.stack([BOX.vertices + np.array([0, 0, 0.01 * i]) for i in range(20)])
    spare = np.concatenate([poses, np.zeros((20, 1, 3))], 1)  # a vertex that no triangle has
    np.savez(tmp_path / "a.npz", vertices=spare, faces=FACES)
    mesh, got = read_sequence(tmp_path / "a.npz")
    np.testing.assert_allclose(got, poses)
    one = tmp_path / "door-0"
    one.mkdir()
    np.savez(one / "shape.npz", vertices=poses[5], faces=FACES)
    np.savez(one / "poses.npz", poses=poses.astype(np.float32))
    mesh, got = read_sequence(one, unit="m")
    np.testing.assert_allclose(mesh.vertices, poses[5])
    np.testing.assert_allclose(got, poses, atol=1e-6)
    for arrays, says in (
        ({"vertices": poses}, "must hold vertices or poses"),
        ({"vertices": poses[0], "faces": FACES}, "poses are numbers"),
        ({"poses": poses, "faces": FACES + 1}, "triangles of vertices 1 to 8, and 8 vertices"),
        ({"poses": poses, "faces": FACES.astype(float)}, "faces are whole numbers"),
        ({"poses": poses, "faces": FACES, "rest": poses[0, :7]}, "8 vertices in its poses, 7 at rest"),
        ({"poses": poses[:9], "faces": FACES}, "has 9 poses, .* at least 16"),
        ({"poses": np.where(np.arange(20)[:, None, None] == 4, np.nan, poses), "faces": FACES}, "first in pose 4"),
    ):
        np.savez(tmp_path / "b.npz", **arrays)  # pyright: ignore[reportArgumentType]
        with pytest.raises(ValueError, match=says):
            read_sequence(tmp_path / "b.npz")
    (tmp_path / "b.npz").write_bytes(b"PK no zip")
    with pytest.raises(ValueError, match="is not readable"):
        read_sequence(tmp_path / "b.npz")


def test_bad_sequences_are_named(tmp_path):
    folder = sequence(tmp_path / "s")
    (folder / "7.ply").write_bytes(ply(BOX.vertices, FACES[:, [1, 2, 0]]))
    with pytest.raises(ValueError, match=r"topology changes: .*7.ply has other triangles than 0.ply, first triangle 0"):
        read_sequence(folder)
    (folder / "7.ply").write_bytes(ply(BOX.vertices, FACES[:11]))
    with pytest.raises(ValueError, match=r"topology changes: .*7.ply has 11 triangles, 0.ply has 12"):
        read_sequence(folder)
    (folder / "7.ply").write_bytes(ply(np.concatenate([BOX.vertices, [[0, 0, 0]]]), FACES))
    with pytest.raises(ValueError, match=r"topology changes: .*7.ply has 9 vertices, 0.ply has 8"):
        read_sequence(folder)
    (folder / "7.ply").write_bytes(ply(np.where(np.arange(8)[:, None] == 2, np.inf, BOX.vertices), FACES))
    with pytest.raises(ValueError, match=r"7.ply has vertices that are no numbers"):
        read_sequence(folder)
    BOX.export(folder / "7.stl")
    with pytest.raises(ValueError, match=r"several kinds \(.ply, .stl\)"):
        read_sequence(folder)
    with pytest.raises(ValueError, match="has 3 meshes"):
        read_sequence(sequence(tmp_path / "few", 3))
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="has no mesh files"):
        read_sequence(tmp_path / "empty")
    with pytest.raises(ValueError, match="there is no such folder"):
        read_sequence(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="it is one file"):
        read_sequence(tmp_path / "few" / "0.ply")
