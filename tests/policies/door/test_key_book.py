"""Who may come in, rule by rule. `test_key_book_histories.py` tries whole lives."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec
import pytest

from spotlight.policies.door.key_book import (
    MOST_WORKERS,
    KeyBook,
    Node,
    Refusal,
    SavedBook,
    Token,
)
from spotlight.timings import DoorTimings

TIMES = DoorTimings()
DAY = 86_400.0
NOW = 1_800_000_000.0  # 2027-01-15 08:00 UTC


def token(name: str = "spot01", **changes: object) -> Token:
    made = Token(name, f"key of {name}", "node", "spot", 3, NOW + 3600.0)
    return msgspec.structs.replace(made, **changes)


def user(role: str, name: str = "user01") -> Token:
    return token(name, role=role, pool=None)


@pytest.fixture
def book() -> KeyBook:
    """With a token for each pool, and an operator's."""
    book = KeyBook("own key", TIMES, now=NOW)
    book.add_token(token())
    book.add_token(token("rsrv01", pool="reserved"))
    book.add_token(user("operator", "oper01"))
    return book


def enroll(
    book: KeyBook,
    name: str = "node",
    key: str = "fresh",
    *,
    by: str = "key of spot01",
    pool: object = None,
    now: float = NOW,
) -> object:
    return book.enroll(by, name, key, pool, now)  # type: ignore[arg-type]


def refused(answer: object) -> str:
    assert isinstance(answer, Refusal)
    assert "\n" not in answer.reason
    return answer.reason


def left(book: KeyBook, name: str = "spot01") -> int:
    (found,) = [each for each in book.tokens if each.id == name]
    return found.uses - found.used


def roles(book: KeyBook, *keys: str, now: float = NOW) -> list[str | None]:
    passports = [book.passport(key, now) for key in keys]
    return [None if each is None else each.role for each in passports]


# --- tokens ---


def test_whoever_has_an_unknown_key_is_nobody(book: KeyBook) -> None:
    assert roles(book, "stranger", "", "own key") == [None, None, None]
    refused(enroll(book, by="stranger"))


def test_a_token_for_nodes_makes_joiners_and_one_for_users_users(book: KeyBook) -> None:
    book.add_token(user("observer"))
    assert roles(book, "key of spot01", "key of user01", "key of oper01") == [
        "joiner",
        "observer",
        "operator",
    ]


def test_a_joiner_becomes_a_node_of_the_pool_of_its_token(book: KeyBook) -> None:
    assert enroll(book) == "spot"
    passport = book.passport("fresh", NOW)
    assert passport is not None
    assert (passport.name, passport.role, passport.pool, passport.token) == (
        "node",
        "node",
        "spot",
        "spot01",
    )


def test_an_expired_token_is_told_since_when_and_what_to_do(book: KeyBook) -> None:
    said = refused(enroll(book, now=NOW + 3600.0))
    assert "`spot01` expired on 2027-01-15 at 09:00 UTC" in said
    assert "`spotlight token new --role node --pool spot`" in said


def test_a_used_up_token_says_so(book: KeyBook) -> None:
    for number in range(3):
        assert enroll(book, f"node-{number}", f"fresh {number}") == "spot"
    said = refused(enroll(book, "node-3", "fresh 3"))
    assert "`spot01` is used up, as 3 nodes have joined by it" in said


def test_a_revoked_token_says_since_when(book: KeyBook) -> None:
    assert book.revoke("spot01", NOW + 60.0) is not None
    said = refused(enroll(book, now=NOW + 90.0))
    assert "`spot01` was revoked on 2027-01-15 at 08:01 UTC" in said


def test_a_token_of_another_pool_is_refused_by_name(book: KeyBook) -> None:
    said = refused(enroll(book, pool="reserved"))
    assert "`spot01` is for the pool spot" in said
    assert "`node` wants to be in reserved" in said
    assert left(book) == 3


