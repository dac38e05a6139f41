"""Every invariant lets an undisturbed run pass, and catches what it is there for."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from history_kit import alter, is_found

from spotlight.actors.node.worker_plans import WorkerPlans
from spotlight.actors.protocol.up import Pull
from spotlight.actors.worker import step_loop
from spotlight.actors.worker.sp_group_view import SPGroupView, Versions
from spotlight.policies.requests.rows import Row, SavedRow
from spotlight.types import BundleOffer, Commit
from spotlight_simulation import fake_denoising, invariants, wiretap
from spotlight_simulation.chaos import scenario, silence, simulate
from spotlight_simulation.fake_hardware import LOST, UNCLEAR
from spotlight_simulation.freezing import FreezableLoop
from spotlight_simulation.job_life import Run

Invariant = Callable[[Run], Iterable[str]]
TRAINERS = [
    invariants.iterations_are_trained_in_order,
    invariants.weights_follow_from_the_samples,
]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run that nothing has disturbed, of a job whose training is exact."""
    folder = tmp_path_factory.mktemp("undisturbed")
    made = scenario(4, folder, kinds=())
    made = msgspec.structs.replace(made, exact_training=True)
    with silence(), asyncio.Runner(loop_factory=FreezableLoop) as runner:
        return runner.run(simulate(4, made, folder))


@pytest.fixture
def run(undisturbed: Run, tmp_path: Path) -> Iterator[Run]:
    """It, for a test to alter."""
    shutil.copytree(undisturbed.folder, tmp_path, dirs_exist_ok=True)
    happenings = list(undisturbed.history.happenings)
    yield dataclasses.replace(undisturbed, folder=tmp_path, outcomes=list(undisturbed.outcomes))
    undisturbed.history.happenings[:] = happenings


def violations(invariant: Invariant, run: Run) -> list[str]:
    return list(invariant(run))


def first_sample_becomes(run: Run, **fields: Any) -> None:
    rows: Any = run.history.all("train")[0]["samples"]
    names = ("request", "weights", "step", "latents", "advantage")
    row = tuple(fields.get(name, value) for name, value in zip(names, rows[0], strict=True))
    alter(run.history, "train", 0, samples=(row, *rows[1:]))


def test_an_undisturbed_run_violates_nothing(run: Run) -> None:
    for invariant in invariants.INVARIANTS:
        assert violations(invariant, run) == []
    assert run.history.violations == []
    assert run.outcomes == [("finished", "")]


def test_a_sample_that_is_not_what_its_request_gives_is_noticed(run: Run) -> None:
    first_sample_becomes(run, latents="0123456789abcdef")
    assert violations(invariants.samples_are_functions_of_their_requests, run)


def test_a_sample_of_other_weights_is_noticed(run: Run) -> None:
    first_sample_becomes(run, weights="0123456789abcdef")
    assert violations(invariants.nothing_mixes_weights, run)


def test_a_sample_that_counts_twice_is_noticed(run: Run) -> None:
    rows: Any = run.history.all("train")[1]["samples"]
    alter(run.history, "train", 1, samples=(*rows[:-1], rows[0]))
    assert violations(invariants.samples_count_once, run)


def test_a_sample_of_another_iteration_is_noticed(run: Run) -> None:
    rows: Any = run.history.all("train")[0]["samples"]
    alter(run.history, "train", 1, samples=rows)
    assert violations(invariants.samples_count_once, run)


def test_a_prompt_group_that_is_missing_without_a_word_is_noticed(run: Run) -> None:
    rows: Any = run.history.all("train")[0]["samples"]
    alter(run.history, "train", 0, samples=tuple(row for row in rows if "/0/0/0/" in row[0]))
    assert violations(invariants.samples_count_once, run)


def test_an_advantage_that_is_not_of_the_rollouts_is_noticed(run: Run) -> None:
    first_sample_becomes(run, advantage=0.123)
    assert violations(invariants.advantages_come_from_these_rollouts, run)


def test_the_first_part_may_be_scaled_by_what_was_chosen_by_then(run: Run) -> None:
    rows: Any = run.history.all("train")[0]["samples"]
    first = len(rows) // 2
    for scales, noticed in (([0.8] * first, False), ([0.8, *[0.7] * (first - 1)], True)):
        changed = [(*row[:4], row[4] * by) for row, by in zip(rows, scales, strict=False)]
        alter(run.history, "train", 0, samples=(*changed, *rows[first:]), first=first)
        assert bool(violations(invariants.advantages_come_from_these_rollouts, run)) == noticed


