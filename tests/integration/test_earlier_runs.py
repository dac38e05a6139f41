"""The run folder of every release is gone on with, by real processes, to its end."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.integration.conftest import Workplace, events, metrics

EARLIER = Path(__file__).parents[1] / "data" / "runs"


@pytest.mark.slow
@pytest.mark.parametrize("version", sorted(path.name for path in EARLIER.iterdir()))
def test_a_run_of_an_earlier_version_ends_with_this_one(workplace: Workplace, version: str) -> None:
    run = workplace.folder / "run"
    shutil.copytree(EARLIER / version, run)
    before = (run / "metrics.jsonl").read_text().splitlines()

    ended = workplace.spotlight("run", "--resume", run)

    assert ended.code == 0, ended.errors + ended.output
    assert [event["outcome"] for event in events(run, "run_finished")] == ["finished"]
    assert events(run, "run_started")[-1]["resumed_from_iteration"] == 2
    assert [line["iteration"] for line in metrics(run, "iteration")] == [0, 1, 2, 3]
    assert (run / "metrics.jsonl").read_text().splitlines()[: len(before)] == before
    assert list((run / "export").iterdir())


def test_a_run_folder_that_cannot_be_gone_on_with_ends_the_command_in_one_line(
    workplace: Workplace,
) -> None:
    """Of a newer version, and with a damaged journal: code 2, no change."""
    run = workplace.folder / "run"
    shutil.copytree(EARLIER / "0.1.0", run)
    config = (run / "config.yaml").read_text()
    (run / "config.yaml").write_text(f"spotlight: {{version: 9.1.0}}\nspeed: 2\n{config}")
    _refused(workplace, run, "Spotlight 9.1.0 wrote this")
    (run / "config.yaml").write_text(config)
    (run / "journal.sqlite").write_bytes(b"nonsense" * 99)
    (run / "journal.sqlite-wal").unlink()
    _refused(workplace, run, "journal.sqlite, of Spotlight 0.1.0, is damaged")


def _refused(workplace: Workplace, run: Path, words: str) -> None:
    before = _files(run)
    ended = workplace.spotlight("run", "--resume", run)
    assert ended.code == 2, ended.errors + ended.output
    assert words in " ".join(ended.errors.split())
    assert "Traceback" not in ended.errors
    assert _files(run) == before


def _files(run: Path) -> dict[str, bytes]:
    found = [file for file in run.rglob("*") if file.is_file()]
    kept = [file for file in found if file.name != ".lock" and "logs" not in file.parts]
    return {str(file): file.read_bytes() for file in kept}
