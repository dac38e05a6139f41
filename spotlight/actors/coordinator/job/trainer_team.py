"""The trainer ranks of a job as the job runner sees them: found again or built, and told what to do
until they have done it.

Any message may be lost, so an order is repeated until it is answered; trainer ranks run none twice.
Of several ranks the first is built first: the others need to know where it listens. What is ordered
while there are no ranks, or they are built, waits for them.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Literal

import msgspec

from spotlight.actors.coordinator.tenant.roster import Rank
from spotlight.actors.protocol import (
    ExportModel,
    GetTrainer,
    Publish,
    SaveState,
    StartTrainer,
    StateParts,
    Train,
    TrainerReport,
)
from spotlight.actors.protocol.delivery import try_tell
from spotlight.actors.runtime import Actor, ActorRef, Message
from spotlight.errors import ActorError
from spotlight.jobs import JobSpec
from spotlight.policies.training_parts import Part
from spotlight.types import BundleOffer, StoreEndpoint, TrainingSample

Order = Literal["start", "train", "publish", "save", "export"]
Stores = tuple[StoreEndpoint, ...]


class TrainerTeam:
    """See the module's docstring. `ranks` are the workers that train, in the order of their
    ranks; nobody until they are appointed.

    Args:
        actor: the job runner, which tells on its behalf.
        term: of its orders to build ranks.
        answer_limit_s: within which a rank answers a question.
    """

    def __init__(
        self,
        actor: Actor,
        job: JobSpec,
        job_id: str,
        term: int,
        answer_limit_s: float,
    ) -> None:
        self._actor = actor
        self._job = job
        self._job_id = job_id
        self.term = term
        """Of its orders to build ranks."""
        self._answer_limit_s = answer_limit_s
        self._open: dict[Order, tuple[Hashable, dict[int, Message]]] = {}
        """The latest order of each kind: which one, and what it says to the ranks that have not
        answered."""
        self._start_others: Callable[[str], None] | None = None
        """Has the ranks behind the first built, once it is known where that one listens."""
        self._asked: set[int] = set()
        """Ranks, by epoch, whose answer is awaited."""
        self._next_save: tuple[Hashable, dict[int, Message]] | None = None
        """It waits for the one before, and training for it."""
        self._checkpoint = -1
        """Iterations in the latest checkpoint that was ordered: training waits for that."""
        self._later: list[Callable[[], None]] = []
        """Orders for when there are ranks."""
        self.ranks: tuple[Rank, ...] = ()

    @property
    def names(self) -> frozenset[str]:
        """The workers' names."""
        return frozenset(rank.worker.worker for rank in self.ranks)

    @property
    def is_idle(self) -> bool:
        """Whether there are ranks, and nothing that they were told is still to be done."""
        return bool(self.ranks) and not self._open and not self._later

    @property
    def is_sharded(self) -> bool:
        """Whether every rank holds a part of the state; else all hold the same."""
        return self._job.training.sharded

    def is_rank(self, sender: ActorRef | None, number: int) -> bool:
        """Whether that is who trains under this number."""
        return 0 <= number < len(self.ranks) and (sender == self.ranks[number].worker.trainer_rank)

    async def standing(self) -> list[int]:
        """How many iterations each rank has trained; -1 for one that is no trainer of the job or
        does not answer.
        """
        answers = [await self._ask(rank) for rank in self.ranks]
        return [-1 if answer is None else answer.completed for answer in answers]

    def inquire(self, rank: Rank, on_answer: Callable[[TrainerReport], None]) -> None:
        """Ask a rank at its own address how far it is, unless an answer is still awaited;
        `on_answer` is given what it answers.
        """
        epoch = rank.worker.epoch
        if epoch not in self._asked:
            self._asked.add(epoch)
            self._actor.run_task(self._inquire(rank, on_answer))

    def build(self, completed: int, state: StateParts) -> None:
        """Have every rank built from a state of training after so many iterations (0: from the
        job's model).
        """
        world = len(self.ranks)

        def order(rank: int, rendezvous: str) -> StartTrainer:
            return StartTrainer(
                self._job_id, self._job, rank, world, rendezvous, completed, state, self.term
            )

        def start_others(rendezvous: str) -> None:
            others = {rank: order(rank, rendezvous) for rank in range(1, world)}
            self._open["start"][1].update(others)
            self._send(others)

        self._start_others = start_others if world > 1 else None
        self._order("start", self.term, {0: order(0, "")})

    def start_others(self, report: TrainerReport) -> None:
        """Have the other ranks built as soon as rank 0 listens, where they meet it."""
        listens = report.rank == 0 and report.term == self.term and report.listens_at
        if self._start_others is not None and listens:
            start, self._start_others = self._start_others, None
            start(report.listens_at)

    def train(
        self,
        iteration: int,
        window_start: int,
        samples: tuple[TrainingSample, ...],
        part: Part = "whole",
    ) -> None:
        """Have every rank take the optimizer steps of an iteration, or of a part of it."""
        message = Train(iteration, window_start, samples, part)
        number = iteration, part
        self._order_soon("train", number, lambda: dict.fromkeys(range(len(self.ranks)), message))

    def publish(self, version: int, *, evaluation: bool) -> None:
        """Have every rank put its part of the weights into its node's store, where nodes can pull
        them."""

        def messages() -> Mapping[int, Message]:
            ranks = enumerate(self.ranks)
            return {number: Publish(version, evaluation, rank.store) for number, rank in ranks}

        self._order_soon("publish", version, messages)

    def save(
        self,
        completed: int,
        stores: Callable[[], Mapping[int, Stores]],
        *,
        is_checkpoint: bool = False,
    ) -> None:
        """Have ranks leave the state of training in stores, each in its own; when the one before is
        kept. Training waits for a checkpoint: nobody could ask for it again."""
        if is_checkpoint:
            self._checkpoint = completed
        self._order_soon(
            "save",
            completed,
            lambda: {
                rank: SaveState(completed, each, rank if self.is_sharded else 0)
                for rank, each in stores().items()
            },
        )

    def state_is_kept(self) -> None:
        """It is on record which state was saved last: what waited for that can go on."""
        if self._next_save is not None:
            self._open["save"], self._next_save = self._next_save, None
            self._tell("save")
        if "train" in self._open:
            self._tell("train")

    @property
    def _waits_for_checkpoint(self) -> bool:
        number, _ = self._open.get("save", (-2, {}))
        return number == self._checkpoint

    def export(
        self,
        completed: int,
        checkpoint: int,
        state: BundleOffer,
        store: Callable[[str], StoreEndpoint],
    ) -> None:
        """Have rank 0, which has trained so many iterations, leave the weights of a checkpoint in
        the store that its node may write to."""

        def messages() -> Mapping[int, Message]:
            to = store(self.ranks[0].node)
            return {0: ExportModel(completed, checkpoint, state, to)}

        self._order_soon("export", checkpoint, messages)

    def remind(self) -> None:
        """Repeat what is not answered."""
        for order in list(self._open):
            self._tell(order)

    def awaits(self, order: Order, number: Hashable, rank: int) -> bool:
        """Whether that is an answer that is still to come."""
        open_number, waiting = self._open.get(order, (number, {}))
        return number == open_number and rank in waiting

    def awaits_only(self, order: Order, number: Hashable, rank: int) -> bool:
        """Whether that is the last answer that is still to come."""
        return self.awaits(order, number, rank) and len(self._open[order][1]) == 1

    def answered(self, order: Order, number: Hashable, rank: int) -> bool:
        """A rank has done what it was told, for the version, (to start) term or (to train)
        iteration and part of that number; True if it was the last one to. What comes late, or
        twice, is no answer.
        """
        open_number, waiting = self._open.get(order, (number, {}))
        if number != open_number or waiting.pop(rank, None) is None or waiting:
            return False
        if order == "start" and self._start_others is not None:
            return False
        del self._open[order]
        if order == "start":
            self._give_later()
        return True

    def _order_soon(
        self, order: Order, number: Hashable, messages: Callable[[], Mapping[int, Message]]
    ) -> None:
        def give() -> None:
            self._order(order, number, messages())

        if self.ranks and "start" not in self._open and not self._later:
            give()
        else:
            self._later.append(give)

    def _give_later(self) -> None:
        later, self._later = self._later, []
        for give in later:
            give()

    def _order(self, order: Order, number: Hashable, messages: Mapping[int, Message]) -> None:
        if order == "save" and "save" in self._open:
            self._next_save = (number, dict(messages))
            return
        self._open[order] = (number, dict(messages))
        self._tell(order)

    def _tell(self, order: Order) -> None:
        """If the word to publish or save was lost, a trainer that is further could not obey it any
        more: so the one to train has it, too, or waits."""
        if order != "train":
            self._send(self._open[order][1])
        elif self._next_save is None and not self._waits_for_checkpoint:
            publish, save = (self._open.get(each, (0, {}))[1] for each in ("publish", "save"))
            trains = self._open["train"][1].items()
            self._send(
                {
                    rank: msgspec.structs.replace(
                        train, publish=publish.get(rank), save=save.get(rank)
                    )
                    for rank, train in trains
                }
            )

    def _send(self, messages: Mapping[int, Message]) -> None:
        for rank, message in messages.items():
            try_tell(self._actor, self.ranks[rank].worker.trainer_rank, message)

    async def _inquire(self, rank: Rank, on_answer: Callable[[TrainerReport], None]) -> None:
        answer = await self._ask(rank)
        self._asked.discard(rank.worker.epoch)
        if answer is not None:
            on_answer(answer)

    async def _ask(self, rank: Rank) -> TrainerReport | None:
        question, to = GetTrainer(self._job_id), rank.worker.trainer_rank
        try:
            answer = await self._actor.ask(to, question, timeout_s=self._answer_limit_s)
        except ActorError:
            return None
        assert isinstance(answer, TrainerReport)
        return answer
