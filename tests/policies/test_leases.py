from dataclasses import dataclass

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from spotlight.policies.leases import LeaseBook

LEASE_S = 10.0
MAX_ATTEMPTS = 3
SUSPECT, QUARANTINE = 2, 3
"""After so many lost holders an item is leased alone, and given up."""


@dataclass(frozen=True)
class Work:
    id: str
    kind: str = "rollout"
    urgency: int = 0
    size: int = 0


@dataclass(frozen=True)
class Progress:
    step: int


Book = LeaseBook[Work, Progress]


def lease_book(**fields) -> Book:
    return LeaseBook(
        order=lambda work: (work.urgency,),
        batch_key=lambda work: (work.kind, work.urgency, work.size),
        work=lambda work: work.size,
        lease_s=LEASE_S,
        max_attempts=MAX_ATTEMPTS,
        **fields,
    )


def book_with(*names: str, **fields) -> Book:
    book = lease_book()
    book.submit(Work(name, **fields) for name in names)
    return book


def pull(book: Book, holder: str = "worker", size: int = 8, now: float = 0.0):
    return book.pull(holder, size, now, lambda work: True)


def steps(lease) -> list[int]:
    return [saved.step if saved else 0 for saved in lease.saved]


def save(book: Book, lease, *at: int, holder: str = "worker") -> bool:
    return book.save(lease.number, holder, tuple(Progress(step) for step in at))


def items_of(leases) -> list[str]:
    return [work.id for lease in leases for work in lease.items]


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
    book = book_with("a")
    book.submit([Work("b", kind="preview")])
    assert ids(book.pull("worker", 8, 0.0, lambda work: work.kind == "preview").items) == ["b"]
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


def test_what_waits_is_counted_by_its_sort():
    book = book_with("a", "b", "c")
    book.submit([Work("d", kind="preview")])
    assert book.waiting() == [(Work("a"), 3), (Work("d", kind="preview"), 1)]
    lease = pull(book, size=2)
    assert [count for _, count in book.waiting()] == [1, 1]
    save(book, lease, 5, 5)
    book.give_back(lease.number, "worker")
    assert sorted(count for _, count in book.waiting()) == [1, 1, 2], "some are half done"


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
    assert book.expire(LEASE_S - 0.1) == []
    assert book.expire(LEASE_S) == [lease]
    assert book.complete(lease.number, "worker") == ()
    assert ids(pull(book).items) == ["a", "b", "c"]
    assert book.counters.reissued == 1


def test_a_renewed_lease_lives_longer():
    book = book_with("a")
    lease = pull(book)
    assert book.renew(lease.number, "worker", now=5.0)
    assert book.expire(LEASE_S) == []
    assert items_of(book.expire(5.0 + LEASE_S)) == ["a"]
    assert not book.renew(lease.number, "worker", now=16.0)


def test_only_the_holder_renews():
    book = book_with("a")
    lease = pull(book, "one")
    assert not book.renew(lease.number, "two", now=5.0)
    assert items_of(book.expire(LEASE_S)) == ["a"]


def test_the_work_of_a_lost_holder_is_queued_again():
    book = book_with("a", "b", "c")
    pull(book, "one", size=1)
    pull(book, "two", size=1)
    pull(book, "one", size=1)
    queued, given_up = book.lose("one")
    assert (sorted(ids(queued)), given_up) == (["a", "c"], ())
    assert (book.held_by("one"), book.held_by("two")) == (0, 1)
    assert book.lose("one") == ((), ())


def test_failures_are_tried_again_until_they_are_too_many():
    book = book_with("a")
    for _ in range(MAX_ATTEMPTS - 1):
        assert book.fail(pull(book).number, "worker") == ()
    assert ids(book.fail(pull(book).number, "worker")) == ["a"]
    assert (book.queued, book.leased) == (0, 0)
    book.submit([Work("a")])
    assert book.queued == 0


def test_what_fails_by_itself_costs_the_others_of_its_lease_one_attempt_only():
    book = book_with("a", "bad", "b")
    assert book.fail(pull(book).number, "worker", ["bad"]) == ()
    leases = [pull(book), pull(book)]
    assert sorted(ids(lease.items) for lease in leases) == [["a", "b"], ["bad"]]
    for lease in leases:
        if lease.items[0].id == "bad":
            book.fail(lease.number, "worker", ["bad"])
        else:
            book.complete(lease.number, "worker")
    assert ids(book.fail(pull(book).number, "worker", ["bad"])) == ["bad"]
    assert (book.queued, book.leased, book.counters.completed) == (0, 0, 2)


