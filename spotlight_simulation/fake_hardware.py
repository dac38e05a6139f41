"""What the workers of a simulated cluster share: time, chance, stores, and what is wrong with
them."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from spotlight.actors.worker.engine import Fault
from spotlight.timings import Timings
from spotlight.types import Request
from spotlight_simulation.fake_groups import FakeGroups
from spotlight_simulation.history import History
from spotlight_simulation.memory_store import Network, Stores
from spotlight_simulation.numerics import Fingerprints, Numerics
from spotlight_simulation.virtual_threads import wait_for_the_end

if TYPE_CHECKING:
    from spotlight_simulation.fake_denoising import FakeDenoising
    from spotlight_simulation.fake_trainer import FakeTrainer

LOST, UNCLEAR = "the accelerator has failed (simulated)", "something has failed (simulated)"
"""The errors of a sick worker: one says that its accelerator is lost, the other does not."""
_SERIAL_SHARE = 0.1
"""The share of a step that is not shared out in a group."""
_POISON_DOSES = 5
"""Poison is used up after so many processes: who resumes a job often enough gets it done."""


class AcceleratorFailed(RuntimeError):
    """What a sick worker raises; `fault` is what that says of the accelerator."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(LOST if fault else UNCLEAR)
        self.fault = fault


@dataclass
class HardwareTimes:
    """How long things take, in seconds."""

    step_s: float = 0.4
    copy_s: float = 0.0005
    """Seconds that a commit takes to come from the accelerator."""
    score_s: float = 0.3
    load_s: float = 0.5
    train_s: float = 8.0
    train_sample_s: float = 0.0
    """Seconds that training takes for each sample, besides `train_s`."""
    rows_of_sample: int = 1
    """Rows that training makes of a sample; no slice is smaller than one of them."""
    train_jitter: float = 0.0
    """Training takes up to this share longer or shorter."""
    publish_s: float = 0.0
    """Seconds until nodes have a weights version, besides what its bytes take."""
    published_bytes: int = 0
    """What a rank leaves of a weights version; 0: fingerprints have no size to speak of."""
    lent_bytes: int = 0
    """The same of the weights that it lends."""
    gradient_bytes: int = 0
    """The same of the gradient of a slice."""
    network: Network = field(default_factory=Network)
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
    kill: Callable[[str], object]
    """Kills the worker process of that name, in a moment."""
    incarnation: Callable[[str], str]
    """The identity of the process that bears a name now; it differs for every one that ever does.
    """
    numerics: Numerics = field(default_factory=Fingerprints)
    times: HardwareTimes = field(default_factory=HardwareTimes)
    timings: Timings = Timings()
    """The limits of the system that is simulated: those that are shipped."""
    exact_training: bool = True
    """The same samples give the same weights, as on one machine; else only nearly."""
    slow: dict[str, float] = field(default_factory=dict)
    """How much longer a step takes, by node."""
    slice_s: float = 0.0
    """What the gradient of a slice takes: as long as one that a rank has begun."""
    slow_steps: int = 0
    poison: set[str] = field(default_factory=set)
    """Requests that end every process that denoises them."""
    poison_next: int = 0
    """How many of the batches that begin next hold a request that will be poison."""
    poisoned: int = 0
    """Processes that poison ended."""
    sick: dict[str, Fault] = field(default_factory=dict)
    """Workers that fail whatever they compute, and what the errors say of the accelerator."""
    sick_batches: Counter[str] = field(default_factory=Counter)
    """Work that they have failed."""
    scorer_fails: Callable[[Request], bool] = lambda request: False
    at_work: dict[str, FakeDenoising] = field(default_factory=dict)
    """What every worker denoises, or has denoised last."""
    trainers: list[FakeTrainer] = field(default_factory=list)
    """Ranks that are built, and neither given up nor ended with their processes."""
    steps: int = 0
    """Denoising steps of single requests, all together."""
    _addresses: int = 0
    _chances: dict[tuple[str, int, int], str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        limits, history = self.timings.worker, self.history
        self.sp_groups = FakeGroups(history, limit_s=limits.group_collective_limit_s)
        self.trainer_groups = FakeGroups(history, limit_s=limits.trainer_collective_limit_s)

    def next_address(self) -> str:
        """Where nobody listened before."""
        self._addresses += 1
        return f"simulated:{self._addresses}"

    def lose(self, worker: str, *, seen: bool) -> None:
        """Its process is gone; perhaps the others of its groups see that."""
        self.trainers = [each for each in self.trainers if each.worker != worker]
        self.sp_groups.lose(worker, seen=seen)
        self.trainer_groups.lose(worker, seen=seen)

    def compute(self, worker: str) -> None:
        """In work of the worker: it uses the accelerator. Raises `AcceleratorFailed`."""
        fault = self.sick.get(worker)
        if fault is not None:
            self.sick_batches[worker] += 1
            raise AcceleratorFailed(fault)

    def step_taken(self, worker: str, denoising: FakeDenoising) -> None:
        """In work of the worker, which decides for its group: a batch is one step further. Some die
        of it.
        """
        self.steps += len(denoising.requests)
        self.at_work[worker] = denoising
        if self._is_poisonous(denoising.requests):
            self.kill(worker)
            wait_for_the_end()

    def step_s(self, node: str, members: int) -> float:
        """Time of a denoising step of a group on a node now."""
        self.slow_steps += node in self.slow
        share = _SERIAL_SHARE + (1 - _SERIAL_SHARE) / members
        return self.times.step_s * share * self.slow.get(node, 1.0)

    def chance(self, job_id: str, term: int, iteration: int) -> str:
        """What makes this update differ from others with the same samples; ranks that make it
        together have it in common."""
        if self.exact_training:
            return ""
        update = (job_id, term, iteration)
        if update not in self._chances:
            self._chances[update] = f"{self.rng.getrandbits(32)}"
        return self._chances[update]

    def _is_poisonous(self, requests: Sequence[Request]) -> bool:
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
