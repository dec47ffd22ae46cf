"""A report: same bytes, nothing lost, nothing invented, nothing executed."""

from __future__ import annotations

import json
import math
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from judged import ABOUT, EVIL, picture, report

from kinema4d.evaluate.report import Report, read, ready, summary_table, summary_to_dict, write
from kinema4d.evaluate.report_page import choose_sheet, ranked
from kinema4d.evaluate.report_summary import numbers, shown
from kinema4d.evaluate.score import NA, About
from kinema4d.evaluate.statistics import bootstrap_interval, paired, rate_interval

pytest.importorskip("pyarrow", reason="pip install 'kinema4d[parquet]'")
CHROMIUM = shutil.which("chromium") or "/usr/bin/chromium"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(report(), tmp_path_factory.mktemp("report") / "out", pictures=picture)


def _files(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in folder.iterdir() if p.is_file()}


def _same(a: Report, b: Report) -> None:
    assert a.worlds == b.worlds
    for world in a.worlds:
        for x, y in zip(a.of(world), b.of(world), strict=True):
            assert vars(x) == vars(y)
    assert (a.set_scores, list(a.about.items()), a.config) == (b.set_scores, list(b.about.items()), b.config)


def test_the_same_inputs_give_the_same_bytes(folder, tmp_path):
    again = report()
    shuffled = replace(again, rows=tuple(again.rows[i] for i in np.random.default_rng(0).permutation(len(again.rows))))
    assert _files(write(shuffled, tmp_path / "b", pictures=picture)) == _files(folder)
    assert set(_files(folder)) == {"episodes.parquet", "report.json", "report.html"}


def test_what_was_written_is_read(folder):
    _same(read(folder), report())


def test_an_earlier_report_is_replaced_and_other_files_stay(tmp_path):
    write(report(n=4), tmp_path)
    (tmp_path / ".scores").mkdir()
    (tmp_path / ".scores" / "kept.json").write_text("{}")
    write(report(), tmp_path)
    _same(read(tmp_path), report())
    assert (tmp_path / ".scores" / "kept.json").is_file()
    assert not list(tmp_path.glob(".*tmp*"))


def test_the_table_has_nulls_and_reasons(folder):
    import pyarrow.parquet as pq

    table = pq.read_table(folder / "episodes.parquet")
    lines = table.to_pylist()
    assert len(lines) == 72
    assert lines[0]["world"] == "prediction"
    assert lines[0]["object_end"] is None
    assert json.loads(lines[0]["missing"]) == {"object_end": "no object moved", "touch": "no contact in the truth"}
    assert table.column("touch").null_count == 72
    assert "fvd" not in table.column_names


def test_the_summary_is_what_the_statistics_say(folder):
    found, rows = json.loads((folder / "report.json").read_text()), report().of("prediction")
    psnr = found["summary"]["prediction"]["psnr"]
    values = numbers(rows, "psnr")
    groups = [r.group for r in rows]
    assert (psnr["n"], psnr["groups"], psnr["n_missing"], psnr["missing"]) == (24, 12, 0, {})
    assert psnr["mean"] == pytest.approx(np.mean(values))
    assert psnr["median"] == pytest.approx(np.median(values))
    assert tuple(psnr["mean_interval"]) == bootstrap_interval(values, groups=groups)
    assert tuple(psnr["median_interval"]) == bootstrap_interval(values, groups=groups, statistic="median")
    end = found["summary"]["prediction"]["object_end"]
    assert (end["n"], end["n_missing"], end["missing"]) == (20, 4, {"no object moved": 4})
    outcome = found["summary"]["truth"]["right"]
    assert outcome["interval_is"] == "wilson"
    assert tuple(outcome["mean_interval"]) == rate_interval([1.0] * 24, groups=groups)
    assert found["summary"]["truth"]["fscore"]["interval_is"] == "bootstrap"  # a share is no rate of yes and no
    static = numbers(report().of("static"), "psnr")
    expected = paired(static, values, groups=groups)
    assert not isinstance(expected, NA)
    test = found["against_static"]["psnr"]
    assert (test["difference"], tuple(test["interval"]), test["p"]) == (
        expected.difference,
        expected.interval,
        expected.p,
    )
    assert test["verdict"] == "better"
    assert found["against_static"]["delay"]["verdict"] == "not shown"
    by_source = found["breakdown"]["source"]
    assert set(by_source) == {"tabletop", "libero"}
    part = numbers([r for r in rows if r.source == "libero"], "psnr")
    assert by_source["libero"]["prediction"]["psnr"]["mean"] == pytest.approx(np.mean(part))
    assert set(found["breakdown"]["task"]) == {"(none)", "pick", EVIL}
    assert found["config"] == report().config


