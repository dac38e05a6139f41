"""A job, requests, and fake actors to talk to, for the tests of Spotlight's actors."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from spotlight.actors.messages import (
    CheckpointSaved,
    Completed,
    EndJob,
    GetStatus,
    Grant,
    HoldWeights,
    JobStatus,
    JoinNode,
    NodeJoined,
    PrepareJob,
    Publish,
    Published,
    Pull,
    PullScores,
    Request,
    Revoke,
    SamplingSettings,
    SaveCheckpoint,
    Scored,
    ScoreFailed,
    ScoreGrant,
    StartTrainer,
    StateChanged,
    Train,
    Trained,
    TrainerReady,
    WorkerRefs,
)
from spotlight.actors.runtime import Actor, ActorRef, ActorSystem, Message, handles
from spotlight.errors import ActorError
from spotlight.jobs import JobSpec, job_from_data
from spotlight.policies.exploration import derived_seed
from spotlight.transport.tensors import BundleOffer, StoreEndpoint

MessageT = TypeVar("MessageT", bound=Message)

STORE = StoreEndpoint("127.0.0.1", 1, "token", "machine", "/nowhere")
SETTINGS = SamplingSettings("ode", 2, None, 1.0, 0.0, None, 32, 64, 4)


def job(**changes: Any) -> JobSpec:
    """A tiny job; `changes` replace whole sections, or update those that are mappings."""
    data: dict[str, Any] = {
        "name": "tiny",
        "model": {"checkpoint": "builtin:ocr-tiny"},
        "prompts": {
            "train": "builtin:ocr-tiny/train",
            "validation": "builtin:ocr-tiny/validation",
            "per_iteration": 2,
        },
        "sampler": {"height": 32, "width": 64, "steps": 2, "micro_batch": 4},
        "iterations": 3,
        "group_size": 4,
        "checkpoint_every": 1,
        "training": {"updates_per_iteration": 1},
        "exploration": {"candidates": 2, "budget": "fixed"},
        "validation": {"seeds": 1, "every": 5},
    }
    for name, value in changes.items():
        data[name] = {**data.get(name, {}), **value} if isinstance(value, dict) else value
    return job_from_data(data)


def offer(key: str = "samples/a") -> BundleOffer:
    """A bundle that nobody fetches."""
    return BundleOffer(key, 1, 0, STORE)


def request(
    number: int, kind: Any = "rollout", *, iteration: int = 0, version: int = 0, group: int = 0
) -> Request:
    """A request; its id and seed follow from its kind and number."""
    name = f"{kind}/{iteration}/{group}/{number}"
    return Request(name, kind, iteration, group, f'"{group}"', number, version, SETTINGS)


def requests(count: int, kind: Any = "rollout", **options: int) -> tuple[Request, ...]:
    """Requests numbered from 0."""
    return tuple(request(number, kind, **options) for number in range(count))


async def settle() -> None:
    """Let everything happen that takes no time; for virtual time only."""
    await asyncio.sleep(0.001)


class Recorder(Actor):
    """Keeps every message; answers asks with what `answer` makes of them."""

    def __init__(self, answer: Callable[[Message], Message | None] | None = None) -> None:
        self.inbox: list[Message] = []
        self._answer = answer

    @handles(Message)
    async def on_message(self, message: Message) -> Message | None:
        self.inbox.append(message)
        return self._answer(message) if self._answer else None

    def all(self, kind: type[MessageT]) -> list[MessageT]:
        """What came of one type, in order."""
        return [message for message in self.inbox if isinstance(message, kind)]

    def last(self, kind: type[MessageT]) -> MessageT:
        """The latest of one type."""
        return self.all(kind)[-1]


async def recorder(system: ActorSystem, name: str, **options: Any) -> Recorder:
    """Spawn one; its reference is `.ref`."""
    actor = Recorder(**options)
    await system.spawn(lambda: actor, name)
    return actor


class World:
    """What the fake workers of a job share: how long things take, what fails, what happened."""

    def __init__(self) -> None:
        self.denoise_s = 1.0
        self.score_s = 0.1
        self.train_s = 20.0
        self.fails: Callable[[str, tuple[Request, ...]], bool] = lambda worker, requests: False
        """Whether a worker's scorer fails on these."""
        self.granted: list[tuple[str, Request]] = []
        self.scored: dict[str, float] = {}
        self.trained: list[Train] = []
        self.started: list[StartTrainer] = []
        self.freed: list[str] = []
        """Workers whose job was ended."""
        self.bundles: dict[str, tuple[Request, ...]] = {}

    @staticmethod
    def reward(wanted: Request) -> float:
        """A function of the sample alone; previews of the same seed differ from rollouts."""
        return derived_seed(wanted.id, wanted.weights_version) % 1000 / 1000

    def by(self, worker: str, kind: str) -> list[Request]:
        """What a worker was granted of one kind."""
        return [r for name, r in self.granted if name == worker and r.kind == kind]