def test_the_later_part_may_not(run: Run) -> None:
    rows: Any = run.history.all("train")[0]["samples"]
    first = len(rows) // 2
    changed = [(*row[:4], row[4] * 0.8) for row in rows[first:]]
    alter(run.history, "train", 0, samples=(*rows[:first], *changed), first=first)
    assert violations(invariants.advantages_come_from_these_rollouts, run)


def test_a_group_in_both_parts_is_noticed(run: Run) -> None:
    assert not violations(invariants.later_samples_are_of_whole_groups, run)
    alter(run.history, "train", 0, first=3)
    assert violations(invariants.later_samples_are_of_whole_groups, run)


@pytest.mark.parametrize(
    ("told", "on_its_way", "noticed"), [(3, False, True), (3, True, False), (4, False, False)]
)
def test_a_loss_of_more_steps_than_commits_leave_open_is_noticed(
    run: Run, told: int, on_its_way: bool, noticed: bool
) -> None:
    lost = {"worker": "w", "lease": 1, "step": 7, "told": told, "every": 2}
    run.history.add("lost_work", **lost, on_its_way=on_its_way, requests=())
    assert bool(violations(invariants.little_is_denoised_again, run)) == noticed


def test_a_group_with_two_settings_is_noticed(run: Run) -> None:
    settings: Any = run.history.all("train")[0]["settings"]
    alter(run.history, "train", 0, settings=((settings[0][0], "others"), *settings[1:]))
    assert violations(invariants.groups_share_their_settings, run)


def test_an_iteration_that_is_trained_again_is_noticed(run: Run) -> None:
    run.history.happenings.append(run.history.all("train")[-1])
    assert violations(invariants.iterations_are_trained_in_order, run)


def test_a_checkpoint_that_counts_before_its_validations_is_noticed(run: Run) -> None:
    last = run.history.all("checkpoint")[-1]
    assert last["completed"] in last["validated"], "the last one waits for its own, too"
    assert not violations(invariants.checkpoints_wait_for_validations, run)
    alter(run.history, "checkpoint", -1, validated=(0,))
    assert violations(invariants.checkpoints_wait_for_validations, run)


@pytest.mark.parametrize("invariant", TRAINERS)
def test_an_update_that_trainers_finish_in_vain_is_none(run: Run, invariant: Invariant) -> None:
    again = run.history.all("train")[0]
    for term, count in ((0, 0), (1, 1)):
        run.history.happenings.append(again)
        alter(run.history, "train", -1, term=term)
        assert len(violations(invariant, run)) == count
        run.history.happenings.pop()


def test_a_plan_that_changes_is_noticed(run: Run) -> None:
    others = range(2 * run.scenario.job.samples_per_iteration)
    alter(run.history, "denoise", 0, requests=tuple(f"rollout/0/0/{number}" for number in others))
    assert violations(invariants.plans_outlive_the_coordinator, run)


def test_weights_that_do_not_follow_from_those_before_are_noticed(run: Run) -> None:
    alter(run.history, "train", 1, weights="0123456789abcdef")
    assert violations(invariants.weights_follow_from_the_samples, run)


def test_a_job_that_ends_for_no_good_reason_is_noticed(run: Run) -> None:
    run.outcomes.insert(0, ("failed", "the job runner crashed"))
    assert violations(invariants.jobs_end, run)


