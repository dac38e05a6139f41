"""Workers that keep what real ones keep when the coordinator is killed, and take the time that
their world says."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

import msgspec
from job_kit import World, offer

from spotlight.actors.protocol.delivery import insist, try_tell
from spotlight.actors.protocol.down import Grant, JobPlan, Recall, Revoke, WeightsOffer, WorkerPlan
from spotlight.actors.protocol.trainer import (
    ExportedModel,
    ExportModel,
    GetTrainer,
    Publish,
    SavedState,
    SaveState,
    StartTrainer,
    Train,
    TrainedIteration,
    TrainerReport,
    state_key,
)
from spotlight.actors.protocol.up import (
    CommitSteps,
    Completed,
    HeldLease,
    LeaseFailed,
    Pull,
    ReturnLease,
    WorkerReport,
)
from spotlight.actors.runtime import Actor, ActorRef, Message, handles
from spotlight.timings import DeliveryTimings
from spotlight.types import BundleOffer


@dataclass
class FakeTrainer:
    """A trainer rank as a coordinator that comes back finds it."""

    start: StartTrainer
    completed: int
    running: Train | None = None
    trained: dict[tuple[int, str], TrainedIteration] = field(default_factory=dict)
    """By iteration and part."""
    ordered: dict[tuple[int, str], list[tuple[str, int, float]]] = field(default_factory=dict)
    """What they were to be trained on, when that was said first."""
    published: int = -1
    saved: SavedState | None = None
    asker: ActorRef | None = None

    def report(self, **answer: Any) -> TrainerReport:
        """Where it stands, and what came of an order."""
        start = self.start
        listens_at = "somewhere:1" if start.world > 1 and start.rank == 0 else ""
        return TrainerReport(start.term, start.rank, self.completed, listens_at, **answer)


class FakeWorker(Actor):
    """A whole worker in one actor: leader, member and trainer rank. It outlives the coordinator, as
    real ones do."""

    def __init__(self, name: str, epoch: int, world: World) -> None:
        self.name, self.epoch, self.world = name, epoch, world
        self.versions: dict[bool, set[int]] = {False: set(), True: set()}
        self.job: JobPlan | None = None
        self.leases: dict[int, Grant] = {}
        self.trainer: FakeTrainer | None = None
        self.followers: tuple[str, ...] = ()
        """The others of its group, which it leads."""
        self.follows = False
        self.node: ActorRef | None = None
        self.draining = False
        self._accelerator = asyncio.Lock()

    async def started(self) -> None:
        self.run_task(self._keep_pulling())

    @handles(WorkerPlan)
    async def on_plan(self, message: WorkerPlan) -> None:
        """Everything is there at once."""
        self.node = self.sender
        known, self.job = self.job, message.job
        if known is not None and (self.job is None or self.job.job_id != known.job_id):
            self.versions = {False: set(), True: set()}
            self.leases.clear()
            self.trainer = None
            self.world.freed.append(self.name)
        trainer = self.trainer
        if trainer and self.job and trainer.start.term < self.job.trainers_term:
            self.trainer = None
        if self.job is not None:
            self.world.told_terms[self.name] = self.job.trainers_term
            if known is None or known.membership != self.job.membership:
                self.tell(self.job.membership.runner, self.report())
            weights = self.job.weights
            self.versions[False] = {each.version for each in weights}
            self.versions[True] = {each.version for each in weights if each.evaluation}
        self.draining = message.stop_in_s is not None
        if self.draining:
            # What is committed is given back; the rest too.
            for lease in list(self.leases):
                del self.leases[lease]
                self._give_back(lease)
            assert self.node is not None
            self.tell(self.node, self.report(drained=True))
        self._pull()

    def report(self, **fields: Any) -> WorkerReport:
        return WorkerReport(self.name, self.epoch, state="idle", **fields)

    async def _keep_pulling(self) -> None:
        while True:
            await asyncio.sleep(4.0)
            self._pull()

    def _pull(self) -> None:
        if self.job is None or self.follows:
            return
        pull = Pull(
            self.name,
            self.epoch,
            members=1 + len(self.followers),
            credits=0 if self.draining else 2,
            batch=4,
            rollout_versions=tuple(sorted(self.versions[False])),
            evaluation_versions=tuple(sorted(self.versions[True])),
            leases=tuple(HeldLease(lease, _ids(grant)) for lease, grant in self.leases.items()),
            followers=self.followers,
        )
        try_tell(self, self.job.membership.dispatcher, pull)

    @handles(Grant)
    async def on_grant(self, message: Grant) -> None:
        for wanted in message.requests:
            assert wanted.weights_version in self.versions[wanted.kind == "evaluation"]
            self.world.granted.append((self.name, wanted))
        self.leases[message.lease] = message
        self.run_task(self._carry_out(message))
        self._pull()

    @handles(Revoke, Recall)
    async def on_revoke(self, message: Revoke | Recall) -> None:
        for lease in message.leases:
            if self.leases.pop(lease, None) and isinstance(message, Recall):
                self._give_back(lease)

    def _give_back(self, lease: int) -> None:
        if self.job is not None:
            returned = ReturnLease(self.name, self.epoch, lease)
            try_tell(self, self.job.membership.dispatcher, returned)

    async def _carry_out(self, grant: Grant) -> None:
        """Step by step; with a commit when it was asked for, and after the last one. Then the
        rewards, while others are denoised.
        """
        steps = grant.requests[0].settings.steps
        begin = grant.commits[0].step if grant.commits[0] is not None else 0
        async with self._accelerator:
            for step in range(begin + 1, steps + 1):
                if grant.lease not in self.leases:
                    return
                await asyncio.sleep(self.world.denoise_s / steps)
                every = grant.commit_every
                if every and (step - begin) % every == 0 and step < steps:
                    self.run_task(self._commit(grant, step))
        if begin < steps:
            await self._commit(grant, steps)
        await self._score(grant, steps - begin)

    async def _commit(self, grant: Grant, step: int) -> None:
        there = self._bundle(grant, step)
        who = self.name, self.epoch, grant.lease
        commit = CommitSteps(*who, _ids(grant), step, there, 0.0)
        await self._report(grant.lease, commit)

    def _bundle(self, grant: Grant, step: int) -> BundleOffer:
        key = f"{self.name}/{self.epoch}-{grant.lease}"
        is_last = step == grant.requests[0].settings.steps
        key = f"samples/{key}" if is_last else f"commits/{key}-{step}"
        keeper = self.job.membership.keeper if self.job is not None else None
        if keeper is None:
            return offer(key)
        there = offer(key, self.world.shares[keeper.node].readable(key))
        return msgspec.structs.replace(there, keeper=keeper.node)

    async def _score(self, grant: Grant, taken: int) -> None:
        """After so many steps here."""
        await asyncio.sleep(self.world.score_s)
        if grant.lease not in self.leases:
            return
        steps = grant.requests[0].settings.steps
        if self.world.fails(self.name, grant.requests):
            failed = LeaseFailed(self.name, self.epoch, grant.lease, "no luck", what="scoring")
            try_tell(self, self._dispatcher(), failed)
        else:
            rewards = tuple(self.world.reward(each) for each in grant.requests)
            self.world.scored.update(zip(_ids(grant), rewards, strict=True))
            completed = Completed(
                self.name,
                self.epoch,
                grant.lease,
                _ids(grant),
                self._bundle(grant, steps),
                tuple(r if isinstance(r, tuple) else (r,) for r in rewards),
                taken,
                self.world.denoise_s * taken / steps,
                1 + len(self.followers),
                self.world.score_s,
            )
            await self._report(grant.lease, completed)
        self.leases.pop(grant.lease, None)
        self._pull()

    async def _report(self, lease: int, message: Message) -> None:
        """To the coordinator of the day, until it answers."""
        await insist(
            self,
            self._dispatcher,
            message,
            wanted=lambda: lease in self.leases,
            timings=DeliveryTimings(),
        )

    def _dispatcher(self) -> ActorRef:
        assert self.job is not None
        return self.job.membership.dispatcher

    @handles(GetTrainer)
    async def on_get(self, message: GetTrainer) -> TrainerReport:
        trainer = self.trainer
        if trainer is None or trainer.start.job_id != message.job_id:
            return TrainerReport()
        return trainer.report()

    @handles(StartTrainer)
    async def on_start(self, message: StartTrainer) -> None:
        assert self.sender is not None
        if self.trainer is None or self.trainer.start != message:
            self.trainer = FakeTrainer(message, message.completed)
            if message.completed and not self.world.has_state(message):
                gone = "TransferFailed: nobody has the state"
                lost = self.trainer.report(error=gone, lost_others=True, lost_state=True)
                return self.tell(self.sender, msgspec.structs.replace(lost, completed=-1))
            self.world.started.append(message)
        self.tell(self.sender, self.trainer.report())

    @handles(Train)
    async def on_train(self, message: Train) -> None:
        trainer = self.trainer
        assert trainer is not None
        trainer.asker = self.sender
        what = message.iteration, message.part
        first = trainer.ordered.setdefault(what, _batch(message))
        assert first == _batch(message), "the same again, whoever orders it"
        done = trainer.trained.get(what)
        if done is not None:
            self._answer(trainer.report(trained=done))
        elif trainer.running is None:
            assert message.iteration == trainer.completed, "in order, and none twice"
            began = (message.iteration, "first") in trainer.trained
            assert began == (message.part == "rest"), "a part follows the other"
            trainer.running = message
            self.world.trained.append(message)
            self.run_task(self._train(trainer, message))

    async def _train(self, trainer: FakeTrainer, message: Train) -> None:
        part = message.part
        seconds = self.world.train_s / (1 if part == "whole" else 2)
        await asyncio.sleep(seconds)
        metrics = {} if part == "first" else {"loss": 0.5, "drift": self.world.drift}
        trained = TrainedIteration(message.iteration, metrics, seconds, part)
        trainer.trained[message.iteration, part] = trained
        trainer.running = None
        trainer.completed += part != "first"
        if trainer is self.trainer:
            self._answer(trainer.report(trained=trained))

    @handles(Publish)
    async def on_publish(self, message: Publish) -> None:
        assert self.trainer is not None
        self.trainer.asker = self.sender
        if message.version != self.trainer.published:  # else it is remembered, or under way
            assert message.version == self.trainer.completed, (message.version, self.trainer)
            assert (message.version, "first") not in self.trainer.trained, "half-trained weights"
            self.trainer.published = message.version
        self.world.published.append(message.version)
        version, rank = f"weights/{message.version:06d}", self.trainer.start.rank
        weights = offer(f"{version}-rollout-{rank}", message.store)
        evaluation = offer(f"{version}-evaluation-{rank}", message.store)
        offered = WeightsOffer(
            message.version, (weights,), (evaluation,) if message.evaluation else ()
        )
        report = self.trainer.report(published=offered)
        self.run_task(self._answer_in(self.world.publish_s, report))

    @handles(SaveState)
    async def on_save(self, message: SaveState) -> None:
        trainer = self.trainer
        assert trainer is not None
        trainer.asker = self.sender
        if trainer.saved is None or trainer.saved.iteration != message.iteration:
            assert message.iteration == trainer.completed
        key = state_key(message.iteration, message.part)
        offers = [self.world.leave(store, key, message.iteration) for store in message.stores]
        trainer.saved = SavedState(message.iteration, tuple(offers))
        report = trainer.report(saved=trainer.saved)
        self.run_task(self._answer_in(self.world.save_s, report))

    @handles(ExportModel)
    async def on_export(self, message: ExportModel) -> None:
        trainer = self.trainer
        assert trainer is not None
        trainer.asker = self.sender
        assert self.world.holds(message.state, message.checkpoint)
        file = self.world.leave(message.store, "export/weights", message.checkpoint)
        exported = ExportedModel(message.checkpoint, (file,))
        self.run_task(self._answer_in(0.0, trainer.report(exported=exported)))

    async def _answer_in(self, seconds: float, message: TrainerReport) -> None:
        await asyncio.sleep(seconds)
        self._answer(message)

    def _answer(self, message: TrainerReport) -> None:
        """To whoever asked last."""
        if self.trainer is not None and self.trainer.asker is not None:
            try_tell(self, self.trainer.asker, message)


def _batch(message: Train) -> list[tuple[str, int, float]]:
    """What is trained on; the run folder's store moves with the coordinator. The advantages of a
    first part are scaled by what is chosen of the later one by now."""
    scaled = message.part == "first"
    return [(s.bundle.key, s.row, 0.0 if scaled else s.advantage) for s in message.samples]


def _ids(grant: Grant) -> tuple[str, ...]:
    return tuple(wanted.id for wanted in grant.requests)
