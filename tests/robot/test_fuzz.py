"""Mutated robots and actions: whatever happens, only ``ValueError`` comes out."""

from __future__ import annotations

import contextlib
import json
import random
import string
import sys

import numpy as np
import pytest

from kinema4d.robot.action_files import load_actions
from kinema4d.robot.actions import drive
from kinema4d.robot.kinematics import forward_kinematics
from kinema4d.robot.urdf import load_urdf
from kinema4d.robot.zoo import find, load_robot

JUNK = [
    "nan",
    "inf",
    "-inf",
    "1e400",
    "",
    "0",
    "-1",
    "1 2 3 4",
    "abc",
    "../../../../etc/passwd",
    "\u0000",
    "joint1",
    "base",
    "é" * 50,
]


def mutate(text: str, rng: random.Random) -> bytes:
    """One to three small accidents: of a typist, a broken disk, or a person with intent."""
    for _ in range(rng.choice([1, 1, 2, 3])):
        kind = rng.randrange(7)
        quotes = [i for i, c in enumerate(text) if c == '"']
        lines = text.split("\n")
        if kind == 0 and len(quotes) > 1:  # another attribute value
            k = rng.randrange(0, len(quotes) - 1)
            text = text[: quotes[k] + 1] + rng.choice(JUNK) + text[quotes[k + 1] :]
        elif kind == 1:  # a line twice
            i = rng.randrange(len(lines))
            text = "\n".join(lines[: i + 1] + lines[i:])
        elif kind == 2 and len(lines) > 1:  # a line gone
            i = rng.randrange(len(lines))
            text = "\n".join(lines[:i] + lines[i + 1 :])
        elif kind == 3:  # a random character
            i = rng.randrange(len(text))
            text = text[:i] + rng.choice(string.printable) + text[i + 1 :]
        elif kind == 4:  # cut off
            text = text[: rng.randrange(1, len(text))]
        elif kind == 5:  # a tag renamed
            text = text.replace(
                rng.choice(["<link", "<joint", "<axis", "<origin", "<limit", "<box", "parent"]), "<mesh", 1
            )
        else:  # two lines swapped
            i, j = rng.randrange(len(lines)), rng.randrange(len(lines))
            lines[i], lines[j] = lines[j], lines[i]
            text = "\n".join(lines)
    data = text.encode("utf-8", "surrogatepass")
    if rng.random() < 0.1:
        i = rng.randrange(len(data) or 1)
        data = data[:i] + bytes([rng.randrange(256)]) + data[i + 1 :]
    return data


def test_mutated_robots(tmp_path):
    text = find("k4arm")[0].read_text()
    text = text.replace('<box size="0.05 0.17 0.045"/>', '<mesh filename="m.obj"/>')
    (tmp_path / "m.obj").write_text("v 0 0 0\nv 1 0 0\nv 0 1 0\nf 1 2 3\n")
    path, refused, loaded, unnamed = tmp_path / "fuzz.urdf", 0, 0, 0
    for seed in range(400):
        path.write_bytes(mutate(text, random.Random(seed)))
        try:
            robot = load_urdf(path)
        except ValueError as error:
            refused += 1
            unnamed += "fuzz.urdf" not in str(error)
        else:
            assert np.isfinite(forward_kinematics(robot, robot.home[None])).all(), f"seed {seed}"
            loaded += 1
    assert unnamed == 0
    assert refused > 100
    assert loaded > 20


OPENED: list[str] | None = None


def _record(event: str, arguments: tuple) -> None:
    if event == "open" and OPENED is not None and isinstance(arguments[0], str | bytes):
        OPENED.append(arguments[0] if isinstance(arguments[0], str) else arguments[0].decode())


def test_evil_robots_open_nothing_but_geometry(tmp_path):
    """Whatever a description names, the process opens the description, geometry files, and what lies by them."""
    global OPENED
    sys.addaudithook(_record)  # sees every open() of the interpreter; cannot be removed, so it has a switch
    text = find("k4arm")[0].read_text().replace('<box size="0.05 0.17 0.045"/>', '<mesh filename="m.obj"/>')
    secret = tmp_path / "secret.txt"
    secret.write_text("secret")
    folder = tmp_path / "a" / "b"
    folder.mkdir(parents=True)
    obj = "v 0 0 0\nv 1 0 0\nv 0 1 0\nusemtl x\nf 1 2 3\n"
    (folder / "m.obj").write_text("mtllib ../../secret.txt\n" + obj)
    (folder / "n.obj").write_text(f"mtllib {secret}\n" + obj)
    (folder / "t.obj").write_text("mtllib t.mtl\n" + obj)
    (folder / "t.mtl").write_text(f"newmtl x\nmap_Kd {secret}\nmap_Kd ../../secret.txt\n")
    gltf = {"asset": {"version": "2.0"}, "buffers": [{"byteLength": 6, "uri": "../../secret.txt"}]}
    (folder / "g.gltf").write_text(json.dumps(gltf))
    (folder / "s.stl").symlink_to(secret)
    names = ["m.obj", "n.obj", "t.obj", "g.gltf", "s.stl", "../../secret.txt", str(secret), f"file://{secret}"]
    names += ["package://x/../../../secret.txt", "package://b/../../secret.txt", "..%2F..%2Fsecret.txt"]
    load_robot("k4arm")  # everything that is imported late has been
    load_robot("panda")
    seen = []
    for name in names:
        for change in (("m.obj", name), ("<color rgba=", f'<texture filename="{name}"/><color rgba=')):
            (folder / "evil.urdf").write_text(text.replace(*change))
            OPENED = []
            with contextlib.suppress(ValueError):  # refused or not: what matters is what was opened
                load_urdf(folder / "evil.urdf")
            seen += OPENED
            OPENED = None
    assert any(s.endswith("evil.urdf") for s in seen)
    assert any(s.endswith("m.obj") for s in seen)
    assert not [s for s in seen if "secret" in s]


def test_mutated_actions(tmp_path):
    robot = load_robot("k4arm", visuals=False)
    rng = np.random.default_rng(0)
    plain = {
        "joint_position": rng.uniform(-1, 1, (4, 6)).round(3).tolist(),
        "gripper": [0, 0.5, 1, 1],
        "fps": 10,
        "convention": "droid",
    }
    text = json.dumps(plain, indent=1)
    path, refused, driven = tmp_path / "fuzz.json", 0, 0
    for seed in range(400):
        path.write_bytes(mutate(text, random.Random(seed)))
        try:
            arm = drive(robot, load_actions(path))
        except ValueError:
            refused += 1
        else:
            assert np.isfinite(arm.trajectory.q).all(), f"seed {seed}"
            driven += 1
    assert refused > 100
    assert driven > 20


@pytest.mark.parametrize("suffix", [".npz", ".csv", ".parquet", ".json"])
def test_random_bytes_as_actions(tmp_path, suffix):
    rng = random.Random(1)
    for n in (0, 1, 10, 1000):
        path = tmp_path / f"x{suffix}"
        path.write_bytes(rng.randbytes(n))
        with pytest.raises(ValueError, match="x"):
            load_actions(path)


@pytest.mark.parametrize("suffix", [".stl", ".obj", ".dae", ".glb", ".gltf", ".ply"])
def test_random_bytes_as_meshes(tmp_path, suffix):
    from kinema4d.robot.meshfile import load_mesh_file

    rng = random.Random(2)
    for n in (0, 5, 84, 134, 3000):
        path = tmp_path / f"x{suffix}"
        path.write_bytes(rng.randbytes(n))
        with pytest.raises(ValueError, match="x"):
            load_mesh_file(path, scale=np.ones(3), color=None)
