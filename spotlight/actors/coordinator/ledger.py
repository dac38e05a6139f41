"""The ledger: which worker was in which state for how long.

Messages in: StateChanged (workers), AddWorkers, RemoveWorkers (job runner). It writes each change
to the run folder; a worker is in exactly one state at any time, so the states of a worker add up to
its time exactly.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from spotlight.actors.protocol import AddWorkers, RemoveWorkers, StateChanged, WorkerStatus
from spotlight.actors.runtime import Actor, ActorRef, from_this_process, handles


class Ledger(Actor):
    """See the module's docstring.

    Args:
        record: writes an event with the present run time.
        board: what every worker does now, kept up to date for the job's status.
    """

    def __init__(self, *, record: Callable[..., None], board: dict[str, WorkerStatus]) -> None:
        self._record = record
        self._board = board
        self._leaders: dict[str, ActorRef] = {}

    def _from_the_worker(self, message: StateChanged) -> bool:
        leader = self._leaders.get(message.worker)
        return leader is None or self.sender == leader  # of one that is gone nothing is noted

    @handles(AddWorkers, only=from_this_process)
    async def on_add(self, message: AddWorkers) -> None:
        """Their time counts from here."""
        for worker in message.workers:
            self._leaders[worker.worker] = worker.leader
            status = WorkerStatus(worker.worker, message.node, message.pool, "starting", "")
            self._enter(status)

    @handles(RemoveWorkers, only=from_this_process)
    async def on_remove(self, message: RemoveWorkers) -> None:
        """Their time ends here."""
        for name in message.workers:
            self._leaders.pop(name, None)
            known = self._board.pop(name, None)
            if known is not None:
                self._write(msgspec.structs.replace(known, state="gone"))

    @handles(StateChanged, only=_from_the_worker)
    async def on_state(self, message: StateChanged) -> None:
        """The worker is in this state from now on."""
        known = self._board.get(message.worker)
        if known is not None:
            self._enter(msgspec.structs.replace(known, state=message.state, detail=message.detail))

    def _enter(self, status: WorkerStatus) -> None:
        known = self._board.get(status.name)
        self._board[status.name] = status
        if known is None or known.state != status.state:
            self._write(status)

    def _write(self, status: WorkerStatus) -> None:
        self._record(
            "worker_state",
            worker=status.name,
            node=status.node,
            pool=status.pool,
            state=status.state,
        )
