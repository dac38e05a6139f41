"""Which runs there are, and which of them are made together."""

from __future__ import annotations

from benchmarks.exploration.cases import (
    SOL_RL_SPLIT,
    Case,
    main_cases,
    noise_cases,
    pool_cases,
    trial_cases,
    units,
)
from benchmarks.exploration.rivals import RIVALS


def test_whole_comparisons_are_complete_seed_by_seed() -> None:
    cases = list(main_cases(SOL_RL_SPLIT, ["ocr", "compositional"], [1, 2]))
    half = len(cases) // 2
    assert {case.seed for case in cases[:half]} == {1}
    assert {case.rival for case in cases[:half]} == set(RIVALS)


def test_the_reference_comes_first_and_its_rival_next() -> None:
    rivals = [case.rival for case in main_cases(SOL_RL_SPLIT, ["ocr"], [1])]
    assert rivals[:2] == ["rollouts", "spotlight"]


def test_runs_that_train_alike_share_a_process_whatever_their_hardware() -> None:
    cases = [*main_cases(SOL_RL_SPLIT, ["ocr"], [1]), *pool_cases(["ocr"], [1])]
    first = units(cases)[0]
    assert [(case.rival, case.spot_gpus) for case in first] == [
        ("rollouts", 8),
        ("rollouts", 4),
        ("rollouts", 16),
    ]


def test_runs_that_train_on_other_samples_have_their_own_process() -> None:
    cases = list(main_cases(SOL_RL_SPLIT, ["compositional"], [1, 2]))
    found = units(cases)
    assert sum(map(len, found)) == len(cases)
    assert all(len({case.seed for case in unit}) == 1 for unit in found)
    (parallel,) = [unit for unit in found if unit[0] == cases[3]]
    assert [case.rival for case in parallel] == ["data-parallel"]  # of 48 samples, not 32


def test_runs_with_another_order_of_samples_have_their_own_process() -> None:
    found = units(case for case in noise_cases(["ocr"], [1]) if case.rival == "rollouts")
    assert [len(unit) for unit in found] == [1, 1]


def test_every_run_has_a_file_of_its_own() -> None:
    tasks = ["ocr", "compositional"]
    cases = {
        *main_cases(SOL_RL_SPLIT, tasks, [1, 2]),
        *main_cases("even-split", tasks, [1, 2]),
        *noise_cases(tasks, [1, 2]),
        *pool_cases(tasks, [1, 2]),
        *trial_cases(tasks),
    }
    assert len({case.name for case in cases}) == len(cases)


def test_trials_are_on_a_seed_that_is_not_measured_and_the_same_for_all() -> None:
    trials = [case for case in trial_cases(["ocr"]) if case.trial]
    assert {case.seed for case in trials} == {0}
    by_rival = {
        case.rival: {each.trial for each in trials if each.rival == case.rival} for case in trials
    }
    assert len({frozenset(names) for names in by_rival.values()}) == 1
    assert "published" not in by_rival


def test_a_trial_changes_one_thing_of_a_rivals_own_job() -> None:
    case = Case(task="ocr", rival="rollouts", seed=0, trial="half-the-samples")
    assert case.job().prompts.per_iteration == 6
    assert case.as_it_is.job().prompts.per_iteration == 12
