"""What cannot be forked is refused in one line, and nothing is left of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from spotlight.errors import JobError, RunFolderError
from spotlight.running.forking import make_fork, plan_fork
from spotlight.store.run_folder import PROGRESS, RunFolder, read_config
from tests.small_run import small_job


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run of 9 iterations that has kept three checkpoints; its journal knows the last only."""
    folder = RunFolder.create(tmp_path / "runs" / "small-001", small_job(iterations=9))
    identity = {"job_id": "small-1", "token": "secret", "sorts_prompts": True, "owner": "ada"}
    folder.journal.write(
        {
            f"{PROGRESS}000009": b'{"completed": 9}',
            "identity": json.dumps(identity).encode(),
            "prompts": b'{"prompts.train": "digest"}',
        }
    )
    for number in range(9):
        folder.record_metrics({"kind": "iteration", "iteration": number, "time_s": number + 0.5})
    for version in (0, 3, 6, 9):
        line = {"kind": "validation", "weights_version": version, "score": 0.5}
        folder.record_metrics({**line, "time_s": float(version)})
    folder.close()
    (folder.path / "checkpoints").mkdir()
    for number in (3, 6, 9):
        (folder.path / f"checkpoints/iteration-{number:06d}.safetensors").write_bytes(
            b"%d" % number
        )
    return folder.path


def test_a_run_below_runs_is_forked_by_its_name(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(run.parent.parent)
    assert [plan_fork(name, [], None).run for name in ("small-001@3", "last@3")] == [run, run]


@pytest.mark.parametrize(
    ("name", "changes", "line"),
    [
        ("@4", [], "no checkpoint after 4 iterations; write RUN@ITERATION (kept are those after"),
        ("", [], "no name; write RUN@ITERATION (kept are those after 3, 6, 9)"),
        ("@best", [], "no name; write RUN@ITERATION"),
        ("@9", [], "9 iterations are done there, so the fork needs more than 9"),
        ("@3", ["iterations=3"], "3 iterations are done there"),
    ],
)
def test_a_fork_names_a_checkpoint_that_is_there(
    run: Path, name: str, changes: list[str], line: str
) -> None:
    with pytest.raises(RunFolderError) as refused:
        plan_fork(f"{run}{name}", changes, None)
    assert line in str(refused.value)
    assert [*run.parent.iterdir()] == [run]


def test_a_fork_has_the_fields_that_what_is_there_depends_on(run: Path) -> None:
    with pytest.raises(JobError, match="group_size: was 2 when the run began"):
        plan_fork(f"{run}@3", ["group_size=4"], None)


def test_a_folder_that_is_no_run_cannot_be_forked(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="is not a run folder"):
        plan_fork(f"{tmp_path}@3", [], None)


def test_a_fork_has_what_the_run_had_by_then_and_a_name_of_its_own(run: Path) -> None:
    fork = plan_fork(f"{run}@6", ["training.learning_rate=1e-5"], None)
    make_fork(fork)
    assert fork.folder == run.parent / "small-002"
    assert read_config(fork.folder).training.learning_rate == 1e-5
    checkpoint = fork.folder / "checkpoints" / "iteration-000006.safetensors"
    assert [*(fork.folder / "checkpoints").iterdir()] == [checkpoint]
    assert checkpoint.read_bytes() == b"6"
    folder, _ = RunFolder.reopen(fork.folder, None)
    told = [json.loads(line) for line in (fork.folder / "metrics.jsonl").read_text().splitlines()]
    iterations = [line["iteration"] for line in told if line["kind"] == "iteration"]
    validated = [line["weights_version"] for line in told if line["kind"] == "validation"]
    assert (iterations, validated) == ([*range(6)], [0, 3, 6])
    assert folder.last_moment().time_s == 6.0
    identity = json.loads(folder.journal.get("identity") or b"")
    assert identity["job_id"] != "small-1" and identity["token"] != "secret"
    assert (identity["sorts_prompts"], identity["owner"]) == (True, "ada")
    assert folder.journal.get("prompts") == b'{"prompts.train": "digest"}'
    folder.close()


def test_the_run_that_was_forked_stays_as_it_is(run: Path) -> None:
    before = {file: file.read_bytes() for file in run.rglob("*") if file.is_file()}
    make_fork(plan_fork(f"{run}@3", [], None))
    assert {file: file.read_bytes() for file in run.rglob("*") if file.is_file()} == before


def test_a_run_that_goes_on_cannot_be_forked(run: Path) -> None:
    folder, _ = RunFolder.reopen(run, None)
    with pytest.raises(RunFolderError, match="in use by another coordinator"):
        make_fork(plan_fork(f"{run}@3", [], None))
    folder.close()
    assert [*run.parent.iterdir()] == [run]


def test_a_folder_with_something_in_it_is_kept(run: Path) -> None:
    (run.parent / "there").mkdir()
    (run.parent / "there" / "notes.txt").write_text("mine")
    with pytest.raises(RunFolderError, match="is not empty; give another --run-folder"):
        make_fork(plan_fork(f"{run}@3", [], run.parent / "there"))
    assert (run.parent / "there" / "notes.txt").read_text() == "mine"


def test_a_checkpoint_that_cannot_be_copied_leaves_no_fork(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device", "somewhere")

    monkeypatch.setattr("os.link", refuse)
    monkeypatch.setattr("shutil.copyfile", refuse)
    with pytest.raises(RunFolderError, match="somewhere: No space left on device; free some"):
        make_fork(plan_fork(f"{run}@3", [], None))
    assert [*run.parent.iterdir()] == [run]
