"""Counts of what went wrong in a run."""

from __future__ import annotations

from spotlight.policies.run_tally import COUNTED, RunTally
from spotlight.record.run_events import (
    EVENTS,
    MirrorFailed,
    NodeJoined,
    NodeLost,
    NoticeReceived,
    NoticeWithdrawn,
    RequestGivenUp,
    ResultsIgnored,
    RunEvent,
    RunMirrored,
    WorkerLost,
    WorkTakenBack,
)
from tests.event_samples import sample_event

NOTICE = NoticeReceived(node="a", source="user", lead_s=30.0)
LOSS = NodeLost(node="a")


def tally(*events: RunEvent) -> RunTally:
    found = RunTally()
    for event in events:
        found.note(event)
    return found


def test_requests_of_lost_workers_and_of_silent_ones_are_handed_on() -> None:
    lost = WorkerLost(worker="a/0", requests_handed_on={"rollout": 3, "preview": 2})
    assert tally(lost, WorkTakenBack(items=4)).handed_on == 9


def test_ignored_results_and_requests_that_are_given_up_are_counted() -> None:
    ignored = ResultsIgnored(worker="a/0", lease=7)
    found = tally(ignored, RequestGivenUp(request="r", prompt="p"), ignored)
    assert (found.results_ignored, found.given_up) == (2, ["r"])


def test_a_notice_and_the_loss_that_follows_are_one_preemption() -> None:
    assert tally(NOTICE, LOSS).preemptions == 1


def test_a_loss_without_notice_is_a_preemption() -> None:
    assert tally(LOSS, NodeJoined(node="a", pool="spot"), LOSS).preemptions == 2


def test_a_notice_that_a_coordinator_hears_again_when_it_comes_back_counts_once() -> None:
    assert tally(NOTICE, NOTICE, LOSS).preemptions == 1


def test_a_node_that_is_lost_after_its_notice_was_withdrawn_is_another_preemption() -> None:
    assert tally(NOTICE, NoticeWithdrawn(node="a"), LOSS).preemptions == 2


def test_the_last_copy_and_those_that_failed_are_known() -> None:
    failed = MirrorFailed(iteration=2, failures=1, retry_s=1.0, reason="full")
    copied = RunMirrored(iteration=2, files=1, nbytes=1, seconds=1.0)
    found = tally(failed, copied, failed)
    assert (found.mirrored, found.mirror_failures) == (2, 2)


def test_all_that_changes_a_tally_is_among_the_events_that_are_read_again() -> None:
    """Of every kind of event, of a node that has notice or not."""
    notice = sample_event(NoticeReceived)
    for kind in EVENTS.values():
        event = sample_event(kind)
        counts = tally(event) != tally() or tally(notice, event) != tally(notice)
        assert counts == (kind in COUNTED), kind
