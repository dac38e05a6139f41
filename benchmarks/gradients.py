"""Updates whose gradients several compute: `python -m benchmarks.gradients --json`.

Trainers take updates of a tiny random checkpoint with every loss, of all weights and of adapters,
one rank and two. First each computes all slices of its updates itself. Then 1 and 4 workers with
models of their own compute slices too, from the last one backwards; and then 4 workers of which 40
are killed in the middle of a slice, each at a random micro-batch, whose slices are given out again,
while answers come late, twice and in any order. After every update weights, moments and averages
are compared, bit by bit. Workers take their turns in one process, in an order that a seed decides:
so every interleaving can be repeated.

The same is done with real processes: a job whose spot worker computes gradients, and is killed
(SIGKILL) at random moments of training, alone or with its node, comes to the checkpoint, the
exported model and the figures of a job that has no such worker.

Gradients are also compared with those of plain torch, of the mean loss over all rows at once. And
the demo's updates are taken with slices and nobody who helps, and with a single slice, in turns.
"""

from __future__ import annotations

import collections
import functools
import hashlib
import itertools
import math
import random
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import msgspec
import torch
from torch import Tensor

from benchmarks.gradients_live import real_processes
from benchmarks.report import Report, warnings_on_stderr
from spotlight.assets import read_prompt_lines
from spotlight.diffusion.checkpoints import load_model
from spotlight.diffusion.model import DiffusionModel
from spotlight.diffusion.noise import initial_noise
from spotlight.errors import SliceRefused
from spotlight.jobs import LoraSpec, ModelSpec, SamplerSpec, TrainingSpec, WindowSpec, load_job
from spotlight.training.batches import TrainingBatch, deal, key
from spotlight.training.losses import Velocities, build_loss
from spotlight.training.slices import SliceGradient, pack, slice_gradient, unpack
from spotlight.training.trainer import Trainer
from spotlight.transport.collectives import Group
from spotlight.types import UpdateSlices
from spotlight_simulation.drawn_batches import drawn_batch
from spotlight_simulation.ports import unused_port
from spotlight_simulation.rank_groups import init_group
from spotlight_simulation.tiny_families import make_tiny_checkpoint
from tests.warm_processes import warm_processes

UPDATES = 60
UPDATES_PER_ITERATION = 2
KILLS = 40
SAMPLES = 6
RANKS = 2
SLICES = 5
FINEST = 64
"""Slices of the demo, if it had as many micro-batches."""
DEMO = Path(__file__).parents[1] / "examples" / "ocr-tiny.yaml"
ROUNDS = 40
LIMIT_S = 600.0
LIVE_ITERATIONS = 8
LIVE_KILLS = 12
"""Iterations of the job with real processes, and how often its spot worker is killed."""
ODE = SamplerSpec(height=32, width=32, steps=4, micro_batch=2)
NOISY = msgspec.structs.replace(
    ODE, kind="flow_sde", window=WindowSpec(length=2, earliest=0, latest=3)
)
NFT = TrainingSpec(
    slices=SLICES,
    micro_batch=2,
    options={"times": 4},
    updates_per_iteration=UPDATES_PER_ITERATION,
)
AWM = msgspec.structs.replace(NFT, loss="awm", options={"times": 4}, kl=0.1)
GRPO = msgspec.structs.replace(NFT, loss="flow_grpo", options={}, kl=0.1)
GUARD = msgspec.structs.replace(NFT, loss="grpo_guard", options={})
State = dict[str, Tensor]


@dataclass(frozen=True)
class Case:
    """What is trained, and how."""

    name: str
    tuning: Literal["full", "lora"]
    training: TrainingSpec
    sampler: SamplerSpec = ODE
    reuse: bool = False
    ranks: int = 1


CASES = (
    Case("diffusion_nft", "lora", NFT),
    Case(
        "diffusion_nft, noisiest, shared noise, reuse",
        "full",
        msgspec.structs.replace(
            NFT, options={"times": 6, "noisiest": 0.5, "shared_noise": True}, kl=0.1
        ),
        reuse=True,
    ),
    Case("awm", "lora", AWM),
    Case("flow_grpo", "full", GRPO, NOISY),
    Case("grpo_guard, reuse", "lora", GUARD, NOISY, reuse=True),
    Case(
        "diffusion_nft, old policy",
        "full",
        msgspec.structs.replace(NFT, rollout_decay=0.5, kl=0.1),
        ranks=RANKS,
    ),
    Case("flow_grpo, reuse", "lora", GRPO, NOISY, reuse=True, ranks=RANKS),
)