class FakeWorker(Actor):
    """A whole worker in one actor: leader, reward worker and trainer rank."""

    def __init__(self, name: str, epoch: int, world: World) -> None:
        self.name, self.epoch, self.world = name, epoch, world
        self.versions: dict[bool, set[int]] = {False: set(), True: set()}
        self.job: PrepareJob | None = None
        self.revoked: set[int] = set()
        self._accelerator = asyncio.Lock()
        self._failures = 0

    @handles(PrepareJob)
    async def on_prepare(self, message: PrepareJob) -> None:
        if self.job is None or self.job.job_id != message.job_id:
            self.job, self.versions = message, {False: set(), True: set()}
        self.tell(message.membership.ledger, StateChanged(self.name, "idle"))
        self.tell(
            message.membership.dispatcher, PullScores(self.name, self.epoch, self.ref, credits=2)
        )

    @handles(HoldWeights)
    async def on_weights(self, message: HoldWeights) -> None:
        assert self.job is not None
        self.versions[False].add(message.version)
        if message.evaluation is not None:
            self.versions[True].add(message.version)
        for held in self.versions.values():
            held &= set(message.keep)
        pull = Pull(
            self.name,
            self.epoch,
            self.ref,
            credits=2,
            batch=4,
            rollout_versions=tuple(sorted(self.versions[False])),
            evaluation_versions=tuple(sorted(self.versions[True])),
        )
        self.tell(self.job.membership.dispatcher, pull)

    @handles(Grant)
    async def on_grant(self, message: Grant) -> None:
        for wanted in message.requests:
            assert wanted.weights_version in self.versions[wanted.kind == "evaluation"]
            self.world.granted.append((self.name, wanted))
        assert self.job is not None
        self.run_task(self._denoise(self.job.membership.dispatcher, message))

    @handles(Revoke)
    async def on_revoke(self, message: Revoke) -> None:
        self.revoked.update(message.leases)

    async def _denoise(self, dispatcher: ActorRef, grant: Grant) -> None:
        async with self._accelerator:
            await asyncio.sleep(self.world.denoise_s)
        if grant.lease in self.revoked:
            return
        key = f"samples/{self.name}-{self.epoch}-{grant.lease}"
        self.world.bundles[key] = grant.requests
        completed = Completed(self.name, self.epoch, grant.lease, offer(key), 1.0)
        await self._report(dispatcher, completed)

    @handles(ScoreGrant)
    async def on_score(self, message: ScoreGrant) -> None:
        assert self.job is not None
        self.run_task(self._score(self.job.membership.dispatcher, message))

    async def _score(self, dispatcher: ActorRef, grant: ScoreGrant) -> None:
        await asyncio.sleep(self.world.score_s)
        scored = self.world.bundles[grant.bundle.key]
        if self.world.fails(self.name, scored):
            self.tell(dispatcher, ScoreFailed(self.name, self.epoch, grant.lease, "no luck"))
            return
        rewards = tuple(self.world.reward(each) for each in scored)
        self.world.scored.update(zip((each.id for each in scored), rewards, strict=True))
        answer = Scored(self.name, self.epoch, grant.lease, rewards)
        await self._report(dispatcher, answer)

    async def _report(self, dispatcher: ActorRef, message: Message) -> None:
        with suppress(ActorError):  # the job is over
            await self.ask(dispatcher, message, timeout_s=10.0)

    @handles(StartTrainer)
    async def on_start(self, message: StartTrainer) -> None:
        assert self.sender is not None
        self.world.started.append(message)
        self.tell(self.sender, TrainerReady(message.rank))

    @handles(Train)
    async def on_train(self, message: Train) -> None:
        assert self.sender is not None
        self.world.trained.append(message)
        self.run_task(self._train(self.sender, message))

    async def _train(self, asker: ActorRef, message: Train) -> None:
        await asyncio.sleep(self.world.train_s)
        self.tell(asker, Trained(message.iteration, 0, {"loss": 0.5}, self.world.train_s))

    @handles(Publish)
    async def on_publish(self, message: Publish) -> None:
        assert self.sender is not None
        weights = offer(f"weights/{message.version:06d}-rollout")
        evaluation = offer(f"weights/{message.version:06d}-evaluation")
        self.tell(
            self.sender,
            Published(message.version, weights, evaluation if message.evaluation else None),
        )

    @handles(SaveCheckpoint)
    async def on_save(self, message: SaveCheckpoint) -> None:
        assert self.sender is not None
        _write(Path(message.path))
        self.tell(self.sender, CheckpointSaved(message.iteration, message.path))

    @handles(EndJob)
    async def on_end(self, message: EndJob) -> None:
        self.job = None
        self.world.freed.append(self.name)


class FakeNode(Actor):
    """A node with one worker that is always up; joins the coordinator as it starts."""

    def __init__(self, name: str, pool: Any, coordinator: ActorRef, world: World) -> None:
        self.name, self.pool, self.coordinator, self.world = name, pool, coordinator, world
        self.worker: ActorRef

    async def started(self) -> None:
        name, epoch = f"{self.name}/0", self.system.rng.getrandbits(40)
        self.worker = await self.spawn(lambda: FakeWorker(name, epoch, self.world), "worker")
        refs = WorkerRefs(name, epoch, *[self.worker] * 4)
        joining = JoinNode(self.name, self.pool, self.ref, (refs,), STORE)
        joined = await self.ask(self.coordinator, joining, timeout_s=10.0)
        assert isinstance(joined, NodeJoined)

    @handles(PrepareJob, HoldWeights, EndJob)
    async def on_job_message(self, message: Message) -> None:
        self.tell(self.worker, message)


async def status(system: ActorSystem, coordinator: ActorRef) -> JobStatus:
    """What the coordinator says."""
    answer = await system.ask(coordinator, GetStatus(), timeout_s=10.0)
    assert isinstance(answer, JobStatus)
    return answer


def _write(checkpoint: Path) -> None:
    checkpoint.parent.mkdir(exist_ok=True)
    checkpoint.write_bytes(b"checkpoint")


def rng(seed: int = 0) -> random.Random:
    """A seeded generator."""
    return random.Random(seed)
