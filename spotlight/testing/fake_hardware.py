"""What the workers of a simulated cluster share: time, chance, stores, and what is wrong with
them."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from spotlight.actors.worker.batch_member import Batch
from spotlight.testing import fingerprints
from spotlight.testing.ack_log import AckLog
from spotlight.testing.fake_collectives import FakeCollectives, State
from spotlight.testing.history import History
from spotlight.testing.memory_store import Stores
from spotlight.testing.numerics import Fingerprints, Numerics
from spotlight.types import BundleOffer, Request

_SERIAL_SHARE = 0.1
"""Of a step, so much is not shared out in a group."""
_POISON_DOSES = 5
"""Poison is used up after so many processes: who resumes a job often enough gets it done."""


@dataclass
class HardwareTimes:
    """How long things take, in seconds."""

    step_s: float = 0.4
    copy_s: float = 0.0005
    """Of a commit, from the accelerator."""
    score_s: float = 0.3
    load_s: float = 0.5
    train_s: float = 8.0
    train_sample_s: float = 0.0
    """Of each sample, besides `train_s`."""
    train_jitter: float = 0.0
    """Training takes up to this share longer or shorter."""
    publish_s: float = 0.0
    """Of a weights version, until nodes can pull it; transfers apart."""
    boot_s: tuple[float, float] = (0.5, 2.0)
    transfer_s: tuple[float, float] = (0.005, 0.1)

    def training_s(self, iteration: int, samples: int) -> float:
        """Of all optimizer steps of an iteration; the same for every rank, and in every run."""
        jitter = self.train_jitter * random.Random(f"training {iteration}").uniform(-1, 1)
        return (self.train_s + self.train_sample_s * samples) * (1 + jitter)


@dataclass
class FakeHardware:
    """What the workers of a cluster share: chance, time, stores, and what is wrong with them."""

    rng: random.Random
    history: History
    stores: Stores
    acks: AckLog
    kill: Callable[[str], object]
    """Kills the worker process of that name."""
    numerics: Numerics = field(default_factory=Fingerprints)
    timings: HardwareTimes = field(default_factory=HardwareTimes)
    exact_training: bool = True
    """The same samples give the same weights, as on one machine; else only nearly."""
    slow: dict[str, float] = field(default_factory=dict)
    """How much longer a step takes, by node."""
    slow_steps: int = 0
    poison: set[str] = field(default_factory=set)
    """Requests that end every process that denoises them."""
    poison_next: int = 0
    """So many of the batches that begin next hold a request that will be poison."""
    poisoned: int = 0
    """Processes that poison ended."""
    drains: Counter[str] = field(default_factory=Counter)
    """Drains that members heard of, by node."""
    scorer_fails: Callable[[Request], bool] = lambda request: False
    at_work: dict[str, SimulatedBatch] = field(default_factory=dict)
    """What every worker denoises now."""
    steps: int = 0
    """Denoising steps of single requests, all together."""
    _chances: dict[tuple[str, int, int], str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.circles = FakeCollectives(self.history)

    def step_s(self, node: str, members: int) -> float:
        """Time of a denoising step of a group on a node now."""
        self.slow_steps += node in self.slow
        share = _SERIAL_SHARE + (1 - _SERIAL_SHARE) / members
        return self.timings.step_s * share * self.slow.get(node, 1.0)

    def chance(self, job_id: str, term: int, iteration: int) -> str:
        """What makes this update differ from others with the same samples; ranks that make it
        together have it in common."""
        if self.exact_training:
            return ""
        update = (job_id, term, iteration)
        if update not in self._chances:
            self._chances[update] = f"{self.rng.getrandbits(32)}"
        return self._chances[update]

    def is_poisonous(self, requests: tuple[Request, ...]) -> bool:
        """Whether denoising these ends the process."""
        if self.poison_next:
            self.poison_next -= 1
            self.poison.add(self.rng.choice(requests).id)
        found = [request.id for request in requests if request.id in self.poison]
        if not found:
            return False
        self.poisoned += 1
        self.history.add("poisoned", request=found[0])
        if self.poisoned % _POISON_DOSES == 0:
            self.poison.clear()
        return True


@dataclass(eq=False)
class SimulatedBatch(Batch):
    """A batch in work at a simulated member."""

    weights: str = ""
    first: int = 0
    step: int = 0
    latents: list[str] = field(default_factory=list)
    committed: int = 0
    """Step of the last commit taken."""
    told: int = 0
    """Step of the last commit that the leader knows of."""
    seconds: float = 0.0
    """Time that the steps took."""
    degrees: set[int] = field(default_factory=set)
    """Sizes of the groups that took them."""

    @property
    def state(self) -> State:
        """Where it stands."""
        return State(self.weights, self.step, tuple(self.latents))


async def fetch_bundle(plant: FakeHardware, offer: BundleOffer) -> fingerprints.Bundle:
    """Samples or a commit."""
    return msgspec.msgpack.decode(await plant.stores.fetch(offer), type=fingerprints.Bundle)


async def fetch_weights(plant: FakeHardware, offer: BundleOffer) -> fingerprints.Weights:
    """A weights version."""
    return msgspec.msgpack.decode(await plant.stores.fetch(offer), type=fingerprints.Weights)
