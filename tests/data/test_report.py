"""The curation page in a real browser: it stands alone, filters, sorts and pages."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from doctored import episode, flipped, unlabelled

from kinema4d.data.curate import Curation, Decision, curate
from kinema4d.data.dataset import open_dataset
from kinema4d.data.report import choose, strip, write_report
from kinema4d.data.thresholds import Thresholds

CHROMIUM = shutil.which("chromium") or "/usr/bin/chromium"
EVIL = "</script><b>push</b> & “pull”"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("report") / "set"
    dataset = open_dataset(root, create=True)
    truth = replace(episode(frames=12), text=EVIL)
    for n in range(22):
        # pictures must differ, or they would be dropped as copies
        rgb = truth.clip.rgb.copy()
        rgb[:, :8, :8] = 10 * n
        dataset.add(f"ep{n:02d}", replace(truth, clip=replace(truth.clip, rgb=rgb), source=f"synthetic/{n}"))
    dataset.add("flipped", replace(flipped(episode(frames=12), (1,)), source="other/1", outcome="failure"))
    dataset.add("torn", replace(episode(frames=12, seed=1), source="other/2"))
    (root / "episodes" / "torn" / "rgb.mp4").write_bytes(b"")
    return write_report(root, curate(root, workers=1), workers=1)


def test_the_page_stands_alone(page):
    text = page.read_text(encoding="utf-8")
    assert not re.search(r"(src|href)\s*=\s*[\"']?(https?:)?//", text)
    assert "__DATA__" not in text
    assert EVIL not in text
    assert page.stat().st_size < 2e6


def test_the_page_in_a_browser(page):
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed (pip install playwright)")
    if not Path(CHROMIUM).exists():
        pytest.skip(f"no Chromium at {CHROMIUM} (apt install chromium)")
    with sync_api.sync_playwright() as p:
        browser = p.chromium.launch(executable_path=CHROMIUM, args=["--headless=new", "--no-sandbox"])
        tab = browser.new_page(viewport={"width": 1200, "height": 900})
        errors = []
        tab.on("pageerror", lambda error: errors.append(str(error)))
        tab.goto(page.as_uri())
        names = lambda: tab.locator(".card .head b").all_inner_texts()  # noqa: E731
        assert len(names()) == 20
        assert set(names()[:2]) == {"flipped", "torn"}
        assert "22 of 24 episodes are kept" in tab.inner_text("#totals")
        assert tab.locator(".card", has_text="torn").locator("img").count() == 0
        tab.wait_for_function("document.querySelector('.card img').complete")
        assert tab.locator(".card img").first.evaluate("e => e.naturalWidth") == 5 * 144 + 4 * 2
        assert EVIL in tab.inner_text("#list")
        tab.click("#next")
        assert len(names()) == 4
        tab.select_option("#keep", "drop")
        assert set(names()) == {"flipped", "torn"}
        tab.select_option("#outcome", "failure")
        assert names() == ["flipped"]
        tab.select_option("#outcome", "")
        tab.select_option("#keep", "")
        tab.locator("#reasons tr[data-check=files]").click()
        assert names() == ["torn"]
        tab.select_option("#reason", "")
        tab.select_option("#sort", "high")
        assert names()[0] == "ep00"
        tab.fill("#text", "ep1")
        assert len(names()) == 10
        assert errors == []
        browser.close()


def test_the_worst_and_a_steady_sample_are_chosen():
    decisions = tuple(
        Decision(id=f"e{i:04d}", sha256="", score=i / 1000, keep=i > 100, reasons=()) for i in range(1000)
    )
    curation = Curation(thresholds=Thresholds(), decisions=decisions)
    shown = choose(curation, 200, 100)
    assert [d.id for d in shown[:200]] == [f"e{i:04d}" for i in range(200)]
    assert len({d.id for d in shown}) == 300
    assert shown == choose(curation, 200, 100)
    assert len(choose(replace(curation, decisions=decisions[:5]), 200, 100)) == 5


def test_strips_of_all_kinds():
    truth = episode()
    assert strip(truth).shape == (96, 5 * 144 + 8, 3)
    assert strip(episode(frames=6, height=480, width=720)).shape == (96, 728, 3)
    blind = np.zeros_like(truth.clip.pointmap.valid)
    bare = replace(unlabelled(truth), clip=replace(truth.clip, pointmap=replace(truth.clip.pointmap, valid=blind)))
    picture = strip(bare)
    assert (picture[:, 3 * 146 : 3 * 146 + 144] == 225).all()
    tinted, plain = strip(truth)[:, -144:], picture[:, -144:]
    assert (tinted != plain).any()
