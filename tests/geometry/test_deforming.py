"""The motion of an object as a value and as a folder: what comes back, what is refused, and what people see of it."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import fields, replace
from pathlib import Path

import av
import jaxtyping
import numpy as np
import pytest

pytest.importorskip("torch", reason="objects need torch: pip install 'kinema4d[world]'")
import trimesh
from object_cases import LENGTHS, bars, swinging

from kinema4d.geometry import film as film_module
from kinema4d.geometry.deforming import ObjectMotion, knots, posed, sweep
from kinema4d.geometry.deforming_look import arrow, arrows, creased, everything, face_colors, floor, placed, size
from kinema4d.geometry.film import film, film_strip, watching
from kinema4d.geometry.ledger import ledger_svg, ticks
from kinema4d.geometry.motion_folder import is_motion_folder, load_motion, save_motion
from kinema4d.geometry.se3 import apply, invert


@pytest.fixture(scope="module")
def motion() -> ObjectMotion:
    return swinging(seconds=0.8)


@pytest.fixture(scope="module")
def written(motion: ObjectMotion, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_motion(motion, tmp_path_factory.mktemp("motion") / "out")


@pytest.fixture
def copied(written: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(written, tmp_path / "out"))


def test_what_is_written_comes_back(motion: ObjectMotion, written: Path):
    back = load_motion(written)
    for name in (f.name for f in fields(motion)):
        a, b = getattr(motion, name), getattr(back, name)
        if isinstance(a, np.ndarray):
            assert a.dtype == b.dtype, name
            np.testing.assert_array_equal(a, b, err_msg=name)
        else:
            assert a == b, name
    meta = json.loads((written / "meta.json").read_text())
    assert (meta["kind"], meta["version"], meta["frames"]) == ("object-motion", 1, len(motion))
    assert is_motion_folder(written)
    assert not is_motion_folder(written.parent)


def test_a_run_that_was_stopped_keeps_its_frames_and_says_why(motion: ObjectMotion, tmp_path: Path):
    rigid = replace(
        motion, stopped="a point moved by more than the body's size in one step at 0.400 s", flags=("3 edges <open>",),
        q=motion.q[:, :0], rest_q=motion.rest_q[:0], reach=motion.reach[:0], sliders=motion.sliders[:0],
        force=motion.force[:, :0], force_at=motion.force_at[:, :0], work=0 * motion.work,
    )  # fmt: skip
    back = load_motion(save_motion(rigid, tmp_path / "out", meshes=False, video=False))
    assert (back.stopped, back.flags, len(back)) == (rigid.stopped, rigid.flags, len(motion))
    assert "stopped: a point moved by more" in (tmp_path / "out" / "energy.svg").read_text()
    assert not (tmp_path / "out" / "meshes").exists()
    assert not (tmp_path / "out" / "video.mp4").exists()


@pytest.mark.parametrize(
    "name", ["motion.npz", "mesh.npz", "sliders.npz", "energy.svg", "video.mp4", "meshes/00007.ply"]
)
def test_a_changed_or_missing_file_is_noticed(copied: Path, name: str):
    content = bytearray((copied / name).read_bytes())
    content[len(content) // 2] ^= 1
    (copied / name).write_bytes(content)
    with pytest.raises(ValueError, match=rf"{Path(name).name} was changed after it was written"):
        load_motion(copied)
    (copied / name).unlink()
    with pytest.raises(ValueError, match=rf"{Path(name).name} is missing; simulate again"):
        load_motion(copied)


def test_meta_is_checked(copied: Path):
    meta = json.loads((copied / "meta.json").read_text())
    for change, complaint in (
        ({"frames": 3}, "says 3 frames, motion.npz has 41"),
        ({"version": 2}, "has version 2, this kinema4d reads 1"),
        ({"kind": "clip"}, 'must say "kind": "object-motion"'),
        ({"step": "fast"}, "'step' must be a float, got 'fast'"),
        ({"step": -0.02}, "step must be positive seconds, got -0.02"),
        ({"sha256": {}}, "lacks mesh.npz, motion.npz, sliders.npz"),
    ):
        (copied / "meta.json").write_text(json.dumps({**meta, **change}))
        with pytest.raises(ValueError, match=complaint):
            load_motion(copied)
    (copied / "meta.json").write_text("{")
    with pytest.raises(ValueError, match="not readable as JSON"):
        load_motion(copied)
    with pytest.raises(ValueError, match="it has no meta.json"):
        load_motion(copied / "meshes")


def test_what_is_no_motion_is_refused(motion: ObjectMotion, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # users run without the checks of the tests
    vertices = motion.vertices.copy()
    vertices[4, 2, 1] = np.nan
    for change, complaint in (
        ({"vertices": vertices}, r"vertices has a value that is no number, the first at \[4, 2, 1\]"),
        ({"kinetic": np.full(len(motion), np.inf)}, "kinetic has a value that is no number"),
        ({"kinetic": motion.kinetic[:-1]}, r"kinetic must be \[41\] beside 41 frames .*, got \[40\]"),
        ({"rest": motion.rest[:-1]}, r"rest must be \[16, 3\]"),
        ({"q": motion.q[:, 0]}, r"q \[t,k\]"),
        ({"vertices": motion.vertices[:0]}, "at least one frame"),
        ({"faces": motion.faces + 1}, "triangles are of vertices 1 to 16, allowed are 0 to 15"),
        ({"step": 0.0}, "step must be positive seconds, got 0"),
        ({"turn": 2 * motion.turn}, "turn must be rotations"),
        ({"turn": -motion.turn}, "no mirror"),
        ({"reach": motion.reach[:, ::-1]}, "a range that rises"),
        ({"penetration": motion.penetration - 1}, "never negative, got -1 m"),
        ({"about": {"checkpoint": object()}}, "about must be what JSON can say"),
    ):
        with pytest.raises(ValueError, match=complaint):
            replace(motion, **change)


def test_a_folder_appears_whole_or_not_at_all(motion: ObjectMotion, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    out = tmp_path / "out"
    seen: list[str] = []

    def killed(_: ObjectMotion, path: Path) -> int:
        seen.append(path.parent.name)
        assert (path.parent / "motion.npz").is_file()
        assert not out.exists()
        raise KeyboardInterrupt

    with monkeypatch.context() as m:
        m.setattr(film_module, "write_film", killed)
        with pytest.raises(KeyboardInterrupt):
            save_motion(motion, out)
    assert seen[0].startswith(".out.tmp-")
    assert not list(tmp_path.iterdir())
    save_motion(motion, out, meshes=False, video=False)
    with pytest.raises(ValueError, match="exists; pass overwrite"):
        save_motion(motion, out, meshes=False, video=False)
    save_motion(replace(motion, flags=("again",)), out, meshes=False, video=False, overwrite=True)
    assert load_motion(out).flags == ("again",)
    (out / "meta.json").write_text("{}")
    with pytest.raises(ValueError, match="kinema4d did not write it"):
        save_motion(motion, out, video=False, overwrite=True)


def test_the_mesh_sequence_opens_elsewhere(motion: ObjectMotion, written: Path):
    files = sorted((written / "meshes").iterdir())
    assert [f.name for f in files] == [f"{i:05d}.ply" for i in range(len(motion))]
    for frame in (0, 30):
        loaded = trimesh.load_mesh(files[frame], process=False)
        np.testing.assert_array_equal(loaded.vertices, motion.vertices[frame])
        np.testing.assert_array_equal(loaded.faces, motion.faces)


def test_the_film_has_every_frame_and_moves(motion: ObjectMotion, written: Path):
    with av.open(str(written / "video.mp4")) as container:
        assert container.streams.video[0].codec_context.name == "h264"
        assert container.streams.video[0].average_rate == 50
        images = np.stack([f.to_ndarray(format="rgb24")[::2, ::2] for f in container.decode(video=0)]).astype(np.int16)
    assert images.shape == (len(motion), 240, 320, 3)
    changed = (np.abs(np.diff(images, axis=0)).max(axis=3) > 40).mean(axis=(1, 2))
    assert (changed[5:] > 0.001).all()
    red = ((images[..., 0] > 150) & (images[..., 1:] < 90).all(axis=3)).sum(axis=(1, 2))
    pushed = motion.force.any(axis=(1, 2))
    assert red[pushed].min() > 60
    assert red[~pushed].max() < 5


def test_the_camera_sees_the_whole_motion(motion: ObjectMotion):
    camera = watching(motion, 120, 160)
    points = np.concatenate(
        [motion.vertices.reshape(-1, 3), *(arrows(motion, t).reshape(-1, 3) for t in range(len(motion)))]
    )
    seen = apply(invert(camera.T_world_camera), points) @ camera.K.T
    pixel = seen[:, :2] / seen[:, 2:]
    assert (seen[:, 2] > 0).all()
    assert (pixel > 0).all()
    assert (pixel < [160, 120]).all()
    assert (np.ptp(pixel, axis=0) / [160, 120]).max() > 0.75
    strip = film_strip(motion, 3, height=60, width=80)
    assert strip.shape == (60, 240, 3)
    np.testing.assert_array_equal(strip[:, :80], next(film(motion, [0], height=60, width=80)))
    with pytest.raises(ValueError, match="even sides, got 61x80"):
        film_strip(motion, 3, height=61, width=80)


def test_the_ledger_has_the_numbers(motion: ObjectMotion, written: Path):
    text = (written / "energy.svg").read_text()
    assert text == ledger_svg(motion)
    found = {}
    for panel in re.findall(r'<g class="panel".*?</g>', text):
        said = {k: float(v) for k, v in re.findall(r'data-(x0|x1|y0|y1|low|high)="([^"]+)"', panel)}
        for name, points in re.findall(r'<polyline data-name="([^"]*)" points="([^"]+)"', panel):
            x, y = np.array([p.split(",") for p in points.split()], float).T
            time = (x - said["x0"]) / (said["x1"] - said["x0"]) * motion.seconds[-1]
            np.testing.assert_allclose(time, motion.seconds, atol=2e-4)
            value = said["low"] + (y - said["y0"]) / (said["y1"] - said["y0"]) * (said["high"] - said["low"])
            found[name or f"panel {len(found)}"] = value, (said["high"] - said["low"]) / 1e4
    wanted = {
        "kinetic": motion.kinetic, "potential": motion.potential, "total": motion.kinetic + motion.potential,
        "work of pushes": motion.work, "panel 4": np.linalg.norm(motion.momentum, axis=1), "panel 5": 1000 * motion.penetration,
    }  # fmt: skip
    assert set(found) == set(wanted)
    for name, (value, exact) in found.items():
        np.testing.assert_allclose(value, wanted[name], atol=exact, err_msg=name)
    gain = motion.energy[-1] - motion.energy[0]
    assert f"total changed by {gain:+.3g} J" in text
    assert 'class="mark"' not in text
    assert ledger_svg(motion, mark=0.6).count('class="mark"') == 3
    assert abs(gain - motion.work[-1]) < 0.02 * motion.work[-1]  # what the pushes did is what it has


def test_ticks_hold_the_range():
    for low, high in ((0.0, 0.0), (3.2, 3.2), (-12.4, 9.7), (0, 1e-5), (-2e6, 7e6)):
        got = ticks(low, high, 5)
        assert got[0] <= low + 1e-12
        assert got[-1] >= high * (1 - 1e-9)
        assert 2 <= len(got) <= 8


def test_coordinates_by_hand(motion: ObjectMotion):
    np.testing.assert_array_equal(posed(motion, motion.rest_q), motion.rest)
    np.testing.assert_allclose(posed(motion, motion.q[0] * [1, 0]), bars(motion.q[:1] * [1, 0])[0], atol=0.01)
    np.testing.assert_allclose(posed(motion, np.array([9.0, 0])), motion.sliders[0, -1], atol=1e-6)
    both = posed(motion, np.array([0.5, 0.75]))
    one, two = posed(motion, np.array([0.5, 0])), posed(motion, np.array([0, 0.75]))
    np.testing.assert_allclose(both - motion.rest, one + two - 2 * motion.rest, atol=1e-6)
    odd = replace(motion, rest_q=np.array([0.1, 0.0]), rest=bars(np.array([[0.1, 0]]))[0])
    at, shapes = knots(odd)
    assert (np.diff(at) >= 0).all()
    np.testing.assert_array_equal(shapes[0, at[0] == 0.1][0], odd.rest)
    np.testing.assert_array_equal(posed(odd, odd.rest_q), odd.rest)
    swept = sweep(odd.rest_q, odd.reach, 5)
    np.testing.assert_allclose(swept[1, :, 1], np.linspace(-2.5, 2.5, 5))
    assert (swept[1, :, 0] == 0.1).all()


def test_the_look(motion: ObjectMotion):
    source, faces = creased(motion)
    np.testing.assert_array_equal(source[faces], motion.faces)
    assert len(source) == 2 * 24  # a box has three normals at each corner
    assert len(np.unique(face_colors(motion), axis=0)) == 2
    assert trimesh.Trimesh(*arrow()).is_watertight
    assert trimesh.Trimesh(*arrow()).volume > 0
    ends = arrows(motion, 0)
    along = ends[0, 1] - ends[0, 0]
    np.testing.assert_allclose(along / np.linalg.norm(along), motion.force[0, 0] / np.linalg.norm(motion.force[0, 0]))
    assert np.linalg.norm(along) == pytest.approx(0.4 * size(motion))
    np.testing.assert_allclose(ends[0, 1], motion.force_at[0, 0])  # a push into it ends there
    np.testing.assert_array_equal(arrows(replace(motion, force=-motion.force), 0)[0, 0], motion.force_at[0, 0])
    assert len(arrows(motion, len(motion) - 1)) == 0
    ground = floor(motion)
    assert -sum(LENGTHS) - 0.2 < ground.middle[2] < everything(motion)[:, 2].min()
    lifted = replace(motion, vertices=motion.vertices + np.array([0, 0, 1], np.float32), force=0 * motion.force)
    assert floor(lifted).middle[2] == 0
    half = np.array([[0.0, -1, 0], [1, 0, 0], [0, 0, 1]])
    turned = replace(motion, turn=np.tile(half, (len(motion), 1, 1)), place=motion.place + np.array([1.0, 2, 3]))
    np.testing.assert_allclose(placed(turned, turned.rest, 0), turned.rest @ half.T + [1, 2, 3], atol=1e-6)