def test_failures_of_items_that_are_not_in_the_lease_are_those_of_all_its_items():
    book = book_with("a")
    for _ in range(MAX_ATTEMPTS - 1):
        assert book.fail(pull(book).number, "worker", ["else"]) == ()
    assert ids(book.fail(pull(book).number, "worker", ["else"])) == ["a"]


def test_what_failed_is_tried_again_before_its_equals():
    book = book_with("a", "b", "c", "d")
    book.fail(pull(book, size=2).number, "worker")
    assert ids(pull(book).items) == ["a", "b"]


def test_losing_a_holder_is_no_failure_of_the_item():
    book = book_with("a")
    for _ in range(2 * MAX_ATTEMPTS):
        pull(book)
        book.lose("worker")
    assert book.fail(pull(book).number, "worker") == ()


def test_a_lease_that_is_given_back_is_neither_a_failure_nor_a_reissue():
    book = book_with("a")
    for _ in range(2 * MAX_ATTEMPTS):
        assert book.give_back(pull(book).number, "worker")
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


def test_only_the_holder_gives_a_lease_back():
    book = book_with("a")
    lease = pull(book, "one")
    assert not book.give_back(lease.number, "two")
    assert book.give_back(lease.number, "one")
    assert not book.give_back(lease.number, "one")


# --- saved progress ---


@pytest.mark.parametrize("end", ["lose", "expire", "give_back", "fail"])
def test_the_next_holder_goes_on_from_what_was_saved(end):
    book = book_with("a", "b")
    lease = pull(book)
    assert save(book, lease, 3, 3)
    match end:
        case "lose":
            book.lose("worker")
        case "expire":
            book.expire(LEASE_S)
        case "give_back":
            book.give_back(lease.number, "worker")
        case "fail":
            book.fail(lease.number, "worker")
    again = pull(book, "other")
    assert (ids(again.items), steps(again)) == (["a", "b"], [3, 3])


def test_progress_never_goes_back():
    book = book_with("a")
    lease = pull(book)
    save(book, lease, 5)
    assert save(book, lease, 2), "it is no error, only old"
    assert book.saved("a") == Progress(5)


def test_progress_without_the_lease_changes_nothing_and_is_late():
    book = book_with("a")
    lease = pull(book, "one")
    assert not save(book, lease, 5, holder="two")
    book.lose("one")
    assert not save(book, lease, 5, holder="one")
    assert book.saved("a") is None
    assert book.counters.late == 2


def test_items_with_different_progress_are_not_leased_together():
    book = book_with("a", "b", "c")
    save(book, pull(book, size=1), 4)
    book.lose("worker")
    first, second = pull(book), pull(book)
    assert (ids(first.items), steps(first)) == (["a"], [4])
    assert (ids(second.items), steps(second)) == (["b", "c"], [0, 0])


def test_of_equally_urgent_items_those_with_progress_come_first():
    book = book_with("started", size=1)
    save(book, pull(book), 1)
    book.lose("worker")
    book.submit([Work("long", size=9), Work("urgent", urgency=-1)])
    assert [ids(pull(book).items) for _ in range(3)] == [["urgent"], ["started"], ["long"]]


def test_of_equally_urgent_items_the_longest_come_first():
    book = lease_book()
    book.submit([Work("short", size=1), Work("long", size=9), Work("middle", size=5)])
    assert [ids(pull(book).items) for _ in range(3)] == [["long"], ["middle"], ["short"]]


def test_starting_over_forgets_the_progress_and_is_no_failure():
    book = book_with("a")
    for _ in range(2 * MAX_ATTEMPTS):
        lease = pull(book)
        assert steps(lease) == [0]
        save(book, lease, 3)
        assert book.start_over(lease.number, "worker")
    assert not book.start_over(lease.number, "worker")
    assert book.counters.late == 1


def test_progress_restored_before_an_item_is_submitted_comes_with_its_lease():
    book = lease_book()
    book.restore("a", Progress(7))
    book.submit([Work("a"), Work("b")])
    assert steps(pull(book)) == [7]
    assert steps(pull(book)) == [0]


