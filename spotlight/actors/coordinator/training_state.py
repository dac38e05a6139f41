"""The state of training outlives the trainers: after every iteration it is in stores of several
machines, from which others go on; and now and then it becomes a checkpoint in the run folder.

All ranks hold the same state, so one rank per node leaves it in its node's store. While only one
node trains, the first rank leaves it in the run folder's store, too. Nothing needs a shared file
system.
"""

from __future__ import annotations

from collections.abc import Callable

from spotlight.actors.coordinator.job_journal import JobJournal, TrainingState
from spotlight.actors.coordinator.job_record import JobRecord
from spotlight.actors.coordinator.roster import Roster
from spotlight.actors.coordinator.trainer_team import Stores, TrainerTeam
from spotlight.actors.protocol import ExportedModel, SavedState, state_key
from spotlight.actors.runtime import Actor
from spotlight.errors import RunFolderError, TransferFailed
from spotlight.policies.checkpoint_retention import scores_of
from spotlight.policies.iteration import Schedule
from spotlight.run_events import CheckpointSaved, ModelExported
from spotlight.store.run_folder import checkpoint_path
from spotlight.transport.tensors import ArtifactStore
from spotlight.transport.tensors.keys import checked
from spotlight.types import BundleOffer

_CHECKPOINT = "state/checkpoint"
"""The key of a checkpoint while trainers read it."""
_EXPORT = "export/"
"""Before the names of exported files in their keys."""