def model_of(case: Case, folder: str) -> DiffusionModel:
    """The case's model, on the CPU."""
    lora = LoraSpec(rank=2, alpha=4)
    return load_model(ModelSpec(checkpoint=folder, tuning=case.tuning, lora=lora), device="cpu")


def batch_for(case: Case, model: DiffusionModel) -> TrainingBatch:
    """Samples of the untrained model."""
    prompts = [f"picture number {number % 2}" for number in range(SAMPLES)]
    return drawn_batch(model, case.sampler, prompts)


# --- who computes slices ---


class Killed(Exception):
    """A worker that ends in the middle of a slice."""


class Worker:
    """It has a model of its own, and of a batch and its weights only what a slice needs."""

    def __init__(self, case: Case, folder: str) -> None:
        self._case = case
        self._model = model_of(case, folder)

    def gradient(
        self,
        update: UpdateSlices,
        index: int,
        batch: TrainingBatch,
        weights: Mapping[str, State],
        dies_at: float = math.inf,
    ) -> bytes:
        """What it sends; raises `Killed` when it is asked for the `dies_at`-th time whether to go
        on, which is once before each micro-batch."""
        asked = itertools.count(1)
        case, slice_ = self._case, update.slices[index]

        def wanted() -> bool:
            if next(asked) >= dies_at:
                raise Killed
            return True

        def use(role: str) -> None:
            self._model.load_trainable_state(weights[role])

        found = slice_gradient(
            self._model,
            case.training,
            case.sampler,
            0,
            case.reuse,
            msgspec.structs.replace(update, slices=()),
            slice_,
            batch.select(slice_.samples),
            use,
            wanted,
        )
        assert found is not None
        return pack(found)


@dataclass
class Tally:
    """What became of slices."""

    counted: collections.Counter[tuple[int, ...]] = field(default_factory=collections.Counter)
    """How often each was, by iteration, update and index."""
    lost: int = 0
    """Those that were not counted when their update's step was taken."""
    kills: int = 0
    helped: int = 0
    """Those counted that workers computed."""
    refused: int = 0
    """Answers that a trainer was given late, twice or before their turn."""

    def count(self, what: UpdateSlices | SliceGradient, index: int) -> None:
        """A trainer has counted a slice."""
        self.counted[what.iteration, what.update, what.rank, index] += 1


