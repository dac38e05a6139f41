"""The policy-gradient losses on samples of older weights: previews that are trained on."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import msgspec
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from spotlight.jobs import SamplerSpec, TrainingSpec
from spotlight.training.losses import LossSetup, Terms, Velocities
from spotlight.training.losses.flow_grpo import FlowGRPO
from spotlight.training.losses.grpo_guard import GRPOGuard
from spotlight.training.losses.surrogate import truncated_weight
from tests.training.fakes import GRPO, NOISY, FakeModel, make_batch
from tests.training.losses.kit import KEYS, SIGMAS, setup

SPREAD, CLIP = 0.7, 0.02
CASES = [
    (FlowGRPO, "flow_sde"),
    (FlowGRPO, "dance_sde"),
    (FlowGRPO, "cps"),
    (GRPOGuard, "flow_sde"),
    (GRPOGuard, "dance_sde"),
]


def build(loss: type[FlowGRPO], kind: str, *, reuse: bool = True, **changes: Any) -> FlowGRPO:
    training = msgspec.structs.replace(GRPO, **changes)
    sampler = msgspec.structs.replace(NOISY, kind=kind)
    options = loss.Options(clip_range=CLIP)
    return loss(replace(setup(training, sampler), options=options, reuse=reuse))


def sampled(loss: FlowGRPO, kind: str) -> tuple[Terms, Tensor]:
    """Rows of samples, and the velocities of the weights that made them."""
    model = FakeModel()
    batch = make_batch(model, msgspec.structs.replace(NOISY, kind=kind))
    terms = loss.terms(batch, range(8), KEYS)
    prompts = model.encode_prompts([batch.prompts[row] for row in terms.samples])
    found = []
    with torch.no_grad():
        for first in range(0, len(terms), 4):  # as many as were denoised together
            part = terms.select(torch.arange(first, first + 4), model.device)
            those = prompts.select(list(range(first, first + 4)))
            found.append(model.velocity(part.latents, part.sigmas, those, height=8, width=8))
    return terms, torch.cat(found)


def moved(velocity: Tensor, by: float, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return velocity + by * torch.randn(velocity.shape, generator=generator)


def losses_and_gradient(
    loss: FlowGRPO, terms: Terms, current: Tensor, old: Tensor, reference: Tensor | None = None
) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    current = current.clone().requires_grad_()
    losses, metrics = loss.evaluate(terms, Velocities(current, old, reference))
    (gradient,) = torch.autograd.grad(losses.sum(), current)
    return losses.detach(), gradient, metrics


@pytest.mark.parametrize(("kind_of_loss", "kind"), CASES)
@pytest.mark.parametrize("by", [0.0, 0.05], ids=["first update", "later"])
def test_samples_of_the_newest_weights_give_the_loss_without_reuse_to_the_bit(
    kind_of_loss: type[FlowGRPO], kind: str, by: float
) -> None:
    plain = build(kind_of_loss, kind, reuse=False, kl=0.1)
    corrected = build(kind_of_loss, kind, kl=0.1)
    terms, old = sampled(plain, kind)
    case = terms, moved(old, by, 1), old, moved(old, 0.1, 2)
    losses, gradient, metrics = losses_and_gradient(plain, *case)
    found, its_gradient, its_metrics = losses_and_gradient(corrected, *case)
    assert torch.equal(found, losses)
    assert torch.equal(its_gradient, gradient)
    assert all(torch.equal(its_metrics[name], metrics[name]) for name in metrics)
    assert torch.equal(its_metrics["reuse_weight"], torch.ones(len(terms)))
    assert not its_metrics["reuse_truncated"].any()


def by_hand(
    rows: Terms, current: Tensor, newest: Tensor, *, kind: str, guard: bool
) -> tuple[Tensor, Tensor]:
    """Losses and weights of single rows, with the formulas of the papers, in float64."""
    losses, weights = [], []
    level = NOISY.noise_level
    for row in range(len(rows)):
        x, went_to, v, v_newest = (
            tensor[row].double() for tensor in (rows.latents, rows.targets, current, newest)
        )
        step = int(rows.steps[row])
        s, after = SIGMAS[step].item(), SIGMAS[step + 1].item()

        def policy(
            velocity: Tensor, x: Tensor = x, s: float = s, after: float = after
        ) -> tuple[Tensor, float]:
            if kind == "cps":
                std = after * math.sin(level * math.pi / 2)
                noise = math.sqrt(after**2 - std**2) * (x + (1 - s) * velocity)
                return (1 - after) * (x - s * velocity) + noise, std
            eta = level * math.sqrt(s / (1 - s)) if kind == "flow_sde" else level
            score = -(x + (1 - s) * velocity) / s
            return x - (s - after) * (velocity - eta**2 / 2 * score), eta * math.sqrt(s - after)

        def log_prob(velocity: Tensor, policy: Any = policy, went_to: Tensor = went_to) -> Tensor:
            mean, std = policy(velocity)
            if kind == "cps":
                return -((went_to - mean) ** 2).mean()
            return torch.distributions.Normal(mean, std).log_prob(went_to).mean()

        change = log_prob(v) - log_prob(v_newest)
        if guard:
            (mean, std), (old_mean, _) = policy(v), policy(v_newest)
            change = (change + ((mean - old_mean) ** 2).mean() / (2 * std**2)) * std
        ratio, advantage = change.exp(), rows.advantages[row].double()
        clipped = ratio.clamp(1 - CLIP, 1 + CLIP)
        weight = min((log_prob(v_newest) - rows.log_probs[row].double()).exp().item(), 2.0)
        each = torch.maximum(-advantage * ratio, -advantage * clipped)
        losses.append(weight * each / (s - after if guard else 1))
        weights.append(torch.tensor(weight))
    return torch.stack(losses), torch.stack(weights)


@pytest.mark.parametrize(("kind_of_loss", "kind"), CASES)
def test_losses_and_gradient_are_those_of_the_formula(
    kind_of_loss: type[FlowGRPO], kind: str
) -> None:
    loss = build(kind_of_loss, kind)
    terms, behaviour = sampled(loss, kind)
    keep = terms.steps > 0  # where the first one's time is 1 the formula divides by 0
    terms = terms.select(keep.nonzero().flatten(), torch.device("cpu"))
    # Some were sampled by policies so far away that their weight is truncated.
    further = torch.where(torch.arange(len(terms)) % 4 == 0, 1.0, 0.0)
    terms = replace(terms, log_probs=terms.log_probs - further)
    newest = moved(behaviour[keep], 0.3, 1)
    current = moved(newest, 0.1, 2).requires_grad_()
    expected, weights = by_hand(terms, current, newest, kind=kind, guard=kind_of_loss is GRPOGuard)
    (gradient,) = torch.autograd.grad(expected.sum(), current)
    losses, found, metrics = losses_and_gradient(loss, terms, current.detach(), newest)
    assert_close(losses, expected.detach().float(), rtol=1e-4, atol=1e-6)
    assert_close(found, gradient, rtol=1e-3, atol=1e-6)
    assert_close(metrics["reuse_weight"], weights.float(), rtol=1e-4, atol=1e-6)
    assert metrics["reuse_truncated"].tolist() == [float(weight == 2) for weight in weights]
    assert len({float(weight) for weight in weights}) > 2
    assert 0 < metrics["reuse_truncated"].mean() < 1


def test_the_distance_to_the_initial_weights_counts_alike_for_older_samples() -> None:
    loss, without = build(FlowGRPO, "cps", kl=0.5), build(FlowGRPO, "cps")
    terms, behaviour = sampled(loss, "cps")
    newest = moved(behaviour, 0.3, 1)
    case = terms, moved(newest, 0.1, 2), newest, moved(newest, 5.0, 3)
    losses, _, metrics = losses_and_gradient(loss, *case)
    expected = losses_and_gradient(without, *case)[0] + 0.5 * metrics["kl"]
    assert_close(losses, expected)
    assert metrics["reuse_weight"].std() > 1e-3
    assert metrics["kl"].min() > 0.5


def test_older_samples_give_the_gradient_of_fresh_ones_where_nothing_is_truncated() -> None:
    """Latents of one number: the gradient of the expected advantage is known."""
    count, s, after = 400_000, SIGMAS[2].item(), SIGMAS[3].item()
    sampler = SamplerSpec(height=8, width=8, kind="dance_sde", noise_level=SPREAD)
    options = FlowGRPO.Options(clip_range=0.1)
    loss = FlowGRPO(LossSetup(TrainingSpec(), sampler, SIGMAS, options, reuse=True))
    generator = torch.Generator().manual_seed(0)
    # One state, from which two policies go on with these velocities.
    x, v_behaviour, v_newest = 0.4, 0.5, 0.8
    std = SPREAD * math.sqrt(s - after)
    slope = -(s - after) * (1 + SPREAD**2 * (1 - s) / (2 * s))

    def mean(v: float) -> float:
        return x - (s - after) * SPREAD**2 / (2 * s) * x + slope * v

    went_to = mean(v_behaviour) + std * torch.randn(count, generator=generator)
    log_probs = torch.distributions.Normal(mean(v_behaviour), std).log_prob(went_to)

    def column(value: float) -> Tensor:
        return torch.full((count, 1, 1), value)

    rows = Terms(
        samples=torch.arange(count),
        latents=column(x),
        sigmas=torch.full((count,), s),
        targets=went_to.view(-1, 1, 1),
        advantages=went_to,  # what is better is further to the right
        steps=torch.full((count,), 2),
        log_probs=log_probs,
    )

    def found(terms: Terms) -> tuple[Tensor, Tensor]:
        v = column(v_newest)
        _, gradient, metrics = losses_and_gradient(loss, terms, v, v)
        return gradient.flatten(), metrics["reuse_truncated"]

    gradient, truncated = found(rows)
    assert truncated.mean() < 1e-3
    error = (gradient.std() / math.sqrt(count)).item()
    # d/dv E[x'] = d/dv mean(v), of which the loss is the negative.
    assert gradient.mean().item() == pytest.approx(-slope, abs=4 * error)
    assert abs(slope) > 40 * error
    as_if_fresh = torch.distributions.Normal(mean(v_newest), std).log_prob(went_to)
    uncorrected, _ = found(replace(rows, log_probs=as_if_fresh))
    assert abs(uncorrected.mean().item() + slope) > 8 * error, "the weight makes the difference"


def test_a_weight_is_bounded_however_improbable_the_sample_was() -> None:
    log_ratio = torch.tensor([-1000.0, 0.0, 0.5, 0.7, 1000.0])
    weight, metrics = truncated_weight(log_ratio.requires_grad_())
    assert_close(weight, torch.tensor([0.0, 1.0, math.exp(0.5), 2.0, 2.0]))
    assert not weight.requires_grad
    assert metrics["reuse_truncated"].tolist() == [0, 0, 0, 1, 1]
