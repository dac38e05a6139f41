import pytest

from spotlight.policies.exploration.bandit import LOOKED_AT, PromptPool


def never(group: int) -> float:
    raise AssertionError(f"group {group} should not be looked at")


def test_as_many_groups_are_open_at_first_as_are_trained_on():
    pool = PromptPool(groups=6, trained=2)
    assert pool.opened == {0, 1}
    assert [pool.is_open(group) for group in range(6)] == [True, True, *[False] * 4]


def test_a_pool_that_is_trained_on_as_a_whole_has_nobody_else():
    pool = PromptPool(groups=2, trained=2)
    assert not pool.has_more
    assert pool.challenger({0: 0.0, 1: 0.0}, never) is None


def test_nobody_is_challenged_before_anybody_is_scored():
    assert PromptPool(groups=4, trained=2).challenger({}, never) is None


def test_the_most_promising_challenges_the_weakest():
    pool = PromptPool(groups=5, trained=2)
    promise = {2: 0.2, 3: 0.3, 4: 0.1}
    assert pool.challenger({0: 0.4, 1: 0.05}, promise.__getitem__) == (3, pytest.approx(0.25))


def test_of_equally_promising_ones_the_first_challenges():
    assert PromptPool(groups=5, trained=2).challenger({0: 0.1}, lambda group: 0.1) == (2, 0.0)


def test_a_second_challenger_is_taken_to_replace_the_second_weakest():
    pool = PromptPool(groups=6, trained=3)
    contrasts = {0: 0.4, 1: 0.05, 2: 0.1}
    pool.open(3)
    assert pool.challenger(contrasts, lambda group: 0.3) == (4, pytest.approx(0.2))


def test_there_are_no_more_challengers_than_groups_to_replace():
    pool = PromptPool(groups=6, trained=2)
    pool.open(2)
    pool.open(3)
    assert pool.challenger({0: 0.0, 1: 0.0}, never) is None


def test_the_weakest_is_closed_when_its_challenger_is_scored():
    pool = PromptPool(groups=4, trained=2)
    pool.open(2)
    assert pool.close_weakest({0: 0.4, 1: 0.1}) == []
    assert pool.close_weakest({0: 0.4, 1: 0.1, 2: 0.2}) == [1]
    assert pool.opened == {0, 2}


def test_a_challenger_that_contrasts_no_more_is_closed_itself():
    pool = PromptPool(groups=4, trained=2)
    pool.open(2)
    assert pool.close_weakest({0: 0.4, 1: 0.1, 2: 0.1}) == [2]


def test_a_group_that_was_closed_does_not_come_back():
    pool = PromptPool(groups=4, trained=2)
    pool.open(2)
    pool.close_weakest({0: 0.4, 1: 0.1, 2: 0.2})
    found = pool.challenger({0: 0.4, 2: 0.2}, lambda group: 1.0)
    assert found is not None
    assert found[0] == 3


def test_only_the_next_few_are_looked_at():
    looked: list[int] = []

    def expected(group: int) -> float:
        looked.append(group)
        return 0.0

    PromptPool(groups=1_000, trained=2).challenger({0: 0.0}, expected)
    assert sorted(set(looked)) == list(range(2, 2 + LOOKED_AT))
