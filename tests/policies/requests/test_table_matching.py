"""The table of requests: who gets what, in which order."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from table_rig import SETTINGS, STEPS, GroupReport, Rig, ids, request, requests, steps


@pytest.mark.parametrize(
    ("kind", "without", "having"),
    [
        ("rollout", {"rollout_versions": (0,)}, {"rollout_versions": (0, 1)}),
        (
            "evaluation",
            {"rollout_versions": (1,), "evaluation_versions": ()},
            {"evaluation_versions": (1,)},
        ),
    ],
)
def test_nothing_is_granted_to_a_group_without_the_weights(
    rig: Rig, kind: str, without: dict[str, Any], having: dict[str, Any]
) -> None:
    rig.add("a", **without)
    rig.submit(request(0, kind, iteration=1))
    assert rig.grants() == []
    rig.report("a", **having)
    assert len(rig.grants()) == 1


def test_a_group_is_granted_no_more_than_fits_and_than_it_has_credits_for(rig: Rig) -> None:
    rig.submit(*requests(100))
    rig.add("a", credits=3, batch=5)
    assert [len(grant.requests) for grant in rig.grants()] == [5, 5, 5]
    rig.add("b", credits=0)
    assert rig.grants("b") == []


def test_a_lease_never_mixes_kinds_weights_settings_or_steps(rig: Rig) -> None:
    larger = msgspec.structs.replace(SETTINGS, height=64)
    rig.add("begun", batch=1, credits=1)
    rig.submit(request(0))
    rig.commit(rig.last(), 1)
    rig.lose("begun")
    rig.submit(request(1), request(2, settings=larger), request(3, is_probe=True))
    rig.submit(request(4, version=1), request(5, "preview"), request(6, "evaluation"))
    rig.add("a", credits=9, batch=8, rollout_versions=(0, 1))
    for _ in range(7):
        rig.complete(rig.last())
    assert len(rig.grants("a")) == 7
    assert all(len(grant.requests) == 1 for grant in rig.grants())


def test_rollouts_come_before_previews_before_evaluations_and_older_before_newer(rig: Rig) -> None:
    wanted = [
        request(0, "evaluation", 2),
        request(0, "evaluation", 1),
        request(0, "preview", 3),
        request(0, "preview", 2),
        request(0, iteration=2),
        request(0, iteration=1),
    ]
    rig.submit(*wanted)
    rig.add("a", credits=1, rollout_versions=(0, 1, 2), evaluation_versions=(1, 2))
    while rig.table.backlog():
        rig.complete(rig.last())
    assert [ids(grant) for grant in rig.grants()] == [[r.id] for r in reversed(wanted)]


def test_probes_come_after_the_other_rollouts(rig: Rig) -> None:
    rig.submit(*requests(4, is_probe=True, group=1), *requests(4), request(0, "preview"))
    rig.add("a", credits=1)
    for _ in range(2):
        rig.complete(rig.last())
    order = [(grant.requests[0].kind, grant.requests[0].is_probe) for grant in rig.grants()]
    assert order == [("rollout", False), ("rollout", True), ("preview", False)]


@pytest.mark.parametrize(("iteration", "first"), [(2, "rollout"), (3, "evaluation")])
def test_an_evaluation_that_is_more_than_two_iterations_old_is_as_urgent_as_a_rollout(
    rig: Rig, iteration: int, first: str
) -> None:
    rig.submit(request(0, "evaluation", 0))
    rig.submit(request(0, iteration=iteration))
    rig.add("a", credits=1, rollout_versions=(iteration,))
    assert rig.last().requests[0].kind == first


def test_what_is_begun_comes_before_what_is_not(rig: Rig) -> None:
    rig.add("a", credits=1)
    rig.submit(request(9))
    rig.commit(rig.last(), 1)
    rig.add("other", credits=0)
    rig.submit(*requests(4))
    rig.lose("a")
    rig.report("other", credits=1)
    assert (ids(rig.last()), steps(rig.last())) == ([request(9).id], [1])


def test_of_equally_urgent_requests_the_longest_come_first(rig: Rig) -> None:
    sizes = [(2, 1.0, 32), (9, 1.0, 32), (5, 1.0, 32), (5, 4.0, 32), (9, 1.0, 64)]
    for seed, (count, guidance, height) in enumerate(sizes):
        changed = {"steps": count, "guidance": guidance, "height": height}
        rig.submit(request(seed, settings=msgspec.structs.replace(SETTINGS, **changed)))
    rig.add("a", credits=1)
    for _ in sizes:
        rig.complete(rig.last())
    assert [grant.requests[0].seed for grant in rig.grants()] == [4, 3, 1, 2, 0]


def test_a_group_gets_the_prompts_that_it_still_has(rig: Rig) -> None:
    rig.submit(*(request(seed, group=group) for group in (0, 1) for seed in range(2)))
    rig.add("a", batch=2, prompts=("prompt 1",), credits=1)
    assert ids(rig.last()) == [request(seed, group=1).id for seed in range(2)]
    rig.complete(rig.last())
    assert ids(rig.last()) == [request(seed, group=0).id for seed in range(2)]


def test_the_prompts_that_a_group_has_do_not_outweigh_urgency(rig: Rig) -> None:
    rig.submit(request(0, "preview", group=1), request(0))
    rig.add("a", prompts=("prompt 1",), credits=1)
    assert rig.last().requests[0].kind == "rollout"


def test_near_the_end_nothing_waits_behind_a_busy_worker(rig: Rig) -> None:
    rig.add("busy")
    rig.submit(*requests(8))
    assert len(rig.grants("busy")) == 1, "the rest could go to a worker that becomes idle"
    rig.add("idle")
    assert len(rig.grants("idle")) == 1


def test_while_much_waits_a_busy_worker_has_one_batch_waiting(rig: Rig) -> None:
    rig.add("busy")
    rig.submit(*requests(40))
    assert len(rig.grants()) == 2


def test_less_urgent_requests_do_not_make_a_busy_worker_take_what_others_could_begin(
    rig: Rig,
) -> None:
    rig.add("eager")
    rig.submit(*requests(8), *requests(40, "evaluation"))
    assert len(rig.grants("eager")) == 1
    rig.add("other")
    assert [r.kind for r in rig.grants("other")[0].requests] == ["rollout"] * 4


def test_images_that_only_wait_for_their_rewards_do_not_keep_a_worker_from_more(rig: Rig) -> None:
    rig.add("a")
    rig.submit(*requests(8))
    first = rig.last()
    for step in range(1, STEPS):
        rig.commit(first, step)
        assert len(rig.grants()) == 1
    rig.commit(first, STEPS)
    assert len(rig.grants()) == 2
    rig.complete(rig.last())
    rig.complete(first)
    assert len(rig.finished()) == 8


def test_a_worker_that_failed_less_comes_first(rig: Rig) -> None:
    rig.add("bad")
    rig.submit(request(0))
    rig.fail(rig.last())
    rig.complete(rig.last())
    rig.add("good")
    rig.submit(request(1))
    assert rig.last().worker == "good"


def test_barred_workers_get_nothing_until_they_are_free(rig: Rig) -> None:
    rig.add("a")
    rig.bar("a")
    rig.submit(request(0))
    assert rig.grants() == []
    rig.bar()
    assert len(rig.grants()) == 1


def test_what_a_barred_worker_gives_back_is_scored_elsewhere(rig: Rig) -> None:
    rig.add("maker")
    rig.submit(request(0))
    rig.commit(rig.last(), STEPS)
    rig.bar("maker")
    rig.add("other")
    rig.give_back(rig.last("maker"))
    assert steps(rig.last("other")) == [STEPS]


def test_nothing_is_granted_before_groups_with_earlier_leases_could_be_heard() -> None:
    rig = Rig(grants_from=3.0)
    rig.add("a")
    rig.submit(request(0))
    rig.wait(2)
    assert rig.grants() == []
    rig.wait(1)
    assert len(rig.grants()) == 1


# --- groups of several members ---


def test_those_who_follow_get_nothing(rig: Rig) -> None:
    rig.lead("a", "b", "c")
    rig.submit(*requests(20))
    assert Counter(grant.worker for grant in rig.grants()) == {"a": 2}


def test_one_who_followed_gets_work_as_soon_as_it_reports_for_itself(rig: Rig) -> None:
    rig.lead("a", "b")
    rig.submit(*requests(40))
    rig.report("b", members=0, credits=0)
    assert rig.table.groups.of("b") == ("a", 2), "it says only that it takes nothing"
    rig.report("b")
    assert len(rig.grants("b")) == 2
    assert rig.table.groups.of("a") == ("a", 1)


def test_whoever_is_in_a_group_no_more_is_alone_again(rig: Rig) -> None:
    groups = rig.table.groups
    rig.lead("a", "b", "c", "d")
    assert {groups.of(name) for name in "abcd"} == {("a", 4)}
    rig.lead("a", "b")
    rig.lead("c", "d")
    assert [groups.of(name) for name in "abcd"] == [("a", 2), ("a", 2), ("c", 2), ("c", 2)]
    rig.lead("d", "a", "b", "c")
    assert {groups.of(name) for name in "abcd"} == {("d", 4)}
    rig.lose("d")
    assert [groups.of(name) for name in "abc"] == [("a", 1), ("b", 1), ("c", 1)]


def test_losing_one_who_follows_costs_its_group_nothing(rig: Rig) -> None:
    rig.lead("a", "b", "c")
    rig.submit(*requests(4))
    rig.lose("b")
    rig.lead("a", "c", holds=[rig.last()])
    assert rig.tally.handed_on == 0
    assert rig.revoked() == []
    assert rig.complete(rig.last()).accepted == 4


def test_what_a_lost_leader_held_goes_on_at_once_with_one_who_followed(rig: Rig) -> None:
    rig.join("b")
    rig.report("b")
    rig.lead("a", "b")
    rig.submit(*requests(4))
    grant = rig.last("a")
    rig.commit(grant, 1)
    rig.lose("a")
    assert (ids(rig.last("b")), steps(rig.last("b"))) == (ids(grant), [1] * 4)


def test_a_group_of_another_size_keeps_the_leases_of_its_leader(rig: Rig) -> None:
    rig.lead("a", "b", "c", "d")
    rig.submit(*requests(4))
    for followers in ("b", "", "bcd"):
        rig.lead("a", *followers, holds=[rig.last()])
    assert rig.revoked() == []
    assert len(rig.grants()) == 1
    assert rig.complete(rig.last()).accepted == 4


def test_one_who_follows_gives_back_what_it_has_in_its_time(rig: Rig) -> None:
    rig.add("b")
    rig.submit(*requests(4))
    grant = rig.last()
    rig.add("free", credits=1)
    rig.profile.known = {1: 1.0}
    rig.lead("a", "b", credits=0)
    rig.wait(3, grant, members=0, credits=0)
    assert rig.recalled() == rig.revoked() == []
    rig.commit(grant, 1)
    rig.give_back(grant)
    assert (ids(rig.last("free")), steps(rig.last("free"))) == (ids(grant), [1] * 4)
    assert rig.tally.handed_on == 0


def test_near_the_end_nothing_waits_behind_a_busy_group(rig: Rig) -> None:
    rig.lead("a", "b", "c", "d")
    rig.submit(*requests(12))
    assert len(rig.grants()) == 2, "8 that wait are more than a batch for a group"
    rig.complete(rig.grants()[0])
    assert len(rig.grants()) == 2, "4 are not"


def test_paces_are_measured_by_the_number_of_members(rig: Rig) -> None:
    rig.add("a", batch=1, credits=1)
    rig.submit(*requests(8))
    for members, seconds in [(4, 8.0), (1, 28.0), (0, 99.0), (1, 0.0), (1, -1.0)]:
        rig.complete(rig.last(), members=members, seconds=seconds)
    for seconds in (float("nan"), float("inf")):
        rig.complete(rig.last(), seconds=seconds)
    rig.complete(rig.last(), steps=0)  # it only scored
    assert rig.profile.measured == [(4, 2.0), (1, 7.0)]
    assert len(rig.finished()) == 8


# --- what waits ---


def test_the_backlog_is_what_is_not_denoised_yet(rig: Rig) -> None:
    rig.add("a", credits=1)
    rig.submit(*requests(10), *requests(3, "evaluation", iteration=7))
    rollouts, evaluations = rig.table.backlog()
    assert (rollouts.kind, rollouts.queued, rollouts.leased) == ("rollout", 6, {"a's": 1})
    assert rollouts.batches == 3, "6 requests are two batches of at most 4"
    assert (evaluations.kind, evaluations.queued, evaluations.leased) == ("evaluation", 3, {})
    for _ in range(2):
        rig.complete(rig.last())
    rig.commit(rig.last(), STEPS)
    assert rig.table.backlog() == (evaluations,), "what waits for its rewards is denoised"
    rig.lose("a")
    assert rig.table.backlog() == (evaluations,)


def test_work_of_one_kind_is_listed_apart_where_its_settings_differ(rig: Rig) -> None:
    short = msgspec.structs.replace(SETTINGS, steps=2, shift=1.0, window=(0, 1))
    rig.submit(request(0, settings=short), request(1), request(0, "preview"))
    kinds = [(work.kind, work.settings.steps) for work in rig.table.backlog()]
    assert sorted(kinds[:2]) == [("rollout", 2), ("rollout", STEPS)]
    assert kinds[2:] == [("preview", STEPS)]


def test_the_outline_of_the_backlog_changes_with_its_kinds_and_when_it_is_scarce(rig: Rig) -> None:
    for name in "abc":
        rig.add(name, credits=1)
    outlines = [rig.table.backlog_outline()]
    rig.submit(*requests(24))
    outlines.append(rig.table.backlog_outline())
    for worker in "aaaabc":
        rig.complete(rig.last(worker))
        outlines.append(rig.table.backlog_outline())
    changed = [one != other for one, other in pairwise(outlines)]
    assert changed == [True, False, False, False, True, True, True]


# --- what it costs ---


@dataclass(frozen=True)
class CountedReport(GroupReport):
    """Counts how often it is read."""

    reads: Any = None

    def __getattribute__(self, name: str) -> Any:
        if not name.startswith("__") and name != "reads":
            object.__getattribute__(self, "reads").append(name)
        return object.__getattribute__(self, name)


@pytest.mark.parametrize("load", ["busy", "idle", "without the weights"])
def test_a_report_costs_the_same_with_many_other_workers(load: str) -> None:
    """Else a coordinator of a thousand of them would be busy with nothing else."""
    costs = []
    for count in (10, 1000):
        rig, reads = Rig(), []
        versions = () if load == "without the weights" else (0,)
        for number in range(count):
            rig.join(f"w{number}")
            report = CountedReport(rollout_versions=versions, reads=reads)
            rig.carry_out(rig.table.report(f"w{number}", 1, report, 0.0))
        if load != "idle":
            rig.submit(*requests(4 * count + 4))
        rig.add("a", credits=1)
        reads.clear()
        rig.report("a", *rig.grants("a"), credits=1)
        if rig.grants("a"):
            rig.commit(rig.last("a"), 1)
            rig.complete(rig.last("a"))
        costs.append(len(reads))
    assert costs[0] == costs[1] < 20
