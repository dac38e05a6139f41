"""A trainer rank that computes with torch (`engine.Trainer`)."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from spotlight.actors.protocol.trainer import StartTrainer, Train
from spotlight.diffusion.checkpoints import with_own_transformer
from spotlight.diffusion.model import DiffusionModel
from spotlight.policies.training_parts import updates_of
from spotlight.timings import WorkerTimings
from spotlight.training.checkpoints import State
from spotlight.training.slices import unpack as unpack_gradient
from spotlight.training.state_files import StateFile, StateFiles
from spotlight.training.trainer import Trainer, TrainingBatch
from spotlight.transport.collectives import await_ranks, listen, meet, reach_store, serve_store
from spotlight.transport.tensors.bundles import unpack
from spotlight.types import BundleOffer, TrainingSample, UpdateSlices


class TorchListener:
    """See `engine.Listener`. `host` is where other ranks reach this machine."""

    def __init__(self, host: str, limit_s: float) -> None:
        listener = listen(host)
        self.address = f"{host}:{listener.getsockname()[1]}"
        self._store: Any = serve_store(host, listener, timeout_s=limit_s)

    def take_store(self) -> Any:
        """The store where the ranks meet, which is the taker's from now on."""
        store, self._store = self._store, None
        return store

    def close(self) -> None:
        """See `engine.Listener`."""
        self._store = None


class TorchTrainer:
    """See `engine.Trainer`. Raises as `engine.Engine.build_trainer`."""

    def __init__(
        self,
        order: StartTrainer,
        model: DiffusionModel,
        state: Sequence[StateFile],
        rendezvous: str,
        listener: TorchListener | None,
        require_wanted: Callable[[], None],
        timings: WorkerTimings = WorkerTimings(),
    ) -> None:
        job = order.job
        self._is_sharded = job.training.sharded and order.world > 1
        if self._is_sharded:
            gc.collect()  # an earlier one holds on to itself by its hooks
            model = with_own_transformer(model, job.model)
        self._updates = job.training.updates_per_iteration
        self._has_reference = job.training.kl > 0
        self._metrics: dict[str, float] = {}
        """Those of the latest optimizer step."""
        self._group = None
        if order.world > 1:
            host, _, port = rendezvous.rpartition(":")
            limit_s = timings.trainer_collective_limit_s
            store = (
                listener.take_store()
                if listener is not None
                else reach_store(host, int(port), timeout_s=limit_s)
            )
            # A model is loaded by now, and others may take minutes longer to load theirs.
            await_ranks(
                store,
                order.rank,
                order.world,
                limit_s=timings.load_limit_s,
                require_wanted=require_wanted,
            )
            self._group = meet(
                order.rank,
                order.world,
                store,
                rendezvous,
                connect_s=limit_s,
                timeout_s=limit_s,
                host=host,
                backend="nccl" if model.device.type == "cuda" else "gloo",
            )
        self._trainer = Trainer(
            model,
            job.training,
            job.sampler,
            seed=job.seed,
            iterations=job.iterations,
            rank=order.rank,
            world=order.world,
            group=self._group,
            reuse=job.trains_on_older,
        )
        if state:
            files = StateFiles(state)
            own = files.for_rank(self._trainer.rows)
            if files.is_start:
                self._trainer.begin_with(own, files.earlier_updates)
            else:
                self._trainer.load_state_dict(own)

    def wants(self, message: Train) -> Sequence[BundleOffer]:
        """See `engine.Trainer`."""
        offers = {message.samples[row].bundle for row in self._own_rows(message)}
        return sorted(offers, key=lambda offer: offer.key)

    def begin(self, message: Train, bundles: Mapping[str, bytes]) -> None:
        """See `engine.Trainer`."""
        tensors = {key: unpack(data) for key, data in bundles.items()}
        own = self._own_rows(message)
        batch = assemble(message.samples, own, tensors, message.window_start)
        self._metrics = {}
        self._trainer.begin(message.iteration, batch, updates_of(message.part, self._updates))

    @property
    def update(self) -> UpdateSlices | None:
        """See `engine.Trainer`."""
        return self._trainer.update

    @property
    def updates(self) -> int:
        """See `engine.Trainer`."""
        return self._trainer.updates

    @property
    def has_reference(self) -> bool:
        """See `engine.Trainer`."""
        return self._has_reference

    @property
    def trains_published(self) -> bool:
        """See `engine.Trainer`."""
        return self._trainer.trains_published

    @property
    def next_slice(self) -> int:
        """See `engine.Trainer`."""
        return self._trainer.next_slice

    def compute(self, wanted: Callable[[], bool]) -> None:
        """See `engine.Trainer`."""
        self._trainer.compute(wanted)

    def add(self, gradient: bytes) -> None:
        """See `engine.Trainer`."""
        self._trainer.add(unpack_gradient(gradient))

    def step(self) -> None:
        """See `engine.Trainer`."""
        self._metrics = self._trainer.step()

    def metrics(self) -> dict[str, float]:
        """See `engine.Trainer`."""
        return self._metrics

    def weights(
        self, role: Literal["rollout", "evaluation", "current", "reference"]
    ) -> dict[str, Tensor]:
        """See `engine.Trainer`."""
        trainer = self._trainer
        match role:
            case "rollout":
                return trainer.rollout_part()
            case "evaluation":
                return trainer.evaluation_part()
            case "current":
                return trainer.current_part()
            case "reference":
                return trainer.reference_part()

    def state(self) -> State:
        """See `engine.Trainer`."""
        trainer = self._trainer
        return State(trainer.state_dict(), trainer.rows if self._is_sharded else None)

    def close(self) -> None:
        """See `engine.Trainer`."""
        if self._group is not None:
            self._group.close()

    def _own_rows(self, message: Train) -> list[int]:
        """At least one, which gives the shapes."""
        updates = updates_of(message.part, self._updates)
        return self._trainer.own_samples(message.iteration, len(message.samples), updates) or [0]


def assemble(
    samples: Sequence[TrainingSample],
    own: Sequence[int],
    bundles: Mapping[str, dict[str, Tensor]],
    window_start: int,
) -> TrainingBatch:
    """Rows in the order of the samples, whoever denoised them; those that are not one's `own` stay
    empty."""

    def rows(name: str) -> Tensor:
        found = torch.stack(
            [bundles[samples[row].bundle.key][name][samples[row].row] for row in own]
        )
        every = found.new_zeros(len(samples), *found.shape[1:])
        every[list(own)] = found
        return every

    # Without a window of noise there are states of no step.
    stochastic = all(bundle["window_states"].shape[1] for bundle in bundles.values())
    return TrainingBatch(
        prompts=[sample.prompt for sample in samples],
        latents=rows("latents"),
        advantages=torch.tensor([sample.advantage for sample in samples]),
        window_states=rows("window_states") if stochastic else None,
        log_probs=rows("log_probs") if stochastic else None,
        window_start=window_start,
        seeds=[sample.seed for sample in samples],
    )
