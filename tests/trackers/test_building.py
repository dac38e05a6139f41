"""What is wrong with a tracker is said before the job starts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from spotlight.errors import JobError, MissingDependency
from spotlight.jobs import TrackerSpec
from spotlight.run_events import RunEvent
from spotlight.run_metrics import IterationMetrics, ValidationMetrics
from spotlight.trackers import building
from spotlight.trackers.building import check_trackers, named_trackers
from spotlight.trackers.tracked_run import TrackedRun
from tests.studies.small_run import small_job

HERE = __name__


class OwnTracker:
    """What a user may write."""

    def __init__(self, run: TrackedRun) -> None:
        self.run = run

    def on_iteration(self, metrics: IterationMetrics, loss: Mapping[str, float]) -> None: ...

    def on_validation(self, metrics: ValidationMetrics) -> None: ...

    def on_event(self, event: RunEvent) -> None: ...


class HalfATracker:
    """Lacks two methods."""

    def on_event(self, event: RunEvent) -> None: ...


def tracked(folder: Path, kind: str) -> TrackedRun:
    spec = TrackerSpec(kind=kind)
    return TrackedRun(id="small-1", job=small_job(), folder=folder, tracker=spec)


def test_a_class_of_ones_own_is_made_with_its_run(tmp_path: Path) -> None:
    run = tracked(tmp_path, f"{HERE}:OwnTracker")
    check_trackers([run.tracker])
    (named,) = named_trackers([run])
    made = named.make()
    assert isinstance(made, OwnTracker)
    assert (named.name, made.run) == (f"{HERE}:OwnTracker", run)


def test_a_module_in_the_working_folder_is_found_and_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = f"from {HERE} import OwnTracker as Mine\nraise SystemExit('it was run')\n"
    (tmp_path / "my_tracker_of_this_test.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    check_trackers([TrackerSpec(kind="my_tracker_of_this_test:Mine")])


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("no_such_package.at_all:Tracker", "there is no module"),
        (f"{HERE}:Absent", "has no class Absent"),
        (f"{HERE}:HalfATracker", "is not a class with the methods on_iteration"),
        (f"{HERE}:tracked", "is not a class with the methods"),
        ("code:InteractiveInterpreter", "is not a class with the methods"),
    ],
)
def test_a_class_that_is_no_tracker_is_named_and_never_called(kind: str, words: str) -> None:
    with pytest.raises(JobError) as refused:
        check_trackers([TrackerSpec(kind=kind)])
    assert refused.value.path == "trackers[0].kind"
    assert kind.partition(":")[0] in refused.value.problem and words in refused.value.problem


def test_a_package_that_is_absent_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(building, "find_spec", lambda name: None)
    words = r"trackers\[0\].kind: wandb.* needs wandb.*\[trackers\]"
    with pytest.raises(MissingDependency, match=words):
        check_trackers([TrackerSpec(kind="wandb")])