def test_missing_scores_are_never_numbers(folder):
    found = json.loads((folder / "report.json").read_text())
    for world in found["worlds"]:
        touch = found["summary"][world]["touch"]
        assert (touch["n"], touch["mean"], touch["median"], touch["mean_interval"]) == (0, None, None, None)
        assert found["set_scores"][world]["fid"]["missing"].startswith("no weights")
    assert found["against_static"]["touch"]["missing"] == "no pair has both scores; no contact in the truth"
    text = (folder / "report.html").read_text()
    row = re.search(r"<tr><th[^>]*>touch ↓, m</th>(.*?)</tr>", text)
    assert row
    assert row[1].count("n/a") == 4
    assert not re.search(r"<b", row[1])
    assert not re.search(r"\bnan\b|\binf\b", text, re.IGNORECASE)


def test_one_rollout_has_no_interval(tmp_path):
    write(report(n=1), tmp_path)
    found = json.loads((tmp_path / "report.json").read_text())["summary"]["prediction"]["psnr"]
    assert found["mean_interval"] is None
    assert found["interval_missing"] == "one value has no interval"
    assert "no interval: one value has no interval" in (tmp_path / "report.html").read_text()


def test_seeds_of_one_episode_are_one_group():
    base = report(n=2)
    rows = [replace(r, group="", seed=s) for r in base.rows for s in range(5)]
    found = summary_to_dict(replace(base, rows=tuple(rows)))
    assert found["summary"]["prediction"]["psnr"]["groups"] == 2
    assert found["summary"]["prediction"]["psnr"]["n"] == 10
    # a baseline without seeds stands against every seed
    rows = [
        r if r.world == "prediction" else replace(r, seed=None) for r in rows if r.world == "prediction" or r.seed == 0
    ]
    assert summary_to_dict(replace(base, rows=tuple(rows)))["against_static"]["psnr"]["n"] == 10


def test_the_page_stands_alone_and_escapes(folder):
    text = (folder / "report.html").read_text(encoding="utf-8")
    assert not re.search(r"https?://", text)
    assert not re.search(r"(src|href)\s*=\s*[\"'](?!data:|#)", text)
    assert "<script" not in text
    assert "&lt;script&gt;" in text
    assert "__BODY__" not in text
    assert "F&lt;0.01&gt;" in text
    assert text.count("data:image/") > 5
    for word in ("Along the way", "By link", "Reliability", "Worst", "no picture", "95 %"):
        assert word in text


def test_the_page_in_a_browser(folder):
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed (pip install playwright)")
    if not Path(CHROMIUM).exists():
        pytest.skip(f"no Chromium at {CHROMIUM} (apt install chromium)")
    with sync_api.sync_playwright() as p:
        browser = p.chromium.launch(executable_path=CHROMIUM, args=["--headless=new", "--no-sandbox"])
        asked, colors = [], set()
        for width in (1280, 420):
            for scheme in ("light", "dark"):
                tab = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
                tab.on("request", lambda request: asked.append(request.url))
                tab.on("dialog", lambda dialog: pytest.fail(f"a script ran: {dialog.message}"))
                tab.goto((folder / "report.html").as_uri())
                assert tab.evaluate("document.documentElement.scrollWidth") <= width
                assert tab.evaluate("[...document.images].every(i => i.naturalWidth == 40)")
                assert EVIL in tab.inner_text("main")
                # nothing is drawn past the card that holds it
                spill = """[...document.querySelectorAll('svg.plot')].filter(s => [...s.querySelectorAll('text')].some(
                    t => t.getBoundingClientRect().right > s.parentElement.getBoundingClientRect().right + 1)).length"""
                assert tab.evaluate(spill) == 0
                colors.add(tab.evaluate("getComputedStyle(document.body).backgroundColor"))
                tab.close()
        assert len(colors) == 2
        assert all(url.startswith(("file:", "data:")) for url in asked)
        browser.close()


def test_the_sheets_rank_by_direction():
    found = report()
    assert choose_sheet(found) == "object_end"
    ends = [v for _, v in ranked(found, "object_end")]
    assert ends == sorted(ends, reverse=True)
    psnr = [v for _, v in ranked(found, "psnr")]
    assert psnr == sorted(psnr)
    assert choose_sheet(found, "psnr") == "psnr"
    for name in ("delay", "touch", "nonsense"):
        with pytest.raises(ValueError, match="metric with a direction and values: psnr, fscore, object_end, right"):
            choose_sheet(found, name)


