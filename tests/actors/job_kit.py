"""A job, requests, and fake actors to talk to, for the tests of Spotlight's actors."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from spotlight.actors.protocol.trainer import StartTrainer, Train
from spotlight.actors.protocol.users import GetStatus, JobStatus
from spotlight.actors.runtime import Actor, ActorRef, ActorSystem, Message, handles
from spotlight.jobs import JobSpec, job_from_data
from spotlight.policies.exploration.planners import derived_seed
from spotlight.record.ledger import Price
from spotlight.transport.tensors import BundleStore
from spotlight.transport.tensors.shares import Share
from spotlight.types import BundleOffer, Request, RequestId, SamplingSettings, StoreEndpoint

MessageT = TypeVar("MessageT", bound=Message)

STORE = StoreEndpoint("127.0.0.1", 1, "token", "machine", "/nowhere")


class ReachedAt:
    """What a journal knows of a store: where it is read."""

    def __init__(self, endpoint: StoreEndpoint) -> None:
        self._endpoint = endpoint

    def readable(self, prefix: str) -> StoreEndpoint:
        return self._endpoint


SETTINGS = SamplingSettings(
    kind="ode", steps=2, height=32, width=64, noise_level=0.0, micro_batch=4
)


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
        # Few advantages are as large as 5: hardly anything is clipped.
        "training": {"updates_per_iteration": 1, "rollout_decay": 0.5, "advantage_clip": 5.0},
        "exploration": {"candidates": 2, "budget": "fixed", "probes": 0},
        "validation": {"seeds": 1, "every": 5},
    }
    for name, value in changes.items():
        data[name] = {**data.get(name, {}), **value} if isinstance(value, dict) else value
    return job_from_data(data)


def offer(key: str = "samples/a", store: StoreEndpoint = STORE) -> BundleOffer:
    """A bundle that nobody fetches."""
    return BundleOffer(key, 1, 0, store)


def request(
    number: int, kind: Any = "rollout", *, iteration: int = 0, version: int = 0, group: int = 0
) -> Request:
    """A request; its id and seed follow from its kind and number."""
    name = str(RequestId(kind, iteration, version, group, number))
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
        self.publish_s = 0.0
        self.drift = 0.001
        """How far an update moves the velocity."""
        self.save_s = 0.0
        self.fails: Callable[[str, tuple[Request, ...]], bool] = lambda worker, requests: False
        """Whether a worker's scorer fails on these."""
        self.granted: list[tuple[str, Request]] = []
        self.scored: dict[str, float] = {}
        self.trained: list[Train] = []
        self.started: list[StartTrainer] = []
        self.published: list[int] = []
        self.versions: list[tuple[int, ...]] = []
        """The weights versions that nodes were to hold, one set after the other."""
        self.freed: list[str] = []
        """Workers whose job was ended."""
        self.told_terms: dict[str, int] = {}
        """The term of the trainers that each worker was told of last."""
        self.run_store: BundleStore | None = None
        """The coordinator's; those of nodes are only told apart."""
        self.counts_time = False
        """Whether nodes say what their workers do."""
        self.prices: dict[str, Price] = {}
        """What nodes say that they cost, by pool."""
        self.nodes_keep_samples = False
        self.shares: dict[str, Share] = {}
        """What nodes then share of their stores, by name."""
        self.there: set[Any] = set()
        """Places of the stores of nodes that are there."""
        self.left: dict[tuple[Any, str], int] = {}
        """Iterations in the states that trainers left in the stores of nodes."""

    def leave(self, store: StoreEndpoint, key: str, iteration: int) -> BundleOffer:
        """A trainer's state after so many iterations, or what is made of it, in a store."""
        if self.run_store is not None and store.root == self.run_store.endpoint.root:
            return self.run_store.put(key, _content(iteration))
        self.left[store.place, key] = iteration
        return BundleOffer(key, 1, iteration, store)

    def holds(self, offered: BundleOffer, iteration: int) -> bool:
        """Whether that state is there."""
        file = Path(offered.store.root) / offered.key
        if file.exists():
            return file.read_bytes() == _content(iteration)
        return self.left.get((offered.store.place, offered.key)) == iteration

    def has_state(self, order: StartTrainer) -> bool:
        """Whether a trainer can have the state that it is to begin from."""
        return bool(order.state) and all(
            any(self.holds(offered, order.completed) for offered in part) for part in order.state
        )

    @staticmethod
    def reward(wanted: Request) -> float:
        """A function of the sample alone; previews of the same seed differ from rollouts."""
        return derived_seed(wanted.id, wanted.weights_version) % 1000 / 1000


def _content(iteration: int) -> bytes:
    return f"state {iteration}".encode()


async def status(system: ActorSystem, coordinator: ActorRef) -> JobStatus:
    """What the coordinator says."""
    answer = await system.ask(coordinator, GetStatus(), timeout_s=10.0)
    assert isinstance(answer, JobStatus)
    return answer


def rng(seed: int = 0) -> random.Random:
    """A seeded generator."""
    return random.Random(seed)
