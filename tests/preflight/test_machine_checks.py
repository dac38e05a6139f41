"""Packages, workers and room that a run needs of this machine, asked for before it starts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from preflight_kit import MakeJob

from spotlight.errors import CheckpointError, JobError, MissingDependency, RunFolderError, UserError
from spotlight.preflight import checks as preflight
from spotlight.preflight import packages

ROOT = Path(__file__).resolve().parents[2]


def test_neither_torch_nor_numpy_is_imported() -> None:
    code = (
        "import sys; from spotlight.jobs import load_job; import spotlight.preflight.checks;"
        "import spotlight.report.rendering, spotlight.cli.plan, spotlight.cli.live;"
        "sys.exit(any(name in sys.modules for name in ('torch', 'numpy', 'diffusers')))"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=30, cwd=ROOT)


def _without(monkeypatch: pytest.MonkeyPatch, *missing: str) -> None:
    monkeypatch.setattr(
        packages, "find_spec", lambda name: None if name in missing else SimpleNamespace()
    )


def test_packages_of_workers_are_asked_for(
    make_job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    _without(monkeypatch, "torch", "diffusers")
    with pytest.raises(MissingDependency, match=r'torch, diffusers.*pip install "\.\[w'):
        preflight.check(make_job())


def test_the_packages_of_the_scorer_are_asked_for(
    make_job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    _without(monkeypatch, "rapidocr")
    with pytest.raises(MissingDependency, match=r"`rewards\[0\]\.kind: ocr` needs .*\[rewards\]"):
        preflight.check(make_job())


def test_adapters_need_peft(
    make_job: MakeJob, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _without(monkeypatch, "peft", "transformers")
    preflight.check(make_job())
    lora = {"tuning": "lora", "lora": {"targets": ["to_q"]}}
    with pytest.raises(MissingDependency, match="peft"):
        preflight.check(make_job(model={"checkpoint": str(checkpoint), **lora}))


def test_trainer_ranks_need_as_many_reserved_workers_of_this_machine(make_job: MakeJob) -> None:
    ranks = {"training": {"ranks": 4}}
    with pytest.raises(JobError, match=r"training\.ranks: .* has only 1; raise") as raised:
        preflight.check(make_job(**ranks))
    assert raised.value.path == "training.ranks"
    preflight.check(make_job(**ranks, pools={"reserved": {"nodes": 2, "workers": 2}}))


def test_a_run_on_this_machine_needs_a_reserved_worker(make_job: MakeJob) -> None:
    with pytest.raises(JobError, match=r"training\.ranks: .* has only 0"):
        preflight.check(make_job(pools={"reserved": {"nodes": 0}}))


def test_without_local_workers_pools_limit_nothing(make_job: MakeJob) -> None:
    preflight.check(make_job(training={"ranks": 4}), local_workers=False)


def test_without_local_workers_no_package_is_needed(
    make_job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    _without(monkeypatch, "torch", "rapidocr")
    preflight.check(make_job(), local_workers=False)


def test_a_full_disk_is_said_with_how_much_is_needed(
    make_job: MakeJob, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(preflight.shutil, "disk_usage", lambda _: SimpleNamespace(free=1000))
    folder = tmp_path / "not" / "there" / "yet"
    with pytest.raises(RunFolderError, match=r"yet: the run needs about .* GB, but only 0\.0 GB"):
        preflight.check(make_job(), run_folder=folder)


def test_a_store_without_room_for_the_weights_is_said_with_its_option(
    make_job: MakeJob, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    job = make_job()
    files = preflight.check(job, run_folder=tmp_path)
    # Two versions in the smallest dtype, and two states of training: weights, average, two moments.
    needed = 36 * files.checkpoint.trainable
    monkeypatch.setattr(preflight.shutil, "disk_usage", lambda _: SimpleNamespace(free=needed))
    preflight.check_store(job, files, tmp_path)
    monkeypatch.setattr(preflight.shutil, "disk_usage", lambda _: SimpleNamespace(free=needed - 1))
    with pytest.raises(UserError, match=r"need at least .* MB, but only .* MB .* --store") as said:
        preflight.check_store(job, files, tmp_path)
    assert str(said.value).startswith(f"{tmp_path}: ")
    with pytest.raises(UserError, match=r"^/dev/shm: |^/tmp"):
        preflight.check_store(job, files, None)


def test_a_run_folder_that_cannot_be_looked_at_is_named(
    make_job: MakeJob, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refuse(_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(preflight.shutil, "disk_usage", refuse)
    with pytest.raises(RunFolderError, match="Permission denied; choose another run folder"):
        preflight.check(make_job(), run_folder=tmp_path)


def test_every_problem_is_the_users_to_mend() -> None:
    for error in (CheckpointError, JobError, MissingDependency, RunFolderError):
        assert issubclass(error, UserError)