def test_a_user_s_token_lets_no_node_in(book: KeyBook) -> None:
    book.add_token(user("submitter"))
    assert "join with a token for nodes" in refused(enroll(book, by="key of user01"))


def test_a_user_s_token_that_expired_is_a_joiner_s_who_is_told_so(book: KeyBook) -> None:
    book.add_token(user("submitter"))
    late = NOW + 3600.0
    assert roles(book, "key of user01", now=late) == ["joiner"]
    said = refused(enroll(book, by="key of user01", now=late))
    assert "`user01` expired" in said
    assert "`spotlight token new --role submitter`" in said


def test_a_token_may_last_for_ever(book: KeyBook) -> None:
    book.add_token(token("always", expires_at=None, role="operator", pool=None))
    book.sweep(NOW + 1000 * DAY)
    assert roles(book, "key of always", now=NOW + 1000 * DAY) == ["operator"]


def test_a_token_that_ended_long_ago_is_forgotten(book: KeyBook) -> None:
    book.sweep(NOW + 3600.0 + TIMES.remembered_s)
    assert roles(book, "key of spot01", now=NOW) == [None]


@pytest.mark.parametrize(
    "wrong",
    [
        token("spot01", key="another"),
        token("another", key="key of spot01"),
        token("another", key="own key"),
        token("another", key=""),
        token("another", pool=None),
        token("another", role="observer"),
    ],
    ids=["same id", "same key", "the coordinator's key", "no key", "no pool", "a user's pool"],
)
def test_a_token_that_cannot_be_is_not_taken(book: KeyBook, wrong: Token) -> None:
    before = book.saved(NOW)
    with pytest.raises(ValueError):
        book.add_token(wrong)
    assert book.saved(NOW) == before


# --- nodes ---


def test_the_same_enrolment_again_uses_up_nothing(book: KeyBook) -> None:
    assert [enroll(book), enroll(book), enroll(book, now=NOW + 7200.0)] == ["spot"] * 3
    assert left(book) == 2


def test_a_node_is_not_asked_twice_and_put_in_another_pool(book: KeyBook) -> None:
    enroll(book)
    assert "is in the pool spot" in refused(enroll(book, pool="reserved"))


def test_a_name_is_its_node_s_until_that_had_time_to_come(book: KeyBook) -> None:
    enroll(book)
    answer = enroll(book, key="other", now=NOW + TIMES.name_held_s - 1.0)
    assert "--name" in refused(answer)
    assert isinstance(answer, Refusal)
    assert answer.soon and answer.is_expected
    until = datetime.fromtimestamp(NOW + TIMES.name_held_s, UTC)
    assert f"the name is free at {until:%H:%M:%S} UTC" in answer.reason
    assert enroll(book, key="other", now=NOW + TIMES.name_held_s) == "spot"


def test_a_name_that_is_there_is_not_merely_expected(book: KeyBook) -> None:
    """Another holder of the same token does not get the name of a node that lives."""
    enroll(book)
    book.report("fresh", (), NOW)
    answer = enroll(book, key="other", now=NOW + 3000.0)
    assert isinstance(answer, Refusal)
    assert answer.soon and not answer.is_expected


def test_a_name_is_its_node_s_for_as_long_as_that_is_there(book: KeyBook) -> None:
    enroll(book)
    book.report("fresh", (), NOW)
    assert "--name" in refused(enroll(book, key="other", now=NOW + 3000.0))


def test_a_node_that_comes_back_with_a_fresh_key_takes_its_place(book: KeyBook) -> None:
    enroll(book)
    book.report("fresh", ("worker",), NOW)
    book.gone("fresh", NOW + 1.0)
    assert enroll(book, key="other", now=NOW + 1.0) == "spot"
    assert roles(book, "fresh", "worker", "other") == [None, None, "node"]
    assert left(book) == 1


