"""What is wrong with a tracker is said before the job starts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from spotlight.errors import JobError, MissingDependency
from spotlight.jobs import TrackerSpec
from spotlight.record.run_events import RunEvent
from spotlight.record.run_metrics import IterationMetrics, ValidationMetrics
from spotlight.trackers import building
from spotlight.trackers.building import check_trackers, named_trackers
from spotlight.trackers.tracked_run import TrackedRun
from tests.small_run import small_job

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
        (
            f"{HERE}:HalfATracker",
            "has no method `on_iteration`; it must be a class with the methods `on_iteration`",
        ),
        (f"{HERE}:tracked", "is a function, not a class with the methods"),
        ("code:InteractiveInterpreter", "has no method `on_iteration`"),
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


@pytest.fixture
def without_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home in which nobody has logged in."""
    for name in ("MODE", "API_KEY", "IDENTITY_TOKEN_FILE", "CONFIG_DIR", "DIR"):
        monkeypatch.delenv(f"WANDB_{name}", raising=False)
    monkeypatch.delenv("NETRC", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_wandb_without_a_key_is_refused_with_what_to_do(without_key: Path) -> None:
    with pytest.raises(
        JobError, match=r"^trackers\[1\]\.kind: `wandb` has no key .* WANDB_API_KEY"
    ):
        check_trackers([TrackerSpec(kind="tensorboard"), TrackerSpec(kind="wandb")])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("WANDB_API_KEY", "0" * 40),
        ("WANDB_IDENTITY_TOKEN_FILE", "/run/token"),
        ("WANDB_MODE", "offline"),
        ("WANDB_MODE", "disabled"),
    ],
)
def test_wandb_with_a_key_in_the_environment_or_offline_passes(
    without_key: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    check_trackers([TrackerSpec(kind="wandb")])


@pytest.mark.parametrize("file", [".netrc", "_netrc", ".config/wandb/settings", "wandb/settings"])
def test_wandb_passes_where_a_file_may_hold_its_key(without_key: Path, file: str) -> None:
    (without_key / file).parent.mkdir(parents=True, exist_ok=True)
    (without_key / file).write_text("")
    with pytest.raises(JobError, match="has no key"):
        check_trackers([TrackerSpec(kind="wandb")])
    (without_key / file).write_text("machine api.wandb.ai login user password 0\n")
    check_trackers([TrackerSpec(kind="wandb")])
