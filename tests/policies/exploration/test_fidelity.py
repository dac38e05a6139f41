"""What probes say about previews, and how much exploration follows."""

import random
import statistics
from itertools import combinations, product
from statistics import mean, pstdev, pvariance

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotlight.policies.exploration.fidelity import (
    ENOUGH,
    ENOUGH_ITERATIONS,
    Agreement,
    Gain,
    agreement,
    contrast_at_random,
    contrast_of_any,
    draw_probes,
    exploration_share,
)

REWARDS = st.sampled_from([0.0, 0.25, 0.5, 1.0])
GROUP = st.lists(st.tuples(REWARDS, REWARDS), max_size=6)


def sign(number: float) -> int:
    return (number > 0) - (number < 0)


@given(st.lists(GROUP, max_size=4))
def test_tau_is_the_correlation_of_the_orders_of_all_pairs_of_a_group(groups):
    """By Kendall's definition, with orders as -1, 0 and 1."""
    orders = [
        (sign(p - q), sign(f - g))
        for group in groups
        for i, (p, f) in enumerate(group)
        for (q, g) in group[:i]
    ]
    products = sum(a * b for a, b in orders)
    squares = sum(a * a for a, _ in orders) * sum(b * b for _, b in orders)
    tau = agreement(groups).tau
    if squares == 0:
        assert tau is None
    else:
        assert tau == pytest.approx(products / squares**0.5)


def normal_pair(rng: random.Random, rho: float) -> tuple[float, float]:
    preview = rng.gauss(0.0, 1.0)
    return preview, rho * preview + (1 - rho * rho) ** 0.5 * rng.gauss(0.0, 1.0)


def pair_on_levels(rng: random.Random, rho: float) -> tuple[float, float]:
    preview, fresh = normal_pair(rng, rho)
    return float(round(preview)), float(round(fresh))


def pass_or_fail(rng: random.Random, rho: float) -> tuple[float, float]:
    preview = rng.random() < 0.5
    return float(preview), float(preview if rng.random() < rho else rng.random() < 0.5)


@pytest.mark.parametrize("rho", [0.0, 0.3, 0.6, 0.9, 1.0])
@pytest.mark.parametrize(
    "draw", [normal_pair, pair_on_levels, pass_or_fail], ids=lambda draw: draw.__name__
)
def test_the_correlation_is_pearsons_whatever_the_rewards_are(draw, rho):
    rng = random.Random(0)
    groups = [[draw(rng, rho) for _ in range(4)] for _ in range(3000)]
    pairs = [pair for group in groups for pair in group]
    expected = statistics.correlation(*zip(*pairs, strict=True))
    assert agreement(groups).correlation == pytest.approx(expected, abs=0.06)


def test_there_is_no_correlation_where_one_side_never_varies():
    assert agreement([[(0.5, 0.0), (0.5, 1.0)]]).correlation is None
    assert Agreement().correlation is None


@given(st.lists(GROUP, max_size=4), st.randoms(use_true_random=False))
def test_the_order_of_groups_and_probes_does_not_matter(groups, rng):
    shuffled = [rng.sample(group, len(group)) for group in groups]
    rng.shuffle(shuffled)
    assert agreement(shuffled) == agreement(groups)


@given(GROUP, GROUP)
def test_orders_between_groups_do_not_count(one, other):
    lifted = [(preview, fresh + 10.0) for preview, fresh in other]
    assert agreement([one, lifted]) == agreement([one]) + agreement([other])


def test_old_probes_fade():
    known = Agreement()
    for _ in range(200):
        known = known.faded() + Agreement(concordant=6.0)
    assert known.pairs == pytest.approx(120.0, rel=0.01)
    for _ in range(100):
        known = known.faded() + Agreement(discordant=6.0)
    assert known.tau == pytest.approx(-1.0, abs=0.02)


def believed(tau: float, pairs: float = 1000.0) -> Agreement:
    return Agreement(pairs * (1 + tau) / 2, pairs * (1 - tau) / 2)


def test_before_there_are_enough_probes_everything_is_explored():
    assert exploration_share(Agreement(), Gain()) == 1.0
    assert exploration_share(believed(-1.0, ENOUGH - 1), Gain()) == 1.0


@pytest.mark.parametrize(
    ("tau", "share"), [(0.8, 1.0), (0.4, 1.0), (0.25, 0.5), (0.0, 0.0), (-0.5, 0.0)]
)
def test_the_less_previews_predict_the_less_is_explored(tau, share):
    assert exploration_share(believed(tau), Gain()) == share


def test_a_low_agreement_of_few_probes_may_be_chance():
    assert exploration_share(believed(0.1, 30.0), Gain()) == 1.0


@pytest.mark.parametrize("tau", [0.0, -1.0])
@pytest.mark.parametrize("gain", [0.0, 0.4])
def test_exploration_that_is_off_comes_back_when_what_was_seen_has_faded(tau, gain):
    """Within 36 iterations, whatever was seen: 120 pairs of probes are the most there ever are."""
    known, contrast = believed(tau, 120.0), brought(gain)
    shares = []
    for _ in range(36):
        shares.append(exploration_share(known, contrast))
        known, contrast = known.faded(), contrast.faded()
    assert shares[0] == 0.0 and shares[-1] == 1.0
    assert shares == sorted(shares)


