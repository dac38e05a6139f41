"""What a study will do, and what is refused before a model is loaded."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.staleness.staleness_plan import StalenessPlan, plan_staleness
from spotlight.assets import read_prompts
from spotlight.errors import RunFolderError, UserError
from tests.small_run import write_run

MakePlan = Callable[..., StalenessPlan]


def test_prompts_are_training_prompts_and_all_seeds_differ(plan: MakePlan) -> None:
    wanted = plan(prompts=5)
    assert set(wanted.prompts) <= set(read_prompts(wanted.job.prompts.train))
    assert len(set(wanted.prompts)) == 5
    assert len({seed for row in wanted.seeds for seed in row}) == 5 * 4


def test_by_default_twice_the_group_size_is_scored(run: Path, plan: MakePlan) -> None:
    assert len(plan(seeds=None).seeds[0]) == 16
    write_run(run, group_size=24)
    assert len(plan(seeds=None).seeds[0]) == 48


def test_without_a_checkpoint_the_initial_weights_are_taken(run: Path, plan: MakePlan) -> None:
    assert plan().checkpoint == ""
    (run / "checkpoints").mkdir()
    for completed in (10, 5):
        (run / "checkpoints" / f"iteration-{completed:06d}.safetensors").touch()
    assert plan().checkpoint.endswith("iteration-000010.safetensors")


def test_lags_are_sorted_and_the_newest_weights_need_no_mention(plan: MakePlan) -> None:
    assert plan(lags="4, 0,1,4").lags == (1, 4)


@pytest.mark.parametrize("lags", ["", "0", "one", "1;2", "-1,2", "1.5"])
def test_lags_that_are_none_are_refused(plan: MakePlan, lags: str) -> None:
    with pytest.raises(UserError, match="--lags"):
        plan(lags=lags)


@pytest.mark.parametrize("seeds", [-1, 0, 2])
def test_as_many_seeds_as_are_kept_are_refused(plan: MakePlan, seeds: int) -> None:
    with pytest.raises(UserError, match="--seeds"):
        plan(seeds=seeds)


@pytest.mark.parametrize("prompts", [0, 513])
def test_more_prompts_than_there_are_are_refused(plan: MakePlan, prompts: int) -> None:
    with pytest.raises(UserError, match="--prompts: must be from 1 to 512"):
        plan(prompts=prompts)


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="not a run folder"):
        plan_staleness(tmp_path, seeds=None, prompts=1, lags="1", seed=0)