def test_a_node_of_the_other_pool_does_not_take_its_place(book: KeyBook) -> None:
    enroll(book, by="key of rsrv01")
    book.report("fresh", (), NOW)
    book.gone("fresh", NOW)
    said = refused(enroll(book, key="other", now=NOW + 400.0))
    assert "a node `node` of the pool reserved is known" in said


@pytest.mark.parametrize(
    "key", ["own key", "key of rsrv01", "fresh", "worker", "key of spot01", ""]
)
def test_a_node_has_a_key_of_its_own(book: KeyBook, key: str) -> None:
    enroll(book)
    book.report("fresh", ("worker",), NOW)
    assert "give it one of its own" in refused(enroll(book, "another", key))
    assert left(book) == 2


def test_a_node_that_was_away_for_a_day_is_forgotten(book: KeyBook) -> None:
    enroll(book)
    book.report("fresh", ("worker",), NOW)
    book.gone("fresh", NOW)
    book.sweep(NOW + DAY - 1.0)
    assert roles(book, "fresh", "worker") == ["node", "worker"]
    book.sweep(NOW + DAY)
    assert roles(book, "fresh", "worker") == [None, None]


def test_a_node_that_is_there_stays_known_however_long_it_says_nothing(book: KeyBook) -> None:
    enroll(book)
    book.report("fresh", (), NOW)
    book.sweep(NOW + 10 * DAY)
    assert roles(book, "fresh") == ["node"]


def test_an_operator_lets_nodes_in_without_a_token(book: KeyBook) -> None:
    assert "reserved or spot" in refused(enroll(book, by="key of oper01"))
    assert enroll(book, by="key of oper01", pool="reserved") == "reserved"
    assert [node.token for node in book.nodes] == [""]


def test_a_node_lets_nobody_in(book: KeyBook) -> None:
    enroll(book)
    refused(enroll(book, "another", "other", by="fresh", pool="spot"))


# --- workers ---


def test_workers_are_what_the_pool_of_their_node_makes_them(book: KeyBook) -> None:
    enroll(book)
    enroll(book, "big", "fresh too", by="key of rsrv01")
    assert book.report("fresh", ("a",), NOW) is None
    assert book.report("fresh too", ("b",), NOW) is None
    assert roles(book, "a", "b") == ["worker", "trainer"]


def test_a_worker_may_be_in_the_process_of_its_node(book: KeyBook) -> None:
    enroll(book)
    assert book.report("fresh", ("fresh",), NOW) is None
    assert roles(book, "fresh") == ["node"]


def test_a_worker_that_is_not_named_for_a_while_stays_known(book: KeyBook) -> None:
    """Its process was lost; the next one has the same key, and may be faster than the report."""
    enroll(book)
    book.report("fresh", ("a", "b"), NOW)
    book.report("fresh", ("b",), NOW)
    assert roles(book, "a", "b") == ["worker", "worker"]


@pytest.mark.parametrize("key", ["own key", "key of spot01", "big", "big's worker", ""])
def test_nobody_vouches_for_a_key_that_is_somebody_else_s(book: KeyBook, key: str) -> None:
    enroll(book, "big", "big", by="key of rsrv01")
    book.report("big", ("big's worker",), NOW)
    enroll(book)
    before = book.saved(NOW)
    assert "`node` has a worker whose key is" in refused(book.report("fresh", ("new", key), NOW))
    assert book.saved(NOW) == before
    assert roles(book, "new") == [None]


def test_nobody_but_a_node_vouches(book: KeyBook) -> None:
    enroll(book)
    book.report("fresh", ("worker",), NOW)
    for key in ("key of spot01", "worker", "stranger", "own key", ""):
        refused(book.report(key, ("new",), NOW))


def test_a_node_vouches_for_no_end_of_workers(book: KeyBook) -> None:
    enroll(book)
    assert book.report("fresh", [f"w{n}" for n in range(MOST_WORKERS)], NOW) is None
    assert "more than 4,096 workers" in refused(book.report("fresh", ("one more",), NOW))


