"""GRPO-Guard: its ratio is centred, and starts at 1."""

from __future__ import annotations

import msgspec
import pytest
import torch

from spotlight.training.losses import Velocities
from spotlight.training.losses.flow_grpo import FlowGRPO
from spotlight.training.losses.grpo_guard import GRPOGuard
from spotlight.training.trainer import Trainer
from tests.training.fakes import GRPO, NOISY, FakeModel, make_batch
from tests.training.losses.kit import KEYS, setup, velocities

GUARD = msgspec.structs.replace(GRPO, loss="grpo_guard", options={"clip_range": 0.2})


@pytest.mark.parametrize("kind", ["flow_sde", "dance_sde"])
def test_the_ratio_is_exactly_1_with_the_weights_that_sampled(kind: str) -> None:
    sampler = msgspec.structs.replace(NOISY, kind=kind)
    trainer = Trainer(FakeModel(), GUARD, sampler, seed=0)
    report = trainer.train(0, make_batch(FakeModel(), sampler))
    assert report["first_ratio_deviation"] == 0
    assert report["ratio_deviation"] > 0


@pytest.mark.parametrize("kind", ["flow_sde", "dance_sde"])
def test_what_the_guard_adds_centres_the_ratio(kind: str) -> None:
    """Samples drawn by the old policy have a log-ratio of -b on average; the guard's is 0."""
    sampler = msgspec.structs.replace(NOISY, kind=kind)
    model, count = FakeModel(), 1024
    batch = make_batch(model, sampler, count=count)
    guard, plain = GRPOGuard(setup(GUARD, sampler)), FlowGRPO(setup(GUARD, sampler))
    terms = guard.terms(batch, range(count), range(count))
    prompts = model.encode_prompts([batch.prompts[row] for row in terms.samples])
    with torch.no_grad():
        old = model.velocity(terms.latents, terms.sigmas, prompts, height=8, width=8)
    ones = torch.ones_like(terms.advantages)
    terms = type(terms)(**{**vars(terms), "advantages": ones})
    moved = Velocities(old + 1.0, old, None)
    # With an advantage of 1 and no clip at work the loss is -ratio over the length of the step.
    lengths = 1 / 6
    guarded = -guard.evaluate(terms, moved)[0] * lengths
    unguarded = -plain.evaluate(terms, moved)[0]
    spread = guarded.std() / len(terms) ** 0.5
    assert abs(guarded.mean() - 1) < 4 * spread + 0.01
    assert unguarded.mean() < 1 - 0.005


def test_the_gradient_divides_by_the_length_of_the_step() -> None:
    batch = make_batch(FakeModel(), NOISY)
    guard = GRPOGuard(setup(GUARD, NOISY))
    terms = guard.terms(batch, range(8), KEYS)
    v = velocities(len(terms), 0)
    prompts = FakeModel().encode_prompts([batch.prompts[row] for row in terms.samples])
    with torch.no_grad():
        v = FakeModel().velocity(terms.latents, terms.sigmas, prompts, height=8, width=8)
    losses, _ = guard.evaluate(terms, Velocities(v, v, None))
    torch.testing.assert_close(losses, -terms.advantages * 6)
