"""Plots are well-formed, escaped, and draw what they are given."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import numpy as np
import pytest

from kinema4d.evaluate.plots import DOTS, Axis, bars, boxes, curves, histogram, reliability, strips, ticks

EVIL = "<b>\"&'"


def _all() -> dict[str, str]:
    values = np.random.default_rng(0).normal(0, 1, 50).tolist()
    return {
        "strips": strips({"a": values, EVIL: [], "truth": [100.0]}, title=EVIL, unit=EVIL, aside="truth"),
        "boxes": boxes([("a", values), ("a", values[:3]), (EVIL, [])], title=EVIL, unit="m", colors=[0, 1, 0]),
        "bars": bars([("a", 1.0, (0.5, 1.5)), (EVIL, -0.5, None), ("none", None, None)], title=EVIL, unit=""),
        "histogram": histogram({EVIL: values, "b": [0.0]}, title=EVIL, unit="m"),
        "reliability": reliability([(3, 0.2, 0.3), (0, 0.5, 0.5), (9, 0.9, 1.0)], title=EVIL),
        "curves": curves(
            {EVIL: ([0, 1, 2], [1, 2, 4], [(0, 2), (1, 3), (3, 5)]), "b": ([], [], None)},
            title=EVIL,
            x_label="frame",
            y_label=EVIL,
        ),
        "empty": strips({}, title=EVIL, unit=""),
    }


@pytest.mark.parametrize("name", list(_all()))
def test_every_plot_is_whole_and_steady(name):
    text = _all()[name]
    assert text == _all()[name]
    root = ElementTree.fromstring(text)
    assert root.tag == "svg"
    assert root.attrib["aria-label"] == EVIL
    assert "<b>" not in text
    assert not re.search(r"nan|inf|e-\d|http", text)
    width, height = (float(v) for v in root.attrib["viewBox"].split()[2:])
    for kind, x, y in (("circle", "cx", "cy"), ("rect", "x", "y"), ("line", "x1", "y1"), ("text", "x", "y")):
        for part in root.iter(kind):
            assert 0 <= float(part.attrib[x]) <= width
            assert 0 <= float(part.attrib[y]) <= height
    if name == "empty":
        assert "n/a" in text


def test_strips_draw_values_where_they_are():
    root = ElementTree.fromstring(strips({"a": [0.0, 5.0, 10.0]}, title="t", unit="m"))
    x = sorted(float(c.attrib["cx"]) for c in root.iter("circle"))
    assert x[1] - x[0] == pytest.approx(x[2] - x[1], abs=0.02)
    labels = {t.text: float(t.attrib["x"]) for t in root.iter("text")}
    assert labels["0.0"] == pytest.approx(x[0], abs=0.02)
    assert labels["10.0"] == pytest.approx(x[2], abs=0.02)
    assert "a (3)" in labels


def test_many_dots_are_thinned():
    root = ElementTree.fromstring(strips({"a": np.arange(5000.0).tolist()}, title="t", unit=""))
    assert len(list(root.iter("circle"))) == DOTS


def test_a_far_ceiling_does_not_squash_the_rest():
    near = strips({"a": [20.0, 30.0], "truth": [35.0]}, title="t", unit="", aside="truth")
    far = strips({"a": [20.0, 30.0], "truth": [100.0]}, title="t", unit="", aside="truth")
    assert "→" not in near
    assert "100 →" in far
    assert len(list(ElementTree.fromstring(far).iter("circle"))) == 2


def test_missing_values_are_said_and_not_drawn():
    root = ElementTree.fromstring(bars([("a", None, None), ("b", 2.0, None)], title="t", unit=""))
    assert len(list(root.iter("rect"))) == 1
    assert [t.text for t in root.iter("text")].count("n/a") == 1


@pytest.mark.parametrize(
    ("low", "high"), [(0, 1), (-3, 17), (0.0012, 0.0013), (5, 5), (0, 0), (1e6, 3e6), (-1e-7, 1e-7), (99.99, 100)]
)
def test_ticks_are_round_and_enclose(low, high):
    found = ticks(low, high)
    assert 2 <= len(found) <= 8
    assert found[0] <= low + 1e-9 * abs(low)
    assert found[-1] >= high - 1e-9 * abs(high)
    steps = np.diff(found)
    np.testing.assert_allclose(steps, steps[0], rtol=1e-6)
    mantissa = steps[0] / 10 ** np.floor(np.log10(steps[0]) + 1e-9)
    assert min(abs(mantissa - m) for m in (1, 2, 2.5, 5, 10)) < 1e-6


def test_axes_need_numbers_and_stop_at_their_ends():
    with pytest.raises(ValueError, match="finite"):
        ticks(0.0, float("inf"))
    axis = Axis(low=0, high=10, start=100, end=200)
    assert [axis(v) for v in (-5, 0, 5, 10, 20)] == [100, 100, 150, 200, 200]
