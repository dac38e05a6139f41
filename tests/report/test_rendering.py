"""The report: self-contained, escaped, and there for every kind of run."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from sample_run import RESERVED, RunWriter, sample_job, write_sample_run

from spotlight.errors import RunFolderError
from spotlight.report.metrics import summarise
from spotlight.report.rendering import render_report, write_report
from spotlight.report.run_reading import read_run

VOID = {"meta", "img", "br"}


class _Page(HTMLParser):
    """Collects what a page refers to, and checks that its tags are balanced."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.scripts = 0
        self.text: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.scripts += tag == "script"
        self.links += [value or "" for name, value in attrs if name in ("src", "href", "data")]
        assert not any(name.startswith("on") for name, _ in attrs)
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


@pytest.fixture(scope="session")
def report(finished_run: Path) -> str:
    return render_report(read_run(finished_run))


def test_the_report_is_written_into_the_run_folder(tmp_path: Path) -> None:
    folder = write_sample_run(tmp_path / "run", iterations=2, loses_spot=False)
    path = write_report(folder)
    assert path == folder / "report.html"
    assert path.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert not list(folder.glob("*.tmp"))


def test_the_page_refers_to_nothing_outside_itself(report: str) -> None:
    page = _Page(report)
    assert page.links and all(link.startswith("data:image/png;base64,") for link in page.links)
    assert "://" not in report
    assert "url(" not in report and "@import" not in report


def test_the_page_allows_its_own_script_only(report: str) -> None:
    page = _Page(report)
    assert page.scripts == 1
    assert re.search(r"default-src 'none'; .*script-src 'sha256-[\w+/=]{44}'", report)


def test_every_part_of_the_report_is_there(report: str) -> None:
    text = " ".join(_Page(report).text)
    for words in (
        "ocr-tiny",
        "finished",
        "Validation score",
        "Reward of the samples",
        "Spread within prompt groups",
        "Previews",
        "Before and after",
        "Where the time went",
        "of worker time in all",
        "The whole run",
        "up close",
        "Node lost",
        "Checkpoint saved",
        "per_iteration: 8",
    ):
        assert words in text, words


def test_the_report_begins_with_whether_exploration_paid(report: str, finished_run: Path) -> None:
    sentence = summarise(read_run(finished_run))["exploration"]["sentence"]
    assert sentence.startswith("Exploration paid: rewards of kept seeds spread 1.25 times as wide")
    head = report[: report.index("</header>")]
    assert sentence in head


def test_the_report_says_how_true_previews_were(report: str, run: RunWriter) -> None:
    assert "rewards were ordered as their previews by 0.62" in report
    assert "of 44 probes" in report
    run.event("exploration_reduced", 3.0, iteration=7, share=0.5, tau=0.125, pairs=120.0)
    text = render_report(read_run(run.folder))
    assert "to 0.5 for iteration 7: previews and rewards agree by 0.125" in text


@pytest.mark.parametrize("scale", [1.0, 30.0])
def test_each_of_several_rewards_is_drawn_by_itself(tmp_path: Path, scale: float) -> None:
    run = RunWriter(tmp_path / "run")
    pick = {"name": "pick", "kind": "http", "http": {"url": "http://a"}, "range": None}
    strict = {"name": "strict", "range": [0, 1]}
    run.job(sample_job(rewards=[{}, {**pick, "weight": 0.5}], validation={"rewards": [strict]}))
    run.event("run_started", 0.0, job="x")
    for version in range(3):
        rewards = {"ocr": 0.1 * version, "pick": -3 + scale * version, "strict": 0.5}
        run.metric("validation", 1.0 + version, weights_version=version, score=scale * version,
                   rewards=rewards, reward_errors=dict.fromkeys(rewards, 0.01))  # fmt: skip
        run.metric("iteration", 1.5 + version, iteration=version, reward_mean=scale * version,
                   reward_std=1.0)  # fmt: skip
    history = read_run(run.folder)
    text = render_report(history)
    for words in (
        "Validation: ocr",
        "Validation: pick",
        "weight 0.5 in training",
        "Validation: strict",
        "not trained on",
        f"pick of validation images by run time, -3.000 to {2 * scale - 3:.3f}",
        f"validation score by run time, 0.000 to {2 * scale:.3f}",
        "the mean by their weights",
        "rewarded by ocr and pick",
    ):
        assert words in text, words
    told = summarise(history)["rewards"]
    assert told["pick"] == {
        "is_trained": True,
        "validation_start": -3.0,
        "validation_end": 2 * scale - 3,
    }
    assert not told["strict"]["is_trained"]


