from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from spotlight.policies.dispatch import LeaseBook

LEASE_S = 10.0
MAX_ATTEMPTS = 3


@dataclass(frozen=True)
class Work:
    id: str
    kind: str = "rollout"
    urgency: int = 0


def lease_book() -> LeaseBook[Work]:
    return LeaseBook(
        order=lambda work: (work.urgency,),
        batch_key=lambda work: work.kind,
        lease_s=LEASE_S,
        max_attempts=MAX_ATTEMPTS,
    )


def book_with(*names: str, **fields) -> LeaseBook[Work]:
    book = lease_book()
    book.submit(Work(name, **fields) for name in names)
    return book


def pull(book: LeaseBook[Work], holder: str = "worker", size: int = 8, now: float = 0.0):
    return book.pull(holder, size, now, lambda work: True)


def ids(items) -> list[str]:
    return [work.id for work in items]


def test_items_are_leased_in_the_order_of_submission():
    book = book_with("a", "b", "c")
    assert ids(pull(book, size=2).items) == ["a", "b"]
    assert ids(pull(book, size=2).items) == ["c"]
    assert pull(book) is None


def test_urgent_items_come_first():
    book = book_with("later", urgency=1)
    book.submit([Work("now")])
    assert ids(pull(book, size=1).items) == ["now"]


def test_a_lease_holds_items_of_one_batch_key_only():
    book = lease_book()
    book.submit([Work("a"), Work("b", kind="preview"), Work("c")])
    assert ids(pull(book).items) == ["a", "c"]
    assert ids(pull(book).items) == ["b"]


def test_a_holder_gets_only_what_it_may_do():
    book = book_with("a", "b")
    assert ids(book.pull("worker", 8, 0.0, lambda work: work.id == "b").items) == ["b"]
    assert book.pull("worker", 8, 0.0, lambda work: False) is None


def test_a_lease_is_never_empty():
    book = book_with("a")
    assert pull(book, size=0) is None
    assert pull(book, size=-1) is None
    assert (book.queued, book.leased) == (1, 0)


def test_what_is_queued_leased_or_done_is_not_queued_again():
    book = book_with("a")
    book.submit([Work("a")])
    assert book.queued == 1
    lease = pull(book)
    book.submit([Work("a")])
    assert book.queued == 0
    book.complete(lease.number, "worker")
    book.submit([Work("a")])
    assert book.queued == 0


def test_the_first_completion_counts_and_the_second_is_late():
    book = book_with("a", "b")
    lease = pull(book)
    assert ids(book.complete(lease.number, "worker")) == ["a", "b"]
    assert book.complete(lease.number, "worker") == ()
    assert (book.counters.completed, book.counters.late) == (2, 1)


def test_a_completion_of_another_holder_is_late():
    book = book_with("a")
    lease = pull(book, "one")
    assert book.complete(lease.number, "two") == ()
    assert ids(book.complete(lease.number, "one")) == ["a"]


def test_an_expired_lease_puts_its_items_ahead_of_their_equals():
    book = book_with("a", "b", "c")
    lease = pull(book, size=1)
    assert book.expire(LEASE_S - 0.1) == ()
    assert ids(book.expire(LEASE_S)) == ["a"]
    assert book.complete(lease.number, "worker") == ()
    assert ids(pull(book).items) == ["a", "b", "c"]
    assert book.counters.reissued == 1


def test_a_renewed_lease_lives_longer():
    book = book_with("a")
    lease = pull(book)
    assert book.renew(lease.number, "worker", now=5.0)
    assert book.expire(LEASE_S) == ()
    assert ids(book.expire(5.0 + LEASE_S)) == ["a"]
    assert not book.renew(lease.number, "worker", now=16.0)


def test_only_the_holder_renews():
    book = book_with("a")
    lease = pull(book, "one")
    assert not book.renew(lease.number, "two", now=5.0)
    assert ids(book.expire(LEASE_S)) == ["a"]


