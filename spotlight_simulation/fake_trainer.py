"""A trainer rank of a simulated cluster (`engine.Trainer`): every rank brings its own samples, and
all come to the same weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from spotlight.actors.protocol.trainer import StartTrainer, Train
from spotlight.errors import SpotlightError
from spotlight.policies.training_parts import updates_of
from spotlight.types import BundleOffer, Slice, UpdateSlices
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
        self._message: Train | None = None
        """What is trained on now, or was last."""
        self._own: dict[int, Row] = {}
        """This rank's samples of it."""
        self._updates: list[int] = []
        """The updates that are yet to be taken."""
        self._training_s = 0.0
        """What each of them takes."""
        self._gradients: list[str] = []
        """Those of the slices of the first of them, as far as they are added."""
        self._metrics: dict[str, float] = {}
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

    def begin(self, message: Train, bundles: Mapping[str, bytes]) -> None:
        """See `engine.Trainer`."""
        hardware = self._hardware
        self._require_wanted("trains")
        opened = {key: decode_commit(data).rows for key, data in bundles.items()}
        self._own = {
            row: opened[message.samples[row].bundle.key][message.samples[row].row]
            for row in self._own_rows(message)
        }
        if hardware.sick.get(self.worker) == "accelerator":  # any other error ends the job
            hardware.compute(self.worker)
        self._model.weights = ""  # whoever denoises with it has it hold those that he needs
        self._message = message
        training = self._order.job.training
        updates = updates_of(message.part, training.updates_per_iteration)
        self._updates = list(updates) if training.slices > 1 else [updates.start]
        self._training_s = hardware.times.training_s(message.iteration, len(message.samples))
        self._training_s /= len(self._updates)

    @property
    def update(self) -> UpdateSlices | None:
        """See `engine.Trainer`."""
        if not self._updates:
            return None
        assert self._message is not None
        order = self._order
        rows = len(self._own) * self._hardware.times.rows_of_sample
        count = max(1, min(order.job.training.slices, rows))
        edges = pairwise(place * rows // count for place in range(count + 1))
        slices = tuple(self._slice(place, *its) for place, its in enumerate(edges))
        return UpdateSlices(self._message.iteration, self._updates[0], order.rank, 1, 1.0, slices)

    def _slice(self, place: int, low: int, high: int) -> Slice:
        """The one with these rows, which may be only some of those of its samples."""
        each = self._hardware.times.rows_of_sample
        samples = tuple(self._own)[low // each : -(-high // each)]
        return Slice(place, samples, samples, low % each, high - low)

    @property
    def updates(self) -> int:
        """See `engine.Trainer`."""
        taken = self._updates[0] if self._updates else 0
        return self._completed * self._order.job.training.updates_per_iteration + taken

    @property
    def has_reference(self) -> bool:
        """See `engine.Trainer`."""
        return False

    @property
    def trains_published(self) -> bool:
        """See `engine.Trainer`."""
        return self.update is not None and self._updates[0] == 0

    @property
    def next_slice(self) -> int:
        """See `engine.Trainer`."""
        return len(self._gradients)

    def compute(self, wanted: Callable[[], bool]) -> None:
        """See `engine.Trainer`."""
        update = self.update
        assert update is not None
        seconds = self._hardware.slice_s = self._training_s / len(update.slices)
        if len(update.slices) > 1:
            sleep(seconds / 2)
            if not wanted():
                return
            seconds /= 2
        sleep(seconds)
        self._gradients.append(self._gradient(update, len(self._gradients)))

    def add(self, gradient: bytes) -> None:
        """See `engine.Trainer`."""
        update, place = self.update, len(self._gradients)
        assert update is not None
        self._gradients.append(gradient.decode())
        history = self._hardware.history
        history.came_about("a slice is added that another worker computed")
        if self._gradients[-1] != self._gradient(update, place):
            history.violation(f"a gradient of another slice than {place} of update {self.updates}")

    def step(self) -> None:
        """See `engine.Trainer`."""
        update = self.update
        assert update is not None
        if len(self._gradients) != len(update.slices):
            self._hardware.history.violation(
                f"a step with {len(self._gradients)} of {len(update.slices)} slices"
            )
        self._gradients = []
        if len(self._updates) > 1:
            self._gather(None)  # ranks step together
            del self._updates[0]
            return
        self._end()
        self._updates = []

    def metrics(self) -> dict[str, float]:
        """See `engine.Trainer`."""
        return self._metrics

    def _end(self) -> None:
        hardware, order, before, message = self._hardware, self._order, self._weights, self._message
        assert message is not None
        rows = {row: sample for part in self._gather(self._own) for row, sample in part.items()}
        samples = [(rows[row], sample.advantage) for row, sample in enumerate(message.samples)]
        if message.part == "first":
            self._first, self._metrics = samples, {}
            return
        first, samples = len(self._first), [*self._first, *samples]
        self._first = []
        chance = hardware.chance(order.job_id, order.term, message.iteration)
        batch = Batch(message.iteration, before, samples, chance, first)
        update = hardware.numerics.trained(batch)
        self._weights = update.weights
        self._completed += 1
        if order.rank == 0:
            self._note(message.iteration, before, update, samples, first)
        self._metrics = update.metrics

    def _gradient(self, update: UpdateSlices, place: int) -> str:
        its = update.slices[place]
        rows = [self._own[sample].latents for sample in its.samples]
        return fingerprints.gradient(self._current(update), self._weights, rows, its)

    def _current(self, update: UpdateSlices) -> str:
        """The weights that this update changes."""
        if self.trains_published:
            return self._weights
        return fingerprints.fingerprint("before", self._weights, self.updates)

    def weights(
        self, role: Literal["rollout", "evaluation", "current", "reference"]
    ) -> fingerprints.Weights:
        """See `engine.Trainer`."""
        self._require_wanted("publishes")
        weights, update = self._weights, self.update
        if role == "current" and update is not None:
            weights = self._current(update)
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
