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
from collections.abc import Mapping, Sequence
from itertools import islice

import torch
from torch import Tensor

from spotlight.diffusion.model import DiffusionModel
from spotlight.errors import CheckpointError, TrainingDiverged
from spotlight.jobs import SamplerSpec, TrainingSpec
from spotlight.jobs.losses import replays
from spotlight.policies.old_policy import rollout_decay
from spotlight.store.checkpoint_header import EARLIER_UPDATES, UPDATES
from spotlight.training.batches import TrainingBatch, deal, key
from spotlight.training.ema import Ema
from spotlight.training.forwards import Forwards
from spotlight.training.learning_rates import learning_rates
from spotlight.training.losses import NoisedOptions, Terms, Velocities, build_loss
from spotlight.training.sharded_weights import ShardedWeights
from spotlight.training.weights import FlatWeights, Rows
from spotlight.transport.collectives import Group

__all__ = ["Trainer", "TrainingBatch", "TrainingDiverged"]

Passes = list[Tensor] | None
"""Velocities of the micro-batches of one update, on the CPU; None for those that nobody needs."""

_ADAM_EPSILON = 1e-8


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
        self._sampler = sampler
        self._seed = seed
        self._rank = rank
        self._world = world
        self._group = group
        self._loss, options = build_loss(model, training, sampler, reuse=reuse)
        self._shares_noise = isinstance(options, NoisedOptions) and options.shared_noise
        model.checkpoint_activations(training.activation_checkpointing)
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
        """The rollout weights that the iteration began with, while later updates are awaited."""
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
        """Take optimizer steps of one iteration; the model then holds the newest weights.

        Every rank is given the whole batch and takes its share; of the rows of others (all but its
        `own_samples`) only the shape matters. Returns means over the iteration's updates:
        `loss`, `grad_norm` (before clipping), `learning_rate` and the metrics of the loss; those
        also for the first update alone, as `first_*`.

        Args:
            updates: those that the batch is for, all of the iteration by default. Later ones must
                follow before anything else; until the last is taken nothing is returned, and the
                old policy stays that of the iteration's beginning.

        Raises `TrainingDiverged`, `LossFailed`, `TransportError`, and `ValueError` when the batch
        does not fit.
        """
        training, weights = self._training, self._weights
        updates = range(training.updates_per_iteration) if updates is None else updates
        is_last = updates.stop == training.updates_per_iteration
        forwards = Forwards(
            self._model,
            self._sampler,
            batch.prompts,
            micro_batch=training.micro_batch,
            fixed=replays(self._loss.samplers),
        )
        hands = self._hands(iteration, len(batch), updates)
        terms = [
            self._terms(iteration, update, batch, hand)
            for update, hand in zip(updates, hands, strict=False)
        ]
        passes = [forwards.passes(update) for update in terms]
        most = self._weights.most_passes(passes)
        idle = [all_of_them - own for all_of_them, own in zip(most, passes, strict=True)]
        if updates.start == 0:
            self._reports = []
            self._began = None if is_last else self._rollout_values.clone()
        began = self._rollout_values if updates.start == 0 else self._began
        assert began is not None, "the first updates of the iteration came before these"
        old = self._old_velocities(forwards, terms, idle, began, is_first=updates.start == 0)
        reference = self._velocities(forwards, terms, idle, self._reference)
        measures_drift = self._reuse and is_last
        sampled = self._few_velocities(forwards, terms[0], began) if measures_drift else None
        weights.install(weights.values)
        for place, hand in enumerate(hands):
            share = len(hand[self._rank :: self._world]) / len(hand)
            means = self._accumulate(
                forwards, terms[place], old[place], reference[place], share, idle[place]
            )
            where = f"iteration {iteration}, update {updates.start + place}"
            self._reports.append(self._step(where, means))
        weights.drop_gradients()
        if not is_last:
            return {}
        self._began = None
        if self._old is not None:
            decay = rollout_decay(
                self._updates,
                most=training.rollout_decay,
                after=training.rollout_decay_after,
                growth=training.rollout_decay_growth,
            )
            self._old.lerp_(weights.values, 1 - decay)
        reports = self._reports
        report = {name: sum(r[name] for r in reports) / len(reports) for name in reports[0]}
        report |= {f"first_{name}": reports[0][name] for name in self._loss.metrics}
        if sampled is not None:
            moved = self._few_velocities(forwards, terms[0], self._rollout_values)
            report["drift"] = self._relative_change(sampled, moved)
            weights.install(weights.values)
        return report

    def own_samples(self, iteration: int, count: int, updates: range | None = None) -> list[int]:
        """Which of the `count` samples of these updates (all by default) this rank trains on, in
        canonical order."""
        updates = range(self._training.updates_per_iteration) if updates is None else updates
        hands = self._hands(iteration, count, updates)
        return sorted(sample for hand in hands for sample in hand[self._rank :: self._world])

    def rollout_state(self) -> dict[str, Tensor]:
        """The weights that the next rollouts use (DiffusionNFT's old policy, else the newest).

        Copies on the CPU in the model's own dtypes, named as in its `trainable_state`. Ranks of a
        sharded model must call it together; so with the three that follow.
        """
        return self._weights.published(self._rollout_values)

    def evaluation_state(self) -> dict[str, Tensor]:
        """The averaged weights that validation uses, as `rollout_state`."""
        return self._weights.published(self._ema.average)

    def rollout_part(self) -> dict[str, Tensor]:
        """Of `rollout_state` what this rank publishes; together the ranks publish all of it."""
        return self._weights.published_part(self._rollout_values)

    def evaluation_part(self) -> dict[str, Tensor]:
        """The same of `evaluation_state`."""
        return self._weights.published_part(self._ema.average)

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

    def _terms(
        self, iteration: int, update: int, batch: TrainingBatch, hand: Sequence[int]
    ) -> Terms:
        """This rank's rows of one update."""
        samples = hand[self._rank :: self._world]
        draws: Sequence[int] = samples
        if self._shares_noise:  # that of the first sample of the prompt, whichever rank has it
            draws = [batch.prompts.index(batch.prompts[sample]) for sample in samples]
        keys = [key(self._seed, iteration, update, draw) for draw in draws]
        return self._loss.terms(batch, samples, keys)

    def _old_velocities(
        self,
        forwards: Forwards,
        terms: Sequence[Terms],
        idle: Sequence[int],
        began: Tensor,
        *,
        is_first: bool,
    ) -> list[Passes]:
        """The velocities for every update of the sampling weights that the iteration `began` with,
        taken before the first of these updates.

        While the sampling weights are the newest, the first update of an iteration needs no pass of
        its own.
        """
        if not self._loss.uses_old_policy:
            return [None] * len(terms)
        if self._old is not None or not is_first:
            return self._velocities(forwards, terms, idle, began)
        return [None, *self._velocities(forwards, terms[1:], idle[1:], began)]

    @torch.no_grad()
    def _velocities(
        self,
        forwards: Forwards,
        terms: Sequence[Terms],
        idle: Sequence[int],
        values: Tensor | None,
    ) -> list[Passes]:
        """For every update, its micro-batches' velocities under the weights `values`, if any."""
        if values is None:
            return [None] * len(terms)
        self._weights.install(values)
        found: list[Passes] = []
        for update, others in zip(terms, idle, strict=True):
            found.append([forwards.velocity(it).cpu() for it in forwards.micro_batches(update)])
            for _ in range(others):
                forwards.idle(update)
        return found

    def _few_velocities(self, forwards: Forwards, terms: Terms, values: Tensor) -> Tensor:
        """Those that the weights `values` give for the first of these rows, float64; none of a rank
        that has no rows."""
        rows = torch.arange(min(len(terms), self._training.micro_batch))
        few, own = terms.select(rows, torch.device("cpu")), min(len(rows), 1)
        (most,) = self._weights.most_passes([own])
        (passes,) = self._velocities(forwards, [few], [most - own], values)
        return torch.cat([torch.zeros(0), *(each.flatten() for each in passes or ())]).double()

    def _relative_change(self, before: Tensor, after: Tensor) -> float:
        """Mean square of the difference over the mean square of `before`, of all ranks' rows."""
        sums = torch.stack([(after - before).square().sum(), before.square().sum()])
        sums = sums.to(self._model.device)
        if self._group is not None:
            self._group.all_reduce(sums)
        change, size = sums.tolist()
        return change / size if size else math.inf

    def _accumulate(
        self,
        forwards: Forwards,
        terms: Terms,
        old: Passes,
        reference: Passes,
        share: float,
        idle: int,
    ) -> Tensor:
        """This rank's part of an update's gradient, and of the means of loss and metrics.

        `share` is this rank's part of the update's samples; `idle` passes it runs only because
        others have more. Returns [1 + metrics], float64.
        """
        device = self._model.device
        sums = torch.zeros(1 + len(self._loss.metrics), dtype=torch.float64, device=device)
        self._weights.start_gradients()
        for index, batch in enumerate(forwards.micro_batches(terms)):
            velocity = forwards.velocity(batch)
            velocities = Velocities(
                velocity,
                velocity.detach() if old is None else old[index].to(device),
                None if reference is None else reference[index].to(device),
            )
            losses, named = self._loss.evaluate(batch.terms, velocities)
            torch.autograd.backward(losses.sum() * (share / len(terms)))
            self._weights.collect_gradients()
            columns = [losses.detach(), *(named[name] for name in self._loss.metrics)]
            sums += torch.stack(columns, dim=1).double().sum(dim=0)
        for _ in range(idle):
            torch.autograd.backward(forwards.idle(terms).sum() * 0)
            self._weights.collect_gradients()
        return sums * (share / max(len(terms), 1))

    def _step(self, where: str, means: Tensor) -> dict[str, float]:
        """Reduce over the ranks, judge, clip, step; raises `TrainingDiverged` before any change."""
        gradient = self._weights.gradient
        norm = self._weights.reduce_gradient()
        if self._group is not None:
            self._group.all_reduce(means)
        loss, *metrics = means.tolist()
        if not (math.isfinite(loss) and math.isfinite(norm)):
            raise TrainingDiverged(
                f"{where}: loss {loss}, gradient norm {norm}; resume from the last checkpoint with"
                " a lower training.learning_rate or training.gradient_clip"
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