@pytest.mark.parametrize(
    ("error", "other_fault", "is_violation"),
    [
        (LOST, "", True),
        (LOST, "kill_node", True),
        (UNCLEAR, "", True),
        (UNCLEAR, "kill_node", False),
    ],
)
def test_a_prompt_group_that_a_sick_worker_costs_is_noticed(
    run: Run, error: str, other_fault: str, is_violation: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless it may have been the only worker, and its error did not say that it is sick."""
    effective = Counter(["sick_accelerator", *filter(None, [other_fault])])
    monkeypatch.setattr(run.history, "effective", effective)
    record(run, {"event": "group_dropped", "iteration": 0, "prompt": "p", "reason": error})
    assert bool(violations(invariants.sickness_costs_no_group, run)) == is_violation


def test_an_iteration_that_is_not_on_record_is_noticed(run: Run) -> None:
    metrics = run.run_folder / "metrics.jsonl"
    lines = metrics.read_text().splitlines(keepends=True)
    metrics.write_text("".join(line for line in lines if '"iteration": 1,' not in line))
    assert violations(invariants.records_are_complete, run)


def test_samples_that_cannot_be_made_any_more_are_noticed(run: Run) -> None:
    record(run, {"event": "samples_outdated", "iteration": 1, "samples": 2})
    assert violations(invariants.samples_are_made_in_time, run)


def test_a_worker_that_works_before_it_starts_is_noticed(run: Run) -> None:
    state = {"time_s": 1e9, "event": "worker_state", "worker": "new/0", "state": "idle"}
    with open(run.run_folder / "states.jsonl", "a") as file:
        file.write(json.dumps(state) + "\n")
    assert violations(invariants.time_adds_up, run)


def test_time_that_goes_back_is_noticed(run: Run) -> None:
    record(run, {"time_s": 0.0, "event": "phase", "phase": "train"})
    assert violations(invariants.time_adds_up, run)


def test_a_bundle_that_is_left_over_is_noticed(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    (disk, *_) = run.cluster.stores.all_in_use().values()
    monkeypatch.setitem(disk.bundles, "samples/left/over", b"data")
    assert violations(invariants.leaves_nothing_in_stores, run)


def test_a_sample_that_is_deleted_too_early_is_noticed(run: Run) -> None:
    run.history.add("trainer_failed", worker="reserved/0", error="get a failed: no such bundle")
    assert violations(invariants.nothing_needed_is_deleted, run)


def test_a_resumed_sample_that_lacks_a_step_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    real = fake_denoising.decode_commit

    def one_step_further(data: bytes) -> fake_denoising.CommitBundle:
        bundle = real(data)
        rows = (msgspec.structs.replace(row, latents=f"{row.latents}+") for row in bundle.rows)
        partial = bundle.rows[0].step < bundle.rows[0].request.settings.steps
        return msgspec.structs.replace(bundle, rows=tuple(rows)) if partial else bundle

    monkeypatch.setattr(fake_denoising, "decode_commit", one_step_further)
    # A sample must happen to be made twice, once of them resumed.
    assert is_found("samples_are_functions", ["kill_node", "notice_then_kill"], range(6, 46))


def test_a_leader_that_stays_drained_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    set_stop = WorkerPlans.set_stop

    def never_withdraw(plans: WorkerPlans, stop_at: float | None) -> None:
        if stop_at is not None:
            set_stop(plans, stop_at)

    monkeypatch.setattr(WorkerPlans, "set_stop", never_withdraw)
    assert is_found("takes nothing more", ["notice_no_kill"])


def test_a_commit_that_is_forgotten_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    from spotlight.policies.requests.accounts import Accounts

    persist = Accounts.persist

    def save(self: Accounts, rows: Mapping[int, Row], step: int, bundle: BundleOffer) -> None:
        persist(self, {r.request.id: SavedRow(Commit(step, bundle, i)) for i, r in rows.items()})

    monkeypatch.setattr(Accounts, "save", save)
    assert is_found("granted without its commit", ["kill_node", "notice_then_kill"])


def test_a_completion_that_is_forgotten_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    from spotlight.actors.coordinator.tenant.job_journal import JobJournal

    monkeypatch.setattr(JobJournal, "requests", lambda self: {})
    assert is_found("granted after its completion", ["coordinator_kill"])


def test_commits_that_are_never_due_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_loop, "commit_due", lambda *_, **__: False)
    # A worker must be lost when it has taken more steps than there are between two commits.
    assert is_found("little_is_denoised_again", ["kill_node", "kill_worker"], range(13, 53))


def test_a_worker_that_is_granted_what_it_has_no_weights_for_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    serves = SPGroupView.serves

    def the_next_too(group: SPGroupView, rollout: set[int], evaluation: set[int]) -> Versions:
        versions = serves(group, rollout, evaluation)
        return {*versions[0], *(version + 1 for version in versions[0])}, versions[1]

    monkeypatch.setattr(SPGroupView, "serves", the_next_too)
    assert is_found("has not reported its weights", ["notice_no_kill"])


def test_a_right_that_somebody_lacks_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    only_trainers = frozenset(("trainer",))
    monkeypatch.setattr(wiretap, "MAY_SAY", {**wiretap.MAY_SAY, Pull: only_trainers})
    assert is_found("coordinator#1 refuses Pull of memory://spot-1/0", ["notice_no_kill"], seeds=2)


def record(run: Run, event: dict[str, Any]) -> None:
    path = run.run_folder / "events.jsonl"
    last = json.loads(path.read_text().splitlines()[-1])
    path.write_text(path.read_text() + json.dumps({"time_s": last["time_s"], **event}) + "\n")
