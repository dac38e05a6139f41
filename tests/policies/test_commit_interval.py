import math

from hypothesis import given
from hypothesis import strategies as st

from spotlight.policies.commit_interval import commit_due, commit_interval, must_stop

seconds = st.floats(0.001, 100.0)
costs = st.floats(0.0, 10.0)
rates = st.floats(1e-7, 1.0)
counts = st.integers(1, 500)


def interval(step_s: float, commit_s: float, losses_per_s: float, steps: int) -> float:
    """With infinity for never, so that intervals can be compared."""
    return commit_interval(step_s, commit_s, losses_per_s, steps) or math.inf


def expected_cost(every: int, step_s: float, commit_s: float, losses_per_s: float) -> float:
    """Per second of denoising: what commits cost, and what is repeated after a loss, which comes
    anywhere between two commits.
    """
    period = every * step_s
    return commit_s / period + losses_per_s * period / 2


def test_youngs_interval_in_steps():
    # sqrt(2 * 0.5 s * 3600 s) = 60 s
    assert commit_interval(2.0, 0.5, 1 / 3600, 100) == 30


@given(seconds, costs, counts)
def test_without_losses_nothing_is_committed(step_s, commit_s, steps):
    assert commit_interval(step_s, commit_s, 0.0, steps) == 0


@given(seconds, rates, st.integers(2, 500))
def test_a_commit_that_costs_nothing_comes_after_every_step(step_s, rate, steps):
    assert commit_interval(step_s, 0.0, rate, steps) == 1


@given(seconds, costs, rates, counts)
def test_an_interval_is_shorter_than_the_request(step_s, commit_s, rate, steps):
    assert 0 <= commit_interval(step_s, commit_s, rate, steps) < steps


@given(seconds, costs, rates, counts, costs)
def test_dearer_commits_come_less_often(step_s, commit_s, rate, steps, more):
    before = interval(step_s, commit_s, rate, steps)
    assert interval(step_s, commit_s + more, rate, steps) >= before


@given(seconds, costs, rates, counts, rates)
def test_more_losses_bring_commits_closer(step_s, commit_s, rate, steps, more):
    before = interval(step_s, commit_s, rate, steps)
    assert interval(step_s, commit_s, rate + more, steps) <= before


@given(seconds, costs, rates, counts, seconds)
def test_longer_steps_mean_fewer_of_them_between_commits(step_s, commit_s, rate, steps, more):
    before = interval(step_s, commit_s, rate, steps)
    after = interval(step_s + more, commit_s, rate, steps)
    assert after <= before


@given(seconds, costs, rates, counts, st.integers(0, 500))
def test_a_longer_request_is_not_committed_less(step_s, commit_s, rate, steps, more):
    before = interval(step_s, commit_s, rate, steps)
    assert interval(step_s, commit_s, rate, steps + more) <= before


@given(seconds, st.floats(0.001, 10.0), rates)
def test_no_other_interval_costs_notably_less(step_s, commit_s, rate):
    steps = 500
    every = commit_interval(step_s, commit_s, rate, steps)
    best = min(expected_cost(n, step_s, commit_s, rate) for n in range(1, steps))
    if every:
        assert expected_cost(every, step_s, commit_s, rate) <= 1.07 * best
    else:
        longest = expected_cost(steps - 1, step_s, commit_s, rate)
        assert longest <= 1.07 * best, "never is right only if rarest is best"


# --- commit_due ---


def due(step: int, last: int, every: int, *, urgent: bool = False, delivering: bool = False):
    return commit_due(step, 10, last, every, urgent=urgent, delivering=delivering)


def test_it_is_due_every_so_many_steps_since_the_last():
    assert [step for step in range(10) if due(step, 0, 3)] == [3, 4, 5, 6, 7, 8, 9]
    assert [step for step in range(10) if due(step, 5, 3)] == [8, 9]


def test_without_an_interval_only_when_urgent():
    assert not any(due(step, 0, 0) for step in range(10))
    assert [step for step in range(11) if due(step, 2, 0, urgent=True)] == list(range(3, 10))


@given(
    st.integers(0, 12), st.integers(1, 12), st.integers(0, 12), st.integers(0, 12), st.booleans()
)
def test_never_while_delivering_nor_after_the_last_step_nor_without_progress(
    step, steps, last, every, urgent
):
    assert not commit_due(step, steps, last, every, urgent=urgent, delivering=True)
    if step >= steps or step <= last:
        assert not commit_due(step, steps, last, every, urgent=urgent, delivering=False)


# --- must_stop ---


def test_a_step_that_would_end_too_late_is_not_begun():
    assert not must_stop(10.0, None, 5.0)
    assert not must_stop(10.0, 16.0, 5.0)
    assert must_stop(10.0, 14.0, 5.0)
    assert must_stop(10.0, 10.0, 0.0)
