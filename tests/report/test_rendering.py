"""The report: a single page, escaped, and there for every kind of run."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from sample_run import RESERVED, RunWriter, sample_job, write_sample_run

from spotlight.errors import RunFolderError
from spotlight.report.frozen_page import LARGEST
from spotlight.report.metrics import summarise
from spotlight.report.rendering import report_data, write_report
from spotlight.report.run_reading import read_run

VOID = {"meta", "img", "br", "link"}


class _Page(HTMLParser):
    """Collects what a page consists of, and checks that its tags are balanced."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.scripts: list[str] = []
        self.styles: list[str] = []
        self.policy = ""
        self.data = ""
        self.text: list[str] = []
        self._open: list[str] = []
        self._is_data = False
        self.feed(text)
        assert self._open == []

    @property
    def view(self) -> dict[str, Any]:
        """The record that is in the page."""
        found: dict[str, Any] = json.loads(self.data)
        return found

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        said = dict(attrs)
        self._is_data = said.get("type") == "application/json"
        self.links += [value or "" for name, value in attrs if name in ("src", "href")]
        if said.get("http-equiv") == "Content-Security-Policy":
            self.policy = said["content"] or ""
        assert not any(name.startswith("on") for name, _ in attrs)
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        where = self._open[-1] if self._open else ""
        if where == "script" and self._is_data:
            self.data += data
        elif where == "script":
            self.scripts.append(data)
        elif where == "style":
            self.styles.append(data)
        else:
            self.text.append(data)


def _rendered(folder: Path) -> str:
    return write_report(folder).read_text(encoding="utf-8")


@pytest.fixture(scope="session")
def report(tmp_path_factory: pytest.TempPathFactory) -> str:
    return _rendered(write_sample_run(tmp_path_factory.mktemp("runs") / "run", iterations=12))


def test_the_report_is_written_into_the_run_folder(tmp_path: Path) -> None:
    folder = write_sample_run(tmp_path / "run", iterations=2, loses_spot=False)
    path = write_report(folder)
    assert path == folder / "report.html"
    assert path.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert not list(folder.glob("*.tmp"))


def test_the_page_refers_to_nothing_outside_the_run_folder(report: str) -> None:
    page = _Page(report)
    links = [link for link in page.links if not link.startswith(("data:", "#"))]
    assert links == []
    assert not any(re.search(r"url\(|@import", style) for style in page.styles)


def test_the_page_allows_its_own_scripts_and_styles_only(report: str) -> None:
    page = _Page(report)
    assert page.policy.startswith("default-src 'none'; ")
    for text in (*page.scripts, *page.styles):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in page.policy
    assert "unsafe" not in page.policy


def test_the_whole_view_is_in_the_page(report: str) -> None:
    view = _Page(report).view
    assert view["job"]["name"] == "ocr-tiny"
    assert len(view["rows"]) == 13 and len(view["lanes"]) == 3


def test_the_main_figures_can_be_read_without_a_script(report: str) -> None:
    text = " ".join(_Page(report).text)
    assert "Loading" not in text and "JavaScript" not in text
    for words in ("ocr-tiny", "finished", "12 of 12", "0.300 to 0.830, best 0.830", "not priced",
                  "Node lost: spot-0 (spot): preempted"):  # fmt: skip
        assert words in text, words


def _thumbnails(page: str) -> list[str]:
    wall = _Page(page).view["pictures"]["wall"]
    return [shown["thumb"] for row in wall for shown in row]


def test_thumbnails_are_in_the_page_and_whole_pictures_beside_it(report: str) -> None:
    (first, *_) = _Page(report).view["pictures"]["wall"]
    assert [shown["full"] for shown in first] == [
        "validation/v000000/p000.png",
        "validation/v000012/p000.png",
    ]
    thumbs = _thumbnails(report)
    assert len(thumbs) == 16 and all(one.startswith("data:image/png;base64,") for one in thumbs)


@pytest.mark.parametrize("data", [b"", b"<svg onload=alert(1)>"], ids=["empty", "no picture"])
def test_a_picture_that_is_broken_is_left_out(tmp_path: Path, data: bytes) -> None:
    folder = write_sample_run(tmp_path / "run", iterations=1, loses_spot=False)
    first, second, *_ = sorted((folder / "validation").glob("*/p*.png"))
    first.write_bytes(data)
    second.unlink()
    page = _rendered(folder)
    assert len(_thumbnails(page)) == 14 and "<svg onload" not in page


def test_what_lies_outside_of_the_run_folder_is_in_no_page(tmp_path: Path) -> None:
    folder = write_sample_run(tmp_path / "run", iterations=1, loses_spot=False)
    (tmp_path / "other.png").write_bytes(b"\x89PNG\r\n\x1a\nsecret")
    first = min((folder / "validation").glob("*/p*.png"))
    first.unlink()
    first.symlink_to(tmp_path / "other.png")
    assert len(_thumbnails(_rendered(folder))) == 15