def test_pictures_must_be_pictures(tmp_path):
    with pytest.raises(ValueError, match="PNG or JPEG"):
        write(report(n=6), tmp_path / "out", pictures=lambda _: b"GIF89a")
    assert not (tmp_path / "out" / "report.json").exists()


def test_the_terminal_table():
    from rich.console import Console

    console = Console(width=200, record=True, file=open("/dev/null", "w"))  # noqa: SIM115, PTH123
    console.print(summary_table(report()))
    text = console.export_text()
    for word in (
        "video",
        "geometry",
        "interaction",
        "PSNR ↑, dB",
        "n/a: touch (no contact in the truth)",
        "prediction - static",
        " to ",
    ):
        assert word in text
    assert "[bold]push[/bold]" in text  # a reason with markup is text


def test_numbers_as_text():
    metre, share = ABOUT["object_end"], ABOUT["fscore"]
    assert shown(0.01234, metre) == "0.012"
    assert shown(0.01234, metre, signed=True) == "+0.012"
    assert shown(0.0, metre) == "0.000"
    assert shown(-0.0, metre, signed=True) == "0.000"
    assert shown(-1.5e-5, metre, signed=True) == "-1.5e-05"
    assert shown(0.5, share) == "50.0"


def test_bad_reports_are_refused(tmp_path):
    good = report(n=2)
    with pytest.raises(ValueError, match="at least one"):
        replace(good, rows=())
    with pytest.raises(ValueError, match="must be unique"):
        replace(good, rows=good.rows + good.rows[:1])
    with pytest.raises(ValueError, match="scores without a meaning: psnr"):
        replace(good, about={k: v for k, v in ABOUT.items() if k != "psnr"})
    with pytest.raises(ValueError, match="cannot be called task"):
        replace(good, about=ABOUT | {"task": ABOUT["psnr"]})
    with pytest.raises(ValueError, match="of a rollout and of all"):
        replace(good, set_scores={"prediction": {"psnr": 1.0}})
    with pytest.raises(ValueError, match="judged world 'mine'"):
        replace(good, config={"prediction": "mine"})
    for bad in (math.nan, math.inf):
        with pytest.raises(ValueError, match="finite"):
            replace(good.rows[0], scores={"psnr": bad})
    for config in ({"x": math.nan}, {"x": Path()}):
        with pytest.raises(ValueError, match="plain JSON"):
            write(replace(good, config=config), tmp_path)
    with pytest.raises(ValueError, match="plain JSON"):
        write(replace(good, rows=(replace(good.rows[0], details={"x": {1, 2}}),)), tmp_path)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="is a file"):
        ready(tmp_path / "file")


def test_broken_folders_are_refused(tmp_path):
    with pytest.raises(ValueError, match="holds no report"):
        read(tmp_path)
    write(report(n=3), tmp_path / "a")
    write(report(n=4), tmp_path / "b")
    shutil.copy(tmp_path / "a" / "episodes.parquet", tmp_path / "b" / "episodes.parquet")
    with pytest.raises(ValueError, match="not of one report"):
        read(tmp_path / "b")
    (tmp_path / "a" / "report.json").write_text('{"format": 99}')
    with pytest.raises(ValueError, match="format 99"):
        read(tmp_path / "a")
    (tmp_path / "a" / "report.json").write_text("{")
    with pytest.raises(ValueError, match="not JSON"):
        read(tmp_path / "a")


def test_clips_of_different_length_share_an_axis(tmp_path):
    rows = [
        replace(r, details={"along": {"object_end": [0.0] * (5 + i % 3), "new": [1.0, 2.0]}})
        for i, r in enumerate(report(n=4).rows)
    ]
    write(replace(report(n=4), rows=tuple(rows)), tmp_path)
    text = (tmp_path / "report.html").read_text()
    assert "share of the clip" in text
    assert "new over time" in text


def test_a_metric_may_be_without_direction_or_group(tmp_path):
    about = {"a": About(label="a", unit="", better="none", group="other", text="x")}
    rows = tuple(replace(r, scores={"a": float(i)}, details={}) for i, r in enumerate(report(n=3).rows))
    write(Report(rows=rows, set_scores={}, about=about, config={}), tmp_path)
    assert "Worst" not in (tmp_path / "report.html").read_text()
