"""`python -m benchmarks.staleness`: the command, its table, and one line for what does not fit."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import structlog
import torch
from rich.console import Console
from safetensors.torch import save_file

from benchmarks.staleness.__main__ import main, results
from benchmarks.staleness.rank_fidelity import Estimate
from benchmarks.staleness.staleness_record import Scoring, StalenessRecord, compare
from tests.small_run import write_run

LIMIT_S = 200.0

pytestmark = pytest.mark.timeout(240)


@pytest.fixture(autouse=True)
def logs_as_before() -> Iterator[None]:
    """The command sets up the logs of its process, which here is that of all tests."""
    yield
    structlog.reset_defaults()


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run without a checkpoint, of a job that takes a second."""
    return write_run(tmp_path)


def study(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "benchmarks.staleness", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )


def refusal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str | Path
) -> str:
    """The one line with which the command is refused."""
    monkeypatch.setattr(sys, "argv", ["staleness", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    output = capsys.readouterr()
    assert not output.out and len(output.err.splitlines()) == 1
    return output.err


@pytest.mark.slow
def test_a_study_prints_its_figures_and_leaves_them_in_the_run(run: Path) -> None:
    done = study(run, "--seeds", "4", "--prompts", "2", "--lags", "1,2")

    assert done.returncode == 0, done.stderr
    for words in ("iteration 1: trained on 2 samples", "lag 2", "shuffled", "2 prompts x 4 seeds"):
        assert words in done.stdout, done.stdout
    found = json.loads((run / "studies" / "staleness.json").read_text())
    assert [one["lag"] for one in found["scorings"]] == [2, 1, 0, 0]
    assert (run / "studies" / "staleness.svg").read_text().startswith("<svg")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--seeds", "2"), "--seeds"),
        (("--prompts", "513"), "from 1 to 512"),
        (("--lags", "soon"), "--lags"),
        (("--seeds", "1000000000"), "--seeds: must be at most 4,096"),
        (("--lags", "1,1000000000"), "--lags: must be at most 1,000"),
    ],
)
def test_an_option_that_does_not_fit_is_named(
    run: Path, monkeypatch, capsys, options: tuple[str, str], words: str
) -> None:
    assert words in refusal(monkeypatch, capsys, run, *options)


def test_a_folder_that_is_no_run_is_named(tmp_path: Path, monkeypatch, capsys) -> None:
    assert "config.yaml" in refusal(monkeypatch, capsys, tmp_path / "nothing")


def test_a_job_of_a_newer_version_is_named(run: Path, monkeypatch, capsys) -> None:
    with (run / "config.yaml").open("a") as config:
        config.write("telepathy: true\n")
    assert "telepathy: unknown key" in refusal(monkeypatch, capsys, run)


@pytest.mark.slow
def test_a_checkpoint_of_a_newer_version_is_named(run: Path) -> None:
    path = run / "checkpoints" / "iteration-000003.safetensors"
    path.parent.mkdir()
    header = {"format": "spotlight-training", "version": 99, "metadata": {}}
    save_file({"updates": torch.tensor(0)}, path, {"spotlight": json.dumps(header)})

    done = study(run)

    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert str(path) in line and "newer Spotlight" in line
    assert not (run / "studies").exists()


def record(*, stochastic: bool = False) -> StalenessRecord:
    """Found on two prompts, of which one is flat."""
    seeds = ((1, 2, 3, 4), (5, 6, 7, 8))
    fresh = ((0.0, 0.25, 0.5, 1.0), (0.5, 0.5, 0.5, 0.5))
    stale = ((0.25, 0.0, 0.5, 1.0), (0.5, 0.5, 0.5, 0.5))
    scorings = tuple(
        Scoring(treatment=treatment, lag=lag, steps=8, rewards=rewards)
        for treatment, lag, rewards in (
            ("rollout", 1, stale),
            ("rollout", 0, fresh),
            ("repeat", 0, fresh),
            ("preview", 0, stale),
        )
    )
    return StalenessRecord(
        job="small",
        checkpoint="",
        completed=3,
        trained=1,
        sampler="flow_sde" if stochastic else "ode",
        stochastic=stochastic,
        keep=2,
        seed=0,
        prompts=("a", "b"),
        seeds=seeds,
        scorings=scorings,
        comparisons=compare(scorings, keep=2, seeds=seeds, seed=0),
    )


def drawn(found: StalenessRecord) -> str:
    console = Console(width=80, color_system=None, no_color=True)
    with console.capture() as capture:
        console.print(results(found))
    return capture.get()


def test_the_table_has_a_line_for_every_scoring_and_the_control() -> None:
    text = drawn(record())
    for name in ("lag 1", "repeat, lag 0", "preview, lag 0", "shuffled lag 1"):
        assert any(line.strip().startswith(name) for line in text.splitlines()), name
    (line,) = (line for line in text.splitlines() if line.strip().startswith("lag 1"))
    # Spearman, tau-b (5 of 6 pairs agree), kept/best, flat prompts
    assert line.split()[2:] == ["0.80", "0.67", "0.75", "1"]
    assert "2 kept, weights of iteration 4" in text


def test_nothing_is_cut_off_in_a_narrow_terminal() -> None:
    intervals = msgspec.structs.replace(
        record().comparisons[0].fidelity,
        spearman_median=Estimate(-0.86, (-0.89, -0.82)),
        realised_over_oracle=Estimate(0.95, (0.92, 0.97)),
    )
    found = record()
    shown = tuple(msgspec.structs.replace(it, fidelity=intervals) for it in found.comparisons)
    text = drawn(msgspec.structs.replace(found, comparisons=shown))
    assert "-0.86 [-0.89, -0.82]" in text and "0.95 [0.92, 0.97]" in text
    assert "\N{HORIZONTAL ELLIPSIS}" not in text


def test_the_table_says_what_a_repetition_is() -> None:
    assert "1 by construction, as `ode` adds no noise" in drawn(record())
    assert "other noise in its steps" in drawn(record(stochastic=True))