def test_a_single_reward_is_drawn_once(report: str) -> None:
    assert "Validation: " not in report and "by their weights" not in report


def test_rewards_that_say_nothing_and_rewards_that_are_gamed_are_told(run: RunWriter) -> None:
    run.event("rewards_flat", 3.0, iteration=7, reward=0.0, in_a_row=2, stops_after=5)
    run.event("reward_fell", 4.0, weights_version=9, reward="strict", mean=0.2, best=0.8,
              best_version=3)  # fmt: skip
    text = render_report(read_run(run.folder))
    assert "all are 0.000 in iteration 7; 2 of 5 in a row" in text
    assert "strict, which is not trained on, fell from 0.800 to 0.200 since version 3" in text


def test_the_report_says_where_validation_left_no_time_to_explore(run: RunWriter) -> None:
    for iteration, (previews, window_s) in enumerate([(0, None), (8, 0.0), (0, 2.5), (0, 0.0)]):
        run.metric("iteration", float(iteration), iteration=iteration, previews=previews,
                   window_s=window_s)  # fmt: skip
    text = render_report(read_run(run.folder))
    assert "none before 1 iteration, as validation needed all the time" in text


def test_few_previews_have_ticks_at_whole_numbers(run: RunWriter) -> None:
    for iteration in range(2):
        run.metric("iteration", float(iteration), iteration=iteration, previews=10 * iteration)
    (drawn,) = re.findall(
        r"aria-label=.previews by iteration.*?</svg>", render_report(read_run(run.folder)), re.S
    )
    assert re.findall(r'class="y"[^>]*>([^<]*)<', drawn) == ["0", "5", "10"]


def test_both_galleries_are_embedded_side_by_side(report: str) -> None:
    assert report.count('<img class="crisp"') == 16
    assert report.count("before<b>") == report.count("after<b>") == 8


def test_the_workers_that_took_part_are_counted_not_those_of_the_job_file(report: str) -> None:
    assert "1 reserved worker, 2 spot workers; seed 7" in report


def test_every_worker_has_a_lane(report: str) -> None:
    for worker in ("reserved-0/0", "spot-0/0", "spot-1/0"):
        assert f"states of {worker} over the run" in report


def test_text_of_the_run_is_escaped(tmp_path: Path) -> None:
    bad = "<script>alert(1)</script>"
    run = RunWriter(tmp_path / "run")
    run.job(sample_job(prompts={"train": bad, "validation": "builtin:ocr-tiny/validation"}))
    run.state({**RESERVED, "worker": bad, "node": bad, "pool": f'{bad}"'}, 1.0, "rollout")
    run.event("phase", 1.0, iteration=0, phase="rollout")
    run.event("phase", 2.0, iteration=1, phase="rollout")
    run.event("node_lost", 2.0, node=bad, pool=bad, reason=bad)
    run.event("group_dropped", 2.0, iteration=0, prompt=bad, reason=bad)
    run.event("scorer_failed", 2.0, request=bad, error=bad)
    run.event("run_finished", 3.0, outcome="failed", reason=bad)
    folder = run.folder / "validation" / "v000000"
    folder.mkdir(parents=True)
    (folder / "prompts.json").write_text(f'[{{"prompt": "{bad}", "reward": 1, "file": "x.png"}}]')
    text = render_report(read_run(run.folder))
    assert bad not in text
    assert _Page(text).scripts == 1


