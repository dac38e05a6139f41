"""What is seen of simulated processes while they run: frames, plans and trainers."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import structlog
from history_kit import is_found

from spotlight.actors.protocol.down import Receipt
from spotlight.actors.protocol.up import CommitSteps, ReturnLease
from spotlight.policies.requests.matching import Leases
from spotlight.store.journal import Journal
from spotlight.transport.control import ActorRef, Envelope, Kind, encode_message
from spotlight.types import BundleOffer, StoreEndpoint
from spotlight_simulation.actor_logs import ActorLogs
from spotlight_simulation.history import History
from spotlight_simulation.ledger_watch import LedgerWatch
from spotlight_simulation.saved_rows import saved_rows
from spotlight_simulation.wiretap import RECEIPT_ARRIVED, Wiretap

BUNDLE = BundleOffer("commits/w/1-5-4", 1, 1, StoreEndpoint("h", 1, "t", "m", "/f"))
COMMIT = CommitSteps("w", 1, 5, ("rollout/0/0/0/7",), 4, BUNDLE, 0.0)
LOG = structlog.get_logger(__name__)


@pytest.fixture
def history() -> History:
    return History(lambda: 0.0)


@pytest.fixture
def ledgers(history: History, tmp_path: Path) -> LedgerWatch:
    return LedgerWatch(history, tmp_path, lambda: 0.0)


@pytest.fixture
def logs(history: History, ledgers: LedgerWatch) -> ActorLogs:
    return ActorLogs(history, ledgers)


@pytest.fixture
def reached() -> list[str]:
    return []


@pytest.fixture
def tap(history: History, logs: ActorLogs, ledgers: LedgerWatch, reached: list[str]) -> Wiretap:
    return Wiretap(history, logs, ledgers, reached.append)


def envelope(sequence: int, kind: Kind = Kind.TELL, message: Any = COMMIT) -> Envelope:
    a, b = ActorRef("memory://a", "x", 1 << 32), ActorRef("memory://b", "y", 2 << 32)
    body = msgspec.Raw(encode_message(message))
    return Envelope(1, a, b, kind, sequence, 0, None, "ordinary", body)


# --- frames ---


def test_a_frame_that_is_taken_twice_is_noticed(tap: Wiretap, history: History) -> None:
    for sequence in (1, 2):
        tap.taken("b#1", envelope(sequence), COMMIT)
    tap.taken("b#2", envelope(1), COMMIT)
    assert history.violations == []
    tap.taken("b#1", envelope(1), COMMIT)
    assert history.violations == ["b#1 takes a CommitSteps of memory://a twice"]


def test_what_arrives_twice_or_late_is_counted(tap: Wiretap, history: History) -> None:
    for sequence in (1, 3, 2, 3):
        tap.heard("b#1", envelope(sequence))
    assert history.situations == {"a message was overtaken": 1, "a message came twice": 1}


def test_one_message_of_a_type_is_lost(tap: Wiretap) -> None:
    tap.to_lose.append(("CommitSteps", 0.0))
    assert tap.may_arrive(envelope(1, message=Receipt(1))) == 0.0
    assert tap.may_arrive(envelope(2)) is None
    assert tap.may_arrive(envelope(3)) == 0.0


def test_answers_of_a_type_come_late(tap: Wiretap) -> None:
    tap.to_hold.append(("Receipt", 1.5))
    assert tap.may_arrive(envelope(1, Kind.TELL, Receipt(1))) == 0.0
    assert tap.may_arrive(envelope(2, Kind.REPLY, Receipt(1))) == 1.5
    assert tap.held == 1


@pytest.mark.parametrize(("receipt", "counts"), [(Receipt(1), True), (Receipt(0), False)])
def test_only_a_receipt_that_counts_is_one(
    tap: Wiretap, reached: list[str], receipt: Receipt, counts: bool
) -> None:
    tap.answer_came(COMMIT, receipt)
    assert reached == [RECEIPT_ARRIVED] * counts


# --- what actors say of themselves ---


def test_a_plan_that_is_followed_after_a_later_one_is_noticed(
    logs: ActorLogs, history: History
) -> None:
    with logs.reading():
        for number in (1, 3):
            LOG.debug("plan_followed", number=number)
        for coordinator in ("first", "second"):
            LOG.debug("node_plan_followed", coordinator=coordinator, number=7)
        assert history.violations == []
        LOG.debug("plan_followed", number=2)
        LOG.debug("node_plan_followed", coordinator="first", number=6)
    assert len(history.violations) == 2


def test_a_lease_that_goes_back_without_its_commit_is_noticed(
    logs: ActorLogs, history: History
) -> None:
    with logs.reading():
        LOG.debug("commit_told", worker="w", lease=5, step=4)
    logs.delivers(COMMIT)
    logs.gives_back(ReturnLease("w", 1, 5))
    assert history.violations == []
    with logs.reading():
        LOG.debug("commit_told", worker="w", lease=5, step=6)
    logs.gives_back(ReturnLease("w", 1, 5))
    assert history.violations == ["w gives lease 5 back and keeps its last commit"]


@pytest.mark.parametrize(("kept", "noticed"), [(2, False), (1, True)])
def test_samples_that_are_deleted_before_the_state_after_them_is_kept_are_noticed(
    logs: ActorLogs, history: History, kept: int, noticed: bool
) -> None:
    with logs.reading():
        LOG.debug("state_saved", completed=kept)
        LOG.debug("requests_forgotten", prefix="evaluation/4/")
        LOG.debug("requests_forgotten", prefix="rollout/1/")
    assert bool(history.violations) == noticed


def test_a_state_may_be_on_record_before_the_coordinator_says_so(
    logs: ActorLogs, history: History
) -> None:
    with logs.reading():
        LOG.debug("state_saved", completed=1)
        LOG.debug("state_saving", completed=2)  # it is killed now
        LOG.debug("requests_forgotten", prefix="rollout/1/")
        assert not history.violations
        LOG.debug("state_saved", completed=1)
        LOG.debug("requests_forgotten", prefix="rollout/1/")
    assert len(history.violations) == 1


# --- the journal's file ---


def test_rows_are_read_from_a_journal_that_is_open(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path / "journal.records", "owner")
    row = b'{"commit":null,"given_up":"it failed"}'
    journal.write({"request/rollout/0/0/0/7": row, "published/1": b"{}"})
    rows = saved_rows({journal.path: journal.path.read_bytes()})
    journal.close()
    found = {
        tenant: {key: row.given_up for key, row in its.items()} for tenant, its in rows.items()
    }
    assert found == {"owner": {"rollout/0/0/0/7": "it failed"}}


# --- by seeds ---


def test_a_journal_that_writes_less_than_it_says_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    write = Journal.write

    def some(self: Journal, changes: dict[str, bytes | None], drop: Any = ()) -> None:
        left = [key for key in changes if not key.startswith("request/") or hash(key) % 4]
        write(self, {key: changes[key] for key in left}, drop)

    monkeypatch.setattr(Journal, "write", some)
    assert is_found("was acknowledged, and the journal lacks it", (), 1)


def test_leases_of_weights_that_were_trained_again_are_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    may_adopt = Leases.may_adopt

    def any_of_before(self: Leases, number: int) -> bool:
        wrong = SimpleNamespace(**vars(self))
        wrong.adopts_from = 0
        return may_adopt(wrong, number)  # type: ignore[arg-type]

    monkeypatch.setattr(Leases, "may_adopt", any_of_before)
    assert is_found("of before the weights were trained again", ["lose_trainers"], range(8, 20))
