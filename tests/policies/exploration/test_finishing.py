"""Cheap previews whose kept seeds are finished: how many there are, what they must foretell, and
what is whole in the end."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest

from spotlight.policies.exploration.choice_worth import ChoiceWorth
from spotlight.policies.exploration.explored import Explored
from spotlight.policies.exploration.fidelity import Agreement, agreement
from spotlight.policies.exploration.finishing import (
    Finish,
    Finishing,
    best_previews,
    mislead,
)
from spotlight.types import Request, SamplingSettings

SETTINGS = SamplingSettings(
    kind="ode", steps=8, height=32, width=64, noise_level=0.0, micro_batch=4
)
UNKNOWN = ChoiceWorth().curve()


def finish(**changes: Any) -> Finish:
    """Ten full batches of 8 s, and previews of a quarter of that."""
    usual: dict[str, Any] = {
        "requests": 40,
        "micro_batch": 4,
        "batch_s": 8.0,
        "preview_batch_s": 2.0,
        "best": 80,
        "pays": False,
    }
    return Finish(**(usual | changes))


def drawn(rho: float, pairs: int) -> list[tuple[float, float]]:
    """Of normal distributions with this Pearson's correlation."""
    rng = random.Random(0)
    first = [(rng.gauss(0, 1), rng.gauss(0, 1)) for _ in range(pairs)]
    return [(one, rho * one + math.sqrt(1 - rho * rho) * other) for one, other in first]


def requests(groups: int, of_each: int, **changes: Any) -> list[Request]:
    return [
        Request(f"rollout/1/0/{group}/{seed}{changes}", "rollout", 1, group, "a", seed, 0, SETTINGS)
        for group in range(groups)
        for seed in range(of_each)
    ]


# --- how many ---


def test_previews_leave_the_time_that_finishing_needs() -> None:
    """Five rounds of 8 s, so there are 10 s for five rounds of previews."""
    assert finish().more_previews(0, 0, left_s=50.0, groups=2) == 40
    assert finish().more_previews(8, 8, left_s=50.0, groups=2) == 32
    assert finish().more_previews(8, 8, left_s=41.0, groups=2) <= 0
    assert finish().more_previews(0, 0, left_s=39.0, groups=2) == 0


def test_fewer_groups_need_more_time_to_finish() -> None:
    plan = finish()
    more = [plan.more_previews(0, 0, left_s=60.0, groups=groups) for groups in range(1, 12)]
    assert more == sorted(more)
    assert more[0] == 0


@pytest.mark.parametrize(("left_s", "groups"), [(math.inf, 2), (60.0, 0)])
def test_where_nobody_knows_how_much_time_there_is_there_are_as_many_as_are_best(
    left_s: float, groups: int
) -> None:
    assert finish().more_previews(0, 0, left_s, groups) == 80
    assert finish().more_previews(70, 8, left_s, groups) == 10
    assert finish().more_previews(90, 8, left_s, groups) == 0


def test_training_waits_for_previews_that_pay() -> None:
    assert finish(pays=True).more_previews(30, 0, left_s=0.0, groups=2) == 50
    assert finish(pays=False).more_previews(30, 0, left_s=0.0, groups=2) == 0


def test_before_a_step_was_measured_previews_take_all_the_time() -> None:
    plan = finish(batch_s=0.0, preview_batch_s=0.0)
    assert plan.more_previews(0, 0, left_s=1.0, groups=1) == math.inf
    assert plan.more_previews(0, 0, left_s=0.0, groups=1) == 0


@pytest.mark.parametrize("cost", [1.5, 2.0, 4.0, 8.0, 30.0])
def test_no_other_number_of_previews_teaches_more_per_second(cost: float) -> None:
    most, kept = 32, 16
    best, pays = best_previews(kept, most, cost, UNKNOWN)

    def rate(n: float) -> float:
        return UNKNOWN(n) / (n + cost)

    assert all(rate(best / kept) >= rate(n) for n in range(2, most + 1))
    assert pays == (rate(best / kept) > 1 / cost)


def test_the_cheaper_previews_are_the_more_of_them_are_best() -> None:
    found = [best_previews(1, 64, cost, UNKNOWN)[0] for cost in (1.5, 4.0, 8.0, 16.0)]
    assert found == sorted(found)
    assert found[0] < found[-1]


# --- what they foretell ---


@pytest.mark.parametrize(("rho", "misleads"), [(0.9, False), (0.5, True), (-0.5, True)])
def test_previews_that_agree_too_little_mislead(rho: float, misleads: bool) -> None:
    assert mislead(agreement([drawn(rho, 100)])) == misleads


def test_nothing_is_concluded_from_few_probes() -> None:
    assert not mislead(Agreement())
    assert not mislead(Agreement(discordant=19.0))
    assert mislead(Agreement(discordant=21.0))


def test_previews_of_which_none_differs_foretell_nothing() -> None:
    assert mislead(Agreement(preview_ties=50.0))


# --- what is whole ---

CHOICE = Explored(1, ((0, 1), (0, 1), ()), ((0.1, 0.2), (0.3, 0.4), ()), previews=9, late=0)


def test_groups_are_whole_when_all_of_their_seeds_are_finished() -> None:
    samples = requests(2, 2)
    finishing = Finishing(CHOICE, samples)
    finishing.finished(one.id for one in samples[:3])
    assert not finishing.is_over
    finishing.finished([samples[3].id, "rollout/of/something/else"])
    assert finishing.is_over
    found = finishing.outcome()
    assert (found.reused, found.finished) == ((0, 1), True)
    assert (found.seeds, found.previews) == (CHOICE.seeds, CHOICE.previews)
    assert finishing.unused() == ()


def test_a_group_of_which_a_seed_cannot_be_finished_is_not_there() -> None:
    samples = requests(2, 2)
    finishing = Finishing(CHOICE, samples)
    finishing.finished(one.id for one in samples[1:])
    finishing.given_up([samples[0].id])
    assert finishing.is_over
    assert finishing.outcome().reused == (1,)
    assert set(finishing.unused()) == {one.id for one in samples[:2]}


def test_a_probe_that_cannot_be_finished_costs_no_group() -> None:
    samples = requests(1, 2)
    probe = Request("rollout/1/0/1/7", "rollout", 1, 1, "b", 7, 0, SETTINGS, is_probe=True)
    finishing = Finishing(CHOICE, [*samples, probe])
    finishing.finished(one.id for one in samples)
    assert not finishing.is_over, "probes are waited for"
    finishing.given_up([probe.id])
    assert finishing.is_over
    assert finishing.outcome().reused == (0,)


def test_what_was_given_up_after_it_was_finished_changes_nothing() -> None:
    samples = requests(1, 1)
    finishing = Finishing(CHOICE, samples)
    finishing.finished([samples[0].id])
    finishing.given_up([samples[0].id])
    assert finishing.outcome().reused == (0,)