def test_finished_items_keep_no_progress():
    book = book_with("a")
    lease = pull(book)
    save(book, lease, 3)
    book.complete(lease.number, "worker")
    assert book.saved("a") is None


# --- after a restart ---


def test_an_item_that_was_done_before_is_not_queued():
    book = lease_book()
    book.finish("a")
    book.submit([Work("a"), Work("b")])
    assert ids(pull(book).items) == ["b"]


def test_leases_are_numbered_from_the_first_on():
    book = lease_book(first_lease=1000)
    book.submit([Work("a")])
    assert pull(book).number == 1000


def test_a_lease_of_an_earlier_book_is_adopted_with_its_number():
    book = lease_book(first_lease=1000)
    book.submit([Work("a"), Work("b"), Work("c")])
    assert book.adopt(7, "worker", ["c", "a"], now=5.0)
    lease = book.find(7, "worker")
    assert (ids(lease.items), lease.deadline) == (["c", "a"], 5.0 + LEASE_S)
    assert ids(book.complete(7, "worker")) == ["c", "a"]
    assert ids(pull(book).items) == ["b"]


@pytest.mark.parametrize("wanted", [[], ["a", "unknown"], ["a", "done"], ["a", "leased"]])
def test_only_leases_on_queued_items_are_adopted(wanted):
    book = book_with("leased", "done")
    pull(book, "other", size=1)
    book.complete(pull(book).number, "worker")
    book.submit([Work("a")])
    assert not book.adopt(0, "worker", wanted, now=0.0)
    assert ids(pull(book).items) == ["a"]


def test_an_item_named_twice_is_not_adopted():
    book = book_with("a")
    assert not book.adopt(0, "worker", ["a", "a"], now=0.0)
    assert ids(pull(book).items) == ["a"]


def test_a_lease_in_use_is_not_adopted_by_another():
    book = book_with("a", "b")
    lease = pull(book, "one", size=1)
    assert not book.adopt(lease.number, "two", ["b"], now=0.0)
    assert ids(book.complete(lease.number, "one")) == ["a"]


def test_a_number_that_was_never_granted_is_not_adopted():
    book = book_with("a", "b")
    assert not book.adopt(book.first_lease, "worker", ["b"], now=0.0)
    assert pull(book).number == book.first_lease


def test_an_expired_lease_is_adopted_while_nobody_else_has_its_items():
    book = book_with("a")
    lease = pull(book)
    book.expire(LEASE_S)
    assert book.adopt(lease.number, "worker", ["a"], now=LEASE_S)
    assert ids(book.complete(lease.number, "worker")) == ["a"]


def test_finished_items_can_be_forgotten():
    book = book_with("a", "b")
    book.complete(pull(book).number, "worker")
    book.forget(lambda item_id: item_id == "a")
    assert (book.knows("a"), book.knows("b")) == (False, True)


# --- items that end their holders ---


def lose_with(book: Book, blame: str):
    """Whoever holds everything is lost."""
    for number in range(9):
        if pull(book, f"{blame}-{number}") is None:
            break
    losses = [book.lose(f"{blame}-{number}", blame, ended=True) for number in range(9)]
    return sorted(work.id for _, given_up in losses for work in given_up)


def test_an_item_that_was_held_by_several_lost_holders_is_leased_alone():
    book = book_with("a", "b", "c")
    for number in range(SUSPECT):
        assert len(pull(book).items) == 3
        book.lose("worker", f"node-{number}", ended=True)
    assert [len(pull(book).items) for _ in range(3)] == [1, 1, 1]


def test_an_item_that_was_held_by_too_many_lost_holders_is_given_up():
    book = book_with("a")
    assert [lose_with(book, f"node-{n}") for n in range(QUARANTINE)] == [[], [], ["a"]]
    assert (book.queued, book.leased) == (0, 0)
    book.submit([Work("a")])
    assert book.queued == 0, "it is over"


