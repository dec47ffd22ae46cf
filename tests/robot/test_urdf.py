"""URDF: everything a file may say, and a clear word about everything it may not."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import trimesh
from PIL import Image

from kinema4d.robot.kinematics import forward_kinematics
from kinema4d.robot.model import PRISMATIC, REVOLUTE
from kinema4d.robot.urdf import load_urdf


def write(folder: Path, body: str, name: str = "robot.urdf") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(f'<robot name="test">{body}</robot>')
    return path


def joint(
    name: str, parent: str, child: str, kind: str = "revolute", extra: str = '<limit lower="-1" upper="1"/>'
) -> str:
    return f'<joint name="{name}" type="{kind}"><parent link="{parent}"/><child link="{child}"/><axis xyz="0 0 1"/>{extra}</joint>'


def mesh_link(filename: str, extra: str = "", material: str = "") -> str:
    return (
        f'<link name="a"><visual><geometry><mesh filename="{filename}" {extra}/></geometry>{material}</visual></link>'
    )


def box_file(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    trimesh.creation.box(extents=(1, 2, 3)).export(path)
    return path


@pytest.mark.parametrize("suffix", ["stl", "obj", "glb", "ply", "dae"])
def test_mesh_formats_and_scale(tmp_path, suffix):
    box_file(tmp_path / f"m.{suffix}")
    robot = load_urdf(write(tmp_path, mesh_link(f"m.{suffix}", 'scale="0.1 0.1 0.2"')))
    vertices = np.concatenate([v.mesh.vertices for v in robot.visuals])
    np.testing.assert_allclose(np.ptp(vertices, axis=0), [0.1, 0.2, 0.6], atol=1e-9)
    assert sum(len(v.mesh.faces) for v in robot.visuals) == 12


def test_paths_relative_file_package_and_spaces(tmp_path):
    mesh = box_file(tmp_path / "ws" / "my_pack" / "mesh es" / "m.stl")
    urdf = tmp_path / "ws" / "my_pack" / "urdf"
    for name in (
        "../mesh es/m.stl",
        f"file://{mesh}",
        str(mesh),
        "package://my_pack/mesh es/m.stl",
        "package://my_pack/mesh%20es/m.stl",
    ):
        assert len(load_urdf(write(urdf, mesh_link(name))).visuals) == 1
    elsewhere = write(tmp_path / "other", mesh_link("package://my_pack/mesh es/m.stl"))
    assert len(load_urdf(elsewhere, packages=[tmp_path / "ws"]).visuals) == 1
    with pytest.raises(ValueError, match=r"cannot find package://my_pack.*--packages"):
        load_urdf(elsewhere)


def test_materials_colour_and_texture(tmp_path):
    box_file(tmp_path / "m.stl")
    shared = '<material name="red"><color rgba="1 0 0 1"/></material>'
    robot = load_urdf(write(tmp_path, shared + mesh_link("m.stl", material='<material name="red"/>')))
    assert (robot.visuals[0].mesh.colors == [255, 0, 0]).all()
    Image.fromarray(np.full((4, 4, 3), (10, 200, 30), np.uint8)).save(tmp_path / "t.png")
    painted = '<material name="p"><texture filename="t.png"/></material>'
    robot = load_urdf(write(tmp_path, mesh_link("m.stl", material=painted)))
    assert (robot.visuals[0].mesh.colors == [10, 200, 30]).all()  # no uv: the texture's mean


def test_obj_with_material_and_texture(tmp_path):
    Image.fromarray(np.full((4, 4, 3), (7, 8, 9), np.uint8)).save(tmp_path / "t.png")
    (tmp_path / "m.mtl").write_text("newmtl x\nKd 1 1 1\nmap_Kd t.png\n")
    (tmp_path / "m.obj").write_text(
        "mtllib m.mtl\nv 0 0 0\nv 1 0 0\nv 0 1 0\nvt 0 0\nvt 1 0\nvt 0 1\nusemtl x\nf 1/1 2/2 3/3\n"
    )
    mesh = load_urdf(write(tmp_path, mesh_link("m.obj"))).visuals[0].mesh
    assert mesh.texture is not None
    assert tuple(mesh.texture[0, 0]) == (7, 8, 9)
    assert mesh.uvs is not None


def test_primitives_and_origins(tmp_path):
    shapes = (
        '<box size="1 2 3"/>',
        '<cylinder radius="0.5" length="2"/>',
        '<sphere radius="0.5"/>',
        '<capsule radius="0.2" length="1"/>',
    )
    extents = [1, 2, 3], [1, 1, 2], [1, 1, 1], [0.4, 0.4, 1.4]
    for shape, extent in zip(shapes, extents, strict=True):
        body = f'<link name="a"><visual><origin xyz="1 0 0"/><geometry>{shape}</geometry></visual></link>'
        v = load_urdf(write(tmp_path, body)).visuals[0].mesh.vertices
        np.testing.assert_allclose(np.ptp(v, axis=0), extent, atol=0.02)
        np.testing.assert_allclose((v.max(axis=0) + v.min(axis=0)) / 2, [1, 0, 0], atol=0.02)


def test_joint_kinds_limits_and_mimic_chains(tmp_path):
    body = "".join(f'<link name="{n}"/>' for n in "abcdef")
    body += joint("j1", "a", "b")
    body += joint("j2", "b", "c", "continuous", "")
    body += joint("j3", "c", "d", "prismatic", '<limit lower="0" upper="0.1" velocity="0.3"/>')
    body += joint("j4", "d", "e", extra='<limit lower="-9" upper="9"/><mimic joint="j1" multiplier="-2" offset="0.1"/>')
    body += joint("j5", "e", "f", extra='<limit lower="-9" upper="9"/><mimic joint="j4" multiplier="0.5" offset="1"/>')
    robot = load_urdf(write(tmp_path, body))
    assert robot.joint_names == ("j1", "j2", "j3")
    np.testing.assert_array_equal(robot.kind, [0, REVOLUTE, REVOLUTE, PRISMATIC, REVOLUTE, REVOLUTE])
    np.testing.assert_array_equal(robot.lower, [-1, -np.inf, 0])
    np.testing.assert_array_equal(robot.upper, [1, np.inf, 0.1])
    np.testing.assert_array_equal(robot.velocity, [np.inf, np.inf, 0.3])
    Ts = forward_kinematics(robot, np.array([[0.3, 0.2, 0.05]]))[0]
    # all axes are z: angles add up. j4 = -2*0.3 + 0.1 = -0.5, j5 = 0.5*j4 + 1 = 0.75
    angle = 0.3 + 0.2 - 0.5 + 0.75
    np.testing.assert_allclose(Ts[5, :2, 0], [np.cos(angle), np.sin(angle)], atol=1e-12)
    assert Ts[5, 2, 3] == pytest.approx(0.05)


TWO = '<link name="a"/><link name="b"/>'


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("", "has no <link>"),
        ('<link name="a"/><link name="a"/>', "two links named 'a'"),
        ("<link/>", "lacks the attribute 'name'"),
        (TWO, "2 root links"),
        (TWO + joint("j", "a", "zz"), "refers to link 'zz'"),
        (TWO + joint("j", "a", "b") + joint("j", "b", "a"), "two joints named 'j'"),
        (TWO + joint("j", "a", "b") + joint("k", "b", "a"), "no root link: its joints form a cycle"),
        (TWO + '<link name="c"/>' + joint("j", "a", "b") + joint("k", "c", "b"), "two parents"),
        (TWO + '<link name="c"/>' + joint("j", "b", "c") + joint("k", "c", "b"), "has a cycle"),
        (TWO + joint("j", "a", "b", "floating"), "type 'floating'; supported are fixed"),
        (TWO + joint("j", "a", "b", extra=""), "no <limit>"),
        (TWO + joint("j", "a", "b", extra='<limit lower="2" upper="1"/>'), "lower limit 2 above upper limit 1"),
        (TWO + joint("j", "a", "b", extra='<limit lower="nan" upper="1"/>'), "lower must be finite"),
        (
            TWO + joint("j", "a", "b", extra='<limit lower="0" upper="1"/><mimic joint="q"/>'),
            "mimics 'q', which does not exist",
        ),
        (TWO + joint("j", "a", "b", extra='<limit lower="0" upper="1"/><mimic joint="j"/>'), "mimics itself"),
        (TWO + '<joint name="j" type="fixed"><child link="b"/></joint>', "has no <parent>"),
        (
            TWO + '<joint name="j" type="fixed"><parent link="a"/><child link="b"/><origin xyz="1 2"/></joint>',
            "3 finite numbers",
        ),
        (
            TWO + '<joint name="j" type="fixed"><parent link="a"/><child link="b"/><origin rpy="0 0 up"/></joint>',
            "not a list of numbers",
        ),
        (
            TWO + '<joint name="j" type="revolute"><parent link="a"/><child link="b"/><axis xyz="0 0 0"/></joint>',
            "zero axis",
        ),
        (mesh_link("gone.stl"), "gone.stl does not exist"),
        (mesh_link("http://example.org/m.stl"), "scheme 'http'"),
        (mesh_link("secret.txt"), "does not exist|not a geometry file"),
        ('<link name="a"><visual><geometry/></visual></link>', "no <geometry>"),
        ('<link name="a"><visual><geometry><torus/></geometry></visual></link>', "unknown geometry <torus>"),
        ('<link name="a"><visual><geometry><box size="1 -1 1"/></geometry></visual></link>', "sizes must be positive"),
        ('<link name="a"><visual><geometry><sphere/></geometry></visual></link>', "lacks the attribute 'radius'"),
    ],
)
def test_bad_files_are_named(tmp_path, body, message):
    with pytest.raises(ValueError, match=message) as error:
        load_urdf(write(tmp_path, body))
    assert "robot.urdf" in str(error.value)


def test_not_xml_not_urdf_not_there(tmp_path):
    path = tmp_path / "x.urdf"
    path.write_text("<robot><link")
    with pytest.raises(ValueError, match="not well-formed XML"):
        load_urdf(path)
    path.write_text("<sdf/>")
    with pytest.raises(ValueError, match="root element, got <sdf>"):
        load_urdf(path)
    with pytest.raises(ValueError, match="cannot read URDF"):
        load_urdf(tmp_path / "none.urdf")
    path.write_text('<!DOCTYPE r [<!ENTITY x SYSTEM "file:///etc/passwd">]><robot name="&x;"><link name="a"/></robot>')
    with pytest.raises(ValueError, match="not well-formed XML"):
        load_urdf(path)


def test_only_geometry_files_are_ever_opened(tmp_path):
    secret = tmp_path / "secret.txt"
    secret.write_text("top secret")
    robot = tmp_path / "deep" / "er"
    for name in ("../../secret.txt", f"file://{secret}", str(secret)):
        with pytest.raises(ValueError, match="not a geometry file"):
            load_urdf(write(robot, mesh_link(name)))
    (robot / "link.stl").symlink_to(secret)  # the suffix of what it points to counts
    with pytest.raises(ValueError, match="not a geometry file"):
        load_urdf(write(robot, mesh_link("link.stl")))


def test_materials_cannot_reach_outside_the_mesh_folder(tmp_path):
    outside = tmp_path / "outside.mtl"
    outside.write_text("newmtl x\nKd 1 0 0\n")
    folder = tmp_path / "a" / "b" / "c"
    folder.mkdir(parents=True)
    (folder / "m.obj").write_text("mtllib ../../../outside.mtl\nv 0 0 0\nv 1 0 0\nv 0 1 0\nusemtl x\nf 1 2 3\n")
    mesh = load_urdf(write(folder, mesh_link("m.obj"))).visuals[0].mesh
    assert not (mesh.colors == [255, 0, 0]).all()
    shutil.copy(outside, folder / "outside.mtl")
    (folder / "m.obj").write_text("mtllib outside.mtl\nv 0 0 0\nv 1 0 0\nv 0 1 0\nusemtl x\nf 1 2 3\n")
    assert (load_urdf(write(folder, mesh_link("m.obj"))).visuals[0].mesh.colors == [255, 0, 0]).all()


def test_corrupt_meshes_are_named(tmp_path):
    for suffix in ("stl", "obj", "glb", "dae", "ply"):
        (tmp_path / f"m.{suffix}").write_bytes(b"\x00garbage" * 20)
        with pytest.raises(ValueError, match=rf"m\.{suffix}"):
            load_urdf(write(tmp_path, mesh_link(f"m.{suffix}")))


def test_collada_with_a_broken_texture_reference_keeps_its_shape(tmp_path):
    box_file(tmp_path / "m.dae")
    text = (tmp_path / "m.dae").read_text()
    broken = """<newparam sid="s"><sampler2D><source>gone-surface</source></sampler2D></newparam>"""
    text = text.replace("<profile_COMMON>", "<profile_COMMON>" + broken)
    assert broken in text
    (tmp_path / "m.dae").write_text(text)
    robot = load_urdf(write(tmp_path, mesh_link("m.dae")))
    assert sum(len(v.mesh.faces) for v in robot.visuals) == 12


def test_unknown_names_list_what_there_is(tmp_path):
    robot = load_urdf(write(tmp_path, TWO + joint("j", "a", "b")))
    with pytest.raises(ValueError, match="no link 'hand'; it has a, b"):
        robot.link_index("hand")
    with pytest.raises(ValueError, match="no actuated joint 'k'"):
        robot.joint_indices(["k"])
    with pytest.raises(ValueError, match="no link 'hand'"):
        load_urdf(tmp_path / "robot.urdf", tool_link="hand")
