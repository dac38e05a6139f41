"""AWM: it starts at a ratio of 1, and pulls by the advantage."""

from __future__ import annotations

import msgspec
import pytest
import torch

from spotlight.training.losses import Velocities
from spotlight.training.losses.awm import AWM
from spotlight.training.trainer import Trainer
from tests.training.fakes import NFT, NOISY, SAMPLER, FakeModel, make_batch, with_options
from tests.training.losses.kit import KEYS, setup, velocities

SPEC = msgspec.structs.replace(NFT, loss="awm", options={"times": 2}, advantage_clip=1.0)


def terms_of(loss: AWM):
    return loss.terms(make_batch(FakeModel()), range(8), KEYS)


@pytest.mark.parametrize("sampler", [SAMPLER, NOISY], ids=lambda sampler: sampler.kind)
def test_the_ratio_starts_at_1_with_samples_of_any_sampler(sampler) -> None:
    report = Trainer(FakeModel(), SPEC, sampler, seed=0).train(0, make_batch(FakeModel(), sampler))
    assert report["first_ratio_deviation"] == 0
    assert report["ratio_deviation"] > 0


def test_better_samples_are_matched_and_worse_ones_are_not() -> None:
    loss = AWM(setup(SPEC))
    terms = terms_of(loss)
    v = velocities(len(terms), 0).requires_grad_()
    losses, _ = loss.evaluate(terms, Velocities(v, v.detach(), None))
    (gradient,) = torch.autograd.grad(losses.sum(), v)
    towards = ((v.detach() - terms.targets) * gradient).flatten(1).sum(1)
    assert torch.equal(towards.sign(), terms.advantages.sign())


def test_advantages_count_up_to_the_clip() -> None:
    """As shares of it: at a ratio of 1 the loss is -A / c."""
    loss = AWM(setup(SPEC))
    terms = terms_of(loss)
    v = velocities(len(terms), 0)
    losses, _ = loss.evaluate(terms, Velocities(v, v, None))
    torch.testing.assert_close(losses, -terms.advantages.clamp(-1, 1))


def test_the_distance_to_the_old_policy_has_a_weight_of_its_own() -> None:
    far, near = (AWM(setup(with_options(SPEC, old_kl=weight))) for weight in (2.0, 0.0))
    terms = terms_of(far)
    v, old = velocities(len(terms), 0), velocities(len(terms), 1)
    moved = Velocities(v, old, None)
    distance = ((v - old) ** 2).flatten(1).mean(1)
    gap = far.evaluate(terms, moved)[0] - near.evaluate(terms, moved)[0]
    torch.testing.assert_close(gap, 2 * distance)
