"""How the time of spot workers is shared between gradients and previews."""

from __future__ import annotations

import heapq
import math
import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from spotlight.policies.spot_time import (
    EARLY,
    MARGIN,
    MOST_GRADIENT_BYTES,
    WORTH_WAITING,
    GradientWork,
    Samples,
    SpotPlan,
    SpotWork,
    plan_spot_time,
)

GRADIENTS = GradientWork(
    ranks=4,
    updates=2,
    slices=12,
    rank_slice_s=10.0,
    worker_slice_s=None,
    gradient_bytes=400_000_000,
    weights_bytes=400_000_000,
    up_bytes_per_s=1e9,
    down_bytes_per_s=1e9,
)


def logarithmic(slope: float) -> Any:
    return lambda previews: 1 + slope * math.log(previews)


def even_pass_or_fail(previews: float) -> float:
    """Half of the images pass: 1.29, 1.32 and 1.36 for 2, 4 and 8 previews."""
    return min(1.29, 1 + 0.29 * (previews - 1)) + 0.05 * max(0.0, math.log(previews / 2))


WORK = SpotWork(
    gradients=GRADIENTS, spot_workers=8, samples=48, preview_s=9.4, gain=logarithmic(1.3)
)
"""A rollout takes 0.47 of what training on it does."""
FREE = replace(GRADIENTS, gradient_bytes=0, weights_bytes=0)


def with_links(bytes_per_s: float | None) -> SpotWork:
    links = {"up_bytes_per_s": bytes_per_s, "down_bytes_per_s": bytes_per_s}
    return replace(WORK, gradients=replace(GRADIENTS, **links))


def speed(work: SpotWork, plan: SpotPlan) -> float:
    return work.taught(plan.previews) / plan.iteration_s


# --- an update ---


def test_an_update_of_ranks_alone_takes_all_slices_of_a_rank() -> None:
    assert GRADIENTS.update_s(0) == 120


@pytest.mark.parametrize(("workers", "seconds"), [(4, 60), (8, 40), (12, 30), (44, 10)])
def test_without_links_an_update_is_divided_evenly(workers: int, seconds: float) -> None:
    assert FREE.update_s(workers) == pytest.approx(seconds)


def test_the_links_of_the_ranks_nodes_limit_how_many_gradients_come() -> None:
    heavy = replace(GRADIENTS, gradient_bytes=9 * 10**9)
    assert heavy.update_s(40) > replace(heavy, receivers=4).update_s(40)


def simulated_update_s(work: GradientWork, workers: int) -> float:
    """Event by event: a rank does the next slice of its own that has not come; a worker takes the
    last slice that nobody has of the rank that has most left. It is over when all are there."""
    up = work.up_bytes_per_s or 1.0
    away_s, up_s = work.away_s(), work.gradient_bytes / up
    each_s = max((work.worker_slice_s or work.rank_slice_s), up_s)
    left = [work.slices] * work.ranks  # that neither the rank nor a worker has begun
    links = [-math.inf] * work.receivers
    last = 0.0
    free = [(0.0, 0, rank) for rank in range(work.ranks)]
    free += [(away_s - each_s, 1, number) for number in range(workers)]
    heapq.heapify(free)
    while free and any(left):
        at, kind, number = heapq.heappop(free)
        if kind == 0 and left[number]:
            left[number] -= 1
            last = max(last, at + work.rank_slice_s)
            heapq.heappush(free, (at + work.rank_slice_s, 0, number))
        elif kind == 1:
            rank = max(range(work.ranks), key=left.__getitem__)
            link = rank % work.receivers
            came = max(at + each_s, links[link] + up_s)
            if came > left[rank] * work.rank_slice_s + at:
                continue  # the rank would have it sooner
            left[rank] -= 1
            links[link], last = came, max(last, came)
            heapq.heappush(free, (came, 1, number))
    return last


GRADIENT_WORKS = st.builds(
    GradientWork,
    ranks=st.integers(1, 4),
    updates=st.integers(1, 3),
    slices=st.integers(1, 16),
    rank_slice_s=st.floats(1, 20),
    worker_slice_s=st.none() | st.floats(0.5, 40),
    gradient_bytes=st.integers(0, 4 * 10**9),
    weights_bytes=st.integers(0, 4 * 10**9),
    up_bytes_per_s=st.none() | st.floats(1e8, 1e10),
    down_bytes_per_s=st.floats(1e8, 1e10),
)


@given(work=GRADIENT_WORKS, workers=st.integers(0, 20))
def test_more_workers_never_make_an_update_longer(work: GradientWork, workers: int) -> None:
    assert work.update_s(workers + 1) <= work.update_s(workers) <= work.update_s(0)


