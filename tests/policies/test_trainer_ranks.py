import pytest

from spotlight.policies.trainer_ranks import MOST_RECOVERIES, RankWatch, next_recovery


def test_a_rank_whose_node_is_out_of_reach_is_given_up_only_after_the_patience():
    watch = RankWatch(60.0)
    watch.lose_sight([7, 8], 100.0)
    assert watch.silent == (7, 8)
    assert watch.given_up(159.9) == ()
    assert watch.given_up(160.0) == (7, 8)


def test_a_rank_that_answers_itself_is_not_given_up():
    watch = RankWatch(60.0)
    watch.lose_sight([7, 8], 100.0)
    watch.answered(7, 150.0)
    assert watch.given_up(170.0) == (8,)
    assert watch.silent == (7, 8), "its node is still out of reach"


def test_a_rank_whose_node_is_back_is_there():
    watch = RankWatch(60.0)
    watch.lose_sight([7], 100.0)
    watch.see([7, 9])
    assert watch.silent == ()
    assert watch.given_up(1000.0) == ()


def test_losing_sight_of_a_rank_again_does_not_begin_its_time_anew():
    watch = RankWatch(60.0)
    watch.lose_sight([7], 100.0)
    watch.lose_sight([7], 150.0)
    assert watch.given_up(160.0) == (7,)


def test_an_answer_of_a_rank_that_is_there_changes_nothing():
    watch = RankWatch(60.0)
    watch.answered(7, 100.0)
    assert watch.silent == ()


def test_recoveries_are_counted_from_the_same_checkpoint_and_bounded():
    last = None
    for count in range(1, MOST_RECOVERIES + 1):
        last = next_recovery(last, 4)
        assert last == (count, 4)
    assert next_recovery(last, 4) is None


@pytest.mark.parametrize("count", [1, MOST_RECOVERIES])
def test_a_new_checkpoint_lets_recoveries_begin_again(count):
    assert next_recovery((count, 4), 5) == (1, 5)
