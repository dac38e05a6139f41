"""Runs that are not made twice."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from benchmarks.exploration import kept_runs
from benchmarks.exploration.kept_runs import KeptRuns, Made
from benchmarks.exploration.rival_jobs import virtual_job
from spotlight.errors import UserError

MADE = Made(virtual_job("ocr", "rollouts", 1), {"profile": {"train_s": 240.0}})
RUN = {"validation": [[0.0, 0, 0.5]]}


def test_a_run_is_found_again_on_another_machine(tmp_path: Path) -> None:
    KeptRuns(tmp_path).keep("a/run", MADE, RUN)
    assert KeptRuns(tmp_path).read("a/run", MADE) == RUN
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["run.json"]


def test_a_run_that_was_not_made_is_not_found(tmp_path: Path) -> None:
    assert KeptRuns(tmp_path).read("run", MADE) is None


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"run": 1}'])
def test_a_file_that_is_damaged_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(UserError, match=r"run\.json is damaged; remove it"):
        KeptRuns(tmp_path).read("run", MADE)


def test_a_run_of_another_job_does_not_count(tmp_path: Path) -> None:
    kept = KeptRuns(tmp_path)
    kept.keep("run", MADE, RUN)
    assert kept.read("run", Made(virtual_job("ocr", "rollouts", 2), MADE.facts)) is None


def test_a_run_with_another_profile_does_not_count(tmp_path: Path) -> None:
    kept = KeptRuns(tmp_path)
    kept.keep("run", MADE, RUN)
    assert kept.read("run", msgspec.structs.replace(MADE, facts={})) is None


def test_a_run_from_before_a_change_of_the_numerics_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = KeptRuns(tmp_path)
    kept.keep("run", MADE, RUN)
    monkeypatch.setattr(kept_runs, "NUMERICS", kept_runs.NUMERICS + 1)
    assert kept.read("run", MADE) is None


def test_a_field_that_jobs_have_only_since_then_does_not_matter(tmp_path: Path) -> None:
    kept, file = KeptRuns(tmp_path), tmp_path / "run.json"
    kept.keep("run", MADE, RUN)
    old = json.loads(file.read_text())
    del old["job"]["training"]["patience_s"]
    file.write_text(json.dumps(old))
    assert kept.read("run", MADE) == RUN


def test_a_job_of_which_a_field_is_gone_does_not_count(tmp_path: Path) -> None:
    kept, file = KeptRuns(tmp_path), tmp_path / "run.json"
    kept.keep("run", MADE, RUN)
    old = json.loads(file.read_text())
    old["job"]["training"]["no_such_field"] = 1
    file.write_text(json.dumps(old))
    assert kept.read("run", MADE) is None