@given(work=GRADIENT_WORKS, workers=st.integers(1, 20))
def test_an_update_takes_what_its_slices_one_by_one_take(work: GradientWork, workers: int) -> None:
    work = replace(work, up_bytes_per_s=work.down_bytes_per_s)
    expected, simulated = work.update_s(workers), simulated_update_s(work, workers)
    longest_s = max(work.rank_slice_s, work.away_s() if work.away_s() <= expected else 0.0)
    assert expected <= simulated * (1 + 1e-6)
    assert simulated <= expected + longest_s


# --- what comes in time ---


@pytest.mark.parametrize(("left", "in_time"), [(1, False), (2, True)])
def test_a_slice_is_given_away_if_the_rank_would_not_have_its_gradient_sooner(
    left: int, in_time: bool
) -> None:
    work = replace(GRADIENTS, gradient_bytes=5 * 10**9, weights_bytes=5 * 10**9)
    assert work.away_s() == 20
    assert work.comes_in_time(left) == in_time


def test_who_has_the_weights_may_take_a_slice_later() -> None:
    assert not GRADIENTS.comes_in_time(1)
    assert replace(GRADIENTS, gradient_bytes=0).comes_in_time(1, has_weights=True)


def test_the_way_up_is_as_fast_as_the_way_down_until_it_is_measured() -> None:
    assert replace(GRADIENTS, up_bytes_per_s=None).away_s() == GRADIENTS.away_s()


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"up_bytes_per_s": None, "down_bytes_per_s": None}, "no link"),
        ({"up_bytes_per_s": 3e6, "down_bytes_per_s": 3e6}, "after 277 s"),
        ({"may_be_given_away": False}, "does not give them away"),
        ({"gradient_bytes": MOST_GRADIENT_BYTES + 1}, "too large"),
    ],
)
def test_slices_that_cannot_pay_are_not_granted_and_it_says_why(
    changes: dict[str, Any], why: str
) -> None:
    plan = plan_spot_time(replace(WORK, gradients=replace(GRADIENTS, **changes)))
    assert not plan.grants_slices
    assert plan.gradient_workers == 0
    assert why in plan.why


@pytest.mark.parametrize("gbit_per_s", [1, 10, 100, 400])
def test_gradients_of_full_tuning_are_never_given_away(gbit_per_s: int) -> None:
    link = gbit_per_s * 1e9 / 8
    full = replace(
        GRADIENTS,
        gradient_bytes=41 * 10**9,
        weights_bytes=41 * 10**9,
        up_bytes_per_s=link,
        down_bytes_per_s=link,
    )
    assert not plan_spot_time(replace(WORK, gradients=full)).grants_slices


# --- how many ---


def closed_form(work: SpotWork) -> float:
    """What is taught per second when all GPUs do all kinds of work without loss, or ranks train as
    long as they are the only ones who can."""
    gradients, found = work.gradients, 0.0
    gpus = gradients.ranks + work.workers
    rank_s = gradients.updates * gradients.slices * gradients.rank_slice_s
    for step in range(150):
        previews = 1.04**step
        previews_s = previews * work.samples * work.preview_s
        found = max(found, work.taught(previews) * gpus / (rank_s * gradients.ranks + previews_s))
    return found


@pytest.mark.parametrize("slope", [0.2, 0.7, 1.3, 1.7])
@pytest.mark.parametrize("rollout", [0.08, 0.47, 1.0, 3.4])
@pytest.mark.parametrize("spot_per_reserved", [1, 2, 4, 8])
def test_over_free_links_a_plan_teaches_nearly_what_all_gpus_could(
    spot_per_reserved: int, rollout: float, slope: float
) -> None:
    work = replace(
        WORK,
        gradients=replace(FREE, slices=24, rank_slice_s=5.0),
        spot_workers=4 * spot_per_reserved,
        preview_s=20 * rollout,
        gain=logarithmic(slope),
    )
    # With a steep gain and cheap previews the ranks themselves are better training all the time.
    assert (
        0.95 * closed_form(work) <= speed(work, plan_spot_time(work)) <= 1.002 * closed_form(work)
    )


def test_rewards_that_gain_little_by_a_choice_leave_more_workers_to_gradients() -> None:
    much = plan_spot_time(replace(WORK, gain=logarithmic(1.7)))
    little = plan_spot_time(replace(WORK, gain=even_pass_or_fail))
    assert little.gradient_workers > much.gradient_workers
    assert little.previews < much.previews


