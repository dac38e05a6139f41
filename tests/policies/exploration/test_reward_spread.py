import math
import random
import statistics
from itertools import pairwise

import msgspec
import pytest

from spotlight.policies.exploration.contrast import (
    contrast_and_gain,
    expected_contrast,
)
from spotlight.policies.exploration.reward_spread import (
    UNLIMITED,
    ContinuousRewards,
    Evidence,
    Knowledge,
    Population,
    Standing,
)

CONTINUOUS = ContinuousRewards(UNLIMITED)
FULL = 1e100
"""The largest contrast of rewards without limits, for what is tested here."""


def standing(live: int, *rewards: float, keep: int = 4) -> Standing:
    """Of a group with these scores, of `live` candidates."""
    ordered, full = sorted(rewards), len(rewards) >= keep
    contrast, again = contrast_and_gain(ordered, keep) if full else (0.0, 0.0)
    return Standing(CONTINUOUS.evidence(rewards), contrast, again, live)


def population(stds, scores: int, seed: int = 0, reward=random.Random.gauss) -> Population:
    """What one visit to prompts with these standard deviations tells."""
    rng = random.Random(seed)
    rows = ([reward(rng, 0, std) for _ in range(scores)] for std in stds)
    return sum((CONTINUOUS.visit(row) for row in rows), Population())


def lognormal_stds(count: int, spread: float, seed: int = 1) -> list[float]:
    rng = random.Random(seed)
    return [rng.lognormvariate(0, spread) for _ in range(count)]


def test_the_expected_spread_is_the_mean_of_belief():
    assert CONTINUOUS.parameter(Evidence(count=12, total=48)) == 2


# --- what prompts have in common ---


@pytest.mark.parametrize("scores", [4, 8, 24])
def test_prompts_that_are_alike_make_the_prior_strong(scores):
    assert CONTINUOUS.prior(population([0.2] * 400, scores)).count > 20


@pytest.mark.parametrize("scores", [4, 8, 24])
def test_prompts_that_differ_make_it_weak(scores):
    assert 1 < CONTINUOUS.prior(population(lognormal_stds(400, 0.7), scores)).count < 5


def test_rare_rewards_do_not_make_prompts_that_are_alike_look_different():
    rare = population([0.05] * 400, 8, reward=lambda rng, _, rate: float(rng.random() < rate))
    assert CONTINUOUS.prior(rare).count > 10
    assert rare.reliability() < 0.4


def test_scores_of_normal_rewards_count_in_full():
    assert population([0.2] * 1000, 8).reliability() > 0.8


def test_few_prompts_do_not_show_that_they_are_alike():
    counts = [CONTINUOUS.prior(population([0.2] * few, 4)).count for few in (4, 40, 400)]
    assert counts == sorted(counts)
    assert counts[0] < 20


def test_the_prior_stands_where_most_prompts_are_not_at_the_mean_of_their_variances():
    stds = lognormal_stds(4000, 0.7)
    prior = CONTINUOUS.prior(population(stds, 16))
    harmonic = 1 / statistics.fmean(std**-2 for std in stds)
    assert prior.total / prior.count == pytest.approx(harmonic, rel=0.3)


def test_what_a_visit_tells_is_unbiased_whatever_the_distribution():
    rng = random.Random(3)
    rows = [[float(rng.random() < 0.1) for _ in range(6)] for _ in range(20_000)]
    total = sum((CONTINUOUS.visit(row) for row in rows), Population())
    assert total.mean() == pytest.approx(0.09, rel=0.02)
    assert (total.squares - total.noise) / total.visits == pytest.approx(0.09**2, rel=0.08)


def test_fewer_than_four_scores_tell_nothing_of_other_prompts():
    assert CONTINUOUS.visit([0.1, 0.5, 0.9]) == Population()
    assert CONTINUOUS.prior(Population()) == Evidence()


# --- evidence ---


def test_evidence_of_continuous_rewards_is_their_variance():
    rewards = [0.1, 0.4, 0.4, 0.9]
    evidence = CONTINUOUS.evidence(rewards)
    assert evidence.count == 3
    assert evidence.total / evidence.count == pytest.approx(statistics.variance(rewards))


def test_no_score_is_no_evidence():
    assert CONTINUOUS.evidence([]) == Evidence()


@pytest.mark.parametrize("belief", [Evidence(), Evidence(5, 0.0)])
def test_rewards_that_never_differed_have_no_spread(belief):
    assert CONTINUOUS.parameter(belief) == 0
    equal = CONTINUOUS.visit([0.1] * 8)
    assert (equal.mean(), equal.noise) == (0, 0)
    assert CONTINUOUS.prior(equal) == Evidence()


@pytest.mark.parametrize("unit", [1e70, 1e-48, 1e-90, 1e-170])
def test_the_greatest_and_the_least_rewards_are_no_trouble(unit):
    told = sum((CONTINUOUS.visit([0.0, unit, unit / 2, unit]) for _ in range(9)), Population())
    prior = CONTINUOUS.prior(told)
    assert math.isfinite(prior.count) and math.isfinite(prior.total)
    assert 0.1 <= told.reliability() <= 1


# --- gains ---


def test_before_scores_a_gain_is_the_expected_one_and_falls_with_every_candidate():
    gains = [CONTINUOUS.gain(2.0, standing(live), 4, FULL) for live in range(4, 20)]
    assert gains[0] == pytest.approx(2 * (expected_contrast(5, 4) - expected_contrast(4, 4)))
    assert all(before > after for before, after in pairwise(gains))


