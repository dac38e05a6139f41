import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotlight.policies.notices import Announcement, Notice, NoticeBook, plausible_lead


def preempt(event_id="event", lead_s=120.0, said="12:00") -> Announcement:
    return Announcement(event_id, "preempt", lead_s, said)


ADVICE = Announcement("risk", "advise", None)


def test_an_event_is_told_once_however_often_it_is_read():
    book = NoticeBook()
    assert book.observe("aws", [preempt()], now=5) == [Notice("aws", "preempt", "event", 120, 125)]
    assert book.turn() == [Notice("aws", "preempt", "event", 120, 125)]
    assert book.observe("aws", [preempt(lead_s=118)], now=7) == []
    assert book.turn() == []
    assert book.seen == {"aws": 1}
    assert book.last_lead_s == {"aws": 120}


def test_a_wall_clock_that_jumps_moves_no_deadline():
    book = NoticeBook()
    book.observe("aws", [preempt()], now=0)
    book.turn()
    assert book.observe("aws", [preempt(lead_s=1)], now=2) == []
    assert book.turn() == []


def test_an_earlier_time_replaces_a_later_one():
    book = NoticeBook()
    book.observe("azure", [preempt(lead_s=600, said="later")], now=0)
    book.turn()
    book.observe("azure", [preempt(lead_s=30, said="sooner")], now=10)
    assert book.turn() == [Notice("azure", "preempt", "event", 30, 40)]
    assert book.seen == {"azure": 1}


def test_a_later_time_replaces_nothing():
    book = NoticeBook()
    book.observe("aws", [preempt(said="12:00:00")], now=0)
    book.turn()
    assert book.observe("aws", [preempt(said="12:00:02")], now=2) == []
    assert book.turn() == []


def test_an_event_that_vanishes_is_cancelled_once():
    book = NoticeBook()
    book.observe("azure", [preempt()], now=0)
    book.turn()
    assert book.observe("azure", [], now=1) == [Notice("azure", "cancel", "event")]
    assert book.turn() == [Notice("azure", "cancel", "event")]
    assert book.observe("azure", [], now=2) == []
    assert book.turn() == []


def test_nothing_is_cancelled_that_was_not_told():
    book = NoticeBook()
    book.observe("azure", [preempt()], now=0)
    book.observe("azure", [], now=1)
    assert book.turn() == []


def test_a_source_that_announces_nothing_withdraws_nothing_of_another():
    book = NoticeBook()
    book.observe("aws", [preempt()], now=0)
    assert book.observe("gcp", [], now=1) == []
    assert [notice.kind for notice in book.turn()] == ["preempt"]


def test_an_event_that_comes_back_is_news():
    book = NoticeBook()
    for now in (0, 100):
        book.observe("azure", [preempt()], now=now)
        assert book.turn() == [Notice("azure", "preempt", "event", 120, now + 120)]
        book.observe("azure", [], now=now + 50)
        assert [notice.kind for notice in book.turn()] == ["cancel"]
    assert book.seen == {"azure": 2}


def test_the_nearest_deadline_of_two_sources_holds():
    book = NoticeBook()
    book.observe("aws", [preempt()], now=0)
    book.turn()
    book.observe("signal", [preempt("sigterm", 30)], now=10)
    assert book.turn() == [Notice("signal", "preempt", "sigterm", 30, 40)]
    book.observe("file", [preempt("file", 300)], now=11)
    assert book.turn() == []
    assert book.seen == {"aws": 1, "signal": 1, "file": 1}


def test_a_node_goes_on_only_when_nothing_stands_any_more():
    book = NoticeBook()
    book.observe("azure", [preempt("first", 30), preempt("second", 60)], now=0)
    book.turn()
    book.observe("azure", [preempt("second", 60)], now=1)
    assert book.turn() == [Notice("azure", "preempt", "second", 60, 60)]
    book.observe("azure", [], now=2)
    assert book.turn() == [Notice("azure", "cancel", "second")]


def test_two_equal_deadlines_are_one_piece_of_news():
    book = NoticeBook()
    book.observe("gcp", [preempt("b", 30)], now=0)
    book.turn()
    book.observe("aws", [preempt("a", 30)], now=0)
    assert book.turn() == []


def test_advice_is_told_unless_something_worse_stands():
    book = NoticeBook()
    book.observe("aws-rebalance", [ADVICE], now=0)
    assert book.turn() == [Notice("aws-rebalance", "advise", "risk")]
    book.observe("aws", [preempt()], now=1)
    assert [notice.kind for notice in book.turn()] == ["preempt"]
    book.observe("file", [Announcement("more risk", "advise", None)], now=2)
    assert book.turn() == []


def test_a_withdrawn_preemption_is_cancelled_though_advice_stands():
    book = NoticeBook()
    book.observe("aws-rebalance", [ADVICE], now=0)
    book.observe("aws", [preempt()], now=0)
    book.turn()
    book.observe("aws", [], now=1)
    assert [(notice.kind, notice.event_id) for notice in book.turn()] == [
        ("cancel", "event"),
        ("advise", "risk"),
    ]


@pytest.mark.parametrize(
    ("said_s", "lead_s"),
    [(None, 30), (-1, 30), (601, 30), (math.nan, 30), (math.inf, 30), (0, 0), (17, 17), (600, 600)],
)
def test_a_time_that_cannot_be_becomes_what_the_platform_grants_at_least(said_s, lead_s):
    assert plausible_lead(said_s, least_s=30, longest_s=600) == lead_s


announcements = st.builds(
    Announcement,
    event_id=st.sampled_from("abc"),
    kind=st.sampled_from(["advise", "preempt"]),
    lead_s=st.one_of(st.none(), st.floats(0, 600)),
    said=st.sampled_from(["", "12:00", "12:05"]),
)
readings = st.lists(
    st.tuples(
        st.sampled_from(["aws", "azure", "signal"]),
        st.lists(announcements, max_size=3, unique_by=lambda said: said.event_id),
        st.floats(0, 60),
        st.booleans(),
    ),
    max_size=30,
)


@given(readings)
def test_whatever_is_read_the_node_hears_a_story_that_makes_sense(history):
    book, now = NoticeBook(), 0.0
    told: Notice | None = None
    standing: dict[str, set[str]] = {}
    withdrawn = False
    for source, announced, pause, ask in history:
        now += pause
        present = {announcement.event_id for announcement in announced}
        if told is not None and told.source == source and told.event_id not in present:
            withdrawn = True
        standing[source] = present
        book.observe(source, announced, now)
        assert book.observe(source, announced, now) == []
        if not ask:
            continue
        for notice in book.turn():
            if notice.kind == "cancel":
                assert told is not None and withdrawn
                assert (notice.source, notice.event_id) == (told.source, told.event_id)
                told = None
            else:
                assert told is None or withdrawn or more_urgent(notice, told)
                told = notice
        withdrawn = False
        assert (told is not None) == any(standing.values())
        assert book.turn() == []


def more_urgent(notice: Notice, other: Notice) -> bool:
    if notice.kind != other.kind:
        return notice.kind == "preempt"
    return (notice.deadline or math.inf) < (other.deadline or math.inf)