def test_the_work_of_a_lost_holder_is_queued_again():
    book = book_with("a", "b", "c")
    pull(book, "one", size=1)
    pull(book, "two", size=1)
    pull(book, "one", size=1)
    assert sorted(ids(book.lose("one"))) == ["a", "c"]
    assert (book.held_by("one"), book.held_by("two")) == (0, 1)
    assert book.lose("one") == ()


def test_failures_are_tried_again_until_they_are_too_many():
    book = book_with("a")
    for _ in range(MAX_ATTEMPTS - 1):
        assert book.fail(pull(book).number, "worker") == ()
    assert ids(book.fail(pull(book).number, "worker")) == ["a"]
    assert (book.queued, book.leased) == (0, 0)
    book.submit([Work("a")])
    assert book.queued == 0


def test_losing_a_holder_is_no_failure_of_the_item():
    book = book_with("a")
    for _ in range(2 * MAX_ATTEMPTS):
        pull(book)
        book.lose("worker")
    assert book.fail(pull(book).number, "worker") == ()


def test_a_withdrawn_lease_is_neither_a_failure_nor_a_reissue():
    book = book_with("a")
    for _ in range(2 * MAX_ATTEMPTS):
        book.withdraw(pull(book).number, "worker")
    assert (book.queued, book.counters.reissued) == (1, 0)
    assert book.fail(pull(book).number, "worker") == ()


def test_a_failure_without_a_lease_is_late():
    book = book_with("a")
    assert book.fail(7, "worker") == ()
    assert book.counters.late == 1


def test_cancelled_work_is_forgotten_and_its_results_are_late():
    book = book_with("a", "b", kind="preview")
    book.submit([Work("c")])
    lease = pull(book, size=1)
    assert book.cancel(lambda work: work.kind == "preview") == [lease]
    assert (book.queued, book.leased) == (1, 0)
    assert book.complete(lease.number, "worker") == ()
    assert book.counters.reissued == 0


def test_cancelling_part_of_a_lease_keeps_the_rest_of_it():
    book = book_with("a", "b", "c")
    lease = pull(book)
    assert book.cancel(lambda work: work.id == "b") == [lease]
    assert not book.holds(lease.number, "worker")
    assert sorted(ids(pull(book).items)) == ["a", "c"]


def test_cancelled_work_that_is_submitted_again_starts_anew():
    book = book_with("a")
    for _ in range(MAX_ATTEMPTS - 1):
        book.fail(pull(book).number, "worker")
    book.cancel(lambda work: True)
    book.submit([Work("a")])
    assert book.fail(pull(book).number, "worker") == ()


WORK = st.builds(
    lambda kind, number: Work(f"{kind}-{number}", kind, 0 if kind == "rollout" else 1),
    st.sampled_from(["rollout", "preview"]),
    st.integers(0, 11),
)
HOLDERS = st.sampled_from(["one", "two", "three"])