def test_a_group_that_was_unlucky_gains_more_than_one_that_was_lucky():
    unlucky, lucky = standing(6, *[0.4] * 5, 0.6), standing(6, 0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
    assert CONTINUOUS.gain(0.3, unlucky, 4, FULL) > CONTINUOUS.gain(0.3, lucky, 4, FULL)


def test_a_group_whose_scores_repeat_gains_less_the_more_there_are():
    gains = [
        CONTINUOUS.gain(0.3, standing(2 * half, *[0.4] * half, *[0.8] * half), 4, FULL)
        for half in (4, 16, 64)
    ]
    model = CONTINUOUS.gain(0.3, standing(128), 4, FULL)
    assert gains[0] > gains[1] > gains[2]
    assert gains[2] < model


def test_rewards_near_their_limits_gain_less():
    assert CONTINUOUS.gain(0.3, standing(8), 4, 0.5) < CONTINUOUS.gain(0.3, standing(8), 4, FULL)
    assert CONTINUOUS.gain(0.3, standing(8), 4, 0.0) == 0


def test_what_is_awaited_lowers_the_gain():
    rewards = [0.1, 0.2, 0.3, 0.3, 0.4, 0.7, 0.8, 0.9]
    groups = [standing(8 + awaited, *rewards, keep=8) for awaited in range(6)]
    gains = [CONTINUOUS.gain(0.4, group, 8, FULL) for group in groups]
    assert all(before > after for before, after in pairwise(gains))


# --- rewards that are none ---


@pytest.mark.parametrize("reward", [math.nan, math.inf, -math.inf, 1.01, -0.01])
def test_what_is_no_number_within_the_limits_is_no_reward(reward):
    assert "outside [0, 1]" in ContinuousRewards((0.0, 1.0)).problem_with([reward])


@pytest.mark.parametrize("reward", [math.nan, math.inf, -math.inf, 1e200])
def test_a_reward_without_limits_must_still_be_a_finite_number(reward):
    assert CONTINUOUS.problem_with([reward])


def test_the_limits_themselves_are_valid():
    assert not ContinuousRewards((-3.0, 1.0)).problem_with([-3.0])
    assert not ContinuousRewards((-3.0, 1.0)).problem_with([1.0])


def test_a_missing_reward_is_noticed():
    assert "1 rewards, but 2" in ContinuousRewards((0.0, 1.0), (0.0, 1.0)).problem_with([0.5])


@pytest.mark.parametrize(
    "limits", [[], [(1.0, 0.0)], [(0.0, 0.0)], [(0.0, math.inf)], [(math.nan, 1.0)]]
)
def test_limits_that_are_no_interval_are_refused(limits):
    with pytest.raises(ValueError, match="needs limits"):
        ContinuousRewards(*limits)


def test_knowledge_survives_being_written_and_read():
    knowledge = Knowledge(
        {"a cat": Evidence(7.5, 0.1)}, {"animals": Population(8.0, 3.0, 1.25, 0.5)}
    )
    assert msgspec.json.decode(msgspec.json.encode(knowledge), type=Knowledge) == knowledge


def test_what_was_learnt_before_populations_were_known_is_refused():
    written = (
        b'{"prompts":{"a":{"count":7.5,"total":0.1}},"categories":{"c":{"count":8,"total":3}}}'
    )
    with pytest.raises(msgspec.ValidationError, match=r"unknown field `count`.*categories"):
        msgspec.json.decode(written, type=Knowledge)


# --- the contrast of a prompt's first candidates ---


@pytest.mark.parametrize("keep", [2, 4, 8, 24])
def test_the_first_contrast_is_that_of_normal_samples(keep: int) -> None:
    rng = random.Random(keep)
    samples = [statistics.pstdev([rng.gauss(0, 0.3) for _ in range(keep)]) for _ in range(4000)]
    expected = CONTINUOUS.first_contrast(Evidence(1e6, 1e6 * 0.3**2), keep, FULL)
    assert expected == pytest.approx(statistics.fmean(samples), rel=0.03)


@pytest.mark.parametrize("counts", [4, 8, 20])
def test_the_less_is_known_of_a_spread_the_more_it_may_be(counts: int) -> None:
    """Variances of an inverse gamma distribution: total / chi-squared of as many counts."""
    rng, keep = random.Random(counts), 4
    spreads = [math.sqrt(counts * 0.3**2 / rng.gammavariate(counts / 2, 2)) for _ in range(40_000)]
    known = CONTINUOUS.first_contrast(Evidence(1e6, 1e6 * 0.3**2), keep, FULL)
    expected = CONTINUOUS.first_contrast(Evidence(counts, counts * 0.3**2), keep, FULL)
    assert expected / known == pytest.approx(statistics.fmean(spreads) / 0.3, rel=0.02)


def test_what_is_hardly_known_is_still_expected_to_be_finite() -> None:
    assert 0 < CONTINUOUS.first_contrast(Evidence(1e-9, 1e-9), 4, FULL) < 3


def test_no_contrast_is_expected_where_rewards_cannot_differ() -> None:
    assert ContinuousRewards((0.0, 1.0)).first_contrast(Evidence(10, 1), 4, 0.0) == 0.0
    assert ContinuousRewards((0.0, 1.0)).first_contrast(Evidence(10, 0), 4, 0.5) == 0.0
    assert ContinuousRewards((0.0, 1.0)).first_contrast(Evidence(), 4, 0.5) == 0.0
