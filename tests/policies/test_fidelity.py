"""What probes say about previews, and how much exploration follows."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotlight.policies.fidelity import (
    ENOUGH,
    TRY_AGAIN,
    Agreement,
    agreement,
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
    assert exploration_share(Agreement(), 1) == 1.0
    assert exploration_share(believed(-1.0, ENOUGH - 1), 1) == 1.0


@pytest.mark.parametrize(
    ("tau", "share"), [(0.8, 1.0), (0.4, 1.0), (0.25, 0.5), (0.0, 0.0), (-0.5, 0.0)]
)
def test_the_less_previews_predict_the_less_is_explored(tau, share):
    assert exploration_share(believed(tau), 1) == share


def test_a_low_agreement_of_few_probes_may_be_chance():
    assert exploration_share(believed(0.1, 30.0), 1) == 1.0


def test_exploration_that_is_off_is_tried_again_now_and_then():
    tried = [iteration for iteration in range(40) if exploration_share(believed(0.0), iteration)]
    assert tried == list(range(0, 40, TRY_AGAIN))


def test_rewards_that_never_vary_say_nothing():
    known = agreement([[(0.5, 0.5)] * 20])
    assert known.tau is None
    assert exploration_share(known, 1) == 1.0


def test_previews_that_never_vary_where_rewards_do_are_of_no_use():
    known = agreement([[(0.5, fresh / 40) for fresh in range(40)]])
    assert (known.pairs, known.tau) == (780, None)
    assert exploration_share(known, 1) == 0.0


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