# --- revocation ---


def test_a_revoked_node_is_nobody_with_all_its_workers(book: KeyBook) -> None:
    enroll(book)
    book.report("fresh", ("worker",), NOW)
    revocation = book.revoke("node", NOW)
    assert revocation is not None
    assert revocation.tokens == ("spot01",)
    assert roles(book, "fresh", "worker") == [None, None]
    refused(book.report("fresh", ("worker",), NOW))


def test_a_revoked_node_may_not_come_back_under_its_name(book: KeyBook) -> None:
    enroll(book)
    book.revoke("node", NOW)
    for key in ("fresh", "other"):
        assert "was revoked" in refused(enroll(book, key=key, now=NOW + 1000.0))
    assert "was revoked" in refused(enroll(book, key="other", by="key of oper01", pool="spot"))
    assert left(book) == 2


def test_a_revoked_node_hears_that_it_was_revoked_whatever_became_of_its_token(
    book: KeyBook,
) -> None:
    enroll(book)
    book.revoke("node", NOW)
    book.revoke("spot01", NOW)
    assert "the node `node` was revoked" in refused(enroll(book, key="other"))


def test_a_revoked_node_s_key_may_not_come_back_under_another_name(book: KeyBook) -> None:
    enroll(book)
    book.report("fresh", ("worker",), NOW)
    book.revoke("node", NOW)
    for key in ("fresh", "worker"):
        refused(enroll(book, "another", key))
    enroll(book, "another", "other")
    refused(book.report("other", ("worker",), NOW))


@pytest.mark.parametrize("later", [-1000 * DAY, -3600.0, 3600.0, 1000 * DAY])
def test_no_clock_revives_what_was_revoked(book: KeyBook, later: float) -> None:
    enroll(book)
    book.add_token(user("submitter"))
    for name in ("node", "spot01", "user01"):
        book.revoke(name, NOW)
    book.sweep(NOW + later)
    now = NOW + later
    refused(enroll(book, "another", "other", now=now))
    assert roles(book, "fresh", now=now) == [None]
    assert roles(book, "key of user01", now=now)[0] in ("joiner", None)
    refused(enroll(book, key="other", by="key of oper01", pool="spot", now=NOW))


def test_a_clock_that_jumps_back_lengthens_no_claim(book: KeyBook) -> None:
    enroll(book)
    book.sweep(NOW - 3600.0)
    assert enroll(book, key="other", now=NOW - 3600.0 + TIMES.name_held_s) == "spot"
    book.sweep(NOW - 3600.0 + TIMES.name_held_s + DAY)
    assert roles(book, "other") == [None]


def test_nodes_that_came_by_a_revoked_token_stay_and_are_named(book: KeyBook) -> None:
    enroll(book)
    enroll(book, "gone", "fresh too")
    book.revoke("gone", NOW)
    revocation = book.revoke("spot01", NOW)
    assert revocation is not None
    assert revocation.nodes == ("node",)
    assert roles(book, "fresh") == ["node"]


def test_a_revoked_node_s_token_is_named_only_if_it_still_lets_in(book: KeyBook) -> None:
    enroll(book)
    book.revoke("spot01", NOW)
    revocation = book.revoke("node", NOW)
    assert revocation is not None
    assert revocation.tokens == ()


def test_to_revoke_again_changes_nothing(book: KeyBook) -> None:
    enroll(book)
    book.revoke("node", NOW)
    before = book.saved(NOW)
    assert book.revoke("node", NOW + 60.0) is not None
    assert book.saved(NOW) == before


def test_nobody_of_that_name_is_revoked(book: KeyBook) -> None:
    assert book.revoke("nobody", NOW) is None


# --- what changed, and what is kept ---


