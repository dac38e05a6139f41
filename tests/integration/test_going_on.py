"""Runs that go on after their end, and jobs that begin with what others have trained."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.integration.conftest import SPOTLIGHT, Workplace, events, metrics, wait_for_phase

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]  # several whole runs each


def weights(run: Path, iteration: int) -> dict[str, torch.Tensor]:
    return load_file(run / "checkpoints" / f"iteration-{iteration:06d}.safetensors")


def ran(workplace: Workplace, *words: str | Path) -> None:
    done = workplace.spotlight(*words)
    assert done.code == 0, done.errors + done.output


def scores(run: Path) -> dict[object, object]:
    return {line["weights_version"]: line["score"] for line in metrics(run, "validation")}


def test_a_run_that_is_continued_has_the_bits_of_a_longer_one(workplace: Workplace) -> None:
    whole, run = workplace.folder / "whole", workplace.folder / "run"
    ran(workplace, "run", workplace.job(iterations=4), "--run-folder", whole)
    ran(workplace, "run", workplace.job(iterations=2), "--run-folder", run)

    ran(workplace, "run", "--resume", run, "--set", "iterations=4")

    expected = weights(whole, 4)
    for name, tensor in weights(run, 4).items():
        assert torch.equal(tensor, expected[name]), name
    assert scores(run) == scores(whole)
    (segment,) = events(run, "segment_began")
    assert (segment["iteration"], segment["changes"]) == (1, ["iterations: 2 -> 4"])
    assert (run / "config-001.yaml").exists()


@pytest.mark.parametrize("tuning", ["full", "lora"])
def test_a_job_begins_with_the_score_of_the_weights_that_it_takes(
    workplace: Workplace, tuning: str
) -> None:
    run, begun = workplace.folder / "run", workplace.folder / "begun"
    model = {"tuning": tuning, "lora": {"rank": 2, "alpha": 4}}
    job = workplace.job(iterations=2, model=model)
    ran(workplace, "run", job, "--run-folder", run)

    start = f"model.start={run}@last"
    ran(workplace, "run", job, "--set", start, "--set", "iterations=1", "--run-folder", begun)

    assert scores(begun)[0] == scores(run)[2]
    (taken,) = events(begun, "weights_taken")
    assert (taken["source"], taken["score"]) == (f"{run}@2", scores(run)[2])


def test_a_run_that_ended_before_its_first_checkpoint_begins_with_the_same_weights_again(
    workplace: Workplace,
) -> None:
    run, begun = workplace.folder / "run", workplace.folder / "begun"
    ran(workplace, "run", workplace.job(iterations=2), "--run-folder", run)
    job = workplace.job(iterations=2, checkpoint_every=2, validation={"seeds": 1, "every": 2})
    process = workplace.start(
        *SPOTLIGHT, "run", job, "--set", f"model.start={run}@last",
        "--run-folder", begun,
    )  # fmt: skip
    wait_for_phase(begun, "train", 1)
    process.kill()
    process.wait(60)
    for file in (run / "checkpoints").iterdir():
        file.unlink()

    ran(workplace, "run", "--resume", begun)

    assert scores(begun)[0] == scores(run)[2]
    assert len(events(begun, "weights_taken")) == 1
