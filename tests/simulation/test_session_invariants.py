"""Every invariant of sessions lets an undisturbed one pass, and catches what it is there for."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

import msgspec
import pytest
from history_kit import alter, is_found

from spotlight.actors.coordinator.session.session_folder import SessionFolder
from spotlight.actors.coordinator.session.session_groups import SessionGroups
from spotlight.actors.protocol.sessions import DoneGroup
from spotlight.rollouts import rollouts
from spotlight.rollouts.groups import Group
from spotlight.rollouts.session_link import SessionLink
from spotlight.rollouts.streams import GroupStream
from spotlight.rollouts.versions import AtLeast, Exactly
from spotlight.types import BundleOffer
from spotlight_simulation import session_invariants as invariants
from spotlight_simulation.chaos import silence
from spotlight_simulation.fake_engine import FakeEngine
from spotlight_simulation.freezing import FreezableLoop
from spotlight_simulation.history import Happening
from spotlight_simulation.job_life import chaos_job
from spotlight_simulation.memory_store import SimulatedStore
from spotlight_simulation.session_chaos import SessionRun, session_scenario, simulate_session

SEED = 19
"""Of a session whose program reads everything, and explores."""
SESSIONS = range(3, 40, 4)

Invariant = Callable[[SessionRun], Iterable[str]]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> SessionRun:
    """A run that nothing has disturbed."""
    folder = tmp_path_factory.mktemp("undisturbed")
    made = session_scenario(SEED, chaos_job(folder), kinds=())
    made = msgspec.structs.replace(made, ending="all read", follower=None)
    with silence(), asyncio.Runner(loop_factory=FreezableLoop) as runner:
        return runner.run(simulate_session(SEED, made, folder))


@pytest.fixture
def run(undisturbed: SessionRun) -> Iterator[SessionRun]:
    """It, for a test to alter."""
    happenings = list(undisturbed.history.happenings)
    yield dataclasses.replace(undisturbed)
    undisturbed.history.happenings[:] = happenings


def violations(invariant: Invariant, run: SessionRun) -> list[str]:
    return list(invariant(run))


def first_sample_becomes(run: SessionRun, place: int, value: object) -> None:
    first, *others = run.history.all("group")[0]["samples"]
    changed = (*first[:place], value, *first[place + 1 :])
    alter(run.history, "group", 0, samples=(changed, *others))


def happens_later(run: SessionRun, after_s: float, kind: str, **facts: Any) -> None:
    """So long after the last happening."""
    at_s = run.history.happenings[-1].time_s + after_s
    run.history.happenings.append(Happening(at_s, kind, tuple(facts.items())))


def test_an_undisturbed_session_violates_nothing(run: SessionRun) -> None:
    assert run.history.violations == []
    for kind in ("group", "read", "explored", "looked"):
        assert run.history.all(kind), f"nothing of {kind} to be checked"
    for invariant in invariants.INVARIANTS:
        assert violations(invariant, run) == []


def test_a_group_that_comes_twice_is_noticed(run: SessionRun) -> None:
    run.history.happenings.append(run.history.all("group")[0])
    assert violations(invariants.groups_come_once, run)


def test_a_group_that_does_not_come_is_noticed(run: SessionRun) -> None:
    (read, *_) = (each for each in run.history.all("read") if each["until"] == "done")
    of_it = [each for each in run.history.all("group") if each["call"] == read["call"]]
    run.history.happenings.remove(of_it[0])
    assert violations(invariants.groups_come_once, run)


def test_a_group_that_nobody_asked_for_is_noticed(run: SessionRun) -> None:
    alter(run.history, "group", 0, index=99)
    assert violations(invariants.groups_come_once, run)


def test_a_sample_that_is_missing_without_a_word_is_noticed(run: SessionRun) -> None:
    alter(run.history, "group", 0, samples=run.history.all("group")[0]["samples"][1:])
    assert violations(invariants.groups_are_complete, run)


def test_a_sample_without_its_image_is_noticed(run: SessionRun) -> None:
    first_sample_becomes(run, 6, False)
    assert violations(invariants.groups_are_complete, run)


@pytest.mark.parametrize("place", [1, 3])
def test_a_sample_of_other_weights_is_noticed(run: SessionRun, place: int) -> None:
    first_sample_becomes(run, place, "0123456789abcdef")
    assert violations(invariants.samples_are_what_was_asked_for, run)


def test_a_reward_of_0_is_noticed(run: SessionRun) -> None:
    first_sample_becomes(run, 5, 0.0)
    assert violations(invariants.samples_are_what_was_asked_for, run)


def test_a_group_of_another_version_is_noticed(run: SessionRun) -> None:
    alter(run.history, "group", 0, version=-1)
    assert violations(invariants.versions_are_those_wanted, run)


def test_weights_that_are_gone_too_early_are_noticed(run: SessionRun) -> None:
    alter(run.history, "read", 0, until="version gone")
    assert violations(invariants.weights_are_kept_while_they_are_wanted, run)


def test_a_call_that_is_refused_is_noticed(run: SessionRun) -> None:
    alter(run.history, "read", 0, until="refused")
    assert violations(invariants.weights_are_kept_while_they_are_wanted, run)


def test_a_publication_that_is_forgotten_is_noticed(run: SessionRun) -> None:
    alter(run.history, "looked", 0, told=-1)
    assert violations(invariants.weights_are_kept_while_they_are_wanted, run)


def test_a_failure_without_a_fault_is_noticed(run: SessionRun) -> None:
    alter(run.history, "group", 0, failed=((7, "for no reason"),))
    assert violations(invariants.failures_have_a_reason, run)


@pytest.mark.parametrize("facts", [{"seeds": (1,)}, {"rewards": (0.0, 0.0)}])
def test_a_choice_that_does_not_follow_from_previews_is_noticed(
    run: SessionRun, facts: dict[str, Any]
) -> None:
    (explored, *_) = run.history.all("explored")
    may_be = explored["may_be"][: len(facts.get("seeds", (1, 2)))]
    rewards = explored["rewards"][: len(may_be)]
    alter(run.history, "explored", 0, **{"may_be": may_be, "rewards": rewards, **facts})
    assert violations(invariants.explorations_choose_by_previews, run)


@pytest.mark.parametrize(
    ("reason", "silent_s", "noticed"),
    [
        ("cancelled by the user", 0.0, True),
        ("No space left on device", 0.0, True),
        ("the session crashed", 500.0, True),
        ("its program has been out of reach for 60 s", 50.0, True),
        ("its program has been out of reach for 60 s", 70.0, False),
        ("the coordinator is unreachable", 100.0, True),
        ("the coordinator is unreachable", 130.0, False),
    ],
)
def test_a_session_that_is_lost_for_no_good_reason_is_noticed(
    run: SessionRun, reason: str, silent_s: float, noticed: bool
) -> None:
    happens_later(run, 0.0, "reach", there=True)
    happens_later(run, 50.0, "reach", there=False)
    happens_later(run, silent_s, "session_lost", session="s", reason=reason)
    assert bool(violations(invariants.sessions_end_for_a_reason, run)) == noticed


@pytest.mark.parametrize(
    ("fault", "began_s", "lasts_s", "noticed"),
    [
        ("loss", 0.0, 45.0, False),
        ("delay", 0.0, 45.0, False),
        ("loss", 0.0, 20.0, True),
        ("loss", 60.0, 45.0, True),
        ("kill_node", 0.0, 45.0, True),
    ],
)
def test_a_silence_may_begin_with_messages_that_were_lost(
    run: SessionRun, fault: str, began_s: float, lasts_s: float, noticed: bool
) -> None:
    reason = "the coordinator is unreachable"
    happens_later(run, 0.0, "reach", there=True)
    happens_later(run, began_s, "fault", fault=fault, node="", s=lasts_s)
    happens_later(run, 50.0 - began_s, "reach", there=False)
    happens_later(run, 110.0, "session_lost", session="s", reason=reason)
    assert bool(violations(invariants.sessions_end_for_a_reason, run)) == noticed


def test_a_session_may_be_lost_to_a_full_disk(run: SessionRun) -> None:
    happens_later(run, 0.0, "reach", there=True)
    happens_later(run, 1.0, "session_lost", session="before", reason="No space left on device")
    happens_later(run, 1.0, "effect", fault="disk_error", node="")
    happens_later(run, 1.0, "session_lost", session="after", reason="No space left on device")
    assert len(violations(invariants.sessions_end_for_a_reason, run)) == 1


@pytest.mark.parametrize(
    ("kind", "facts"),
    [
        ("fault", {"fault": "cancel_session"}),
        ("effect", {"fault": "disk_error"}),
        ("reach", {"there": False}),
        ("fault", {"fault": "kill_node"}),
    ],
)
def test_only_a_coordinator_that_was_killed_may_have_forgotten_why_a_session_is_over(
    run: SessionRun, kind: str, facts: dict[str, Any]
) -> None:
    has_a_reason = facts != {"fault": "kill_node"}
    reason = "the session has ended: it is over"
    there = run.history.happenings
    there[:] = [each for each in there if each.kind != "killed"]  # as the simulation ended
    happens_later(run, 0.0, "reach", there=True)
    happens_later(run, 1.0, kind, **facts)
    happens_later(run, 70.0, "session_lost", session="s", reason=reason)
    assert violations(invariants.sessions_end_for_a_reason, run)
    lost = there.pop()
    happens_later(run, 0.0, "killed", process="coordinator")
    there.append(lost)
    assert bool(violations(invariants.sessions_end_for_a_reason, run)) != has_a_reason


# --- what is done to the product ---


def test_a_group_that_is_delivered_twice_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    put = GroupStream.put

    def twice(stream: GroupStream, number: int, group: Group) -> None:
        stream.expect(-number)
        put(stream, -number, group)
        put(stream, number, group)

    monkeypatch.setattr(GroupStream, "put", twice)
    assert is_found("groups_come_once", (), SESSIONS)


def test_weights_of_another_version_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def newest(wanted: AtLeast | Exactly, published: Collection[int]) -> int | None:
        there = max(published, default=-1)
        return None if there < wanted.version else there

    monkeypatch.setattr(rollouts, "choose_version", newest)
    assert is_found("versions_are_those_wanted", (), SESSIONS)


def test_a_worker_that_goes_on_with_old_weights_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    fetch_weights = FakeEngine.fetch_weights
    seen: list[str] = []

    async def always_the_first(engine: FakeEngine, offer: BundleOffer) -> str:
        seen.append(await fetch_weights(engine, offer))
        return seen[0]

    monkeypatch.setattr(FakeEngine, "fetch_weights", always_the_first)
    assert is_found("samples_are_what_was_asked_for", (), SESSIONS)


def test_a_sample_that_is_dropped_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    told = SessionGroups.told

    def without_one(groups: SessionGroups, *args: Any) -> tuple[DoneGroup, ...]:
        return tuple(
            msgspec.structs.replace(each, samples=each.samples[1:]) for each in told(groups, *args)
        )

    monkeypatch.setattr(SessionGroups, "told", without_one)
    assert is_found("groups_are_complete", (), SESSIONS)


def test_samples_that_are_kept_though_they_were_taken_are_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(SimulatedStore, "delete", lambda store, prefix: None)
    assert is_found("is kept, though all groups were taken", (), SESSIONS)


def test_a_session_that_is_not_ended_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    async def silently(link: SessionLink) -> None:
        return

    monkeypatch.setattr(SessionLink, "end", silently)
    assert is_found("after the session", (), SESSIONS)


def test_a_folder_that_is_left_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    async def leave(folder: SessionFolder) -> None:
        folder.close()

    monkeypatch.setattr(SessionFolder, "remove", leave)
    assert is_found("is left on disk", (), SESSIONS)
