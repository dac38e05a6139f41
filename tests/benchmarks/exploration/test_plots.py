"""Plots of runs on the test-bed."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from pathlib import Path

from benchmarks.exploration.charts import Interval, Line, curves, intervals
from benchmarks.exploration.plots import draw
from benchmarks.exploration.rivals import RIVALS
from tests.benchmarks.exploration.test_comparison import PROFILE, runs_of

SVG = "{http://www.w3.org/2000/svg}"


def texts(file: str) -> list[str]:
    return ["".join(each.itertext()) for each in ElementTree.fromstring(file).iter(f"{SVG}text")]


def test_a_plot_of_scores_has_a_title_axes_the_target_and_plain_names() -> None:
    line = Line("Spotlight & others", "#c00", [(0.0, 0.1), (1.0, 0.9)], [(0.0, 0.2), (0.8, 1.0)])
    file = curves([line], title="Score", note="Means", x="hours", y="score", target=0.8)
    assert {"Score", "Means", "hours", "score", "target", "Spotlight & others"} <= set(texts(file))
    root = ElementTree.fromstring(file)
    assert len(root.findall(f"{SVG}polygon")) == 1
    (track,) = [each.get("points") or "" for each in root.findall(f"{SVG}polyline")]
    (left, low), (right, high) = (map(float, point.split(",")) for point in track.split())
    assert left < right
    assert low > high  # further up


def test_every_tick_of_a_narrow_range_of_scores_has_a_label_of_its_own() -> None:
    line = Line("Spotlight", "#c00", [(0.0, 0.47), (1.0, 0.62)], ())
    file = curves([line], title="Score", note="Means", x="hours", y="score", target=0.6)
    labels = [
        each.text
        for each in ElementTree.fromstring(file).iter(f"{SVG}text")
        if each.get("class") == "end"
    ]
    assert len(labels) > 2
    assert len(set(labels)) == len(labels)


def test_a_plot_of_ratios_says_each_with_its_interval() -> None:
    rows = [Interval("ocr", "#c00", 3.0, 2.0, 4.0), Interval("other", "#00c", 1.5, None, None)]
    file = intervals([("reserved only", rows)], title="Speed-up", note="Means", x="times")
    titles = [each.text for each in ElementTree.fromstring(file).iter(f"{SVG}title")]
    assert titles == ["ocr: 3.00 (2.00 to 4.00)", "other: 1.50"]
    assert "reserved only" in texts(file)


def test_every_task_and_profile_with_runs_is_drawn(tmp_path: Path) -> None:
    draw(tmp_path, runs_of([1, 2]), [PROFILE, "even"], ["ocr", "compositional"], [1, 2])
    assert {path.name for path in tmp_path.iterdir()} == {"time-to-target-ocr.svg", "speedups.svg"}
    drawn = texts((tmp_path / "time-to-target-ocr.svg").read_text())
    assert set(RIVALS.values()) <= set(drawn)
