"""Optimizer steps of one rank: from a scored batch to new weights.

Invariants:
- What an update computes depends on (weights, batch, job seed, iteration) alone. Every random
  choice belongs to a sample, so ranks see what one rank alone would see: N ranks make the same
  update as one, up to the rounding of sums, and all ranks hold the same bits, or of a sharded
  model each its rows of them.
- All ranks decide alike: losses and gradients are reduced before anything is judged or stepped.
- Ranks of a sharded model run equally many forward and backward passes, as each gathers weights
  from all: who has fewer micro-batches runs the rest for nothing.
- A loss or gradient that is not finite stops training with `TrainingDiverged`; it changes nothing.
- `state_dict` holds everything that a resumed job needs to go on with the same bits.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice

import torch
from torch import Tensor

from spotlight.diffusion.model import DiffusionModel
from spotlight.errors import CheckpointError, SliceRefused, TrainingDiverged, TransportError
from spotlight.jobs import SamplerSpec, TrainingSpec
from spotlight.jobs.losses import replays
from spotlight.policies.old_policy import rollout_decay
from spotlight.store.checkpoint_header import EARLIER_UPDATES, UPDATES
from spotlight.training.batches import TrainingBatch, deal, key
from spotlight.training.ema import Ema
from spotlight.training.forwards import Forwards, micro_batch_size
from spotlight.training.learning_rates import learning_rates
from spotlight.training.losses import NoisedOptions, Terms, build_loss
from spotlight.training.sharded_weights import ShardedWeights
from spotlight.training.slices import (
    Computed,
    Passes,
    Prepared,
    Role,
    SliceComputer,
    SliceGradient,
    Unwanted,
    always,
    cut,
    is_finite,
)
from spotlight.training.weights import FlatWeights, Rows
from spotlight.transport.collectives import Group
from spotlight.types import Slice, UpdateSlices

__all__ = ["Trainer", "TrainingBatch", "TrainingDiverged"]

_ADAM_EPSILON = 1e-8
_NO_ROWS = Slice(0, (), (), 0, 0)
"""What a rank of a sharded model computes while only others have samples."""


@dataclass
class _Few:
    """Rows that tell how far an iteration moves the weights."""

    forwards: Forwards
    terms: Terms
    before: Tensor = field(default_factory=lambda: torch.zeros(0))
    """Their velocities under the weights that rolled out when the iteration began."""


@dataclass
class _Begun:
    """Updates that are begun and not all taken."""

    batch: TrainingBatch
    updates: deque[UpdateSlices]
    """Those that are not taken."""
    sums: Tensor
    """[1 + metrics] float64: of the slices of the next one that are counted."""
    is_last: bool
    """Whether the iteration ends with these updates."""
    next_slice: int = 0
    ahead: deque[Prepared] = field(default_factory=deque)
    """The only slice of every update, prepared at the beginning; empty with several slices."""
    few: _Few | None = None
    computed: list[tuple[int, Tensor, Computed]] = field(default_factory=list)
    """The slices that this rank computed: which, the samples of their rows, and what came of
    them."""

    def go_on(self) -> None:
        """To the update after the next one."""
        self.updates.popleft()
        if self.ahead:
            self.ahead.popleft()
        self.next_slice = 0
        self.sums = torch.zeros_like(self.sums)
        self.computed.clear()


class Trainer:
    """One trainer rank. Ranks that share a `group` must be built and called alike."""

    def __init__(
        self,
        model: DiffusionModel,
        training: TrainingSpec,
        sampler: SamplerSpec,
        *,
        seed: int,
        iterations: int | None = None,
        rank: int = 0,
        world: int = 1,
        group: Group | None = None,
        reuse: bool = False,
    ) -> None:
        """Starts from the model's weights (rank 0's, when there are several ranks); with
        `training.sharded`, ranks that share a group shard the model. A learning rate that falls
        does so over the `iterations` of the job; a constant one needs none. With `reuse`, samples
        may be one iteration old, and the metrics have `drift`: the mean squared change of the
        velocity that the rollout weights give for a few rows, divided by its mean square.

        Raises `JobError` or `CheckpointError` when job and model do not fit, `ValueError` when
        there are several ranks without a group or a rate that falls without `iterations`, and
        `TransportError` when a peer is gone.
        """
        if world > 1 and (group is None or (group.rank, group.world) != (rank, world)):
            raise ValueError(f"rank {rank} of {world} needs its group")
        self._model = model
        self._training = training
        self._seed = seed
        self._rank = rank
        self._world = world
        self._group = group
        self._loss, options = build_loss(model, training, sampler, reuse=reuse)
        self._shares_noise = isinstance(options, NoisedOptions) and options.shared_noise
        offloaded = training.cpu_offload
        self._weights = (
            ShardedWeights(model, group, offloaded=offloaded)
            if training.sharded and group is not None
            else FlatWeights(model, group, offloaded=offloaded)
        )
        values = self._weights.values
        values.grad = self._weights.gradient
        self._optimizer = torch.optim.AdamW(
            [values],
            lr=training.learning_rate,
            betas=training.adam_betas,
            eps=_ADAM_EPSILON,
            weight_decay=training.weight_decay,
            fused=True,
        )
        self._ema = Ema(values, training.ema_decay)
        keeps_old = self._loss.uses_old_policy and training.rollout_decay > 0
        self._old = values.clone() if keeps_old else None
        self._reference = values.clone() if training.kl > 0 else None
        self._reuse = reuse
        self._updates = 0
        self._earlier_updates = 0
        """Updates of an earlier run, whose moments the optimizer began with."""
        self._began: Tensor | None = None
        """The rollout weights that the iteration began with, while later updates need them."""
        self._begun: _Begun | None = None
        self._part: Tensor | None = None
        """[P]: where a later slice's gradient is summed, before it is added."""
        self._computer = SliceComputer(
            model, self._loss, training, sampler, seed, self._weights.backward
        )
        self._reports: list[dict[str, float]] = []
        """What each update of the iteration reported."""
        if iterations is None and training.learning_rate_schedule != "constant":
            raise ValueError(f"iterations: a {training.learning_rate_schedule} rate needs them")
        self._job_updates = (iterations or 1) * training.updates_per_iteration
        self._rates = learning_rates(training, self._job_updates)

    @property
    def updates(self) -> int:
        """Optimizer steps taken so far."""
        return self._updates

    def train(
        self, iteration: int, batch: TrainingBatch, updates: range | None = None
    ) -> dict[str, float]:
        """Take optimizer steps of one iteration, whose gradients are all computed here; the model
        then holds the newest weights.

        Takes and raises what `begin` and `step` do; returns what the last `step` does.
        """
        self.begin(iteration, batch, updates)
        report: dict[str, float] = {}
        while self.update is not None:
            while self.next_slice < len(self.update.slices):
                self.compute()
            report = self.step()
        return report

    def begin(self, iteration: int, batch: TrainingBatch, updates: range | None = None) -> None:
        """Begin optimizer steps of one iteration; what was begun before is given up.

        Every rank is given the whole batch and takes its share; of the rows of others (all but its
        `own_samples`) only the shape matters. With `training.slices` of 1, the passes of weights
        that are not trained are all run now. Ranks of a sharded model must call it together; so
        with `compute` and `step`.

        Args:
            updates: those that the batch is for, all of the iteration by default. Later ones must
                follow before anything else; until the last is taken nothing is reported, and the
                old policy stays that of the iteration's beginning.

        Raises `LossFailed`, `TransportError`, and `ValueError` when the batch does not fit.
        """
        training = self._training
        updates = range(training.updates_per_iteration) if updates is None else updates
        hands = self._hands(iteration, len(batch), updates)
        is_last = updates.stop == training.updates_per_iteration
        self._begun = None
        if updates.start == 0:
            self._reports = []
            is_needed = self._loss.uses_old_policy and training.slices > 1 and len(hands) > 1
            keeps = self._old is None and (is_needed or not is_last)
            self._began = self._weights.values.clone() if keeps else None
        else:
            kept = self._began if self._old is None else self._old
            assert kept is not None, "the first updates of the iteration came before these"
        self._begun = self._divided(iteration, batch, updates.start, hands, is_last=is_last)

    @property
    def update(self) -> UpdateSlices | None:
        """The next update of those that were begun, divided into slices; None when all of them are
        taken."""
        return self._begun.updates[0] if self._begun is not None else None

    @property
    def next_slice(self) -> int:
        """The index of the slice that is counted next; after the last one, how many there are."""
        return self._begun.next_slice if self._begun is not None else 0

    def compute(self, wanted: Callable[[], bool] = always) -> bool:
        """Compute the next slice of the update and count it, whatever the model held before.

        Args:
            wanted: whether it still is to be computed; it is asked between two micro-batches. A
                rank of a sharded model must want it to the end, as the others wait for it.

        Returns whether it was counted. Raises `SliceRefused` when all slices are counted,
        `LossFailed` and `TransportError`.
        """
        begun = self._with_next_slice()
        backward, gradient = self._weights.backward, self._weights.gradient
        if begun.next_slice and self._part is None:
            self._part = backward.new_vector()
        vector = gradient if begun.next_slice == 0 or self._part is None else self._part
        try:
            prepared = self._prepared(begun, begun.next_slice, wanted)
            self._use("current")
            computed = self._computer.accumulate(prepared, begun.updates[0], vector, wanted)
        except Unwanted:
            return False
        begun.computed.append((begun.next_slice, prepared.terms.samples, computed))
        self._count(begun, vector, computed.sums)
        return True

    def add(self, found: SliceGradient) -> None:
        """Count the next slice of the update, which somebody else computed.

        Raises `SliceRefused` when it is not the next one, is not of these weights and metrics, or
        is not finite; nothing is counted then.
        """
        begun = self._with_next_slice()
        update = begun.updates[0]
        own = (update.iteration, update.update, update.rank, begun.next_slice)
        its = (found.iteration, found.update, found.rank, found.index)
        where = "iteration {}, update {}, rank {}, slice {}"
        if its != own:
            raise SliceRefused(
                f"the gradient of {where.format(*its)} came where that of {where.format(*own)} is"
                " counted next"
            )
        sizes = self._weights.gradient.shape, begun.sums.shape
        if (found.gradient.shape, found.sums.shape) != sizes:
            raise SliceRefused(
                f"the gradient of {where.format(*its)} has {found.gradient.numel()} numbers and"
                f" {found.sums.numel()} sums, not {sizes[0].numel()} and {sizes[1].numel()}: it is"
                " of another model or loss"
            )
        if not is_finite(found.gradient, found.sums[:1]):
            raise SliceRefused(f"the gradient of {where.format(*its)} is not finite")
        self._count(begun, found.gradient, found.sums)

    def step(self) -> dict[str, float]:
        """Take the optimizer step of the update, when all of its slices are counted.

        Returns nothing before the last update of the iteration, and then means over its updates:
        `loss`, `grad_norm` (before clipping), `learning_rate` and the metrics of the loss; those
        also for the first update alone, as `first_*`.

        Raises `TrainingDiverged`, which names the sample where one is the reason, before anything
        is changed; what was begun is given up then. Raises `SliceRefused` when slices are missing,
        and `TransportError`.
        """
        begun = self._begun
        if begun is None or begun.next_slice < len(begun.updates[0].slices):
            raise SliceRefused("there is no update all of whose slices are counted")
        update = begun.updates[0]
        where = f"iteration {update.iteration}, update {update.update}"
        if not update.slices:
            self._weights.gradient.zero_()
        self._begun = None
        self._reports.append(self._step(where, begun))
        begun.go_on()
        if begun.updates:
            self._begun = begun
            return {}
        return self._finished(begun) if begun.is_last else {}

    def own_samples(self, iteration: int, count: int, updates: range | None = None) -> list[int]:
        """Which of the `count` samples of these updates (all by default) this rank trains on, in
        canonical order."""
        updates = range(self._training.updates_per_iteration) if updates is None else updates
        hands = self._hands(iteration, count, updates)
        return sorted(sample for hand in hands for sample in hand[self._rank :: self._world])

    def rollout_state(self) -> dict[str, Tensor]:
        """The weights that the next rollouts use (DiffusionNFT's old policy, else the newest).

        Copies on the CPU in the model's own dtypes, named as in its `trainable_state`. Ranks of a
        sharded model must call it together; so with the seven that follow.
        """
        return self._weights.published(self._rollout_values)

    def evaluation_state(self) -> dict[str, Tensor]:
        """The averaged weights that validation uses, as `rollout_state`."""
        return self._weights.published(self._ema.average)

    def current_state(self) -> dict[str, Tensor]:
        """The weights that are trained, as `rollout_state`; between two updates those that the
        slices of the next one are computed with."""
        return self._weights.published(self._weights.values)

    def reference_state(self) -> dict[str, Tensor]:
        """The weights that the job began with, as `rollout_state`; raises `ValueError` when
        `training.kl` is 0, which keeps none."""
        return self._weights.published(self._values_of("reference"))

    def rollout_part(self) -> dict[str, Tensor]:
        """Of `rollout_state` what this rank publishes; together the ranks publish all of it."""
        return self._weights.published_part(self._rollout_values)

    def evaluation_part(self) -> dict[str, Tensor]:
        """The same of `evaluation_state`."""
        return self._weights.published_part(self._ema.average)

    def current_part(self) -> dict[str, Tensor]:
        """The same of `current_state`."""
        return self._weights.published_part(self._weights.values)

    def reference_part(self) -> dict[str, Tensor]:
        """The same of `reference_state`."""
        return self._weights.published_part(self._values_of("reference"))

    @property
    def trains_published(self) -> bool:
        """Whether the next update changes the very weights that roll out: it is the first one of
        its iteration, and no average rolls out."""
        return self._old is None and self.update is not None and self.update.update == 0

    def state_dict(self) -> dict[str, Tensor]:
        """Everything that training needs to go on with the same bits; copies on the CPU. Of a
        sharded model, the `rows` that this rank holds."""
        state = {UPDATES: torch.tensor(self._updates)}
        if self._earlier_updates:
            state[EARLIER_UPDATES] = torch.tensor(self._earlier_updates)
        for role, values in self._roles().items():
            named = self._weights.split(values)
            state |= {f"{role}/{name}": tensor for name, tensor in named.items()}
        return state

    @property
    def rows(self) -> dict[str, Rows]:
        """What of every trained tensor this rank holds, by its name in the model."""
        return self._weights.rows

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Go on from `state_dict`, of a sharded model from the `rows` of this rank; raises
        `CheckpointError` when it is of another model or job."""
        roles = self._roles()
        found = {name.partition("/")[0] for name in state} - {UPDATES, EARLIER_UPDATES}
        if UPDATES not in state or found != roles.keys():
            raise CheckpointError(
                f"the checkpoint holds {sorted(found)}, but this job trains with {sorted(roles)};"
                " resume with the job that wrote it"
            )
        self._updates = int(state[UPDATES])
        earlier = EARLIER_UPDATES in state
        self._earlier_updates = int(state[EARLIER_UPDATES]) if earlier else 0
        rates = learning_rates(self._training, self._job_updates)
        self._rates = islice(rates, self._updates, None)
        self._take({role: self._joined(state, role) for role in roles})

    def begin_with(self, state: Mapping[str, Tensor], earlier_updates: int = 0) -> None:
        """Begin the job with weights that were trained before, and with the optimizer's moments
        where they are there, of so many `earlier_updates`; raises `CheckpointError` when they are
        of another model."""
        found = {name.partition("/")[0] for name in state}
        weights = self._joined(state, "weights")
        self._earlier_updates = earlier_updates
        roles = [role for role in self._roles() if role in found or not role.startswith("adam_")]
        self._take(
            {role: self._joined(state, role) if role in found else weights for role in roles}
        )

    def _joined(self, state: Mapping[str, Tensor], role: str) -> Tensor:
        named = (name for name in state if name.startswith(f"{role}/"))
        return self._weights.join({name.removeprefix(f"{role}/"): state[name] for name in named})

    def _take(self, loaded: dict[str, Tensor]) -> None:
        """Have these values, by their role; of the optimizer both moments, or none."""
        roles = self._roles()
        if "adam_mean" in loaded:
            adam = {
                "step": torch.tensor(float(self._updates + self._earlier_updates)),
                "exp_avg": loaded.pop("adam_mean"),
                "exp_avg_sq": loaded.pop("adam_square"),
            }
            groups = self._optimizer.state_dict()["param_groups"]
            self._optimizer.load_state_dict({"state": {0: adam}, "param_groups": groups})
        for role, values in loaded.items():
            roles[role].copy_(values)
        self._weights.install(self._weights.values)

    @property
    def _rollout_values(self) -> Tensor:
        return self._weights.values if self._old is None else self._old

    def _roles(self) -> dict[str, Tensor]:
        """All vectors that decide the future, by the name they have in a checkpoint."""
        values = self._weights.values
        adam = self._optimizer.state_dict()["state"].get(0, {})
        roles = {
            "weights": values,
            "ema": self._ema.average,
            "adam_mean": adam.get("exp_avg", torch.zeros_like(values)),
            "adam_square": adam.get("exp_avg_sq", torch.zeros_like(values)),
        }
        if self._old is not None:
            roles["old"] = self._old
        if self._reference is not None:
            roles["reference"] = self._reference
        return roles

    def _hands(self, iteration: int, count: int, updates: range) -> list[list[int]]:
        """The samples of every update."""
        which = (iteration, updates.start) if updates.start else (iteration,)
        return deal(count, len(updates), key(self._seed, *which))

    def _draws(self, batch: TrainingBatch, samples: Sequence[int]) -> Sequence[int]:
        """For each sample the one whose key draws its noise."""
        if not self._shares_noise:
            return samples
        # That of the first sample of the prompt, whichever rank has it.
        return [batch.prompts.index(batch.prompts[sample]) for sample in samples]

    def _terms(
        self, iteration: int, update: int, batch: TrainingBatch, samples: Sequence[int]
    ) -> Terms:
        """The rows of these samples in an update."""
        keys = self._computer.keys(iteration, update, self._draws(batch, samples))
        return self._loss.terms(batch, samples, keys)

    def _divided(
        self,
        iteration: int,
        batch: TrainingBatch,
        start: int,
        hands: Sequence[Sequence[int]],
        *,
        is_last: bool,
    ) -> _Begun:
        """The updates from `start` on, of which nothing is computed yet but what a single slice
        needs of weights that are not trained."""
        training, numbers = self._training, range(start, start + len(hands))
        shares = [hand[self._rank :: self._world] for hand in hands]
        terms: list[Terms] = []
        if training.slices == 1:
            terms = [
                self._terms(iteration, number, batch, share)
                for number, share in zip(numbers, shares, strict=True)
            ]
            rows = [len(each) for each in terms]
        else:
            own = next((share[:1] for share in shares if share), [])
            per_sample = len(self._terms(iteration, start, batch, own))
            rows = [per_sample * len(share) for share in shares]
        fixed = replays(self._loss.samplers)
        sizes = [micro_batch_size(each, training.micro_batch, fixed=fixed) for each in rows]
        passes = [-(-count // size) for count, size in zip(rows, sizes, strict=True)]
        most = self._weights.most_passes(passes)
        idle = [all_of_them - own for all_of_them, own in zip(most, passes, strict=True)]
        updates = [
            UpdateSlices(
                iteration,
                number,
                self._rank,
                size,
                len(share) / len(hand) / max(count, 1),
                cut(share, self._draws(batch, share), rows=count, size=size, slices=training.slices)
                or (_NO_ROWS,) * (others > 0),
            )
            for number, hand, share, count, size, others in zip(
                numbers, hands, shares, rows, sizes, idle, strict=True
            )
        ]
        sums = torch.zeros(1 + len(self._loss.metrics), dtype=torch.float64)
        begun = _Begun(batch, deque(updates), sums.to(self._model.device), is_last=is_last)
        if terms:
            begun.ahead.extend(self._prepared_ahead(batch, updates, terms, idle))
        if is_last and self._reuse:
            begun.few = self._few_rows(begun)
        return begun

    def _prepared_ahead(
        self,
        batch: TrainingBatch,
        updates: Sequence[UpdateSlices],
        terms: Sequence[Terms],
        idle: Sequence[int],
    ) -> list[Prepared]:
        """The only slice of every update. The weights of each policy are put into the model once,
        and those that the iteration began with need not be kept for longer."""
        forwards = self._computer.forwards(batch)

        def velocities(role: Role, needed: Sequence[bool]) -> list[Passes]:
            if any(needed):
                self._use(role)
            return [
                self._computer.velocities(forwards, of_update, update.size, idle=others)
                if is_needed
                else None
                for update, of_update, others, is_needed in zip(
                    updates, terms, idle, needed, strict=True
                )
            ]

        old = velocities("old", [self._computer.needs_old(update.update) for update in updates])
        reference = velocities("reference", [self._training.kl > 0] * len(updates))
        return [
            Prepared(batch, forwards, *of_update)
            for of_update in zip(terms, old, reference, idle, strict=True)
        ]

    def _prepared(self, begun: _Begun, index: int, wanted: Callable[[], bool]) -> Prepared:
        """A slice of the next update; raises `Unwanted`."""
        if begun.ahead:
            return begun.ahead[0]
        update = begun.updates[0]
        samples = begun.batch.select(update.slices[index].samples)
        return self._computer.prepare(update, update.slices[index], samples, self._use, wanted)

    def _use(self, role: Role) -> None:
        """Put weights into the model."""
        self._weights.install(self._values_of(role))

    def _values_of(self, role: Role) -> Tensor:
        if role == "current":
            return self._weights.values
        if role == "old":
            return self._rollout_values if self._began is None else self._began
        if self._reference is None:
            raise ValueError("training.kl is 0: there is no reference")
        return self._reference

    def _with_next_slice(self) -> _Begun:
        begun = self._begun
        if begun is None or begun.next_slice == len(begun.updates[0].slices):
            raise SliceRefused("all slices of the update are counted; its step comes next")
        return begun

    def _count(self, begun: _Begun, vector: Tensor, sums: Tensor) -> None:
        """Add what is the next slice's."""
        gradient, sums = self._weights.gradient, sums.to(begun.sums.device)
        if begun.next_slice:
            gradient.add_(vector.to(gradient.device))
            begun.sums += sums
        else:
            begun.sums = sums.clone()
            if vector is not gradient:
                gradient.copy_(vector)
        begun.next_slice += 1

    def _few_rows(self, begun: _Begun) -> _Few:
        """A micro-batch at most of the first update's, and their velocities now."""
        most = self._training.micro_batch
        if begun.ahead:
            forwards, terms = begun.ahead[0].forwards, begun.ahead[0].terms
        else:
            update = begun.updates[0]
            samples = [sample for each in update.slices for sample in each.samples][:most]
            forwards = self._computer.forwards(begun.batch)
            terms = self._terms(update.iteration, update.update, begun.batch, samples)
        rows = torch.arange(min(len(terms), most))
        few = _Few(forwards, terms.select(rows, torch.device("cpu")))
        few.before = self._few_velocities(few)
        return few

    def _few_velocities(self, few: _Few) -> Tensor:
        """Those of the weights that roll out, float64; none of a rank that has no rows."""
        self._use("old")
        rows, own = len(few.terms), min(len(few.terms), 1)
        (most,) = self._weights.most_passes([own])
        fixed = replays(self._loss.samplers)
        size = micro_batch_size(rows, self._training.micro_batch, fixed=fixed)
        passes = self._computer.velocities(few.forwards, few.terms, size, idle=most - own)
        return torch.cat([torch.zeros(0), *(each.flatten() for each in passes)]).double()

    def _relative_change(self, before: Tensor, after: Tensor) -> float:
        """Mean square of the difference over the mean square of `before`, of all ranks' rows."""
        sums = torch.stack([(after - before).square().sum(), before.square().sum()])
        sums = sums.to(self._model.device)
        if self._group is not None:
            self._group.all_reduce(sums)
        change, size = sums.tolist()
        return change / size if size else math.inf

    def _step(self, where: str, begun: _Begun) -> dict[str, float]:
        """Reduce over the ranks, judge, clip, step; raises `TrainingDiverged` before any change."""
        gradient = self._weights.gradient
        norm = self._weights.reduce_gradient()
        means = begun.sums * begun.updates[0].scale
        if self._group is not None:
            self._group.all_reduce(means)
        loss, *metrics = means.tolist()
        if not (math.isfinite(loss) and math.isfinite(norm)):
            culprit = self._culprit(begun, only_losses=not math.isfinite(loss))
            raise TrainingDiverged(
                f"{where}: loss {loss}, gradient norm {norm}{culprit}; resume from the last"
                " checkpoint with a lower training.learning_rate or training.gradient_clip"
            )
        if norm > self._training.gradient_clip:
            gradient.mul_(self._training.gradient_clip / norm)
        rate = next(self._rates)
        self._optimizer.param_groups[0]["lr"] = rate
        self._optimizer.step()
        self._updates += 1
        self._ema.update(self._weights.values)
        self._weights.install(self._weights.values)
        names = ("loss", *self._loss.metrics, "grad_norm", "learning_rate")
        return dict(zip(names, (loss, *metrics, norm, rate), strict=True))

    def _culprit(self, begun: _Begun, *, only_losses: bool) -> str:
        """Which sample has a loss, or else a gradient, that is not finite, as a part of an error;
        nothing if none has. All ranks name that of the first one that has any, whichever of their
        errors is read; but none waits for a rank that is gone."""
        own = self._own_culprit(begun, only_losses=only_losses)
        named = [] if own is None else [own]
        if self._group is not None:
            found = torch.zeros(self._world, dtype=torch.float64, device=self._model.device)
            found[self._rank] = 0 if own is None else 1 + own
            with suppress(TransportError):  # what there is to say is worth more than who is gone
                self._group.all_reduce(found)
                named = [int(place) - 1 for place in found.tolist() if place]
        return f", of {begun.batch.name_of(named[0])}" if named else ""

    def _own_culprit(self, begun: _Begun, *, only_losses: bool) -> int | None:
        """The first of this rank's samples that is not finite, by its place in the batch. Gradients
        of single rows are computed again, which ranks of a sharded model cannot do on their own."""
        for index, samples, computed in begun.computed:
            row = computed.first_not_finite()
            if row is not None:
                return self._place_of(begun, index, int(samples[row]))
        if only_losses or isinstance(self._weights, ShardedWeights):
            return None
        update = begun.updates[0]
        for index in range(len(update.slices)):
            prepared = self._prepared(begun, index, always)
            self._use("current")
            row = self._computer.row_without_gradient(prepared, update)
            if row is not None:
                return self._place_of(begun, index, int(prepared.terms.samples[row]))
        return None

    @staticmethod
    def _place_of(begun: _Begun, index: int, sample: int) -> int:
        """In the whole batch, of a sample of that from which a slice is prepared."""
        return sample if begun.ahead else begun.updates[0].slices[index].samples[sample]

    def _finished(self, begun: _Begun) -> dict[str, float]:
        """End the iteration: the weights that roll out follow, and all updates are reported."""
        training, reports = self._training, self._reports
        self._began = None
        if self._old is not None:
            decay = rollout_decay(
                self._updates,
                most=training.rollout_decay,
                after=training.rollout_decay_after,
                growth=training.rollout_decay_growth,
            )
            self._old.lerp_(self._weights.values, 1 - decay)
        report = {name: sum(r[name] for r in reports) / len(reports) for name in reports[0]}
        report |= {f"first_{name}": reports[0][name] for name in self._loss.metrics}
        if begun.few is not None:
            moved = self._few_velocities(begun.few)
            report["drift"] = self._relative_change(begun.few.before, moved)
            self._use("current")
        return report
