"""The state of training outlives the trainers: after every iteration it is in stores of several
machines, from which others go on; and now and then it becomes a checkpoint in the run folder.

Ranks that hold the same state leave it once per node, in the node's store. While only one node
trains, the first rank leaves it in the run folder's store, too. Of a sharded model every rank
leaves its part twice: in its node's store, and in that of another node that trains, or the run
folder's if there is none; a checkpoint is made of all parts at once. Nothing needs a shared file
system.
"""

from __future__ import annotations

from collections.abc import Callable

from spotlight.actors.coordinator.fleet import Roster
from spotlight.actors.coordinator.job.job_record import JobRecord
from spotlight.actors.coordinator.job.trainer_team import Stores, TrainerTeam
from spotlight.actors.coordinator.tenant.job_journal import JobJournal, TrainingState
from spotlight.actors.protocol import ExportedModel, SavedState, StateParts, state_key
from spotlight.actors.protocol.trainer import STATE
from spotlight.actors.runtime import Actor
from spotlight.errors import RunFolderError, TransferFailed
from spotlight.policies.checkpoint_retention import scores_of
from spotlight.policies.iteration import Schedule
from spotlight.record.run_events import CheckpointSaved, ModelExported
from spotlight.store.run_folder import checkpoint_path
from spotlight.transport.tensors import ArtifactStore
from spotlight.transport.tensors.keys import checked

_CHECKPOINT = "state/checkpoint"
"""The key of a checkpoint while trainers read it."""
_JOINED = "state/joined"
"""The key of a checkpoint while it is made of parts."""
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
        """Have the trainers leave their state, when the one before is left, and make a checkpoint
        of it if one is due."""
        is_due = self._schedule.saves(completed)
        self._team.save(completed, lambda: self._stores(completed), is_checkpoint=is_due)

    def _stores(self, completed: int) -> dict[int, Stores]:
        """By rank; the run folder's is the last one."""
        ranks, nodes = self._team.ranks, dict[str, int]()
        for number, rank in enumerate(ranks):
            nodes.setdefault(rank.node, number)
        first_of_node = list(nodes.values())
        stores: dict[int, Stores] = {each: (ranks[each].store,) for each in first_of_node}
        if self._team.is_sharded:
            following = dict(zip(nodes, [*first_of_node[1:], first_of_node[0]], strict=True))
            for number, rank in enumerate(ranks):
                peer = ranks[following[rank.node]].store
                stores[number] = (rank.store, peer) if len(nodes) > 1 else (rank.store,)
        if len(nodes) == 1 or self._schedule.saves(completed):
            for number in stores if self._team.is_sharded else (0,):
                here = self._store.writable_by(ranks[number].node, STATE)
                stores[number] = (*stores[number], here)
        return stores

    def rank_saved(self, rank: int, saved: SavedState) -> None:
        """A rank has left its state; what is not of the open order changes nothing."""
        completed = saved.iteration
        if self._settling or not self._team.awaits("save", completed, rank):
            return
        self._saved[rank] = saved
        is_whole = all(each.offers for each in self._saved.values())
        if not is_whole:  # this one had gone on before it was told: the next state is left
            if self._team.answered("save", completed, rank):
                self._saved = {}
                self._team.state_is_kept()
        elif self._schedule.saves(completed) and self._team.awaits_only("save", completed, rank):
            self._settling = True
            parts = len(self._team.ranks) if self._team.is_sharded else 1
            self._actor.run_task(self._write_checkpoint(rank, completed, parts))
        elif self._team.answered("save", completed, rank):
            self._keep(completed)

    async def _write_checkpoint(self, rank: int, completed: int, parts: int) -> None:
        """It is in the run folder before the next state may take its place in the store."""
        path, problem = self._record.run.path / checkpoint_path(completed), ""
        keys = [state_key(completed, part) for part in range(parts)]
        try:
            if parts > 1:
                await self._store.join(keys, _JOINED)
            await self._store.hand_out(_JOINED if parts > 1 else keys[0], path)
        except TransferFailed as error:
            problem = str(error)
        self._store.delete(_JOINED)

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
        saved, self._saved = self._saved, {}
        left = [saved[rank].offers for rank in sorted(saved)]
        if not self._team.is_sharded:
            left = [tuple(offer for offers in left for offer in offers)]
        place = self._store.endpoint.place
        here = [offer for offers in left for offer in offers if offer.store.place == place]
        at_nodes = tuple(
            tuple(offer for offer in offers if offer.store.place != place) for offers in left
        )
        state = TrainingState(completed, at_nodes, tuple(here))
        self._record.write(lambda: self._note(state))
        self._team.state_is_kept()  # the next but one may take the place of the one before
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
            for iteration in range(max(0, state.completed - 2), state.completed):
                self._used(iteration)
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
    def kept(self) -> tuple[int, StateParts]:
        """Iterations in the newest state that was left, and where its parts can be had; nobody has
        it any more if there are none."""
        state = self._journal.state()
        if state is None:
            return 0, ()
        places = {node.store.place for node in self._roster.nodes.values()}
        parts = tuple(
            (*(offer for offer in offers if offer.store.place in places), *state.here[part:][:1])
            for part, offers in enumerate(state.at_nodes)
        )
        return state.completed, parts if all(parts) else ()

    async def checkpoint(self, completed: int) -> StateParts:
        """Where trainers can have the checkpoint; nowhere before the first one. Raises
        `TransferFailed` if it is not there."""
        if not completed:
            return ()
        path = self._record.run.path / checkpoint_path(completed)
        return ((await self._store.take_in(path, _CHECKPOINT),),)

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
            folder = _EXPORT.rstrip("/")
            self._team.export(
                completed, best, state, lambda node: self._store.writable_by(node, folder)
            )

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
