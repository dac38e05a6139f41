"""A trainer rank of a simulated cluster (`engine.Trainer`): every rank brings its own samples, and
all come to the same weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from spotlight.actors.protocol.trainer import StartTrainer, Train
from spotlight.errors import SpotlightError
from spotlight.types import BundleOffer
from spotlight_simulation import fingerprints
from spotlight_simulation.fake_denoising import FakeModel, decode_commit
from spotlight_simulation.fake_hardware import FakeHardware
from spotlight_simulation.fingerprints import Row
from spotlight_simulation.numerics import Batch, Update
from spotlight_simulation.virtual_threads import sleep


@dataclass(frozen=True)
class FakeListener:
    """See `engine.Listener`."""

    address: str

    def close(self) -> None:
        """See `engine.Listener`."""


class FakeTrainer:
    """See `engine.Trainer`. Built in the accelerator's thread."""

    def __init__(
        self,
        hardware: FakeHardware,
        worker: str,
        order: StartTrainer,
        model: FakeModel,
        state: Sequence[fingerprints.Weights],
        rendezvous: str,
    ) -> None:
        self._hardware = hardware
        self.worker = worker
        self.job, self.term = order.job_id, order.term
        self._given_up = False
        self._order = order
        self._model = model
        self._completed = order.completed
        self._weights = hardware.numerics.initial_weights(order.job)
        self._first: list[tuple[Row, float]] = []
        """The samples of the first part of the iteration, while those of the later are awaited."""
        self._gatherings = 0
        name = rendezvous if order.world > 1 else hardware.next_address()
        self._group = hardware.trainer_groups.join(name, order.world, order.rank, worker)
        self._gather(None)  # all have come
        sleep(hardware.times.load_s)
        hardware.trainers.append(self)
        for part in state:
            self._weights = part.weights
            if part.version != order.completed:
                raise SpotlightError(f"the checkpoint holds {part.version} iterations")
        if order.rank == 0:
            hardware.history.add_of(
                order.job_id,
                "trainer",
                worker=worker,
                term=order.term,
                completed=order.completed,
                weights=self._weights,
            )

    def wants(self, message: Train) -> Sequence[BundleOffer]:
        """See `engine.Trainer`."""
        offers = {message.samples[row].bundle for row in self._own_rows(message)}
        return sorted(offers, key=lambda offer: offer.key)

    def train(self, message: Train, bundles: Mapping[str, bytes]) -> dict[str, float]:
        """See `engine.Trainer`."""
        hardware, order, before = self._hardware, self._order, self._weights
        self._require_wanted("trains")
        opened = {key: decode_commit(data).rows for key, data in bundles.items()}
        own = {
            row: opened[message.samples[row].bundle.key][message.samples[row].row]
            for row in self._own_rows(message)
        }
        if hardware.sick.get(self.worker) == "accelerator":  # any other error ends the job
            hardware.compute(self.worker)
        self._model.weights = ""  # whoever denoises with it has it hold those that he needs
        sleep(hardware.times.training_s(message.iteration, len(message.samples)))
        rows = {row: sample for part in self._gather(own) for row, sample in part.items()}
        samples = [(rows[row], sample.advantage) for row, sample in enumerate(message.samples)]
        if message.part == "first":
            self._first = samples
            return {}
        first, samples = len(self._first), [*self._first, *samples]
        self._first = []
        chance = hardware.chance(order.job_id, order.term, message.iteration)
        batch = Batch(message.iteration, before, samples, chance, first)
        update = hardware.numerics.trained(batch)
        self._weights = update.weights
        self._completed += 1
        if order.rank == 0:
            self._note(message.iteration, before, update, samples, first)
        return update.metrics

    def weights(self, role: Literal["rollout", "evaluation"]) -> fingerprints.Weights:
        """See `engine.Trainer`."""
        self._require_wanted("publishes")
        weights = self._weights
        if role == "evaluation":
            weights = fingerprints.evaluation_weights(weights)
        return fingerprints.Weights(self._completed, weights)

    def state(self) -> fingerprints.Weights:
        """See `engine.Trainer`."""
        self._require_wanted("saves its state")
        return fingerprints.Weights(self._completed, self._weights)

    def close(self) -> None:
        """See `engine.Trainer`."""
        self._given_up = True
        if self in self._hardware.trainers:
            self._hardware.trainers.remove(self)
        self._group.break_up("a trainer rank has left")

    def _require_wanted(self, does: str) -> None:
        """Nothing of a rank that was given up is of use, and it keeps others waiting."""
        if self._given_up:
            self._hardware.history.violation(f"{self.worker} {does}, though it was given up")

    def _own_rows(self, message: Train) -> range:
        return range(self._order.rank, len(message.samples), self._order.world)

    def _gather(self, what: dict[int, Row] | None) -> list[dict[int, Row]]:
        self._gatherings += 1
        return self._group.gather(self._order.rank, self._gatherings, what)

    def _note(
        self,
        iteration: int,
        before: str,
        update: Update,
        samples: list[tuple[Row, float]],
        first: int,
    ) -> None:
        rows = [row for row, _ in samples]
        self._hardware.history.add_of(
            self.job,
            "train",
            iteration=iteration,
            term=self._order.term,
            ranks=self._order.world,
            weights=before,
            after=update.weights,
            drift=update.metrics.get("drift"),
            first=first,
            samples=tuple(
                (row.request.id, row.weights, row.step, row.latents, advantage)
                for row, advantage in samples
            ),
            settings=tuple(
                (row.request.group, fingerprints.fingerprint(row.request.settings)) for row in rows
            ),
            expected=tuple(fingerprints.sample(row.weights, row.request) for row in rows),
        )