def test_dear_previews_leave_fewer_workers_to_gradients() -> None:
    cheap, dear = (plan_spot_time(replace(WORK, preview_s=preview_s)) for preview_s in (1.6, 68.0))
    assert cheap.gradient_workers > dear.gradient_workers
    assert cheap.previews > dear.previews


def test_workers_of_another_kind_of_device_compute_no_gradients() -> None:
    work = replace(WORK, preview_s=1.6)
    assert plan_spot_time(work).gradient_workers > 2
    assert plan_spot_time(replace(work, able_workers=2)).gradient_workers <= 2


def test_reserved_workers_that_are_idle_help_as_spot_workers_do() -> None:
    idle = replace(WORK, spot_workers=0, idle_workers=8)
    assert plan_spot_time(idle).gradient_workers == plan_spot_time(WORK).gradient_workers


def test_with_no_other_worker_the_gpus_that_train_make_previews_between_trainings() -> None:
    plan = plan_spot_time(replace(WORK, spot_workers=0))
    assert plan.gradient_workers == 0
    assert plan.previews > 2
    assert plan.iteration_s == pytest.approx(240 + plan.previews * 48 * 9.4 / 4)
    assert "training waits" in plan.why


def test_previews_that_are_made_in_any_case_are_made() -> None:
    work = replace(WORK, least_previews=5, most_previews=5)
    assert plan_spot_time(work).previews == 5


def test_workers_whose_previews_nobody_would_make_compute_gradients() -> None:
    few = plan_spot_time(replace(WORK, spot_workers=32, most_previews=2))
    assert few.previews <= 2
    assert few.gradient_workers > plan_spot_time(replace(WORK, spot_workers=32)).gradient_workers


def test_previews_that_pay_only_when_there_are_several_are_found() -> None:
    work = replace(WORK, samples_from="regenerated", finish_s=9.4, spot_workers=0)
    assert plan_spot_time(work).previews > 2


def test_evaluations_go_before_previews() -> None:
    late = with_links(None)
    before = plan_spot_time(late)
    after = plan_spot_time(replace(late, evaluation_s=100.0))
    assert after.previews == pytest.approx(before.previews - 100 / (48 * 9.4))


def test_a_choice_by_previews_that_hardly_agree_with_samples_is_worth_less() -> None:
    work = replace(WORK, samples_from="finished", preview_s=1.2, finish_s=9.4, agreement=0.9)
    worse = replace(work, agreement=0.5)
    assert work.taught(8) > worse.taught(8) > 1
    assert plan_spot_time(worse).previews < plan_spot_time(work).previews


def test_workers_that_preview_nothing_beside_training_compute_gradients() -> None:
    fresh = replace(WORK, samples_from="fresh")
    no_choice = replace(WORK, samples_from="regenerated", finish_s=9.4, gain=lambda previews: 1.0)
    for work in (fresh, no_choice):
        fastest = min(work.gradients.update_s(workers) for workers in range(work.workers + 1))
        workers = plan_spot_time(work).gradient_workers
        assert work.gradients.update_s(workers) == pytest.approx(fastest, rel=0.01)


@pytest.mark.parametrize(("samples_from", "gain"), [("previews", 3.0), ("finished", 1.5)])
def test_what_previews_promise_comes_true_by_the_square_of_their_agreement(
    samples_from: Samples, gain: float
) -> None:
    work = replace(WORK, samples_from=samples_from, agreement=0.5, gain=lambda previews: 3.0)
    assert work.taught(4) == gain


def any_speed(work: SpotWork, workers: int, previews: float) -> float:
    """What is taught per second, from the GPU seconds of all that is to do."""
    gradients = work.gradients
    training_s = gradients.updates * gradients.update_s(workers) + work.other_s
    beside_s = (work.workers - workers) * training_s - work.evaluation_s
    least, before_s, after_s = max(1.0, work.least_previews), 0.0, 0.0
    match work.samples_from:
        case "finished":
            before_s = work.samples * work.finish_s
        case "regenerated":
            least, after_s = work.least_previews, work.samples * work.finish_s
            beside_s = max(0.0, beside_s)
        case "fresh":
            beside_s, before_s = 0.0, work.samples * work.finish_s
    each_s = work.samples * work.preview_s
    fit = min((beside_s - before_s) / each_s, work.most_previews)
    previews = max(min(previews, work.most_previews), fit, least)
    missing_s = max(0.0, previews * each_s + before_s - beside_s)
    gpus = work.workers + gradients.ranks
    return work.taught(previews) / (training_s + (missing_s + after_s) / gpus)


