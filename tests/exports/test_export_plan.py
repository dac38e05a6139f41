"""Which weights of a run are exported: decided from the names of files and the scores."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from spotlight.errors import RunFolderError, UserError
from spotlight.exports.plan import plan_export
from spotlight.store.run_folder import checkpoint_path
from spotlight.types import ADAPTER_FORMATS, ExportFormat
from tests.small_run import small_job, write_run


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Checkpoints after 2, 4 and 6 iterations, of which the second has the best score."""
    run = write_run(tmp_path)
    (run / "checkpoints").mkdir()
    for iterations in (2, 4, 6):
        (run / checkpoint_path(iterations)).touch()
    scores = {0: 0.9, 2: 0.5, 4: 0.7, 6: 0.6}
    lines = [
        json.dumps({"kind": "validation", "weights_version": version, "score": score})
        for version, score in scores.items()
    ]
    (run / "metrics.jsonl").write_text("\n".join(lines) + '\n{"kind": "validation", "torn')
    return run


def test_the_best_is_the_average_with_the_best_score_of_the_checkpoints_that_are_there(
    run: Path,
) -> None:
    plan = plan_export(run, weights="best", format="diffusers")
    assert (plan.iteration, plan.role, plan.score) == (4, "ema", 0.7)
    assert plan.checkpoint == str(run / checkpoint_path(4))
    (run / checkpoint_path(4)).unlink()
    assert plan_export(run, weights="best", format="diffusers").iteration == 6


def test_those_that_are_best_by_what_nobody_trains_on_can_be_had(run: Path) -> None:
    with pytest.raises(UserError, match=r"--weights: no checkpoint .* `validation\.rewards`"):
        plan_export(run, weights="checked", format="diffusers")
    line = {"kind": "validation", "weights_version": 2, "score": 0.5, "checks": 0.9}
    (run / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    plan = plan_export(run, weights="checked", format="diffusers")
    assert (plan.iteration, plan.score) == (2, 0.5)


def test_the_newest_checkpoint_has_an_average_and_the_trained_weights(run: Path) -> None:
    ema = plan_export(run, weights="ema", format="diffusers")
    newest = plan_export(run, weights="newest", format="diffusers")
    assert (ema.iteration, ema.role, ema.score) == (6, "ema", 0.6)
    assert (newest.iteration, newest.role, newest.score) == (6, "weights", None)
    assert ema.folder != newest.folder


def test_a_run_without_a_checkpoint_is_named(run: Path) -> None:
    for file in (run / "checkpoints").iterdir():
        file.unlink()
    with pytest.raises(RunFolderError, match="holds no checkpoint yet"):
        plan_export(run, weights="ema", format="diffusers")


def test_without_a_validated_checkpoint_there_is_no_best(run: Path) -> None:
    (run / "metrics.jsonl").unlink()
    with pytest.raises(UserError, match="--weights: no checkpoint of this run is validated"):
        plan_export(run, weights="best", format="diffusers")


@pytest.mark.parametrize("format", ADAPTER_FORMATS)
def test_whole_weights_are_refused_where_only_adapters_are_read(
    run: Path, format: ExportFormat
) -> None:
    assert small_job().model.tuning == "full"
    with pytest.raises(UserError, match=f"--format {format}: this job trains all weights"):
        plan_export(run, weights="best", format=format)


def test_a_folder_with_something_in_it_is_left_alone(run: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").touch()
    with pytest.raises(UserError, match=r"--to: .*mine already exists"):
        plan_export(run, weights="ema", format="diffusers", folder=tmp_path / "mine")


def test_a_folder_that_is_no_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="not a run folder"):
        plan_export(tmp_path, weights="ema", format="diffusers")