def test_a_run_that_has_just_begun_has_a_report(run: RunWriter) -> None:
    run.event("run_started", 0.0)
    text = render_report(read_run(run.folder))
    assert "unfinished" in text and "Nothing was measured yet" in text


def test_a_single_iteration_is_drawn(run: RunWriter) -> None:
    run.metric("iteration", 3.0, iteration=0, reward_mean=0.0, reward_std=0.0, group_std_mean=0.0)
    run.metric("validation", 0.0, weights_version=0, score=0.0)
    _Page(render_report(read_run(run.folder)))


def test_only_later_starts_of_a_run_are_told_as_resumptions(run: RunWriter) -> None:
    run.event("run_started", 0.001, resumed_from_iteration=None)
    run.event("checkpoint_saved", 1.0, iteration=0, path="/runs/x/checkpoints/i.safetensors")
    assert "Run resumed" not in render_report(read_run(run.folder))
    run.event("run_started", 2.0, resumed_from_iteration=3)
    text = render_report(read_run(run.folder))
    assert text.count("Run resumed") == 1 and "from iteration 3" in text
    assert "<td>checkpoints/i.safetensors</td>" in text


def test_segments_and_weights_that_were_taken_are_told(run: RunWriter) -> None:
    run.event("weights_taken", 1.0, source="/runs/a@15", score=0.5)
    run.event(
        "segment_began",
        2.0,
        number=2,
        iteration=20,
        changes=["iterations: 20 -> 40", "training.learning_rate: 0.0003 -> 0.0001"],
        version="0.2.0",
        source="",
    )
    history = read_run(run.folder)
    text = render_report(history)
    assert "from /runs/a@15, which had a validation score of 0.500" in text
    assert "2, with iteration 20: iterations: 20 -&gt; 40; training.learning_rate" in text
    (segment,) = summarise(history)["segments"]
    assert (segment["number"], segment["iteration"], segment["version"]) == (2, 20, "0.2.0")
    assert segment["changes"][0] == "iterations: 20 -> 40"


def test_a_failed_run_says_why(run: RunWriter) -> None:
    run.event("run_finished", 1.0, outcome="failed", reason="the disk is full")
    assert "the disk is full" in render_report(read_run(run.folder))


def test_what_was_torn_is_said(run: RunWriter) -> None:
    (run.folder / "events.jsonl").write_text('{"time_s": 1.0, "ev')
    assert "events.jsonl: the last line is torn" in render_report(read_run(run.folder))


def test_a_picture_that_is_missing_or_not_a_png_is_left_blank(tmp_path: Path) -> None:
    folder = write_sample_run(tmp_path / "run", iterations=1, loses_spot=False)
    pictures = sorted((folder / "validation").glob("*/p000.png"))
    pictures[0].unlink()
    pictures[1].write_text("<svg onload=alert(1)>")
    text = render_report(read_run(folder))
    assert text.count('class="none"') == 2 and "onload" not in text


def test_a_long_run_stays_a_small_page(tmp_path: Path) -> None:
    folder = write_sample_run(tmp_path / "run", iterations=400, loses_spot=False)
    assert len(render_report(read_run(folder))) < 1_500_000


def test_a_folder_that_cannot_be_written_is_said(
    finished_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(RunFolderError, match=r"report\.html: cannot be written \(No space left"):
        write_report(finished_run)


def test_the_report_says_how_many_samples_were_previews(run: RunWriter) -> None:
    for iteration in range(5):
        run.metric(
            "iteration",
            float(iteration),
            iteration=iteration,
            samples=32,
            samples_reused=32 if iteration else 0,
            rollout_s=2.0 if iteration == 0 else 0.0,
            group_std_mean=0.3,
            preview_group_std_mean=0.3,
            realised_share=1.0 if iteration else None,
            contrast=0.3,
            contrast_at_random=0.2 + iteration / 100,
        )
    assert summarise(read_run(run.folder))["samples_reused"] == 128
    text = " ".join(_Page(render_report(read_run(run.folder))).text)
    assert "128 of them previews, one iteration old" in text
    assert "that previews promised" not in text, "they are the samples"
