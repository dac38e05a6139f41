"""The state of training: who leaves it where, and who can have it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from depot_kit import Depot, node_store, open_depot
from job_kit import STORE, job, offer, settle
from msgspec import structs

from spotlight.actors.coordinator.tenant.job_journal import (
    Checkpoint,
    JobJournal,
    SavedProgress,
    TrainingState,
)
from spotlight.actors.protocol.trainer import ExportedModel, ExportModel, Train, state_key
from spotlight.errors import JournalError, TransferFailed
from spotlight.policies import trainer_orders as orders
from spotlight.policies.exploration.explored import Explored
from spotlight.record.run_metrics import ValidationMetrics
from spotlight.store.run_folder import checkpoint_path
from spotlight.transport.tensors import fetch

pytestmark = pytest.mark.virtual_time


@pytest.fixture
async def depot(tmp_path: Path) -> AsyncIterator[Depot]:
    async with open_depot(tmp_path / "run", job()) as depot:
        yield depot


# --- who leaves it where ---


async def test_the_run_folders_store_has_the_state_when_a_checkpoint_is_due(depot: Depot) -> None:
    await depot.train_on("a", "b")
    depot.team.save(3)
    told = await depot.told()
    assert told[0].stores == (node_store("a"), depot.store.writable_by("a", "state"))
    assert told[1].stores == (node_store("b"),)


async def test_two_states_in_a_row_have_places_of_their_own(depot: Depot) -> None:
    assert state_key(4) != state_key(5)
    assert state_key(4) == state_key(6)


# --- when it is kept ---


async def test_lost_trainers_go_on_from_a_state_when_all_have_left_it(depot: Depot) -> None:
    await depot.train_on("a", "b")
    await depot.save(1, answer=False)
    told = await depot.told()
    await depot.hear(1, depot.saved(told[1]))
    assert depot.journal.state() is None
    await depot.hear(0, depot.saved(told[0]))
    at_nodes = ((offer(state_key(1), node_store("a")), offer(state_key(1), node_store("b"))),)
    assert depot.journal.state() == TrainingState(1, at_nodes)
    assert depot.states.kept == (1, at_nodes)


async def test_the_copy_in_the_run_folders_store_is_the_last_to_be_asked_for(depot: Depot) -> None:
    await depot.train_on("a")
    await depot.save(1)
    completed, ((first, last),) = depot.states.kept
    assert (completed, first.store) == (1, node_store("a"))
    assert await fetch(last) == b"state 1"


async def test_samples_are_kept_until_the_state_after_them_is(depot: Depot) -> None:
    await depot.train_on("a")
    await depot.save(1)
    assert depot.used == [0]
    await depot.save(2, answer=False)
    assert depot.used == [0]
    await depot.hear(0, depot.saved((await depot.told())[0]))
    assert depot.used == [0, 1]


async def test_without_a_checkpoint_due_nothing_is_written_into_the_run_folder(
    depot: Depot,
) -> None:
    await depot.train_on("a")
    await depot.save(1)
    assert not depot.checkpoint(1).exists()
    assert depot.checkpointed == []


# --- checkpoints ---


async def test_a_checkpoint_is_the_state_that_the_first_rank_left(depot: Depot) -> None:
    await depot.train_on("a", "b")
    await depot.save(3)
    assert depot.checkpoint(3).read_bytes() == b"state 3"
    assert depot.checkpointed == [3]
    assert '"checkpoint_saved"' in depot.events()


async def test_the_next_state_waits_until_the_checkpoint_is_in_the_run_folder(depot: Depot) -> None:
    """Else the next state but one might take its place in the store before."""
    depot.store.may_hand_out.clear()
    await depot.train_on("a")
    await depot.save(3)
    depot.team.save(4)
    depot.team.order(orders.Train(4, 0, ()))
    await asyncio.sleep(10.0)
    await depot.hear(0, depot.saved((await depot.told())[0]))  # it was reminded
    await settle()
    assert (depot.checkpointed, depot.journal.state()) == ([], None)
    assert depot.ranks[0].all(Train) == [], "its word could not say what to save"
    depot.store.may_hand_out.set()
    await settle()
    assert (depot.checkpointed, depot.states.kept[0]) == ([3], 3)
    (train,) = depot.ranks[0].all(Train)
    assert train.save is not None
    assert train.save.iteration == 4


async def test_a_checkpoint_stays_when_later_states_take_its_place_in_the_store(
    depot: Depot,
) -> None:
    await depot.train_on("a")
    for completed in (3, 4, 5):
        await depot.save(completed)
    assert depot.checkpoint(3).read_bytes() == b"state 3"


async def test_a_checkpoint_that_cannot_be_written_ends_the_job_with_its_path(
    depot: Depot,
) -> None:
    (depot.folder.path / "checkpoints").write_text("in the way")
    await depot.train_on("a")
    await depot.save(3)
    (reason,) = depot.failures
    assert str(depot.checkpoint(3)) in reason
    assert (depot.checkpointed, depot.journal.state()) == ([], None)


async def test_a_state_that_cannot_be_noted_ends_the_job(
    depot: Depot, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(journal: JobJournal, state: TrainingState) -> None:
        raise JournalError("the disk is full")

    await depot.train_on("a")
    monkeypatch.setattr(JobJournal, "save_state", refuse)
    await depot.save(1)
    assert depot.failures == ["the disk is full"]
    assert depot.used == [], "its samples may be needed by whoever resumes"


async def test_trainers_can_have_a_checkpoint_from_the_run_folders_store(depot: Depot) -> None:
    await depot.train_on("a")
    await depot.save(3)
    ((checkpoint,),) = await depot.states.checkpoint(3)
    assert await fetch(checkpoint) == b"state 3"
    assert await depot.states.checkpoint(0) == ()


async def test_a_checkpoint_that_is_not_there_is_named(depot: Depot) -> None:
    with pytest.raises(TransferFailed, match=r"iteration-000003\.safetensors: No such file"):
        await depot.states.checkpoint(3)


# --- who has it ---


async def test_a_state_whose_holder_is_gone_is_not_offered(depot: Depot) -> None:
    await depot.train_on("a", "b")
    await depot.save(1)
    depot.nodes.lose("a")
    assert depot.states.kept == (1, ((offer(state_key(1), node_store("b")),),))
    depot.nodes.lose("b")
    assert depot.states.kept == (1, ())


async def test_a_node_that_came_back_as_another_process_has_no_state(depot: Depot) -> None:
    await depot.train_on("a", "b")
    await depot.save(1)
    again = structs.replace(depot.nodes.tenant.nodes["a"], store=structs.replace(STORE, port=77))
    depot.nodes.hear(again)
    assert depot.states.kept == (1, ((offer(state_key(1), node_store("b")),),))


async def test_a_state_that_is_lost_is_forgotten(depot: Depot) -> None:
    await depot.train_on("a")
    await depot.save(1)
    depot.states.forget()
    assert depot.states.kept == (0, ())
    assert depot.journal.state() is None


# --- what an earlier runner left undone ---


async def test_trainers_that_are_there_save_what_nobody_noted(depot: Depot) -> None:
    await depot.train_on("a")
    await depot.save(1)
    depot.states.go_on(2, 0, can_save=True)
    told = await depot.told()
    assert told[0].iteration == 2


async def test_trainers_that_have_gone_on_cannot_save_it_any_more(depot: Depot) -> None:
    await depot.train_on("a")
    await depot.save(1)
    depot.states.go_on(2, 0, can_save=False)
    told = await depot.told()
    assert told[0].iteration == 1


async def test_a_checkpoint_that_was_noted_but_not_used_is_used(depot: Depot) -> None:
    await depot.train_on("a")
    await depot.save(3)
    depot.states.go_on(3, 0, can_save=True)
    assert depot.checkpointed == [3, 3]
    depot.states.go_on(3, 3, can_save=True)
    assert depot.checkpointed == [3, 3], "it is committed"


async def test_samples_that_nobody_needs_any_more_are_dropped_though_a_kill_came_before(
    depot: Depot,
) -> None:
    depot.journal.save_state(TrainingState(2, ()))
    depot.states.go_on(2, 2, can_save=False)
    assert depot.used == [0, 1], "training may have been two iterations ahead of the state"


async def test_after_a_way_back_only_the_samples_since_the_checkpoint_are_dropped(
    depot: Depot,
) -> None:
    """However long the job has been running."""
    await depot.train_on("a")
    depot.journal.save_progress(progress := SavedProgress(6, Explored(6, (), (), 0, 0), ()))
    depot.journal.save_checkpoint(Checkpoint(progress.completed, checkpoint_path(6)), ())
    depot.states.forget()
    await depot.save(8)
    assert depot.used == [6, 7]


# --- exports ---


async def exporting(depot: Depot) -> ExportModel:
    """What the first rank is told; the checkpoint after 9 iterations is the only one."""
    await depot.train_on("a")
    await depot.save(9)
    depot.record.run.validation(ValidationMetrics(weights_version=9, score=0.5), ())
    await depot.states.export(9)
    await settle()
    return depot.ranks[0].last(ExportModel)


async def test_the_first_rank_is_told_where_the_best_checkpoint_is(depot: Depot) -> None:
    order = await exporting(depot)
    assert (order.iteration, order.checkpoint) == (9, 9)
    assert await fetch(order.state) == b"state 9"
    assert order.store == depot.store.writable_by("a", "export")


async def test_exported_files_are_in_the_run_folder_all_at_once(depot: Depot) -> None:
    await exporting(depot)
    files = tuple(depot.store.put(f"export/{name}", name.encode()) for name in ("a", "b/c"))
    await depot.hear(0, ExportedModel(9, files))
    await depot.hear(0, ExportedModel(9, files))
    export = depot.folder.path / "export"
    assert (export / "a").read_bytes() == b"a"
    assert (export / "b" / "c").read_bytes() == b"b/c"
    assert (depot.exported, depot.failures) == (1, [])


@pytest.mark.parametrize("key", ["export/../../outside", "/etc/passwd", "export/missing"])
async def test_files_that_cannot_be_kept_end_the_job_and_leave_the_earlier_export(
    depot: Depot, key: str
) -> None:
    await exporting(depot)
    (depot.folder.path / "export").mkdir()
    (depot.folder.path / "export" / "a").write_bytes(b"earlier")
    there = depot.store.put("export/a", b"new")
    await depot.hear(0, ExportedModel(9, (there, structs.replace(there, key=key))))
    assert (depot.folder.path / "export" / "a").read_bytes() == b"earlier"
    assert "the export cannot be kept" in depot.failures[0]
    assert depot.exported == 0


async def test_without_its_checkpoint_nothing_is_exported(depot: Depot) -> None:
    await depot.states.export(9)
    assert len(depot.failures) == 1
    assert depot.exported == 0