class TrainingStates:
    """See the module's docstring.

    Args:
        actor: the job runner, in whose turns everything is settled.
        store: the run folder's.
        used: called with an iteration whose samples nobody will train on again.
        checkpointed: called with the iterations in a checkpoint that is durable.
        exported: called when the best weights are in the run folder.
    """

    def __init__(
        self,
        actor: Actor,
        schedule: Schedule,
        *,
        team: TrainerTeam,
        roster: Roster,
        store: ArtifactStore,
        journal: JobJournal,
        record: JobRecord,
        used: Callable[[int], None],
        checkpointed: Callable[[int], None],
        exported: Callable[[], None],
    ) -> None:
        self._actor = actor
        self._schedule = schedule
        self._team = team
        self._roster = roster
        self._store = store
        self._journal = journal
        self._record = record
        self._used = used
        self._checkpointed = checkpointed
        self._exported = exported
        self._saved: dict[int, SavedState] = {}
        """The answers to the order to save that is open, by rank."""
        self._settling = False
        """A checkpoint is being written."""

    # --- kept for other trainers ---

    def save(self, completed: int) -> None:
        """Have the trainers leave their state, and make a checkpoint of it if one is due."""
        self._saved = {}
        self._team.save(completed, lambda: self._stores(completed))

    def _stores(self, completed: int) -> dict[int, Stores]:
        ranks, nodes = self._team.ranks, dict[str, int]()
        for number, rank in enumerate(ranks):
            nodes.setdefault(rank.node, number)
        stores: dict[int, Stores] = {each: (ranks[each].store,) for each in nodes.values()}
        if len(nodes) == 1 or self._schedule.saves(completed):
            stores[0] = (*stores[0], self._store.writable_by(ranks[0].node))
        return stores

    def rank_saved(self, rank: int, saved: SavedState) -> None:
        """A rank has left its state; what is not of the open order changes nothing."""
        is_checkpoint = len(saved.offers) > 1 and self._schedule.saves(saved.iteration)
        if not self._team.awaits("save", saved.iteration, rank) or (
            is_checkpoint and self._settling
        ):
            return
        self._saved[rank] = saved
        if is_checkpoint:
            self._settling = True
            self._actor.run_task(self._write_checkpoint(rank, saved.iteration))
        elif self._team.answered("save", saved.iteration, rank):
            self._keep(saved.iteration)

    async def _write_checkpoint(self, rank: int, completed: int) -> None:
        """It is in the run folder before the next state may take its place in the store."""
        path, problem = self._record.run.path / checkpoint_path(completed), ""
        try:
            await self._store.hand_out(state_key(completed), path)
        except TransferFailed as error:
            problem = str(error)

        async def settle() -> None:
            self._settling = False
            if problem:
                self._record.stop_for(
                    RunFolderError(
                        f"{path} cannot be written: {problem}; free some space or give another "
                        "--run-folder, then continue with --resume"
                    )
                )
            elif self._team.answered("save", completed, rank):
                self._keep(completed)

        self._actor.call_in_turn(settle)

    def _keep(self, completed: int) -> None:
        """Everybody has answered: lost trainers go on from here now."""
        at_nodes = tuple(self._saved[rank].offers[0] for rank in sorted(self._saved))
        first = self._saved.get(0)
        here = first.offers[1] if first is not None and len(first.offers) > 1 else None
        state = TrainingState(completed, at_nodes, here)
        self._record.write(lambda: self._note(state))
        if self._schedule.saves(completed):
            path = str(self._record.run.path / checkpoint_path(completed))
            self._record.event(CheckpointSaved(iteration=completed, path=path))
            self._checkpointed(completed)

    def _note(self, state: TrainingState) -> None:
        """Samples go only when that is on record."""
        before = self._journal.state() or self._journal.checkpoint()
        self._journal.save_state(state)
        for iteration in range(before.completed if before else 0, state.completed):
            self._used(iteration)

    def go_on(self, completed: int, committed: int, *, can_save: bool) -> None:
        """What an earlier runner of the job may have left undone: the trainers, which are there,
        are to save their state, or a checkpoint that is written is still to be used."""
        state = self._journal.state()
        if state is not None:
            self._used(state.completed - 1)
        if committed == completed:
            return
        if state is None or state.completed != completed:
            if can_save:
                self.save(completed)
        elif self._schedule.saves(completed):
            self._checkpointed(completed)

    def forget(self) -> None:
        """It cannot be had: the next trainers begin from the checkpoint."""
        self._record.write(lambda: self._journal.save_state(None))

    # --- for trainers that begin ---

    @property
    def kept(self) -> tuple[int, tuple[BundleOffer, ...]]:
        """Iterations in the newest state that can be had, and from whom; nobody has it if there are
        no offers."""
        state = self._journal.state()
        if state is None:
            return 0, ()
        places = {node.store.place for node in self._roster.nodes.values()}
        at_nodes = tuple(offer for offer in state.at_nodes if offer.store.place in places)
        return state.completed, at_nodes if state.here is None else (*at_nodes, state.here)

    async def checkpoint(self, completed: int) -> tuple[BundleOffer, ...]:
        """Where trainers can have the checkpoint; nowhere before the first one. Raises
        `TransferFailed` if it is not there."""
        if not completed:
            return ()
        path = self._record.run.path / checkpoint_path(completed)
        return (await self._store.take_in(path, _CHECKPOINT),)

    # --- for others ---

    async def export(self, completed: int) -> None:
        """Have the trainers, which have trained so many iterations, write the best weights for
        others to load."""
        try:
            best = self._record.run.best_checkpoint()
            (state,) = await self.checkpoint(best)
        except RunFolderError as error:
            self._record.stop_for(error)
        except TransferFailed as error:
            self._record.stop_for(RunFolderError(f"the best checkpoint is not there: {error}"))
        else:
            self._team.export(completed, best, state, self._store.writable_by)

    async def rank_exported(self, rank: int, exported: ExportedModel) -> None:
        """The files are in the run folder's store; they take the place of an earlier export all at
        once."""
        if not self._team.awaits("export", exported.checkpoint, rank):
            return
        run = self._record.run
        try:
            with run.new_export() as folder:
                for file in exported.files:
                    name = checked(file.key).removeprefix(_EXPORT)
                    await self._store.hand_out(file.key, folder / name)
        except TransferFailed as error:
            return self._record.stop_for(RunFolderError(f"the export cannot be kept: {error}"))
        except RunFolderError as error:
            return self._record.stop_for(error)
        if self._team.answered("export", exported.checkpoint, rank):
            score = scores_of(run.validations).get(exported.checkpoint)
            self._record.event(ModelExported(iteration=exported.checkpoint, score=score))
            self._exported()
