"""The trainer ranks of a job as the job runner sees them: found again or built, and told what to do
until they have done it.

Any message may be lost, so an order is repeated until it is answered; trainer ranks run none twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from spotlight.actors.delivery import try_tell
from spotlight.actors.messages import (
    GetTrainer,
    PortReserved,
    Publish,
    ReservePort,
    SaveCheckpoint,
    StartTrainer,
    Train,
    TrainerAt,
    TrainingSample,
    WorkerRefs,
)
from spotlight.actors.runtime import Actor, Message
from spotlight.errors import ActorError
from spotlight.jobs import JobSpec
from spotlight.transport.tensors import StoreEndpoint

Order = Literal["start", "train", "publish", "save"]

_ASK_LIMIT_S = 5.0


class TrainerTeam:
    """See the module's docstring. `ranks` are the workers that train, in the order of their
    ranks; nobody until they are appointed.
    """

    def __init__(self, actor: Actor, job: JobSpec, job_id: str) -> None:
        self._actor = actor
        self._job = job
        self._job_id = job_id
        self._open: dict[Order, tuple[int, dict[int, Message]]] = {}
        """The latest order of each kind: which one, and what it says to the ranks that have not
        answered."""
        self.ranks: tuple[WorkerRefs, ...] = ()

    @property
    def names(self) -> frozenset[str]:
        """The workers' names."""
        return frozenset(worker.worker for worker in self.ranks)

    def includes(self, worker: WorkerRefs) -> bool:
        """Whether this very process is a trainer rank."""
        return any(rank.epoch == worker.epoch for rank in self.ranks)

    async def standing(self) -> list[int]:
        """How many iterations each rank has trained; -1 for one that is no trainer of the job or
        does not answer.
        """
        return [await self._standing(worker) for worker in self.ranks]

    async def build(self, checkpoint: str, completed: int, term: int) -> None:
        """Have every rank built from a checkpoint that holds so many iterations ("" and 0: from the
        job's model).

        Raises `ActorError` if rank 0 does not answer.
        """
        world = len(self.ranks)
        rendezvous = ""
        if world > 1:
            first = self.ranks[0].trainer_rank
            answer = await self._actor.ask(first, ReservePort(), timeout_s=_ASK_LIMIT_S)
            assert isinstance(answer, PortReserved)
            rendezvous = answer.rendezvous
        self._order(
            "start",
            completed,
            [
                StartTrainer(
                    self._job_id, self._job, rank, world, rendezvous, checkpoint, completed, term
                )
                for rank in range(world)
            ],
        )

    def train(self, iteration: int, window_start: int, samples: tuple[TrainingSample, ...]) -> None:
        """Have every rank take the optimizer steps of an iteration."""
        self._order("train", iteration, [Train(iteration, window_start, samples)] * len(self.ranks))

    def publish(self, version: int, *, evaluation: bool, store: StoreEndpoint) -> None:
        """Have rank 0 put the weights where nodes can pull them."""
        self._order("publish", version, [Publish(version, evaluation, store)])

    def save(self, completed: int, path: str, export_to: str) -> None:
        """Have rank 0 write a checkpoint."""
        self._order("save", completed, [SaveCheckpoint(completed, path, export_to)])

    def remind(self) -> None:
        """Repeat what is not answered."""
        for order in list(self._open):
            self._send(order)

    def answered(self, order: Order, number: int, rank: int) -> bool:
        """A rank has done what it was told, for the iteration or version of that number; True if it
        was the last one to. What comes late, or twice, is no answer.
        """
        open_number, waiting = self._open.get(order, (number, {}))
        if number != open_number or waiting.pop(rank, None) is None or waiting:
            return False
        del self._open[order]
        return True

    def _order(self, order: Order, number: int, messages: Sequence[Message]) -> None:
        self._open[order] = (number, dict(enumerate(messages)))
        self._send(order)

    def _send(self, order: Order) -> None:
        for rank, message in self._open[order][1].items():
            try_tell(self._actor, self.ranks[rank].trainer_rank, message)

    async def _standing(self, worker: WorkerRefs) -> int:
        question = GetTrainer(self._job_id)
        try:
            answer = await self._actor.ask(worker.trainer_rank, question, timeout_s=_ASK_LIMIT_S)
        except ActorError:
            return -1
        assert isinstance(answer, TrainerAt)
        return answer.completed
