import msgspec
import pytest
import torch

from spotlight.training.losses import Terms, Velocities
from spotlight.training.losses.flow_grpo import FlowGRPO
from tests.training.fakes import GRPO, NOISY, SAMPLER, FakeModel, make_batch
from tests.training.losses.kit import KEYS, SIGMAS, setup


@pytest.mark.parametrize("kind", ["flow_sde", "cps"])
@pytest.mark.parametrize("start", [0, 1])
def test_grpo_ratio_is_exactly_1_with_the_weights_that_sampled(kind, start):
    model = FakeModel()
    sampler = msgspec.structs.replace(NOISY, kind=kind)
    batch = make_batch(model, sampler, start=start)
    loss = FlowGRPO(setup(GRPO, sampler))
    terms = loss.terms(batch, range(8), KEYS)
    assert terms.log_probs.reshape(8, 2).equal(batch.log_probs)
    for first in range(0, 16, 4):
        part = terms.select(torch.arange(first, first + 4), model.device)
        prompts = model.encode_prompts([batch.prompts[row] for row in part.samples])
        velocity = model.velocity(part.latents, part.sigmas, prompts, height=8, width=8)
        losses, metrics = loss.evaluate(part, Velocities(velocity, velocity, None))
        assert all(values.abs().max() == 0 for values in metrics.values())
        assert torch.equal(losses, -part.advantages)


def test_grpo_gradient_vanishes_where_the_ratio_is_clipped():
    loss, terms, velocity = grpo_terms()
    changed = {"log_probs": terms.log_probs - 1, "advantages": terms.advantages.abs() + 1}
    terms = Terms(**{**vars(terms), **changed})
    losses, metrics = loss.evaluate(terms, Velocities(velocity, velocity, None))
    (gradient,) = torch.autograd.grad(losses.sum(), velocity)
    assert gradient.abs().max() == 0
    assert metrics["clipped"].min() == 1


@pytest.mark.parametrize("kind", ["flow_sde", "cps"])
def test_grpo_gradient_raises_the_probability_of_better_samples(kind):
    loss, terms, velocity = grpo_terms(kind)
    losses, _ = loss.evaluate(terms, Velocities(velocity, velocity, None))
    (gradient,) = torch.autograd.grad(losses.sum(), velocity)
    replayed = loss.evaluate(
        terms, Velocities((velocity - 1e-2 * gradient).detach(), velocity, None)
    )[0]
    assert replayed.mean() < losses.mean()


@pytest.mark.parametrize("kind", ["flow_sde", "cps"])
def test_grpo_kl_is_0_at_the_reference_and_grows_away_from_it(kind):
    loss, terms, velocity = grpo_terms(kind, kl=1.0)
    near = loss.evaluate(terms, Velocities(velocity, velocity, velocity.detach()))[1]["kl"]
    far = loss.evaluate(terms, Velocities(velocity, velocity, velocity.detach() + 0.1))[1]["kl"]
    assert near.abs().max() == 0
    assert far.min() > 0


def test_flow_sde_kl_divides_by_twice_the_diffusion_without_dt():
    loss, terms, velocity = grpo_terms("flow_sde", kl=1.0)
    s, a = terms.sigmas, NOISY.noise_level
    diffusion = a * torch.sqrt(s / (1 - s))
    step = SIGMAS[1] - SIGMAS[0]
    factor = (1 + diffusion**2 * (1 - s) / (2 * s)) * step
    expected = (0.1 * factor) ** 2 / (2 * diffusion**2)
    kl = loss.evaluate(terms, Velocities(velocity, velocity, velocity.detach() + 0.1))[1]["kl"]
    torch.testing.assert_close(kl, expected, rtol=1e-3, atol=1e-7)


def grpo_terms(kind: str = "flow_sde", kl: float = 0.0):
    model = FakeModel()
    sampler = msgspec.structs.replace(NOISY, kind=kind)
    batch = make_batch(model, sampler)
    training = msgspec.structs.replace(GRPO, kl=kl, options={"clip_range": 0.2})
    loss = FlowGRPO(setup(training, sampler))
    terms = loss.terms(batch, range(8), KEYS)
    prompts = model.encode_prompts([batch.prompts[row] for row in terms.samples])
    with torch.no_grad():
        velocity = model.velocity(terms.latents, terms.sigmas, prompts, height=8, width=8)
    return loss, terms, velocity.requires_grad_()


def test_grpo_refuses_a_batch_without_a_window():
    loss = FlowGRPO(setup(GRPO, NOISY))
    with pytest.raises(ValueError, match="window_states"):
        loss.terms(make_batch(FakeModel(), SAMPLER), range(8), KEYS)


def test_grpo_refuses_a_window_outside_the_schedule():
    batch = make_batch(FakeModel(), NOISY)
    batch.window_start = 5
    with pytest.raises(ValueError, match="schedule of 6 steps"):
        FlowGRPO(setup(GRPO, NOISY)).terms(batch, range(8), KEYS)
