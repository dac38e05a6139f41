"""The explorer where the kept seeds are finished while the iteration before is trained."""

from __future__ import annotations

from typing import Any

import pytest
from explorer_kit import KEEP, Expedition

from spotlight.policies.exploration.finishing import Finish

SAMPLES = 2 * KEEP


def finish(**changes: Any) -> Finish:
    """Two batches of 4 s, and previews of a second."""
    usual: dict[str, Any] = {
        "requests": SAMPLES,
        "micro_batch": 4,
        "batch_s": 4.0,
        "preview_batch_s": 1.0,
        "best": SAMPLES,
        "pays": False,
    }
    return Finish(**(usual | changes))


def test_a_choice_is_made_when_finishing_needs_the_time_that_is_left() -> None:
    """Of 10 s finishing takes 8, so there are two batches of previews."""
    expedition = Expedition("window", candidates=64)
    expedition.start(window_s=10.5, finish=finish())
    assert len(expedition.submitted) == SAMPLES
    for batch in (expedition.submitted[:4], expedition.submitted[4:8]):
        assert expedition.outcomes == []
        expedition.now += 1.0
        expedition.finish(batch)
    assert (expedition.explored.previews, expedition.explored.late) == (SAMPLES, 0)
    assert expedition.explored.reused == (), "nothing is finished yet"
    assert set(expedition.unused) == set(expedition.submitted)
    expedition.stop()
    assert len(expedition.outcomes) == 1


def test_more_time_is_for_more_previews() -> None:
    expedition = Expedition("window", candidates=64)
    expedition.start(window_s=18.5, finish=finish())
    while not expedition.outcomes:
        expedition.now += 1.0
        first = expedition.explorer.scored
        expedition.finish(expedition.submitted[first : first + 4])
    assert expedition.explored.previews == 40


def test_a_choice_waits_for_previews_in_work() -> None:
    expedition = Expedition("window", candidates=64)
    expedition.start(window_s=10.5, finish=finish())
    expedition.now += 5.0
    expedition.finish(expedition.submitted[:7])
    assert expedition.outcomes == []
    expedition.finish(expedition.submitted[7:])
    assert expedition.explored.previews == SAMPLES


def test_when_training_has_ended_previews_in_work_are_not_waited_for() -> None:
    expedition = Expedition("window", candidates=64)
    expedition.start(window_s=100.0, finish=finish())
    expedition.finish(expedition.submitted[:5])
    expedition.stop()
    assert (expedition.explored.previews, expedition.cancelled) == (5, 1)


def test_unless_they_pay() -> None:
    expedition = Expedition("window", candidates=64)
    expedition.start(window_s=100.0, finish=finish(pays=True))
    expedition.finish(expedition.submitted[:5])
    expedition.stop()
    assert expedition.outcomes == []
    expedition.finish(expedition.submitted[5:8])
    assert expedition.explored.previews == SAMPLES


def test_without_time_for_previews_the_first_seeds_are_finished_at_once() -> None:
    expedition = Expedition("window")
    expedition.start(window_s=5.0, finish=finish())
    assert expedition.submitted == []
    assert [len(seeds) for seeds in expedition.explored.seeds] == [KEEP, KEEP]


def test_without_workers_previews_wait_for_the_next_to_join() -> None:
    expedition = Expedition("window", groups=0)
    expedition.start(window_s=100.0, finish=finish())
    assert len(expedition.submitted) == SAMPLES
    assert expedition.outcomes == []
    expedition.stop()
    assert expedition.explored.previews == 0


def test_a_choice_is_made_when_all_candidates_are_previewed() -> None:
    expedition = Expedition("window")
    expedition.start(window_s=1000.0, finish=finish())
    expedition.finish_all()
    assert expedition.explored.previews == 2 * SAMPLES


@pytest.mark.parametrize("planner", ["uniform", "bandit"])
def test_a_fixed_budget_that_is_spent_does_not_wait_for_the_stop(planner: str) -> None:
    expedition = Expedition("fixed", planner)
    expedition.start(window_s=0.0, finish=finish())
    expedition.finish_all()
    assert expedition.explored.previews == 2 * SAMPLES


def test_probes_are_drawn_of_previews_that_are_not_samples() -> None:
    expedition = Expedition("fixed", probes=3)
    expedition.start(finish=finish())
    expedition.finish_all()
    assert sorted(map(len, expedition.explored.probe_seeds)) == [0, 3]