def test_the_innocent_who_shared_a_lease_are_done():
    book = book_with("innocent", "poison")
    for number in range(SUSPECT):
        pull(book)
        book.lose("worker", f"node-{number}", ended=True)
    for _ in range(2):
        lease = pull(book)
        if ids(lease.items) == ["poison"]:
            poisoned = lease
        else:
            book.complete(lease.number, "worker")
    assert poisoned is not None
    assert book.lose("worker", "node-9", ended=True) == ((), (Work("poison"),))
    assert book.counters.completed == 1


def test_the_same_node_lost_again_and_again_is_one_loss():
    book = book_with("a")
    for _ in range(3 * QUARANTINE):
        assert lose_with(book, "flapping") == []


def test_a_holder_that_never_said_it_had_a_lease_and_is_out_of_reach_blames_nobody():
    """As when a coordinator stood still: everybody who is given the item is gone already."""
    book = book_with("a")
    for number in range(3 * QUARANTINE):
        assert pull(book) is not None
        assert book.lose("worker", f"node-{number}") == ((Work("a"),), ())


@pytest.mark.parametrize("heard", ["renew", "save"])
def test_one_that_said_so_and_is_out_of_reach_is_counted(heard):
    book = book_with("a")
    for number in range(QUARANTINE):
        lease = pull(book)
        if heard == "renew":
            book.renew(lease.number, "worker", 0.0)
        else:
            book.save(lease.number, "worker", [Progress(number + 1)])
        _, given_up = book.lose("worker", f"node-{number}")
    assert given_up == (Work("a"),)


def test_one_that_was_only_out_of_reach_is_not_counted_after_all():
    book = book_with("a")
    for number in range(3 * QUARANTINE):
        lease = pull(book)
        book.renew(lease.number, "worker", 0.0)
        assert book.lose("worker", f"node-{number}") == ((Work("a"),), ())
        book.absolve(f"node-{number}")


def test_holders_that_left_with_notice_blame_nobody():
    book = book_with("a")
    for _ in range(3 * QUARANTINE):
        assert lose_with(book, "") == []
    for number in range(QUARANTINE - 1):
        assert lose_with(book, f"node-{number}") == []


# --- who gets what ---


def test_of_equally_urgent_items_a_holder_gets_those_that_it_prefers():
    book = book_with("a", "b", "c", "d")
    lease = book.pull("worker", 2, 0.0, lambda work: True, lambda work: work.id in "cd")
    assert ids(lease.items) == ["c", "d"]
    assert ids(pull(book).items) == ["a", "b"]


def test_preference_does_not_outweigh_urgency():
    book = book_with("liked", urgency=1)
    book.submit([Work("urgent")])
    lease = book.pull("worker", 1, 0.0, lambda work: True, lambda work: work.id == "liked")
    assert ids(lease.items) == ["urgent"]


def test_whether_anybody_could_pull_is_known():
    book = book_with("a")
    assert book.is_waiting_for(lambda work: True)
    assert not book.is_waiting_for(lambda work: work.id == "b")
    pull(book)
    assert not book.is_waiting_for(lambda work: True)


WORK = st.builds(
    lambda kind, number: Work(f"{kind}-{number}", kind, 0 if kind == "rollout" else 1),
    st.sampled_from(["rollout", "preview"]),
    st.integers(0, 11),
)
HOLDERS = st.sampled_from(["one", "two", "three"])
BLAMES = st.sampled_from(["", "node-1", "node-2", "node-3"])


@dataclass
class Live:
    """A lease as the model knows it."""

    holder: str
    items: tuple[Work, ...]
    deadline: float
    known: bool = False


