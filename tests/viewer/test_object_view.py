"""The pages of a moving object in a real browser: does it draw, does time move it, do its coordinates?"""

from __future__ import annotations

import io
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("torch", reason="objects need torch: pip install 'kinema4d[world]'")
from object_cases import CORNERS, FACES, swinging

from kinema4d.cli import main
from kinema4d.geometry.deforming import ObjectMotion, posed
from kinema4d.geometry.motion_folder import save_motion
from kinema4d.viewer.object_html import export_motion_html
from kinema4d.viewer.object_view import SUM, facts, said_of, view_motion

CHROMIUM = shutil.which("chromium") or "/usr/bin/chromium"
FLAGS = [
    "--headless=new", "--no-sandbox", "--use-angle=swiftshader", "--enable-unsafe-swiftshader",
    "--ignore-gpu-blocklist", "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--no-first-run", "--disable-quic",
]  # fmt: skip


@pytest.fixture(scope="module")
def motion() -> ObjectMotion:
    return replace(swinging(seconds=0.6), about={"command": "objects simulate </script><b>"}, flags=("2 edges & more",))


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed (pip install playwright)")
    if not Path(CHROMIUM).exists():
        pytest.skip(f"no Chromium at {CHROMIUM} (apt install chromium)")
    with sync_api.sync_playwright() as p:
        running = p.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield running
        running.close()


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    opened = browser.new_page(viewport={"width": 900, "height": 620})
    opened.errors = []
    opened.on("pageerror", lambda error: opened.errors.append(str(error)))
    opened.on("console", lambda m: opened.errors.append(m.text) if m.type == "error" else None)
    yield opened
    errors = opened.errors
    opened.close()
    assert not errors


def until(what: str, condition: Callable[[], Any], seconds: float = 25.0) -> Any:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if result := condition():
            return result
        time.sleep(0.1)
    raise AssertionError(f"after {seconds:g} s still not: {what}")


def canvas(page: Any, left: int = 0) -> np.ndarray:
    """The part of the 3D view that no panel covers."""
    clip = {"x": left, "y": 30, "width": 500 - left, "height": 550}
    return np.asarray(Image.open(io.BytesIO(page.screenshot(clip=clip))).convert("RGB")).astype(int)


def colorful(image: np.ndarray) -> int:
    """Number of saturated pixels: the object is coloured, the rest of the page is grey."""
    return int((np.ptp(image, axis=2) > 60).sum())


def changed(a: np.ndarray, b: np.ndarray) -> int:
    return int((np.abs(a - b).max(axis=2) > 60).sum())


@pytest.mark.timeout(90)
def test_a_page_from_disk_obeys_time_and_coordinates(motion: ObjectMotion, page: Any, tmp_path: Path):
    folder = save_motion(motion, tmp_path / "out", meshes=False, video=False)
    main(["view", str(folder), "--html", str(tmp_path / "page.html")])
    page.context.set_offline(True)
    page.goto((tmp_path / "page.html").as_uri())
    until("the object is drawn", lambda: colorful(canvas(page)) > 1000)
    first = canvas(page)
    assert "objects simulate </script><b>" in page.inner_text("aside")
    assert "2 edges & more" in page.inner_text("aside")

    def marks() -> list[float]:
        return [float(m.get_attribute("x1")) for m in page.locator(".mark").all()]

    begin, last = marks(), len(motion) - 1
    page.get_by_label("Time").fill(str(last))
    until("time moves the object", lambda: changed(canvas(page), first) > 1000)
    end = canvas(page)
    assert page.locator("#now").inner_text() == f"{motion.seconds[-1]:.3f} s"
    assert len(begin) == 3
    assert all(b - a > 150 for a, b in zip(begin, marks(), strict=True))

    page.get_by_label("Coordinate 1").fill("1.2")
    until("a coordinate moves the object", lambda: changed(canvas(page), end) > 1000)
    one = canvas(page)
    assert "coordinate 1 at 1.200, the others at rest" in page.inner_text("#shown")
    on_screen = np.array(page.evaluate("Array.from(shape())")).reshape(-1, 3)
    np.testing.assert_allclose(on_screen, posed(motion, np.array([1.2, 0])), atol=1e-4)
    page.get_by_label("Coordinate 2").fill("-1.5")
    until("the second adds to it", lambda: changed(canvas(page), one) > 500)
    assert SUM in page.inner_text("#shown")
    on_screen = np.array(page.evaluate("Array.from(shape())")).reshape(-1, 3)
    np.testing.assert_allclose(on_screen, posed(motion, np.array([1.2, -1.5])), atol=1e-4)
    page.get_by_role("button", name="Back to the motion").click()
    until("the motion is back", lambda: changed(canvas(page), end) == 0)

    page.get_by_label("Time").fill("0")
    until("the first picture is back", lambda: changed(canvas(page), first) == 0)
    page.get_by_role("button", name="Play").click()
    until("it plays to its end", lambda: page.locator("#time").input_value() == str(last))
    assert page.get_by_role("button", name="Play").is_visible()
    page.mouse.move(200, 300)
    page.mouse.down()
    page.mouse.move(330, 330, steps=4)
    page.mouse.up()
    until("a drag turns it", lambda: changed(canvas(page), end) > 500)


