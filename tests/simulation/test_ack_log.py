"""What workers were told is durable is held against what coordinators do and what is on disk."""

from __future__ import annotations

from typing import Any

import pytest

from spotlight.actors.protocol.down import Grant
from spotlight.actors.protocol.up import CommitSteps, Completed
from spotlight.policies.requests.rows import SavedRow
from spotlight.types import BundleOffer, Commit, Request, SamplingSettings, StoreEndpoint
from spotlight_simulation.ack_log import AckLog
from spotlight_simulation.history import History

BUNDLE = BundleOffer("commits/w/1-5-4", 1, 1, StoreEndpoint("h", 1, "t", "m", "/f"))
ID = "rollout/0/0/0/7"


@pytest.fixture
def history() -> History:
    return History(lambda: 0.0)


@pytest.fixture
def acks(history: History) -> AckLog:
    acks = AckLog(history)
    acks.granted(5)
    return acks


def commit(step: int, lease: int = 5) -> CommitSteps:
    return CommitSteps("w", 1, lease, (ID,), step, BUNDLE, 0.0)


def completed(lease: int = 5) -> Completed:
    return Completed("w", 1, lease, (ID,), BUNDLE, ((0.5,),), 8, 1.0)


def row(step: int, rewards: tuple[float, ...] | None = None) -> dict[str, SavedRow]:
    return {ID: SavedRow(Commit(step, BUNDLE, 0), rewards)}


def acknowledged(acks: AckLog, delivered: CommitSteps | Completed) -> None:
    acks.acknowledging(delivered)
    acks.acknowledged(delivered)


def grant(lease: int, request: Request, step: int = 0) -> Grant:
    saved = Commit(step, BUNDLE, 0) if step else None
    return Grant(lease, (request,), (saved,), 2)


@pytest.fixture
def request_() -> Request:
    settings = SamplingSettings(kind="sde", steps=8, height=32, width=64, micro_batch=4)
    return Request(ID, "rollout", 0, 0, "a prompt", 7, 0, settings)


def test_what_was_acknowledged_and_is_in_the_journal_is_fine(acks: AckLog, history: Any) -> None:
    acks.saved(row(4))
    acknowledged(acks, commit(4))
    acks.check_journal(row(4))
    acks.saved(row(8, (0.5,)))
    acknowledged(acks, completed())
    acks.check_journal(row(8, (0.5,)))
    assert history.violations == []


def test_a_receipt_before_the_journal_is_noticed(acks: AckLog, history: History) -> None:
    acks.saved(row(2))
    acks.acknowledging(commit(4))
    assert "before it is in the journal" in history.violations[0]


def test_what_a_coordinator_wrote_just_before_it_was_killed_is_durable(
    acks: AckLog, history: History
) -> None:
    acks.check_journal(row(4))
    acknowledged(acks, commit(4))
    assert history.violations == []


@pytest.mark.parametrize("left", [{}, row(2), row(8)])
def test_a_journal_that_lacks_what_was_acknowledged_is_noticed(
    acks: AckLog, history: History, left: dict[str, SavedRow]
) -> None:
    acks.saved(row(8, (0.5,)))
    acknowledged(acks, completed())
    acks.check_journal(left)
    assert "the journal lacks it" in history.violations[0]


def test_a_receipt_that_has_not_arrived_promises_nothing(acks: AckLog, history: History) -> None:
    acks.saved(row(4))
    acks.acknowledging(commit(4))
    acks.check_journal({})
    assert history.violations == []


@pytest.mark.parametrize("when", ["before", "on its way", "after"])
def test_what_is_taken_back_is_not_missed(acks: AckLog, history: History, when: str) -> None:
    acks.saved(row(4))
    if when == "before":
        acks.saving({ID: None})
    acks.acknowledging(commit(4))
    if when == "on its way":
        acks.forgetting("rollout/0/")
    acks.acknowledged(commit(4))
    if when == "after":
        acks.going_back()
    acks.check_journal({})
    assert history.violations == []


def test_a_grant_without_what_was_acknowledged_is_noticed(
    acks: AckLog, history: History, request_: Request
) -> None:
    acks.saved(row(4))
    acknowledged(acks, commit(4))
    acks.check(grant(5, request_, 2))  # it was on its way
    acks.check(grant(6, request_, 4))
    assert history.violations == []
    acks.check(grant(6, request_, 2))
    assert any("what a receipt says is durable" in what for what in history.violations)


def test_a_lease_of_weights_that_were_trained_again_that_counts_is_noticed(
    acks: AckLog, history: History
) -> None:
    acks.going_back()
    acks.went_back(9)
    acks.saved(row(4))
    acks.acknowledging(commit(4, lease=9))
    assert history.violations == []
    acks.acknowledging(commit(4, lease=8))
    assert "of before the weights were trained again" in history.violations[0]


def test_what_was_done_before_weights_were_trained_again_may_be_said_again(
    acks: AckLog, history: History
) -> None:
    acks.saved(row(8, (0.5,)))
    acks.going_back()
    acks.went_back(9)
    acks.acknowledging(completed(lease=8))
    assert history.violations == []


def test_leases_still_count_when_the_coordinator_was_killed_before_it_went_back(
    acks: AckLog, history: History
) -> None:
    acks.going_back()
    acks.saved(row(4))
    acks.acknowledging(commit(4, lease=8))
    assert history.violations == []