@settings(max_examples=60, deadline=None)
@given(
    gradients=GRADIENT_WORKS,
    spot_workers=st.integers(0, 24),
    idle_workers=st.integers(0, 2),
    samples=st.sampled_from([16, 48]),
    samples_from=st.sampled_from(["previews", "finished", "regenerated", "fresh"]),
    preview_s=st.floats(0.5, 60),
    finish_s=st.floats(0, 60),
    evaluation_s=st.sampled_from([0.0, 100.0]),
    slope=st.floats(0, 1.7),
    agreement=st.floats(0, 1),
    limits=st.sampled_from([(0.0, math.inf), (0.0, 6.0), (2.0, 4.0), (3.0, 3.0)]),
)
def test_a_plan_is_within_a_hundredth_of_the_best_of_all(
    gradients: GradientWork,
    spot_workers: int,
    idle_workers: int,
    samples: int,
    samples_from: Samples,
    preview_s: float,
    finish_s: float,
    evaluation_s: float,
    slope: float,
    agreement: float,
    limits: tuple[float, float],
) -> None:
    work = SpotWork(
        gradients=gradients,
        spot_workers=spot_workers,
        idle_workers=idle_workers,
        samples=samples,
        samples_from=samples_from,
        preview_s=preview_s,
        finish_s=finish_s,
        evaluation_s=evaluation_s,
        gain=logarithmic(slope),
        agreement=agreement,
        least_previews=limits[0],
        most_previews=limits[1],
    )
    plan = plan_spot_time(work)
    most = work.workers if gradients.comes_in_time(gradients.slices) else 0
    best = max(
        any_speed(work, workers, 1.04**step) for workers in range(most + 1) for step in range(115)
    )
    assert any_speed(work, plan.gradient_workers, plan.previews) >= 0.99 * best
    assert speed(work, plan) == pytest.approx(
        any_speed(work, plan.gradient_workers, plan.previews), rel=1e-6
    )


# --- it does not swing ---


def measured(work: SpotWork, factors: dict[str, float]) -> SpotWork:
    gradients = work.gradients
    own = {name: getattr(gradients, name) * factors[name] for name in GRADIENT_MEASURES}
    return replace(
        work,
        gradients=replace(gradients, **own),
        preview_s=work.preview_s * factors["preview_s"],
    )


GRADIENT_MEASURES = ("rank_slice_s", "worker_slice_s", "up_bytes_per_s", "down_bytes_per_s")
MEASURES = (*GRADIENT_MEASURES, "preview_s")


@st.composite
def measured_works(draw: st.DrawFn) -> SpotWork:
    slice_s = draw(st.floats(1, 20))
    gradients = replace(
        GRADIENTS,
        ranks=draw(st.sampled_from([1, 2, 4])),
        slices=draw(st.sampled_from([4, 8, 24])),
        rank_slice_s=slice_s,
        worker_slice_s=slice_s * draw(st.floats(0.7, 1.5)),
    )
    return replace(
        WORK,
        gradients=gradients,
        spot_workers=draw(st.integers(1, 8)) * gradients.ranks,
        preview_s=slice_s * draw(st.floats(0.1, 5)),
        gain=logarithmic(draw(st.floats(0.1, 1.7))),
    )


@settings(max_examples=40, deadline=None)
@given(work=measured_works(), seed=st.integers(0, 2**32))
def test_measurements_that_differ_by_a_hundredth_change_nothing(work: SpotWork, seed: int) -> None:
    rng = random.Random(seed)
    plan = first = plan_spot_time(work)
    for _ in range(30):
        again = measured(work, {name: rng.uniform(0.99, 1.01) for name in MEASURES})
        plan = plan_spot_time(again, plan)
        assert plan.gradient_workers == first.gradient_workers
        assert plan.grants_slices == first.grants_slices


@settings(max_examples=40, deadline=None)
@given(work=measured_works(), seed=st.integers(0, 2**32))
def test_it_comes_back_to_a_plan_only_when_a_measurement_has_moved_since(
    work: SpotWork, seed: int
) -> None:
    rng = random.Random(seed)
    factors = dict.fromkeys(MEASURES, 1.0)
    plan = plan_spot_time(work)
    left: dict[int, dict[str, float]] = {}
    for _ in range(100):
        factors = {name: value * math.exp(rng.gauss(0, 0.03)) for name, value in factors.items()}
        before, plan = plan, plan_spot_time(measured(work, factors), plan)
        if plan.gradient_workers == before.gradient_workers:
            continue
        left[before.gradient_workers] = factors
        then = left.get(plan.gradient_workers)
        if then is not None:
            assert max(abs(math.log(factors[name] / then[name])) for name in MEASURES) > 0.01