@pytest.mark.timeout(90)
def test_the_live_page_obeys_time_and_coordinates(motion: ObjectMotion, page: Any):
    with view_motion(motion, port=0, block=False) as viewer:
        page.goto(viewer.url)
        page.add_style_tag(content="[class*=Notifications-root] {display: none}")  # warns of slow software rendering
        until("the object is drawn", lambda: colorful(canvas(page, 100)) > 800)
        first = canvas(page, 100)
        viewer.show(len(motion) - 1)
        until("time moves the object", lambda: changed(canvas(page, 100), first) > 500)
        end = canvas(page, 100)
        track = page.get_by_role("slider").nth(1).locator("xpath=..").bounding_box()
        page.mouse.click(track["x"] + 0.85 * track["width"], track["y"] + track["height"] / 2)
        until("the coordinate is taken", lambda: np.abs(viewer.shown - motion.vertices[-1]).max() > 0.1)
        until("a coordinate moves the object", lambda: changed(canvas(page, 100), end) > 500)
        until("the page says so", lambda: page.get_by_text("coordinate 1 at").is_visible())
        viewer.pose(np.array([0.4, 0.5]))
        np.testing.assert_allclose(viewer.shown, posed(motion, np.array([0.4, 0.5])), atol=1e-6)
        until("the page says that it is a sum", lambda: page.get_by_text("which is an approximation").is_visible())
        page.get_by_role("button", name="Back to the motion").click()
        until("the motion is back", lambda: np.array_equal(viewer.shown, motion.vertices[-1]))
        page.get_by_role("button", name="Play").click()
        until("it plays", lambda: viewer.frame not in (0, len(motion) - 1))
        viewer.pause()
        with pytest.raises(ValueError, match=rf"frame must be in 0\.\.{len(motion) - 1}, got 99"):
            viewer.show(99)
        with pytest.raises(ValueError, match="the object has 2 coordinates, got 1"):
            viewer.pose(np.zeros(1))


@pytest.mark.timeout(90)
def test_both_pages_draw_what_stands_in_the_way(motion: ObjectMotion, page: Any, tmp_path: Path):
    low, middle = motion.vertices.min(axis=(0, 1)), motion.vertices.mean(axis=(0, 1))
    slab = CORNERS * [2.0, 2.0, 0.1] + [middle[0], middle[1], low[2] - 0.02]
    stands = replace(motion, obstacle=slab.astype(np.float32), obstacle_faces=FACES[:12].astype(np.int64))
    bare = replace(stands, obstacle_faces=stands.obstacle_faces[:0])  # seen from the same place
    fixed, live = [], []
    for number, what in enumerate((bare, stands)):
        page.goto(export_motion_html(what, tmp_path / f"{number}.html").as_uri())
        until("the object is drawn", lambda: colorful(canvas(page)) > 300)
        fixed.append(canvas(page))
        with view_motion(what, port=0, block=False) as viewer:
            page.goto(viewer.url)
            page.add_style_tag(content="[class*=Notifications-root] {display: none}")
            until("the object is drawn", lambda: colorful(canvas(page, 100)) > 300)
            time.sleep(1.5)
            live.append(canvas(page, 100))
    for before, after in (fixed, live):
        assert (np.abs(before - after).max(axis=2) > 20).sum() > 5000


def test_what_a_page_says(motion: ObjectMotion):
    assert said_of(motion, [0.0, 0.0], 3) == "the motion at 0.060 s"
    assert said_of(motion, [0.0, 0.7], 3) == "coordinate 2 at 0.7, the others at rest"
    assert said_of(motion, [0.1, 0.7], 3) == SUM
    said = facts(replace(motion, stopped="<script>"))
    assert "<script>" not in said
    assert "</script>" not in said
    assert "<b>Stopped:</b> &lt;script&gt;" in said


def test_export_replaces_the_old_page_or_leaves_it(
    motion: ObjectMotion, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    with pytest.raises(ValueError, match=r"must be named \.html"):
        export_motion_html(motion, tmp_path / "page.mp4")
    with pytest.raises(ValueError, match="no folder"):
        export_motion_html(motion, tmp_path / "nowhere" / "page.html")
    page = export_motion_html(motion, tmp_path / "page.html", budget=motion.vertices.size)
    assert "Of the frames, one in 2 is on this page" in page.read_text()
    assert [p.name for p in tmp_path.iterdir()] == ["page.html"]
    folder = save_motion(motion, tmp_path / "out", meshes=False, video=False)
    with pytest.raises(SystemExit):
        main(["view", str(folder), "--episode", "1", "--html", str(tmp_path / "page.html")])
    assert "is the motion of an object" in capsys.readouterr().err
    (folder / "motion.npz").unlink()
    with pytest.raises(SystemExit):
        main(["view", str(folder), "--html", str(tmp_path / "page.html")])
    assert "motion.npz is missing" in capsys.readouterr().err
