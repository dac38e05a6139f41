"""Whether exploration paid: by intervals that are honest for the few groups that a run has."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import pytest
from sample_run import RunWriter, sample_job

from spotlight.policies.exploration.contrast import best_contrast, squared_deviations
from spotlight.record.ledger import Ledger, NodeBill, Price
from spotlight.record.run_metrics import IterationMetrics
from spotlight.report.intervals import student_t95
from spotlight.report.metrics import read_run, summarise
from spotlight.report.run_view import ExplorationPart
from spotlight.report.verdict import (
    Measured,
    Ratio,
    contrast_ratio,
    exploration_of,
    measured,
    verdict_of,
)

SPOT_S = {"explore": 30.0, "rollout": 50.0, "idle": 20.0}


def told(
    kept: float | None, at_random: float | None, groups: int = 1, **more: float
) -> IterationMetrics:
    return IterationMetrics(
        iteration=0,
        contrast=0.9,
        contrast_beside_random=kept,
        contrast_at_random=at_random,
        random_groups=groups,
        **more,  # type: ignore[arg-type]
    )


def wide(times: float, count: int = 40, spread: float = 0.1) -> list[IterationMetrics]:
    """Iterations whose kept seeds spread so many times as wide."""
    rng = random.Random(1)
    return [
        told(times * rng.gauss(1, spread) * 0.3, 0.3 * rng.gauss(1, spread)) for _ in range(count)
    ]


def part(iterations: Sequence[IterationMetrics], usd: float | None = None) -> ExplorationPart:
    return exploration_of(sample_job(), iterations, SPOT_S, usd)


# --- verdicts ---


@pytest.mark.parametrize(
    ("ratio", "verdict"),
    [
        (Ratio(1.15, 0.93, 1.42), "not shown"),
        (Ratio(1.15, 1.02, 1.30), "paid"),
        (Ratio(0.80, 0.70, 0.95), "did not pay"),
        (Ratio(1.15, 1.0, 1.3), "not shown"),
        (Ratio(1.0, 0.8, 1.0), "not shown"),
        (Ratio(9.0), "not shown"),
        (None, "not shown"),
    ],
)
def test_the_verdict_is_by_the_whole_interval(ratio: Ratio | None, verdict: str) -> None:
    assert verdict_of(ratio) == verdict


def test_a_middle_of_1_15_with_an_error_of_0_11_is_not_shown() -> None:
    waves = [1.4, 1.4, 0.6, 0.6] * 4
    ratio = contrast_ratio([Measured(1.15**2, one) for one in waves])
    assert ratio is not None
    assert ratio.low is not None
    assert ratio.times == pytest.approx(1.15)
    assert ratio.times / ratio.low == pytest.approx(1.15 / (1.15 - 2.2 * 0.09), rel=0.05)
    assert verdict_of(ratio) == "not shown"


@pytest.mark.parametrize(
    ("times", "verdict"), [(1.3, "paid"), (1.0, "not shown"), (0.8, "did not pay")]
)
def test_a_run_that_is_long_enough_has_each_verdict(times: float, verdict: str) -> None:
    found = part(wide(times))
    assert found.verdict == verdict
    assert found.times == pytest.approx(times, rel=0.1)
    assert found.low is not None
    assert found.high is not None
    assert found.low < found.times < found.high
    assert found.groups == 40


# --- the ratio and its interval ---


def test_the_ratio_is_one_of_root_mean_squares_over_groups() -> None:
    found = measured([told(0.4, 0.2, groups=3), told(None, None), told(0.6, 0.1, groups=1)])
    assert sum(one.groups for one in found) == 4
    ratio = contrast_ratio(found)
    assert ratio is not None
    assert ratio.times == pytest.approx(math.sqrt((3 * 0.16 + 0.36) / (3 * 0.04 + 0.01)))
    assert ratio.low is None, "two iterations say nothing of how they scatter"


def test_the_interval_is_student_s_where_all_iterations_weigh_alike() -> None:
    values = [0.9, 1.0, 1.1, 1.0, 0.95, 1.05]
    ratio = contrast_ratio([Measured(1.0 + (one - 1) * 1e-3, 1.0) for one in values])
    assert ratio is not None
    assert ratio.high is not None
    error = 1e-3 * math.sqrt(squared_deviations(values) / 5 / 6) / 2
    assert math.log(ratio.high / ratio.times) == pytest.approx(student_t95(4.9) * error, rel=0.01)


def test_iterations_that_are_alike_one_after_another_count_in_blocks() -> None:
    waves = [Measured(1.0 + 0.5 * (number // 3 % 2), 1.0) for number in range(30)]
    shuffled = random.Random(1).sample(waves, len(waves))
    widths = [
        math.log(ratio.high / ratio.low)
        for ratio in (contrast_ratio(waves), contrast_ratio(shuffled))
        if ratio and ratio.low and ratio.high
    ]
    assert widths[0] > 1.2 * widths[1]


def normal(rng: random.Random, prompt: int) -> float:
    return rng.gauss(0, math.exp(0.6 * math.sin(prompt)))


def levels(rng: random.Random, prompt: int) -> float:
    return round(4 * min(1.0, max(0.0, rng.gauss(0.5, 0.2 + 0.1 * math.sin(prompt))))) / 4


def passes(rng: random.Random, prompt: int) -> float:
    return float(rng.random() < 0.5 + 0.45 * math.sin(prompt))


def rarely_passes(rng: random.Random, prompt: int) -> float:
    return float(rng.random() < 0.08 + 0.06 * math.sin(prompt))


def simulated(
    rng: random.Random,
    reward: Callable[[random.Random, int], float],
    iterations: int,
    groups: int,
    candidates: int,
    shared: bool,
) -> list[Measured]:
    """Contrasts of the best four of so many, and of four that nobody chose; `shared` ones are
    candidates as well. Fewer iterations than prompts meet only some of these."""
    found = []
    for iteration in range(iterations):
        squares = [0.0, 0.0]
        for group in range(groups):
            prompt = (iteration * groups + group) % 25
            drawn = [reward(rng, prompt) for _ in range(candidates)]
            others = drawn[:4] if shared else [reward(rng, prompt) for _ in range(4)]
            squares[0] += best_contrast(sorted(drawn), 4) ** 2
            squares[1] += squared_deviations(others) / 4
        found.append(Measured(squares[0], squares[1], groups))
    return found


@pytest.mark.parametrize("reward", [normal, levels, passes, rarely_passes])
@pytest.mark.parametrize(
    ("iterations", "groups", "shared"),
    [(4, 1, False), (6, 1, False), (12, 1, False), (49, 1, False), (5, 4, False), (12, 4, True)],
)
@pytest.mark.parametrize("candidates", [4, 8, 16])
@pytest.mark.slow
def test_the_interval_covers_the_known_ratio_at_least_93_times_in_100(
    reward: Callable[[random.Random, int], float],
    iterations: int,
    groups: int,
    shared: bool,
    candidates: int,
) -> None:
    """Whatever is not shown covers it, too: nothing is claimed."""
    rng = random.Random(f"{reward.__name__} {iterations} {groups} {shared} {candidates}")
    runs = [
        simulated(rng, reward, iterations, groups, candidates, shared)
        for _ in range(max(400, 20_000 // (iterations * groups)))
    ]
    kept = sum(one.kept for run in runs for one in run)
    truth = math.sqrt(kept / sum(one.at_random for run in runs for one in run))
    ratios = [contrast_ratio(run) for run in runs]
    covered = [
        ratio is None or ratio.low is None or ratio.high is None or ratio.low <= truth <= ratio.high
        for ratio in ratios
    ]
    slack = 2 * math.sqrt(0.07 * 0.93 / len(runs))  # of so many simulations
    assert sum(covered) / len(runs) >= 0.93 - slack
    if candidates == 4:  # where nothing is chosen
        assert [verdict_of(ratio) for ratio in ratios].count("paid") <= (0.035 + slack) * len(runs)


@pytest.mark.parametrize(
    ("degrees", "quantile"),
    [(1, 12.706), (1.9, 12.706), (10, 2.228), (10.9, 2.228), (11, 2.228), (70, 2.0)],
)
def test_student_s_quantile_is_never_too_small(degrees: float, quantile: float) -> None:
    assert student_t95(degrees) == quantile


@pytest.mark.parametrize("degrees", [0, 0.5, -1, math.nan])
def test_there_is_no_interval_without_a_degree_of_freedom(degrees: float) -> None:
    with pytest.raises(ValueError, match="at least one degree of freedom"):
        student_t95(degrees)


# --- the sentence ---


def test_the_sentence_has_the_interval_the_cost_and_says_that_contrast_is_not_speed() -> None:
    found = part([*wide(1.3), told(None, None, previews=1000, previews_late=24)], usd=1.234)
    assert re.fullmatch(
        r"Exploration paid: rewards of kept seeds spread 1\.\d\d times as wide as those of random"
        r" ones \(95 % interval 1\.\d\d to 1\.\d\d, from 40 groups of random seeds\)\."
        r" It took 30% of spot time and \$1\.23; 24 of 1,024 previews came too late\."
        r" Contrast is not speed: how much sooner a score is reached was not measured\.",
        found.sentence,
    )


def test_the_sentence_has_what_choosing_is_worth_by_the_latest_iteration_that_knows() -> None:
    knows = told(0.5, 0.3, samples=10, previews=39, choice_worth=2.93, choice_worth_doubled=3.81)
    found = part([told(0.5, 0.3, choice_worth=9.0), knows, told(0.5, 0.3)])
    assert (
        "By the scores of previews, a sample that is chosen from 3.9 teaches 2.9 times as much as"
        " a random one, and from twice as many it would 3.8 times." in found.sentence
    )
    assert "By the scores" not in part(wide(1.3)).sentence


def test_a_cost_that_is_not_known_is_not_said_to_be_nothing() -> None:
    found = exploration_of(sample_job(), wide(1.3), {}, None)
    assert "$" not in found.sentence
    assert "spot time" not in found.sentence
    assert "0 of 0 previews came too late." in found.sentence


def test_the_other_verdicts_are_said_in_words() -> None:
    assert part(wide(0.8)).sentence.startswith("Exploration did not pay: rewards of kept seeds")
    assert part(wide(1.0)).sentence.startswith("It is not shown that exploration paid: rewards of")


# --- bad input ---


def test_exploration_that_is_off_has_no_verdict() -> None:
    job = sample_job(exploration={"mode": "none"})
    found = exploration_of(job, [told(None, None)], SPOT_S, 1.0)
    assert (found.verdict, found.times, found.groups) == ("off", None, 0)
    assert found.sentence == "Exploration is off."


@pytest.mark.parametrize("iterations", [[], [told(None, None)], [told(0.5, None)] * 5])
def test_without_groups_of_random_seeds_nothing_is_shown(
    iterations: list[IterationMetrics],
) -> None:
    found = part(iterations)
    assert (found.verdict, found.times, found.low, found.groups) == ("not shown", None, None, 0)
    assert "there were 0 groups of random seeds so far" in found.sentence


def test_one_iteration_has_a_ratio_and_shows_nothing() -> None:
    found = part([told(0.4, 0.2)])
    assert (found.verdict, found.times, found.low) == ("not shown", pytest.approx(2.0), None)
    assert "2.00 times as wide" in found.sentence
    assert "but 1 group of random seeds say" not in found.sentence
    assert "1 group of random seeds is too little to tell" in found.sentence


@pytest.mark.parametrize("kept", [0.0, 0.4])
def test_random_seeds_that_never_differ_show_nothing(kept: float) -> None:
    found = part([told(kept, 0.0)] * 9)
    assert (found.verdict, found.times, found.groups) == ("not shown", None, 9)
    assert "there were 9 groups of random seeds whose rewards never differed" in found.sentence


def test_kept_seeds_that_never_differ_show_nothing() -> None:
    found = part([told(0.0, 0.3)] * 9)
    assert (found.verdict, found.times, found.low) == ("not shown", 0.0, None)


def test_one_group_that_has_all_of_the_variance_shows_nothing() -> None:
    found = part([told(0.4, 0.0)] * 20 + [told(0.4, 0.5)])
    assert (found.verdict, found.low) == ("not shown", None)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_rewards_that_are_no_numbers_are_left_out(bad: float) -> None:
    found = part([*wide(1.3), told(bad, 0.3), told(0.3, bad)])
    assert (found.verdict, found.groups) == ("paid", 40)
    assert "nan" not in found.sentence


def test_a_run_of_an_older_version_tells_by_its_probes(run: RunWriter) -> None:
    for iteration in range(12):
        run.metric(
            "iteration", iteration + 1.0, iteration=iteration, contrast=0.4, contrast_at_random=0.2
        )
    found = summarise(read_run(run.folder))["exploration"]
    assert (found["verdict"], found["groups"]) == ("paid", 12)
    assert found["times"] == pytest.approx(2.0)


def test_a_run_of_version_0_1_0_is_not_judged() -> None:
    folder = Path(__file__).parents[1] / "data" / "runs" / "0.1.0"
    assert summarise(read_run(folder))["exploration"]["verdict"] == "not shown"


@pytest.mark.parametrize(
    ("prices", "said"),
    [
        ((2.0, 4.0), "It took 25% of spot time and $1.50;"),
        ((2.0, None), "It took 25% of spot time;"),
    ],
    ids=["priced", "in part without a price"],
)
def test_the_ledger_says_what_exploration_took(
    run: RunWriter, prices: Sequence[float | None], said: str
) -> None:
    for iteration in range(5):
        run.metric("iteration", iteration + 1.0, iteration=iteration)
    bills = [
        NodeBill(
            node=f"spot-{number}",
            pool="spot",
            process="",
            workers=1,
            price=None if price is None else Price(price),
            from_at=0.0,
            to_at=1.0,
            times={f"spot-{number}/0": {"explore": 900_000, "rollout": 2_700_000}},
        )
        for number, price in enumerate(prices)
    ]
    history = msgspec.structs.replace(read_run(run.folder), ledger=Ledger(bills=tuple(bills)))
    assert said in summarise(history)["exploration"]["sentence"]