class LeaseBookModel(RuleBasedStateMachine):
    """Any sequence of events, against a plain record of where each item must be."""

    def __init__(self) -> None:
        super().__init__()
        self.book = lease_book()
        self.now = 0.0
        self.granted: list[tuple[int, str]] = []
        self.live: dict[int, tuple[str, tuple[Work, ...], float]] = {}
        self.open: dict[str, Work] = {}
        self.closed: set[str] = set()
        self.completions = 0

    def end(self, number: int) -> tuple[Work, ...]:
        return self.live.pop(number)[1]

    @rule(items=st.lists(WORK, max_size=6))
    def submit(self, items):
        self.book.submit(items)
        for work in items:
            if work.id not in self.closed:
                self.open[work.id] = work

    @rule(holder=HOLDERS, size=st.integers(0, 4), only=st.sampled_from(["", "preview"]))
    def pull(self, holder, size, only):
        lease = self.book.pull(holder, size, self.now, lambda work: only in ("", work.kind))
        leased = {work.id for _, items, _ in self.live.values() for work in items}
        able = [
            work for work in self.open.values() if work.id not in leased and only in ("", work.kind)
        ]
        if lease is None:
            assert not able or size == 0
            return
        assert 1 <= len(lease.items) <= size
        assert len({work.kind for work in lease.items}) == 1
        assert lease.items[0].urgency == min(work.urgency for work in able)
        assert not leased & set(ids(lease.items))
        assert lease.number not in {number for number, _ in self.granted}
        self.granted.append((lease.number, holder))
        self.live[lease.number] = (holder, lease.items, self.now + LEASE_S)

    @precondition(lambda self: self.granted)
    @rule(data=st.data(), impostor=st.booleans())
    def complete(self, data, impostor):
        number, holder = data.draw(st.sampled_from(self.granted))
        done = self.book.complete(number, "impostor" if impostor else holder)
        if impostor or number not in self.live:
            assert done == ()
            return
        assert done == self.end(number)
        for work in done:
            assert work.id not in self.closed, "counted twice"
            self.closed.add(work.id)
            del self.open[work.id]
        self.completions += len(done)

    @precondition(lambda self: self.granted)
    @rule(data=st.data())
    def fail(self, data):
        number, holder = data.draw(st.sampled_from(self.granted))
        given_up = self.book.fail(number, holder)
        items = self.end(number) if number in self.live else ()
        assert set(given_up) <= set(items)
        for work in given_up:
            self.closed.add(work.id)
            del self.open[work.id]

    @precondition(lambda self: self.granted)
    @rule(data=st.data())
    def withdraw(self, data):
        number, holder = data.draw(st.sampled_from(self.granted))
        self.book.withdraw(number, holder)
        self.live.pop(number, None)

    @precondition(lambda self: self.granted)
    @rule(data=st.data())
    def renew(self, data):
        number, holder = data.draw(st.sampled_from(self.granted))
        assert self.book.renew(number, holder, self.now) == (number in self.live)
        if number in self.live:
            self.live[number] = (holder, self.live[number][1], self.now + LEASE_S)

    @rule(holder=HOLDERS)
    def lose(self, holder):
        numbers = [number for number, lease in self.live.items() if lease[0] == holder]
        expected = [work for number in numbers for work in self.end(number)]
        assert sorted(ids(self.book.lose(holder))) == sorted(ids(expected))

    @rule(seconds=st.floats(0.5, 8))
    def expire(self, seconds):
        self.now += seconds
        numbers = [number for number, lease in self.live.items() if lease[2] <= self.now]
        expected = [work for number in numbers for work in self.end(number)]
        assert sorted(ids(self.book.expire(self.now))) == sorted(ids(expected))

    @rule(unwanted=st.sets(st.sampled_from([f"preview-{n}" for n in range(12)])))
    def cancel(self, unwanted):
        revoked = self.book.cancel(lambda work: work.id in unwanted)
        expected = [n for n, (_, items, _) in self.live.items() if unwanted & set(ids(items))]
        assert sorted(lease.number for lease in revoked) == expected
        for number in expected:
            del self.live[number]
        self.open = {name: work for name, work in self.open.items() if name not in unwanted}

    @invariant()
    def every_open_item_is_queued_or_leased_once(self):
        leased = sum(len(items) for _, items, _ in self.live.values())
        assert self.book.leased == leased
        assert self.book.queued == len(self.open) - leased
        assert self.book.counters.completed == self.completions

    def teardown(self):
        """Whatever happened, what is left can still be done, each item once."""
        self.book.expire(self.now + LEASE_S)
        finished = []
        while (lease := pull(self.book, "last", now=self.now)) is not None:
            finished += ids(self.book.complete(lease.number, "last"))
        assert sorted(finished) == sorted(self.open)


LeaseBookModel.TestCase.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
TestLeaseBookUnderAnySequenceOfEvents = LeaseBookModel.TestCase