def test_rewards_that_never_vary_say_nothing():
    known = agreement([[(0.5, 0.5)] * 20])
    assert known.tau is None
    assert exploration_share(known, Gain()) == 1.0


def test_previews_that_never_vary_where_rewards_do_are_of_no_use():
    known = agreement([[(0.5, fresh / 40) for fresh in range(40)]])
    assert (known.pairs, known.tau) == (780, None)
    assert exploration_share(known, Gain()) == 0.0


SCORED = [{seed: seed / 10 for seed in range(10)}, {1: 0.1}, {}]


@pytest.mark.parametrize("count", [2, 4, 8, 20])
def test_probes_are_previewed_seeds_of_one_group(count):
    first, *others = draw_probes(SCORED, count, random.Random(1))
    assert len(set(first.seeds)) == min(count, 10)
    assert first.rewards == tuple(seed / 10 for seed in first.seeds)
    assert all(probes.seeds == () for probes in others)


@pytest.mark.parametrize("count", [0, 1])
def test_without_two_there_is_nothing_to_compare(count):
    assert not any(probes.seeds for probes in draw_probes(SCORED, count, random.Random(1)))
    assert not any(probes.seeds for probes in draw_probes(SCORED[1:], 4, random.Random(1)))


def test_probes_are_drawn_from_all_that_were_previewed():
    drawn = {
        seed
        for number in range(100)
        for seed in draw_probes(SCORED, 2, random.Random(number))[0].seeds
    }
    assert drawn == set(range(10))


def brought(realised: float, iterations: float = 20.0) -> Gain:
    """Kept seeds promised twice the contrast of any seeds."""
    return Gain(iterations, *(iterations * one for one in (0.2, 0.4, realised)))


@pytest.mark.parametrize(
    ("realised", "share"), [(0.4, 1.0), (0.3, 1.0), (0.25, 0.5), (0.2, 0.0), (0.1, 0.0)]
)
def test_the_less_of_the_promised_contrast_comes_the_less_is_explored(realised, share):
    assert exploration_share(Agreement(), brought(realised)) == share


def test_the_worse_of_probes_and_contrast_decides():
    assert exploration_share(believed(0.8), brought(0.2)) == 0.0
    assert exploration_share(believed(0.0), brought(0.4)) == 0.0


def test_the_contrast_of_a_few_iterations_decides_nothing():
    assert exploration_share(Agreement(), brought(0.0, ENOUGH_ITERATIONS - 1)) == 1.0


def test_a_choice_that_promised_nothing_cannot_break_its_promise():
    gain = Gain(20.0, 20 * 0.2, 20 * 0.205, 20 * 0.1)
    assert gain.realised_share is None
    assert exploration_share(Agreement(), gain) == 1.0


def test_the_share_of_the_gain_is_that_of_the_sums():
    gain = brought(0.4, 1.0) + brought(0.2, 1.0)
    assert gain.realised_share == pytest.approx(0.5)
    assert gain.faded().realised_share == pytest.approx(0.5)
    assert gain.faded().iterations < 2.0


@pytest.mark.parametrize("rewards", [[0, 0, 0, 1], [0, 0, 1, 1, 0.5, 0.25], [0.1] * 9 + [1]])
def test_contrast_at_random_is_the_mean_over_all_subsets(rewards):
    contrasts = [pstdev(subset) for subset in combinations(rewards, 3)]
    expected = sum(contrasts) / len(contrasts)
    found = [contrast_at_random([rewards], 3, random.Random(seed)) for seed in range(50)]
    assert sum(found) / len(found) == pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize("rewards", [[0, 0, 0, 1], [0, 0, 1, 1, 0.5, 0.25], [0.1] * 9 + [1]])
def test_the_contrast_of_any_seeds_is_estimated_from_few_without_bias(rewards):
    """All draws of three of a population, against all draws of four."""
    expected = mean(pvariance(draw) for draw in product(rewards, repeat=4))
    found = [contrast_of_any([probes], 4) for probes in product(rewards, repeat=3)]
    assert mean(one**2 for one in found) == pytest.approx(expected)


def test_the_contrast_of_any_seeds_is_over_the_groups_that_have_two_probes():
    assert contrast_of_any([[0.0, 1.0], [0.5, 0.5], [0.3]], 2) == pytest.approx(0.125**0.5)
    assert contrast_of_any([[0.3], []], 2) is None


def test_of_many_groups_few_subsets_are_drawn_but_of_each_group_one():
    """The coordinator has nothing else to do meanwhile."""

    class Counting(random.Random):
        drawn = 0

        def sample(self, population, k):
            self.drawn += 1
            return super().sample(population, k)

    for groups, draws in ((1, 64), (100, 2000), (5000, 5000)):
        rng = Counting(0)
        assert contrast_at_random([[0.0, 1.0]] * groups, 2, rng) == 0.5
        assert rng.drawn == draws


def test_groups_without_enough_previews_have_no_contrast_to_compare_with():
    rng = random.Random(0)
    assert contrast_at_random([[], [0.5], [0.0, 0.5, 1.0]], 4, rng) == 0.0
    assert contrast_at_random([[0.0, 1.0], [0.5]], 2, rng) == 0.5