def test_the_page_stays_small_however_large_the_pictures_are(tmp_path: Path) -> None:
    folder = write_sample_run(tmp_path / "run", iterations=1, loses_spot=False)
    for version in range(30):
        shown = folder / f"thumbnails/v{version:06d}"
        shown.mkdir(parents=True)
        lines = [{"prompt": f"p{one}", "reward": 0.5, "file": f"{one}.webp"} for one in range(24)]
        (shown / "prompts.json").write_text(json.dumps(lines))
        for line in lines:
            (shown / str(line["file"])).write_bytes(b"RIFF" + bytes(60_000))
    page = _rendered(folder)
    thumbs = _thumbnails(page)
    assert 0.8 * LARGEST < len(page.encode()) <= LARGEST
    assert len(thumbs) == 24 * 12
    assert sum(one.startswith("thumbnails/v") for one in thumbs) > 100  # links to what is beside
    wall = _Page(page).view["pictures"]["wall"]
    assert all(row[0]["thumb"].startswith("data:") for row in wall)


def test_whose_the_scripts_are_is_said(report: str) -> None:
    assert "Copyright (c)" in report and "Permission is hereby granted" in report


def test_text_of_the_run_is_escaped(tmp_path: Path) -> None:
    bad = "</script><script>alert(1)</script>"
    run = RunWriter(tmp_path / "run")
    run.job(sample_job(prompts={"train": bad, "validation": "builtin:ocr-tiny/validation"}))
    run.state({**RESERVED, "worker": bad, "node": bad, "pool": f'{bad}"'}, 1.0, "rollout")
    run.event("phase", 2.0, iteration=1, phase="rollout")
    run.event("node_lost", 2.0, node=bad, pool=bad, reason=bad)
    run.event("scorer_failed", 2.0, request=bad, error=bad)
    run.event("run_finished", 3.0, outcome="failed", reason=bad)
    folder = run.folder / "validation" / "v000000"
    folder.mkdir(parents=True)
    (folder / "p.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    listing = [{"prompt": bad, "reward": 1, "file": "p.png"}]
    (folder / "prompts.json").write_text(json.dumps(listing))
    text = _rendered(run.folder)
    assert bad not in text and "alert(1)</script>" not in text
    assert _Page(text).view["job"]["reason"] == bad


def test_a_run_that_has_just_begun_has_a_report(run: RunWriter) -> None:
    run.event("run_started", 0.0)
    assert _Page(_rendered(run.folder)).view["rows"] == []


def test_only_later_starts_of_a_run_are_told_as_resumptions(run: RunWriter) -> None:
    run.event("run_started", 0.001, resumed_from_iteration=None)
    assert "Run resumed" not in _rendered(run.folder)
    run.event("run_started", 2.0, resumed_from_iteration=3)
    text = _rendered(run.folder)
    assert "Run resumed: from iteration 3" in text


def test_segments_and_weights_that_were_taken_are_told(run: RunWriter) -> None:
    run.event("weights_taken", 1.0, source="/runs/a@15", score=0.5)
    changes = ["iterations: 20 -> 40", "training.learning_rate: 0.0003 -> 0.0001"]
    run.event("segment_began", 2.0, number=2, iteration=20, changes=changes, version="0.2.0",
              source="")  # fmt: skip
    text = _rendered(run.folder)
    assert "from /runs/a@15, which had a validation score of 0.500" in text
    assert "2, with iteration 20: iterations: 20 -&gt; 40; training.learning_rate" in text
    (segment,) = summarise(read_run(run.folder))["segments"]
    assert (segment["number"], segment["iteration"], segment["version"]) == (2, 20, "0.2.0")
    assert segment["changes"][0] == "iterations: 20 -> 40"


def test_what_was_torn_is_said(run: RunWriter) -> None:
    (run.folder / "events.jsonl").write_text('{"time_s": 1.0, "ev')
    assert "events.jsonl: the last line is torn" in _rendered(run.folder)


def test_a_long_run_stays_a_small_page(tmp_path: Path) -> None:
    folder = write_sample_run(tmp_path / "run", iterations=400, loses_spot=False)
    assert len(_rendered(folder)) < 1_000_000


def test_a_folder_that_cannot_be_written_is_said(
    run: RunWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(RunFolderError, match=r"report\.html: cannot be written \(No space left"):
        write_report(run.folder)


def test_figures_view_and_page_say_the_same(tmp_path: Path) -> None:
    folder = write_sample_run(tmp_path / "run", iterations=10)
    told = json.loads(json.dumps(report_data(folder)))
    view = _Page(_rendered(folder)).view
    for part in ("job", "validation", "money", "pools", "exploration", "rows", "areas", "lanes"):
        assert told["view"][part] == view[part], part
    assert told["outcome"] == view["job"]["outcome"] == "finished"
    assert told["iterations"] == view["job"]["iteration"] == 10
    assert told["run_seconds"] == pytest.approx(view["job"]["time_s"], abs=0.01)
    assert told["validation_start"] == view["validation"]["first"]
    assert told["validation_end"] == view["validation"]["latest"]
    assert told["validation_best"] == view["validation"]["best"]
    for pool, times in told["pools"].items():
        for state, seconds in times["states"].items():
            shown = view["pools"][pool]["seconds"].get(state, 0.0)
            assert seconds == pytest.approx(shown, abs=0.05), (pool, state)


def test_the_figures_say_how_many_samples_were_previews(run: RunWriter) -> None:
    for iteration in range(5):
        reused = 32 if iteration else 0
        run.metric("iteration", float(iteration), iteration=iteration, samples_reused=reused)
    assert summarise(read_run(run.folder))["samples_reused"] == 128