@settings(max_examples=40, deadline=None)
@given(work=measured_works(), seed=st.integers(0, 2**32))
def test_a_plan_that_stays_teaches_nearly_what_a_new_one_would(work: SpotWork, seed: int) -> None:
    rng = random.Random(seed)
    plan = plan_spot_time(work)
    for _ in range(10):
        again = measured(work, {name: rng.uniform(0.8, 1.25) for name in MEASURES})
        plan = plan_spot_time(again, plan)
        assume(plan.grants_slices == plan_spot_time(again).grants_slices)
        best = speed(again, plan_spot_time(again))
        assert speed(again, plan) >= 0.97 * best / (1 + MARGIN)


def test_workers_that_are_lost_compute_no_gradients() -> None:
    many = plan_spot_time(replace(WORK, preview_s=1.6, spot_workers=32))
    few = plan_spot_time(replace(WORK, preview_s=1.6, spot_workers=3), many)
    assert few.gradient_workers <= 3


def test_a_link_that_has_become_slow_ends_slices_at_once() -> None:
    fast = plan_spot_time(with_links(1e9))
    assert fast.grants_slices
    assert not plan_spot_time(with_links(5e6), fast).grants_slices


def test_slices_that_were_not_granted_are_granted_when_they_come_early() -> None:
    late, edge, early = (
        with_links(8e8 / (share * 120 - 10)) for share in (1.01, (1 + EARLY) / 2, 0.99 * EARLY)
    )
    before = plan_spot_time(late)
    assert not before.grants_slices
    assert plan_spot_time(edge).grants_slices
    assert not plan_spot_time(edge, before).grants_slices
    assert "80%" in plan_spot_time(edge, before).why
    assert plan_spot_time(early, before).grants_slices


# --- which previews are waited for ---


def test_training_waits_where_the_previews_beside_it_are_few() -> None:
    alone = plan_spot_time(replace(WORK, spot_workers=0))
    assert alone.waited_for == alone.previews > 2


@pytest.mark.parametrize(
    ("spot_gpus", "waits"), [(0, True), (2, True), (4, False), (8, False), (16, False)]
)
def test_on_the_test_bed_training_waits_only_with_fewer_than_two_spot_nodes(
    spot_gpus: int, waits: bool
) -> None:
    alone = replace(with_links(None).gradients, slices=1, rank_slice_s=20.0)
    work = replace(WORK, gradients=alone, spot_workers=spot_gpus, samples=16, preview_s=5.7)
    assert (plan_spot_time(work).waited_for > 0) == waits


def test_training_does_not_wait_for_previews_that_teach_hardly_more() -> None:
    work = replace(with_links(None), preview_s=5.0)
    plan = plan_spot_time(work)
    assert speed(work, plan) < WORTH_WAITING * any_speed(work, 0, 0.0)
    assert plan.waited_for == 0


def test_training_waits_where_prompt_groups_would_not_be_whole() -> None:
    work = replace(with_links(None), gain=lambda previews: 1.0, preview_s=50.0)
    assert plan_spot_time(work).waited_for == 1


def test_training_does_not_wait_for_previews_that_are_no_samples_and_gain_nothing() -> None:
    rolls_out = replace(with_links(None), samples_from="regenerated", finish_s=50.0)
    work = replace(rolls_out, gain=lambda previews: 1.0, preview_s=50.0)
    assert plan_spot_time(work).waited_for == 0


# --- words and bad input ---


@pytest.mark.parametrize("workers", [0, 1, 8, 64])
@pytest.mark.parametrize("link", [None, 1e6, 1e9])
def test_it_says_why_in_one_line(workers: int, link: float | None) -> None:
    why = plan_spot_time(replace(with_links(link), spot_workers=workers)).why
    assert why.isprintable()
    assert "an iteration takes" in why


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("samples", 0),
        ("spot_workers", -1),
        ("preview_s", 0.0),
        ("preview_s", math.nan),
        ("finish_s", -1.0),
        ("evaluation_s", math.inf),
        ("least_previews", math.nan),
        ("most_previews", -1.0),
        ("agreement", 1.1),
        ("agreement", math.nan),
    ],
)
def test_impossible_work_is_refused_by_its_field(field: str, value: float) -> None:
    with pytest.raises(ValueError, match=field):
        replace(WORK, **{field: value})


@pytest.mark.parametrize(
    ("field", "value"),
    [("ranks", 0), ("slices", 0), ("rank_slice_s", 0.0), ("up_bytes_per_s", 0.0)],
)
def test_impossible_gradients_are_refused_by_their_field(field: str, value: float) -> None:
    with pytest.raises(ValueError, match=field):
        replace(GRADIENTS, **{field: value})
