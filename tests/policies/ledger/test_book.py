"""The book of a job: what nodes say counts once, however often and in whichever order it comes."""

from __future__ import annotations

import random

import msgspec
import pytest

from spotlight.policies.ledger.book import SETTLED_AFTER_S, Book, Said
from spotlight.policies.ledger.node_times import MOST_STRETCHES
from spotlight.record.ledger import (
    Ledger,
    Milliseconds,
    NodeBill,
    Price,
    TimeState,
    WorkerTimes,
)

SPOT, DEARER = Price(3.6), Price(7.2)
NODE = Said("n", "spot", "p1", 1)


def stretch(number: int = 0, job: str = "a", worker: str = "n/0", **states: int) -> WorkerTimes:
    return WorkerTimes(number, job, {worker: msgspec.convert(states, Milliseconds)})


def written(book: Book, at: float = 100.0, time_s: float = 50.0) -> Ledger:
    ledger, line = book.draft(at, time_s, "USD")
    book.keep(ledger, line)
    return ledger


def seconds(ledger: Ledger) -> dict[str, int]:
    total: dict[str, int] = {}
    for bill in ledger.bills:
        for states in bill.times.values():
            for state, time_ms in states.items():
                total[state] = total.get(state, 0) + time_ms
    return total


def test_what_is_said_again_counts_once() -> None:
    book = Book(Ledger())
    for _ in range(3):
        book.add(NODE, stretch(rollout=2000, idle=1000), SPOT, at=100.0)
    assert seconds(written(book)) == {"rollout": 2000, "idle": 1000}


def test_an_old_word_takes_nothing_back() -> None:
    book = Book(Ledger())
    book.add(NODE, stretch(rollout=2000), SPOT, at=100.0)
    book.add(NODE, stretch(rollout=500), SPOT, at=101.0)
    assert seconds(written(book)) == {"rollout": 2000}


def test_another_process_of_a_node_is_counted_from_0() -> None:
    book = Book(Ledger())
    book.add(NODE, stretch(rollout=2000), SPOT, at=100.0)
    book.add(NODE._replace(process="p2"), stretch(rollout=500), SPOT, at=110.0)
    assert seconds(written(book)) == {"rollout": 2500}


def test_the_next_coordinator_goes_on_from_what_is_written_and_loses_nothing() -> None:
    book = Book(Ledger())
    book.add(NODE, stretch(rollout=2000), SPOT, at=100.0)
    ledger = written(book)
    book.add(NODE, stretch(rollout=3000), SPOT, at=104.0)  # which is never written
    again = Book(ledger)
    again.add(NODE, stretch(rollout=3500, idle=500), SPOT, at=120.0)
    line = again.draft(120.0, 70.0, "USD")[1]
    assert line.times == {"n/0": {"rollout": 1500, "idle": 500}}
    assert (line.number, line.start_s, line.end_s) == (2, 50.0, 70.0)
    assert seconds(written(again)) == {"rollout": 3500, "idle": 500}


def test_a_draft_that_could_not_be_written_is_in_the_next_one() -> None:
    book = Book(Ledger())
    book.add(NODE, stretch(rollout=2000), SPOT, at=100.0)
    book.draft(100.0, 50.0, "USD")
    book.add(NODE, stretch(rollout=2500), SPOT, at=101.0)
    ledger, line = book.draft(101.0, 51.0, "USD")
    assert (ledger.number, line.times) == (1, {"n/0": {"rollout": 2500}})


def test_what_is_said_while_a_draft_is_written_is_in_the_next_one() -> None:
    book = Book(Ledger())
    book.add(NODE, stretch(rollout=2000), SPOT, at=100.0)
    draft = book.draft(100.0, 50.0, "USD")
    book.add(NODE, stretch(rollout=2000, idle=700), SPOT, at=101.0)
    book.keep(*draft)
    assert book.draft(102.0, 52.0, "USD")[1].times == {"n/0": {"idle": 700}}