def test_each_event_says_whose_keys_mean_something_else(book: KeyBook) -> None:
    book.take_changed()
    enroll(book)
    assert book.take_changed() == ("fresh",)
    book.report("fresh", ("worker",), NOW)
    assert book.take_changed() == ("worker",)
    book.report("fresh", ("worker",), NOW)
    assert book.take_changed() == ()
    book.revoke("node", NOW)
    assert book.take_changed() == ("fresh", "worker")


def test_that_a_user_s_token_expired_is_said_once(book: KeyBook) -> None:
    book.take_changed()
    for _ in range(2):
        book.sweep(NOW + 3600.0)
    assert book.take_changed() == ("key of oper01",)
    book.sweep(NOW + 3601.0)
    assert book.take_changed() == ()


def test_the_next_coordinator_knows_the_same(book: KeyBook) -> None:
    enroll(book)
    book.report("fresh", ("worker",), NOW)
    enroll(book, "gone", "fresh too")
    book.revoke("gone", NOW)
    later = NOW + 600.0
    saved = msgspec.json.decode(msgspec.json.encode(book.saved(later)), type=SavedBook)
    after = KeyBook("own key", TIMES, saved=saved, now=later)
    assert after.tokens == book.tokens
    assert roles(after, "fresh", "worker", "fresh too") == ["node", "worker", None]
    assert [node.last_seen for node in after.nodes] == [NOW, later]
    assert refused(enroll(after, key="other", now=later))  # it is expected back


def test_the_next_coordinator_does_not_know_whom_it_missed_for_a_day(book: KeyBook) -> None:
    enroll(book)
    after = KeyBook("own key", TIMES, saved=book.saved(NOW), now=NOW + DAY)
    assert roles(after, "fresh") == [None]


@pytest.mark.parametrize(
    "nodes",
    [
        (Node("a", "1", "spot", "", NOW), Node("a", "2", "spot", "", NOW)),
        (Node("a", "1", "spot", "", NOW), Node("b", "1", "spot", "", NOW)),
        (Node("a", "1", "spot", "", NOW, ("2", "2")),),
        (Node("a", "own key", "spot", "", NOW),),
    ],
    ids=["one name twice", "one key twice", "one worker twice", "the coordinator's key"],
)
def test_a_book_that_contradicts_itself_is_refused(nodes: tuple[Node, ...]) -> None:
    with pytest.raises(ValueError):
        KeyBook("own key", TIMES, saved=SavedBook((), nodes), now=NOW)


def test_no_node_takes_the_id_of_a_token_as_its_name(book: KeyBook) -> None:
    for name in ("oper01", "spot01"):
        assert "--name" in refused(enroll(book, name, "fresh"))
    assert left(book) == 3
    assert book.revoke("oper01", NOW) is not None
    assert enroll(book, "node", "fresh") == "spot"


@pytest.mark.parametrize(
    ("role", "given", "highest"),
    [("operator", 0, 100), ("submitter", 7, 7), ("submitter", -5, -5), ("observer", 0, 0)],
)
def test_a_submitter_gives_no_higher_priority_than_its_token(
    book: KeyBook, role: str, given: int, highest: int
) -> None:
    book.add_token(msgspec.structs.replace(user(role), priority=given))
    assert book.highest_priority("key of user01", NOW) == highest


def test_whoever_may_submit_nothing_has_no_priority(book: KeyBook) -> None:
    book.add_token(msgspec.structs.replace(user("submitter"), priority=7))
    book.revoke("user01", NOW)
    assert book.highest_priority("key of user01", NOW) == 0
    assert book.highest_priority("key of spot01", NOW) == 0
    assert book.highest_priority("nobody", NOW) == 0


@pytest.mark.parametrize("role", ["operator", "observer", "node"])
def test_only_a_submitter_s_token_has_a_priority(book: KeyBook, role: str) -> None:
    pool = "spot" if role == "node" else None
    with pytest.raises(ValueError, match="is not for a submitter"):
        book.add_token(token("user01", role=role, pool=pool, priority=1))