class LeaseBookModel(RuleBasedStateMachine):
    """Any sequence of events, against a plain record of where each item must be and of what is
    saved of it."""

    def __init__(self) -> None:
        super().__init__()
        self.book = lease_book(first_lease=100)
        self.now = 0.0
        self.granted: list[tuple[int, str, tuple[Work, ...]]] = [
            (7, "one", (Work("rollout-0"), Work("rollout-1"))),
            (8, "two", (Work("rollout-1"),)),
        ]
        """Two of an earlier book among them."""
        self.live: dict[int, Live] = {}
        self.open: dict[str, Work] = {}
        self.closed: set[str] = set()
        self.saved: dict[str, int] = {}
        self.failures: dict[str, int] = {}
        self.blames: dict[str, set[str]] = {}
        self.completions = 0

    def end(self, number: int) -> tuple[Work, ...]:
        return self.live.pop(number).items

    def close(self, work: Work) -> None:
        assert work.id not in self.closed, "counted twice"
        self.closed.add(work.id)
        self.clear(work.id)

    def clear(self, item_id: str) -> None:
        del self.open[item_id]
        for record in (self.saved, self.failures, self.blames):
            record.pop(item_id, None)

    def leased(self) -> set[str]:
        return {work.id for lease in self.live.values() for work in lease.items}

    @rule(items=st.lists(WORK, max_size=6))
    def submit(self, items):
        self.book.submit(items)
        for work in items:
            if work.id not in self.closed:
                self.open[work.id] = work

    @rule(work=WORK, step=st.integers(1, 9))
    def restore(self, work, step):
        if not self.book.knows(work.id):
            self.book.restore(work.id, Progress(step))
            self.saved[work.id] = step

    @rule(work=WORK)
    def finish(self, work):
        if not self.book.knows(work.id):
            self.book.finish(work.id)
            self.closed.add(work.id)

    @rule(
        holder=HOLDERS,
        size=st.integers(0, 4),
        only=st.sampled_from(["", "preview"]),
        liked=st.sampled_from("0123"),
    )
    def pull(self, holder, size, only, liked):
        lease = self.book.pull(
            holder,
            size,
            self.now,
            lambda work: only in ("", work.kind),
            lambda work: work.id.endswith(liked),
        )
        leased = self.leased()
        able = [
            work for work in self.open.values() if work.id not in leased and only in ("", work.kind)
        ]
        if lease is None:
            assert not able or size == 0
            return
        assert 1 <= len(lease.items) <= size
        assert len({work.kind for work in lease.items}) == 1
        assert len(set(steps(lease))) == 1, "one step count only"
        failures = {self.failures.get(work.id, 0) for work in lease.items}
        assert len(failures) == 1, "what failed takes others with it"
        assert steps(lease) == [self.saved.get(work.id, 0) for work in lease.items]
        urgent = min(work.urgency for work in able)
        assert lease.items[0].urgency == urgent
        resumable = any(work.id in self.saved for work in able if work.urgency == urgent)
        assert resumable == (steps(lease)[0] > 0), "what is begun comes first"
        assert not leased & set(ids(lease.items)), "in two leases"
        suspects = [w for w in lease.items if len(self.blames.get(w.id, ())) >= SUSPECT]
        assert not suspects or len(lease.items) == 1
        assert lease.number >= 100
        assert lease.number not in {number for number, *_ in self.granted}
        self.granted.append((lease.number, holder, lease.items))
        self.live[lease.number] = Live(holder, lease.items, self.now + LEASE_S)

    @rule(data=st.data())
    def adopt(self, data):
        number, holder, items = data.draw(st.sampled_from(self.granted))
        leased, wanted = self.leased(), ids(items)
        free = all(item_id in self.open and item_id not in leased for item_id in wanted)
        assert self.book.adopt(number, holder, wanted, self.now) == free
        if free:
            self.live[number] = Live(holder, items, self.now + LEASE_S, known=True)

    @rule(data=st.data(), step=st.integers(1, 9), impostor=st.booleans())
    def save(self, data, step, impostor):
        number, holder, items = data.draw(st.sampled_from(self.granted))
        valid = number in self.live and not impostor
        progress = tuple(Progress(step) for _ in items)
        assert self.book.save(number, "impostor" if impostor else holder, progress) == valid
        if valid:
            self.live[number].known = True
            for work in items:
                self.saved[work.id] = max(step, self.saved.get(work.id, 0))

    @rule(data=st.data(), impostor=st.booleans())
    def complete(self, data, impostor):
        number, holder, _ = data.draw(st.sampled_from(self.granted))
        done = self.book.complete(number, "impostor" if impostor else holder)
        if impostor or number not in self.live:
            assert done == ()
            return
        assert done == self.end(number)
        for work in done:
            self.close(work)
        self.completions += len(done)

    @rule(data=st.data(), named=st.sets(WORK.map(lambda work: work.id), max_size=3))
    def fail(self, data, named):
        number, holder, _ = data.draw(st.sampled_from(self.granted))
        given_up = self.book.fail(number, holder, named)
        items = self.end(number) if number in self.live else ()
        for work in [work for work in items if work.id in named] or items:
            self.failures[work.id] = self.failures.get(work.id, 0) + 1
        failed = [work for work in items if self.failures.get(work.id, 0) >= MAX_ATTEMPTS]
        assert list(given_up) == failed
        for work in failed:
            self.close(work)

    @rule(data=st.data())
    def give_back(self, data):
        number, holder, _ = data.draw(st.sampled_from(self.granted))
        assert self.book.give_back(number, holder) == (number in self.live)
        self.live.pop(number, None)

    @rule(data=st.data())
    def start_over(self, data):
        number, holder, _ = data.draw(st.sampled_from(self.granted))
        assert self.book.start_over(number, holder) == (number in self.live)
        for work in self.end(number) if number in self.live else ():
            self.saved.pop(work.id, None)

    @rule(data=st.data())
    def renew(self, data):
        number, holder, _ = data.draw(st.sampled_from(self.granted))
        assert self.book.renew(number, holder, self.now) == (number in self.live)
        if number in self.live:
            self.live[number].deadline = self.now + LEASE_S
            self.live[number].known = True

    @rule(holder=HOLDERS, blame=BLAMES, ended=st.booleans())
    def lose(self, holder, blame, ended):
        numbers = [number for number, lease in self.live.items() if lease.holder == holder]
        known = {n for n in numbers if ended or self.live[n].known}
        suspects = [work for n in numbers if n in known for work in self.live[n].items]
        held = [work for number in numbers for work in self.end(number)]
        queued, given_up = self.book.lose(holder, blame, ended=ended)
        for work in suspects if blame else ():
            self.blames.setdefault(work.id, set()).add(blame)
        poisonous = [w for w in held if len(self.blames.get(w.id, ())) >= QUARANTINE]
        assert sorted(ids(given_up)) == sorted(ids(poisonous))
        assert sorted(ids(queued) + ids(given_up)) == sorted(ids(held))
        for work in poisonous:
            self.close(work)

    @rule(blame=BLAMES)
    def absolve(self, blame):
        self.book.absolve(blame)
        for blames in self.blames.values():
            blames.discard(blame)

    @rule(seconds=st.floats(0.5, 8))
    def expire(self, seconds):
        self.now += seconds
        numbers = [n for n, lease in self.live.items() if lease.deadline <= self.now]
        expected = [work for number in numbers for work in self.end(number)]
        assert sorted(items_of(self.book.expire(self.now))) == sorted(ids(expected))

    @rule(unwanted=st.sets(st.sampled_from([f"preview-{n}" for n in range(12)])))
    def cancel(self, unwanted):
        revoked = self.book.cancel(lambda work: work.id in unwanted)
        expected = [n for n, lease in self.live.items() if unwanted & set(ids(lease.items))]
        assert sorted(lease.number for lease in revoked) == sorted(expected)
        for number in expected:
            del self.live[number]
        for item_id in unwanted & set(self.open):
            self.clear(item_id)

    @rule(forgotten=st.sets(st.sampled_from([f"preview-{n}" for n in range(12)])))
    def forget(self, forgotten):
        self.book.forget(lambda item_id: item_id in forgotten)
        self.closed -= forgotten

    @invariant()
    def every_open_item_is_queued_or_leased_once(self):
        leased = sum(len(lease.items) for lease in self.live.values())
        assert self.book.leased == leased
        assert self.book.queued == len(self.open) - leased
        assert self.book.counters.completed == self.completions
        assert sorted(lease.number for lease in self.book.leases()) == sorted(self.live)

    @invariant()
    def progress_is_kept_of_what_is_open_and_never_goes_back(self):
        for item_id in self.open:
            saved = self.book.saved(item_id)
            assert (saved.step if saved else 0) == self.saved.get(item_id, 0)
        assert not any(self.book.saved(item_id) for item_id in self.closed - self.open.keys())

    def teardown(self):
        """Whatever happened, what is left can still be done, each item once."""
        self.book.expire(self.now + LEASE_S)
        finished = []
        while (lease := pull(self.book, "last", now=self.now)) is not None:
            finished += ids(self.book.complete(lease.number, "last"))
        assert sorted(finished) == sorted(self.open)


LeaseBookModel.TestCase.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
TestLeaseBookUnderAnySequenceOfEvents = LeaseBookModel.TestCase