class Crowd:
    """Workers that take turns with a rank, in a random order."""

    def __init__(
        self, case: Case, folder: str, size: int, kills: Sequence[int], rng: random.Random
    ) -> None:
        """`kills` are the updates in which a worker is killed, of a run's."""
        self._make = functools.partial(Worker, case, folder)
        self._workers = [self._make() for _ in range(size)]
        self._kills = collections.Counter(kills)
        self._rng = rng
        self._due = 0
        self._late: list[SliceGradient] = []
        self.tally = Tally()

    def take_update(
        self,
        number: int,
        trainer: Trainer,
        batch: TrainingBatch,
        began: State,
    ) -> None:
        """Have all slices of the trainer's next update counted."""
        update = trainer.update
        assert update is not None
        rng, tally = self._rng, self.tally
        weights = weights_of(trainer, began) if self._workers else {}
        self._due += self._kills[number]
        came: dict[int, SliceGradient] = {}
        flying: list[SliceGradient] = []
        taken: collections.Counter[int] = collections.Counter()
        self._offer(trainer, self._late)
        while trainer.next_slice < len(update.slices):
            if rng.randrange(len(self._workers) + 1):
                self._work(update, batch, weights, taken, flying, trainer.next_slice)
            else:
                self._compute(trainer, update, came)
            rng.shuffle(flying)
            for _ in range(rng.randrange(len(flying) + 1)):
                answer = flying.pop()
                if answer.index < trainer.next_slice or answer.index in came or rng.random() < 0.1:
                    self._offer(trainer, [answer])
                came.setdefault(answer.index, answer)
        self._late = [*flying, *came.values()]
        places = ((update.iteration, update.update, update.rank, s.index) for s in update.slices)
        tally.lost += sum(not tally.counted[place] for place in places)

    def _work(
        self,
        update: UpdateSlices,
        batch: TrainingBatch,
        weights: Mapping[str, State],
        taken: collections.Counter[int],
        flying: list[SliceGradient],
        first: int,
    ) -> None:
        """One worker computes the last slice that nobody has taken, or one a second time."""
        rng = self._rng
        free = [it for it in range(first, len(update.slices)) if taken[it] < 2]
        if not free:
            return
        index = max(free, key=lambda it: (-taken[it], it))
        taken[index] += 1
        place = rng.randrange(len(self._workers))
        dies_at: float = math.inf
        if self._due:
            passes = -(-update.slices[index].rows // update.size)
            dies_at = rng.randint(1, 2 * passes)  # which a slice without an old policy survives
        try:
            sent = self._workers[place].gradient(update, index, batch, weights, dies_at)
        except Killed:
            self._due -= 1
            self.tally.kills += 1
            taken[index] -= 1
            self._workers[place] = self._make()
            return
        flying += [unpack(sent)] * (2 if rng.random() < 0.3 else 1)

    def _compute(
        self, trainer: Trainer, update: UpdateSlices, came: Mapping[int, SliceGradient]
    ) -> None:
        """The rank's turn: the next slice, which may come while it is at it."""
        index = trainer.next_slice
        if index in came:
            if self._rng.random() < 0.3:
                assert not trainer.compute(lambda: False)
            trainer.add(came[index])
            self.tally.helped += 1
        else:
            assert trainer.compute()
        self.tally.count(update, index)

    def _offer(self, trainer: Trainer, answers: Sequence[SliceGradient]) -> None:
        """Give the trainer answers that are not the next slice's: it must refuse them."""
        update = trainer.update
        assert update is not None
        for answer in answers:
            own = (update.iteration, update.update, trainer.next_slice)
            if (answer.iteration, answer.update, answer.index) == own:
                continue
            try:
                trainer.add(answer)
            except SliceRefused:
                self.tally.refused += 1
            else:
                self.tally.count(answer, answer.index)


def weights_of(trainer: Trainer, began: State) -> dict[str, State]:
    """What slices need of whom, by role; `began` are the weights that roll out."""
    weights = {"current": trainer.current_state(), "old": began}
    if any(name.startswith("reference/") for name in trainer.state_dict()):
        weights["reference"] = trainer.reference_state()
    return weights


# --- bits ---


@dataclass(frozen=True)
class Outcome:
    """Of one run of a case."""

    digests: list[str]
    """The digests of weights, moments and averages after every update."""
    tally: Tally


def digest(trainer: Trainer) -> str:
    """Of everything that decides the future of training."""
    found = hashlib.blake2b(digest_size=16)
    for name, tensor in sorted(trainer.state_dict().items()):
        found.update(name.encode())
        found.update(tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def run(
    case: Case,
    folder: str,
    workers: int,
    updates: int,
    kills: int = 0,
    *,
    rank: int = 0,
    group: Group | None = None,
) -> Outcome:
    """Take so many updates."""
    rng = random.Random(f"{case.name} {case.tuning} {workers} {kills} {rank}")
    killed_in = [rng.randrange(updates * 9 // 10) for _ in range(kills)]
    crowd = Crowd(case, folder, workers, killed_in, rng)
    model = model_of(case, folder)
    batch = batch_for(case, model)
    trainer = Trainer(
        model,
        case.training,
        case.sampler,
        seed=0,
        reuse=case.reuse,
        rank=rank,
        world=case.ranks,
        group=group,
    )
    digests: list[str] = []
    for iteration in range(updates // UPDATES_PER_ITERATION):
        began = trainer.rollout_state()
        trainer.begin(iteration, batch)
        while trainer.update is not None:
            crowd.take_update(len(digests), trainer, batch, began)
            trainer.step()
            digests.append(digest(trainer))
    return Outcome(digests, crowd.tally)


def runs(kills: int) -> list[tuple[int, int]]:
    """How many workers there are, and how many are killed; nobody is there at first."""
    return [(0, 0), (1, 0), (4, 0), (4, kills)]


def run_all(
    case: Case,
    folder: str,
    updates: int,
    kills: int,
    rank: int = 0,
    group: Group | None = None,
) -> list[Outcome]:
    """One run with each number of workers."""
    return [
        run(case, folder, workers, updates, killed, rank=rank, group=group)
        for workers, killed in runs(kills)
    ]


def run_rank(
    rank: int, port: int, case: Case, folder: str, updates: int, kills: int
) -> list[Outcome]:
    """One rank of several, in a process of its own, with workers of its own."""
    torch.set_num_threads(1)
    with init_group(rank, case.ranks, port=port, timeout_s=LIMIT_S) as group:
        return run_all(case, folder, updates, kills, rank, group)


def outcomes(case: Case, folder: str, updates: int, kills: int) -> list[list[Outcome]]:
    """Of every rank, one for each number of workers."""
    if case.ranks == 1:
        return [run_all(case, folder, updates, kills)]
    port = unused_port()
    with ProcessPoolExecutor(case.ranks, warm_processes(), warnings_on_stderr) as pool:
        done = [
            pool.submit(run_rank, rank, port, case, folder, updates, kills)
            for rank in range(case.ranks)
        ]
        return [each.result(LIMIT_S) for each in done]


def bits(found: Sequence[Sequence[Outcome]]) -> dict[str, float]:
    """Of the ranks of all cases: what is compared with the run in which nobody helps."""
    equal: list[bool] = []
    for alone, *helped in found:
        for other in helped:
            equal += [a == b for a, b in zip(alone.digests, other.digests, strict=True)]
    tallies = [outcome.tally for each in found for outcome in each]
    return {
        "bit_equal_fraction": statistics.fmean(equal),
        "updates_compared": len(equal),
        "slices_counted": sum(len(tally.counted) for tally in tallies),
        "slices_helped": sum(tally.helped for tally in tallies),
        "slices_lost": sum(tally.lost for tally in tallies),
        "slices_twice": sum(n > 1 for tally in tallies for n in tally.counted.values()),
        "answers_refused": sum(tally.refused for tally in tallies),
        "kills": sum(tally.kills for tally in tallies),
    }


# --- plain torch ---


def torch_error(case: Case, folder: str) -> float:
    """How far the sum of the slices of an iteration's second update, when the policies differ, is
    from the gradient of the mean loss over all of its rows at once by plain autograd, relative to
    that."""
    model = model_of(case, folder)
    batch, worker = batch_for(case, model), Worker(case, folder)
    trainer = Trainer(model, case.training, case.sampler, seed=0, reuse=case.reuse)
    began = trainer.rollout_state()
    trainer.begin(0, batch)
    assert trainer.update is not None
    for _ in trainer.update.slices:
        trainer.compute()
    trainer.step()
    update, weights = trainer.update, weights_of(trainer, began)
    assert update is not None
    found = torch.stack(
        [unpack(worker.gradient(update, s.index, batch, weights)).gradient for s in update.slices]
    ).sum(dim=0)

    loss, options = build_loss(model, case.training, case.sampler, reuse=case.reuse)
    hand = deal(SAMPLES, UPDATES_PER_ITERATION, key(0, 0))[update.update]
    shares = getattr(options, "shared_noise", False)
    draws = [batch.prompts.index(batch.prompts[it]) if shares else it for it in hand]
    terms = loss.terms(batch, hand, [key(0, 0, update.update, draw) for draw in draws])
    velocities = {}
    for role in ("reference", "old", "current"):  # the last of them is differentiated
        if role in weights:
            model.load_trainable_state(weights[role])
            velocities[role] = model.velocity(
                terms.latents,
                terms.sigmas,
                model.encode_prompts([batch.prompts[row] for row in terms.samples]),
                height=case.sampler.height,
                width=case.sampler.width,
            )
            if role != "current":
                velocities[role] = velocities[role].detach()
    old = velocities["old"] if loss.uses_old_policy else velocities["current"].detach()
    given = Velocities(velocities["current"], old, velocities.get("reference"))
    parameters = [it for it in model.transformer.parameters() if it.requires_grad]
    gradients = torch.autograd.grad(
        loss.evaluate(terms, given)[0].mean(), parameters, allow_unused=True
    )
    plain = torch.cat(
        [
            (torch.zeros_like(own) if gradient is None else gradient).flatten()
            for own, gradient in zip(parameters, gradients, strict=True)
        ]
    )
    return float((found.double() - plain.double()).norm() / plain.double().norm())


# --- what slices cost ---


def overhead_alone(rounds: int) -> dict[str, float]:
    """Processor time of the demo's updates with slices that nobody helps with, over that of updates
    with a single one, less 1: the median of so many rounds, in which all have two turns. There are
    two slices of two micro-batches, and in the finest case four of one."""
    job = load_job(DEMO)
    prompts = [prompt.text for prompt in read_prompt_lines(job.prompts.train).items]
    count = job.samples_per_iteration
    chosen = [prompts[row // job.group_size] for row in range(count)]

    def trainer_of(slices: int) -> tuple[Trainer, TrainingBatch]:
        model = load_model(job.model, device="cpu")
        shape = model.latent_shape(job.sampler.height, job.sampler.width)
        training = msgspec.structs.replace(job.training, slices=slices)
        trainer = Trainer(model, training, job.sampler, seed=0, iterations=job.iterations)
        latents = initial_noise(range(count), shape)
        return trainer, TrainingBatch(chosen, latents, torch.linspace(-1, 1, count))

    def seconds(trainer: Trainer, batch: TrainingBatch, iteration: int) -> float:
        started = time.process_time()
        trainer.train(iteration, batch)
        return (time.process_time() - started) / job.training.updates_per_iteration

    trained = {slices: trainer_of(slices) for slices in (1, 2, FINEST)}
    ratios: dict[int, list[float]] = {2: [], FINEST: []}
    updates = []
    for round_ in range(rounds + 1):
        took = dict.fromkeys(trained, 0.0)
        # What drifts while it is measured is felt by all alike.
        for turn, slices in enumerate((*trained, *reversed(trained))):
            took[slices] += seconds(*trained[slices], 2 * round_ + turn // len(trained))
        if round_:  # the first one warms up
            updates.append(took[1] / 2)
            for slices, found in ratios.items():
                found.append(took[slices] / took[1])
    margin = 1.96 * statistics.stdev(ratios[2]) / math.sqrt(rounds) if rounds > 1 else math.inf
    return {
        "overhead_alone": statistics.median(ratios[2]) - 1,
        "overhead_finest": statistics.median(ratios[FINEST]) - 1,
        "overhead_margin": margin,
        "update_cpu_s": statistics.median(updates),
    }


def main() -> None:
    """Take updates, compare, and print."""
    report = Report("gradients", __doc__, minutes=15)
    quick = report.begin().quick
    torch.set_num_threads(1)
    cases = (CASES[0],) if quick else CASES
    updates = max(report.times(UPDATES, quick=6) // 2 * 2, 6)
    kills = report.times(KILLS, quick=4)
    found: list[list[Outcome]] = []
    with tempfile.TemporaryDirectory() as folder:
        make_tiny_checkpoint("qwen-image", Path(folder))
        errors = [torch_error(case, folder) for case in cases if case.ranks == 1]
        report.add({"torch_error": max(errors)})
        for case in cases:
            of_ranks = outcomes(case, folder, updates, kills)
            found += of_ranks
            equal = bits(of_ranks)["bit_equal_fraction"]
            report.note(f"{case.name}, {case.tuning}, {case.ranks} ranks: {equal:g} equal")
    report.add({"cases": len(cases), "updates": updates} | bits(found))
    report.add(overhead_alone(report.times(ROUNDS, quick=2)))
    iterations = report.times(LIVE_ITERATIONS, quick=2)
    report.add(real_processes(iterations, kills=report.times(LIVE_KILLS, quick=1)))
    report.finish()


if __name__ == "__main__":
    main()
