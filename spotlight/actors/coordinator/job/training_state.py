"""The state of training outlives the trainers: after every iteration it is in stores of several
machines, from which others go on; and now and then it becomes a checkpoint in the run folder.

Which rank leaves it in which stores is decided by `TrainerMachine`. A checkpoint is made of all
parts at once. Nothing needs a shared file system.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

from spotlight.actors.coordinator.tenant.job_journal import TrainingState
from spotlight.actors.protocol.trainer import EXPORT, ExportedModel, StateParts, state_key
from spotlight.errors import RunFolderError, TransferFailed, UserError
from spotlight.policies.checkpoint_retention import scores_of
from spotlight.policies.trainer_orders import Export, Keep, WriteCheckpoint
from spotlight.preflight.starts import Start, find_start
from spotlight.record.run_events import CheckpointSaved, ModelExported, WeightsTaken
from spotlight.store.run_folder import checkpoint_path
from spotlight.store.start_file import write_start
from spotlight.transport.tensors.keys import checked

if TYPE_CHECKING:
    from spotlight.actors.coordinator.job.job_runner import JobRunner

_CHECKPOINT = "state/checkpoint"
"""The key of a checkpoint while trainers read it."""
_JOINED = "state/joined"
"""The key of a checkpoint while it is made of parts."""


class TrainingStates:
    """See the module's docstring."""

    def __init__(self, job: JobRunner) -> None:
        self._job = job
        self._store, self._journal, self._record = job.store, job.journal, job.record

    # --- kept for other trainers ---

    async def write_checkpoint(self, order: WriteCheckpoint) -> None:
        """Have it in the run folder; in the job's next turn the next state may take its place in
        the store."""
        path, problem = self._record.run.path / checkpoint_path(order.completed), None
        keys = [state_key(order.completed, part) for part in range(order.parts)]
        try:
            if order.parts > 1:
                await self._store.join(keys, _JOINED)
            await self._store.hand_out(_JOINED if order.parts > 1 else keys[0], path)
        except TransferFailed as error:
            problem = RunFolderError(
                f"{path} cannot be written: {error}; free some space or give another "
                "--run-folder, then continue with --resume"
            )
            problem.__cause__ = error
        self._store.delete(_JOINED)

        async def settle() -> None:
            if problem is not None:
                self._record.stop_for(problem)
            else:
                self._job.team.checkpoint_written()

        self._job.call_in_turn(settle)

    def keep(self, left: Keep) -> None:
        """Everybody has left a state: lost trainers go on from here now."""
        place = self._store.endpoint.place
        here = [offer for offers in left.parts for offer in offers if offer.store.place == place]
        at_nodes = tuple(
            tuple(offer for offer in offers if offer.store.place != place) for offers in left.parts
        )
        state = TrainingState(left.completed, at_nodes, tuple(here))
        self._record.write(lambda: self._note(state))

    def checkpointed(self, completed: int) -> None:
        """A checkpoint is durable, and the state is on record."""
        path = str(self._record.run.path / checkpoint_path(completed))
        self._record.event(CheckpointSaved(iteration=completed, path=path))
        self._job.saved(completed)

    def _note(self, state: TrainingState) -> None:
        """Samples go only when that is on record."""
        before = self._journal.state() or self._journal.checkpoint()
        self._journal.save_state(state)
        for iteration in range(before.completed if before else 0, state.completed):
            self._job.rollouts.release(iteration)
        self._job.keepers.released()
        self._job.publisher.state_kept()

    def go_on(self, completed: int, committed: int, *, can_save: bool) -> None:
        """What an earlier runner of the job may have left undone: the trainers, which are there,
        are to save their state, or a checkpoint that is written is still to be used."""
        state = self._journal.state()
        if state is not None:
            for iteration in range(max(0, state.completed - 2), state.completed):
                self._job.rollouts.release(iteration)
        if committed == completed:
            return
        if state is None or state.completed != completed:
            if can_save:
                self._job.team.save(completed)
        elif self._job.progress.schedule.saves(completed):
            self._job.saved(completed)

    def forget(self) -> None:
        """It cannot be had: the next trainers begin from the checkpoint."""
        self._record.write(lambda: self._journal.save_state(None))

    # --- for trainers that begin ---

    @property
    def versions_ahead(self) -> frozenset[int]:
        """The weights version with which the samples were made ahead that other trainers would
        train on first, from the newest state that was left; none where no samples are made
        ahead."""
        state = self._journal.state()
        if state is None or not state.completed or not self._job.spec.trains_on_older:
            return frozenset()
        return frozenset({state.completed - 1})

    @property
    def kept(self) -> tuple[int, StateParts]:
        """Iterations in the newest state that was left, and where its parts can be had; nobody has
        it any more if there are none."""
        state = self._journal.state()
        if state is None:
            return 0, ()
        places = {node.store.place for node in self._job.roster.nodes.values()}
        parts = tuple(
            (*(offer for offer in offers if offer.store.place in places), *state.here[part:][:1])
            for part, offers in enumerate(state.at_nodes)
        )
        return state.completed, parts if all(parts) else ()

    async def checkpoint(self, completed: int) -> StateParts:
        """Where trainers can have the checkpoint; nowhere before the first one, unless the job
        begins with other weights than its model's. Raises `TransferFailed` if it is not there."""
        path = self._record.run.path / checkpoint_path(completed)
        if not completed:
            if not self._job.spec.model.start:
                return ()
            if not path.exists():
                await self._take_start(path)
        return ((await self._store.take_in(path, _CHECKPOINT),),)

    async def _take_start(self, path: Path) -> None:
        """Have the weights that the job begins with in its own run folder: who wrote them may
        delete them."""

        def take() -> Start:
            start = find_start(self._job.spec.model)
            write_start(path, start.pieces, start.metadata)
            return start

        try:
            start = await asyncio.to_thread(take)
        except (UserError, OSError) as error:
            raise TransferFailed(str(error)) from error
        self._record.event(WeightsTaken(source=start.name, score=start.score))

    # --- for others ---

    async def export(self, completed: int) -> None:
        """Have the trainers, which have trained so many iterations, write the best weights for
        others to load."""
        try:
            best = self._record.run.best_checkpoint()
            ((state,),) = await self.checkpoint(best)
        except RunFolderError as error:
            self._record.stop_for(error)
        except TransferFailed as error:
            self._record.stop_for(RunFolderError(f"the best checkpoint is not there: {error}"))
        else:
            self._job.team.order(Export(completed, best, state))

    async def keep_export(self, exported: ExportedModel) -> None:
        """The files are in the run folder's store; they take the place of an earlier export all at
        once."""
        run = self._record.run
        try:
            with run.new_export() as folder:
                for file in exported.files:
                    name = checked(file.key).removeprefix(f"{EXPORT}/")
                    await self._store.hand_out(file.key, folder / name)
        except TransferFailed as error:
            problem = RunFolderError(f"the export cannot be kept: {error}")
            problem.__cause__ = error
            return self._record.stop_for(problem)
        except RunFolderError as error:
            return self._record.stop_for(error)
        score = scores_of(run.validations).get(exported.checkpoint)
        self._record.event(ModelExported(iteration=exported.checkpoint, score=score))
        self._job.exported()
