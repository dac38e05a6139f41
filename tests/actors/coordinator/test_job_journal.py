"""What a coordinator that comes back finds in the journal."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest
from job_kit import STORE, ReachedAt, offer, request, requests

from spotlight import failpoints
from spotlight.actors.coordinator.tenant.job_journal import (
    Checkpoint,
    Identity,
    JobJournal,
    SavedProgress,
    Trainers,
    TrainingState,
    identify,
    require_same_prompts,
)
from spotlight.actors.coordinator.tenant.rank import Rank
from spotlight.actors.protocol.down import WeightsOffer
from spotlight.actors.protocol.up import WorkerRefs
from spotlight.actors.runtime import ActorRef
from spotlight.errors import JournalError, RunFolderError
from spotlight.policies.exploration.explored import Explored
from spotlight.policies.exploration.reward_spread import Evidence, Knowledge, Population
from spotlight.policies.requests.rows import SavedRow
from spotlight.store.journal import Journal
from spotlight.store.run_folder import RECORDS_AHEAD
from spotlight.types import Commit, Request, StoreEndpoint

REF = ActorRef("somewhere", "actor", 1)
TRAINERS = Trainers(
    tuple(Rank(WorkerRefs(f"a/{n}", 11 + n, REF, REF, REF), "a", STORE) for n in range(2)),
    last_recovery=(2, 5),
)


@contextmanager
def opened(
    path: Path, endpoint: StoreEndpoint = STORE, failures: list[JournalError] | None = None
) -> Iterator[JobJournal]:
    journal = Journal.open(path, "owner")
    try:
        failed = (failures if failures is not None else []).append
        yield JobJournal(journal, ReachedAt(endpoint), failed)  # type: ignore[arg-type]
    finally:
        journal.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.records"


def progress(completed: int, **changes: object) -> SavedProgress:
    saved = SavedProgress(
        completed=completed,
        explored=Explored(
            completed, ((1, 2**63 - 1), (3, 4)), ((0.25, None), (None, 1.0)), previews=16, late=2
        ),
        validated=(),
        training_seconds=(1.5, 2.25),
    )
    return msgspec.structs.replace(saved, **changes)


def learnt(known: Knowledge) -> Explored:
    return msgspec.structs.replace(progress(0).explored, knowledge=known)


def begun(*wanted: Request, step: int = 1) -> dict[str, SavedRow]:
    """Saved after so many steps."""
    saved = {one.id: offer(f"commits/{one.seed}-{step}") for one in wanted}
    return {key: SavedRow(Commit(step, bundle, 0)) for key, bundle in saved.items()}


def done(*wanted: Request) -> dict[str, SavedRow]:
    """With a reward."""
    commits = [Commit(one.settings.steps, offer(), row) for row, one in enumerate(wanted)]
    return {one.id: SavedRow(commit, (0.5,)) for one, commit in zip(wanted, commits, strict=True)}


def given_up(wanted: Request) -> dict[str, SavedRow]:
    return {wanted.id: SavedRow(given_up="no luck")}


def test_what_is_saved_of_a_request_replaces_what_was_before(path: Path) -> None:
    one, two, three = requests(3)
    with opened(path) as journal:
        journal.save_requests(begun(one, two, three))
        journal.save_requests(begun(two, step=2))
        journal.save_requests({**done(three), one.id: None})
        assert journal.requests() == {**begun(two, step=2), **done(three)}


def test_rows_that_were_staged_are_durable_when_they_are_committed(path: Path) -> None:
    one, two, three = requests(3)
    with opened(path) as journal:
        journal.stage_requests(begun(one, two))
        journal.stage_requests(begun(one, step=2))
        journal.commit_staged()
        journal.stage_requests(begun(three))
    with opened(path) as journal:
        assert journal.requests() == begun(one, step=2) | begun(two)


def test_rows_that_were_staged_are_written_before_all_that_comes_after(path: Path) -> None:
    row = begun(request(1, iteration=1, version=1))
    with opened(path) as journal:
        journal.stage_requests(row)
        journal.forget_requests("rollout", 1)
        assert journal.requests() == {}
        journal.stage_requests(row)
        assert journal.requests() == row
        journal.stage_requests(row)
        journal.rewind(0)
        journal.commit_staged()
        assert journal.requests() == {}


def test_everything_is_there_when_the_journal_is_opened_again(path: Path) -> None:
    one, two, three = requests(3)
    rows = {**begun(one, step=7), **done(two), **given_up(three)}
    with opened(path) as journal:
        journal.save_requests(rows)
        journal.save_progress(progress(4))
        journal.save_checkpoint(Checkpoint(4, "checkpoints/x"), (0,))
        journal.save_trainers(TRAINERS)
        journal.save_publication(WeightsOffer(4, (offer("w"),)), {4})
    with opened(path) as journal:
        assert journal.requests() == rows
        assert journal.progress() == {4: progress(4, validated=(0,))}
        assert journal.checkpoint() == Checkpoint(4, "checkpoints/x")
        assert journal.trainers() == TRAINERS
        assert journal.publications() == {4: WeightsOffer(4, (offer("w"),))}


def test_a_new_journal_is_empty(path: Path) -> None:
    with opened(path) as journal:
        assert journal.requests() == {}
        assert (journal.progress(), journal.checkpoint(), journal.publications()) == ({}, None, {})
        assert journal.trainers() == Trainers()


def test_bundles_of_the_run_folder_are_offered_where_its_store_is_now(path: Path) -> None:
    with opened(path) as journal:
        journal.save_requests({**begun(requests(2)[0]), **done(requests(2)[1])})
    moved = StoreEndpoint("127.0.0.1", 99, "token", "machine", "/elsewhere")
    with opened(path, moved) as journal:
        stores = [row.commit.bundle.store for row in journal.requests().values() if row.commit]
        assert stores == [moved] * 2


def test_every_opening_has_leases_above_all_before(path: Path) -> None:
    terms, firsts = [], []
    for _ in range(3):
        with opened(path) as journal:
            terms.append(journal.term)
            firsts.append(journal.first_lease)
    assert terms == [1, 2, 3]
    assert all(later - earlier > 10**9 for earlier, later in pairwise(firsts))


def test_the_requests_of_a_kind_and_iteration_are_forgotten_alone(path: Path) -> None:
    kept = [request(1), request(1, iteration=10), request(1, "evaluation", iteration=1)]
    with opened(path) as journal:
        journal.save_requests(done(request(1, iteration=1), *kept))
        journal.save_requests(begun(request(2, iteration=1)))
        journal.save_requests(given_up(request(3, iteration=1)))
        journal.forget_requests("rollout", 1)
        assert sorted(journal.requests()) == sorted(each.id for each in kept)


def test_a_job_that_begins_again_tries_what_was_given_up(path: Path) -> None:
    one, two = requests(2)
    with opened(path) as journal:
        journal.save_requests({**given_up(one), **done(two)})
        journal.begin_again()
        assert journal.requests() == done(two)


def test_the_samples_of_an_iteration_stay_when_the_next_one_begins(path: Path) -> None:
    before = request(1, iteration=1)
    with opened(path) as journal:
        journal.save_requests(done(before))
        journal.save_progress(progress(2))
        assert list(journal.requests()) == [before.id], "lost trainers may train on them again"


def test_the_state_of_training_is_found_again_and_can_be_forgotten(path: Path) -> None:
    state = TrainingState(4, ((offer("state/0"),),))
    with opened(path) as journal:
        assert journal.state() is None
        journal.save_state(state)
    with opened(path) as journal:
        assert journal.state() == state
        journal.save_state(None)
    with opened(path) as journal:
        assert journal.state() is None


def test_a_state_in_the_run_folders_store_is_offered_where_that_is_now(path: Path) -> None:
    at_nodes = ((offer("state/0"),),)
    with opened(path) as journal:
        journal.save_state(TrainingState(4, at_nodes, (offer("state/0"),)))
    moved = StoreEndpoint("127.0.0.1", 99, "token", "machine", "/elsewhere")
    with opened(path, moved) as journal:
        assert journal.state() == TrainingState(4, at_nodes, (offer("state/0", moved),))


def test_the_bundles_of_a_kind_and_iteration_are_known_each_once(path: Path) -> None:
    one, two, three = requests(3, iteration=1)
    other, evaluation = request(1, iteration=10), request(1, "evaluation", iteration=1)
    with opened(path) as journal:
        journal.save_requests(done(one, two) | given_up(three))
        journal.stage_requests(begun(three, step=5))
        journal.save_requests(begun(other, step=6) | begun(evaluation, step=7))
        assert journal.bundles("rollout", 1) == {offer(), offer("commits/2-5")}


def test_a_way_back_to_a_state_keeps_the_given_publications(path: Path) -> None:
    with opened(path) as journal:
        for version in range(5):
            where = WeightsOffer(version, (offer(f"w{version}"),))
            journal.save_publication(where, set(range(5)))
        journal.rewind(4, [2, 4])
        assert sorted(journal.publications()) == [2, 4]
        journal.rewind(4)
        assert journal.publications() == {}


def test_a_user_who_resumes_begins_from_the_checkpoint(path: Path) -> None:
    with opened(path) as journal:
        journal.save_state(TrainingState(4, ((offer("state/0"),),)))
        journal.begin_again()
        assert journal.state() is None


def test_progress_is_kept_back_to_the_checkpoint(path: Path) -> None:
    with opened(path) as journal:
        for completed in range(5):
            journal.save_progress(progress(completed, validated=(0,)))
        journal.save_checkpoint(Checkpoint(2, "checkpoints/2"), (0, 2))
        assert journal.checkpoint() == Checkpoint(2, "checkpoints/2")
        assert {key: kept.validated for key, kept in journal.progress().items()} == {
            2: (0, 2),
            3: (0,),
            4: (0,),
        }


def taught(completed: int, **totals: float) -> SavedProgress:
    """An iteration that taught this of prompts, and its category."""
    learnt = Knowledge(
        {key: Evidence(completed, total) for key, total in totals.items()},
        {"all": Population(completed)},
    )
    explored = msgspec.structs.replace(progress(completed).explored, knowledge=learnt)
    return progress(completed, explored=explored)


def test_what_iterations_taught_adds_up_from_checkpoint_to_checkpoint(path: Path) -> None:
    taught_by = {1: {"a": 0.1, "b": 0.2}, 2: {"b": 0.3}, 3: {"a": 0.4, "c/d": 0.5}, 4: {"b": 0.6}}
    known = {0: Knowledge()}
    for completed, totals in taught_by.items():
        learnt = taught(completed, **totals).explored.knowledge
        known[completed] = known[completed - 1].after(learnt)
    with opened(path) as journal:
        for completed, totals in taught_by.items():
            journal.save_progress(taught(completed, **totals))
        assert [journal.knowledge(completed) for completed in known] == list(known.values())
        for completed in (2, 3):
            journal.save_checkpoint(Checkpoint(completed, "checkpoints/x"), ())
            assert journal.knowledge(completed) == known[completed]
            assert journal.knowledge(4) == known[4]
        journal.rewind(3)
    with opened(path) as journal:
        assert journal.knowledge(4) == known[3]


def test_what_an_iteration_writes_does_not_grow_with_what_is_known(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[int] = []
    plain = Journal.write

    def write(self: Journal, changes: Mapping[str, bytes | None], drop: Iterable[str] = ()) -> None:
        written.append(sum(len(key) + len(body or b"") for key, body in changes.items()))
        plain(self, changes, drop)

    monkeypatch.setattr(Journal, "write", write)
    with opened(path) as journal:
        for completed in range(1, 40):
            journal.save_progress(taught(completed, **{f"{completed:03}/{n}": 0.5 for n in "abcd"}))
            journal.save_checkpoint(Checkpoint(completed, "checkpoints/x"), ())
        assert len(journal.knowledge(39).prompts) == 4 * 39
    assert max(written[-4:]) < 1.1 * max(written[:4])


def test_publications_that_are_not_kept_are_gone(path: Path) -> None:
    with opened(path) as journal:
        for version in range(4):
            where = WeightsOffer(version, (offer("w"),), (offer("e"),))
            journal.save_publication(where, {0, version - 1, version})
        assert list(journal.publications()) == [0, 2, 3]


def test_going_back_drops_what_was_made_with_later_weights(path: Path) -> None:
    kept = [
        request(1, iteration=2, version=2),
        request(1, "preview", iteration=3, version=2),
        request(1, "evaluation", iteration=2, version=2),
    ]
    gone = [
        request(1, iteration=3, version=3),
        request(1, "preview", iteration=4, version=3),
        request(1, "evaluation", iteration=3, version=3),
    ]
    with opened(path) as journal:
        for completed in (2, 3, 4):
            journal.save_progress(progress(completed))
            journal.save_publication(WeightsOffer(completed, (offer("w"),)), {2, 3, 4})
        journal.save_requests(done(*kept, *gone))
        journal.save_checkpoint(Checkpoint(2, "checkpoints/2"), ())
        journal.rewind(2)
        assert sorted(journal.progress()) == [2]
        assert journal.publications() == {}
        assert sorted(journal.requests()) == sorted(each.id for each in kept)
        assert journal.checkpoint() == Checkpoint(2, "checkpoints/2")


def test_leases_from_before_going_back_are_not_gone_on_with_after_any_restart(path: Path) -> None:
    with opened(path) as journal:
        assert journal.adopts_from == 0
    with opened(path) as journal:
        journal.rewind(0)
        first = journal.first_lease
    with opened(path) as journal:
        assert journal.first_lease > journal.adopts_from == first


def test_a_run_that_went_back_may_have_later_records_until_it_goes_on(path: Path) -> None:
    raw = Journal.open(path, "owner")
    journal = JobJournal(raw, ReachedAt(STORE), [].append)  # type: ignore[arg-type]
    journal.save_progress(progress(0))
    journal.rewind(0)
    assert raw.items(RECORDS_AHEAD)
    journal.records_follow(progress(0))
    assert not raw.items(RECORDS_AHEAD)
    assert journal.progress() == {0: progress(0)}
    raw.close()


def test_a_run_keeps_its_identity(path: Path) -> None:
    journal = Journal.open(path, "owner")
    first = identify(journal, "tiny", random.Random(1), "abc123")
    assert first.job_id.startswith("tiny-")
    journal.close()
    journal = Journal.open(path, "owner")
    assert identify(journal, "tiny", random.Random(2), "another") == first
    journal.close()


def test_a_record_of_another_version_is_named(path: Path) -> None:
    with opened(path) as journal:
        journal.save_progress(progress(1))
    raw = Journal.open(path, "owner")
    raw.write({"progress/000001": b'{"completed": "one"}'})
    raw.close()
    with (
        opened(path) as journal,
        pytest.raises(JournalError, match=r"record progress/000001 cannot be read"),
    ):
        journal.progress()


def with_more(value: Any) -> Iterator[Any]:
    """As a version writes it that knows one field more, here or in a record inside."""
    if isinstance(value, dict):
        if "a" not in value:  # that one has any keys, and so is no record
            yield {**value, "from_the_future": 1}
        for key, each in value.items():
            yield from ({**value, key: other} for other in with_more(each))
    elif isinstance(value, list):
        for index, each in enumerate(value):
            yield from ([*value[:index], other, *value[index + 1 :]] for other in with_more(each))


def test_a_record_with_a_field_more_is_refused_wherever_the_field_is(path: Path) -> None:
    """All that a later version may have meant by it would be lost."""
    reads = {
        "checkpoint": JobJournal.checkpoint,
        "identity": lambda journal: journal.sorts_prompts,
        "progress/000004": JobJournal.progress,
        "published/000004": JobJournal.publications,
        f"request/{requests(1)[0].id}": JobJournal.requests,
        "rewound": lambda journal: journal.adopts_from,
        "state": JobJournal.state,
        "trainers": JobJournal.trainers,
    }
    known = Knowledge({"a": Evidence()}, {"a": Population()})
    with opened(path) as journal:
        journal.rewind(0)
        journal.save_requests(begun(*requests(1)))
        journal.save_progress(progress(4, explored=learnt(known)))
        journal.save_trainers(TRAINERS)
        journal.save_state(TrainingState(4, ((offer("state/0-0"),),), (offer("state/0-0"),)))
        journal.save_publication(WeightsOffer(4, (offer("w"),)), {4})
    raw = Journal.open(path, "owner")
    raw.write({"checkpoint": msgspec.json.encode(Checkpoint(4, "x"))})
    raw.write({"identity": msgspec.json.encode(Identity("tiny-1", "secret"))})
    again, tried = JobJournal(raw, ReachedAt(STORE), [].append), 0  # type: ignore[arg-type]
    for key, read in reads.items():
        [(_, body)] = raw.items(key)
        for other in with_more(msgspec.json.decode(body)):
            raw.write({key: msgspec.json.encode(other)})
            with pytest.raises(JournalError, match=f"record {key} cannot be read.*from_the_future"):
                read(again)
            tried += 1
        raw.write({key: body})
        read(again)
    raw.close()
    assert tried > 2 * len(reads)


def test_a_write_that_fails_is_reported_and_raised_and_changes_nothing(path: Path) -> None:
    failures: list[JournalError] = []

    def refuse(place: str) -> None:
        if place == "journal.commit":
            raise OSError(28, "No space left on device")

    with opened(path, failures=failures) as journal:
        journal.save_progress(progress(1))
        failpoints.install(refuse)
        try:
            with pytest.raises(JournalError, match="No space left") as raised:
                journal.save_progress(progress(2))
        finally:
            failpoints.install(None)
        assert failures == [raised.value]
    with opened(path) as journal:
        assert list(journal.progress()) == [1]


@pytest.mark.parametrize("by", ["an earlier version", "this one"])
def test_a_run_keeps_its_order_of_prompts(path: Path, by: str) -> None:
    journal = Journal.open(path, "owner")
    if by == "this one":
        identify(journal, "tiny", random.Random(1), "abc123")
    else:
        journal.write({"identity": b'{"job_id":"tiny-1","token":"secret"}'})
    journal.close()
    with opened(path) as reopened:
        assert reopened.sorts_prompts == (by == "an earlier version")


def test_whoever_has_nothing_to_save_does_not_write_what_others_have_staged(path: Path) -> None:
    writes: list[str] = []
    with opened(path) as journal:
        failpoints.install(writes.append)
        try:
            journal.stage_requests({"a": SavedRow(given_up="why")})
            journal.save_requests({})
            assert not writes
            journal.commit_staged()
            assert writes
        finally:
            failpoints.install(None)


def test_the_prompts_of_a_run_are_those_that_it_is_first_opened_with(path: Path) -> None:
    first = {"prompts.train": "a", "prompts.validation": "b"}
    journal = Journal.open(path, "owner")
    require_same_prompts(journal, first)
    require_same_prompts(journal, first)
    with pytest.raises(RunFolderError, match=r"^prompts\.validation: these are other prompts "):
        require_same_prompts(journal, first | {"prompts.validation": "c"})
    journal.close()