def test_another_price_is_another_bill_of_what_comes_then() -> None:
    book = Book(Ledger())
    book.add(NODE, stretch(rollout=1_000_000), SPOT, at=1000.0)
    book.add(NODE, stretch(rollout=3_000_000), DEARER, at=3000.0)
    first, second = written(book).bills
    assert (first.price, first.times) == (SPOT, {"n/0": {"rollout": 1_000_000}})
    assert (second.price, second.times) == (DEARER, {"n/0": {"rollout": 2_000_000}})
    assert (second.from_at, second.to_at) == (1000.0, 3000.0)
    assert book.draft(0.0, 0.0, "USD")[1].spent == {"spot": pytest.approx(1.0 + 4.0)}


def test_what_has_no_price_costs_nothing_that_is_known() -> None:
    book = Book(Ledger())
    book.add(NODE, stretch(rollout=1000), None, at=100.0)
    assert book.draft(100.0, 1.0, "USD")[1].spent == {}


def test_a_process_that_is_gone_is_said_to_be() -> None:
    book = Book(Ledger())
    book.add(NODE, stretch(rollout=1000), SPOT, at=100.0)
    book.gone("p1")
    assert [bill.is_there for bill in written(book).bills] == [False]
    assert not book.has_news


def test_run_time_never_goes_back() -> None:
    book = Book(written(Book(Ledger()), time_s=80.0))
    assert book.draft(0.0, 20.0, "USD")[0].time_s == 80.0


def test_bills_of_processes_that_are_long_gone_are_one_bill() -> None:
    book = Book(Ledger())
    for number in range(50):
        its = NODE._replace(process=f"p{number}")
        book.add(its, stretch(rollout=1000), SPOT, at=100.0 + number)
        book.gone(its.process)
    written(book, at=200.0)
    ledger = written(book, at=201.0 + SETTLED_AFTER_S)
    assert [(bill.process, bill.to_at) for bill in ledger.bills] == [("", 149.0)]
    assert seconds(ledger) == {"rollout": 50_000}


@pytest.mark.parametrize("is_known_to_be_gone", [True, False])
def test_what_a_process_did_days_ago_counts_once_when_it_comes_back_from_a_short_absence(
    is_known_to_be_gone: bool,
) -> None:
    book = Book(Ledger())
    book.add(NODE, stretch(rollout=1000), SPOT, at=100.0)
    written(book, at=101.0)
    now = 100.0 + 3 * SETTLED_AFTER_S
    if is_known_to_be_gone:
        book.gone(NODE.process)
    written(book, at=now)
    book.add(NODE, stretch(rollout=1000), SPOT, at=now + 60.0)
    assert seconds(written(book, at=now + 61.0)) == {"rollout": 1000}


def test_stretches_that_a_node_tells_no_more_are_one_bill() -> None:
    book = Book(Ledger())
    for number in range(5 * MOST_STRETCHES):
        book.add(NODE, stretch(number, rollout=1000), SPOT, at=100.0 + number)
    ledger = written(book, at=1000.0)
    assert len(ledger.bills) == MOST_STRETCHES + 1
    assert seconds(ledger) == {"rollout": 5000 * MOST_STRETCHES}


def test_lines_add_up_to_the_ledger_and_bills_never_shrink() -> None:
    for seed in range(40):
        rng, book = random.Random(seed), Book(Ledger())
        said: dict[tuple[str, int], Milliseconds] = {}
        lines: dict[str, int] = {}
        before: list[NodeBill] = []
        for step in range(80):
            key = rng.choice(["p1", "p2"]), rng.randrange(3)
            its = said.setdefault(key, {})
            either: list[TimeState] = ["rollout", "idle"]
            state = rng.choice(either)
            its[state] = its.get(state, 0) + rng.randrange(5000)
            if rng.random() < 0.6:
                price = rng.choice([SPOT, DEARER])
                times = WorkerTimes(key[1], "a", {"n/0": dict(its)})
                book.add(NODE._replace(process=key[0]), times, price, at=float(step))
            if rng.random() < 0.3:
                ledger, line = book.draft(float(step), float(step), "USD")
                if rng.random() < 0.7:
                    book.keep(ledger, line)
                    for states in line.times.values():
                        for state, time_ms in states.items():
                            lines[state] = lines.get(state, 0) + time_ms
                    assert lines == seconds(ledger)
                    assert sum(seconds(ledger).values()) >= sum(
                        sum(sum(times.values()) for times in bill.times.values()) for bill in before
                    )
                    before = list(ledger.bills)
                elif rng.random() < 0.5:
                    book = Book(book.written)  # the coordinator was killed
