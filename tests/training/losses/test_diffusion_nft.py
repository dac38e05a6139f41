import msgspec
import pytest
import torch

from spotlight.jobs import TrainingSpec
from spotlight.training.losses import Terms, Velocities
from spotlight.training.losses.diffusion_nft import DiffusionNFT
from tests.training.fakes import NFT, FakeModel, make_batch, with_options
from tests.training.losses.kit import KEYS, SIGMAS, setup, velocities


def nft_terms(training: TrainingSpec = NFT) -> tuple[DiffusionNFT, Terms]:
    loss = DiffusionNFT(setup(training))
    return loss, loss.terms(make_batch(FakeModel()), range(8), KEYS)


def plain_nft(terms, batch, v, v_old, v_ref, *, b, clip, kl):
    """The equations of the paper, one row at a time, as they are written."""
    total = torch.zeros(())
    for row in range(len(terms)):
        s, x_s = terms.sigmas[row], terms.latents[row]
        x0 = batch.latents[terms.samples[row]]
        advantage = batch.advantages[terms.samples[row]].clamp(-clip, clip)
        r = (advantage / (2 * clip) + 0.5).clamp(0, 1)

        def error(u, s=s, x_s=x_s, x0=x0):
            x0_u = x_s - s * u
            w = (x0_u - x0).abs().double().mean().clamp(min=1e-5).detach()
            return ((x0_u - x0) ** 2).mean() / w.float()

        plus = (1 - b) * v_old[row] + b * v[row]
        minus = (1 + b) * v_old[row] - b * v[row]
        total = total + clip * (r * error(plus) / b + (1 - r) * error(minus) / b)
        total = total + kl * ((v[row] - v_ref[row]) ** 2).mean()
    return total


@pytest.mark.parametrize(("strength", "kl"), [(1.0, 0.0), (0.1, 0.0), (0.5, 0.3)])
def test_nft_loss_and_gradient_are_those_of_the_plain_equations(strength, kl):
    training = msgspec.structs.replace(
        with_options(NFT, strength=strength), kl=kl, advantage_clip=1.5
    )
    loss, terms = nft_terms(training)
    v, v_old, v_ref = (velocities(len(terms), seed) for seed in range(3))
    v.requires_grad_()

    ours = loss.evaluate(terms, Velocities(v, v_old, v_ref))[0].sum()
    (our_gradient,) = torch.autograd.grad(ours, v)
    plain = plain_nft(terms, make_batch(FakeModel()), v, v_old, v_ref, b=strength, clip=1.5, kl=kl)
    (plain_gradient,) = torch.autograd.grad(plain, v)

    torch.testing.assert_close(ours, plain, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(our_gradient, plain_gradient, rtol=1e-4, atol=1e-6)


def test_nft_noises_every_sample_to_times_of_the_schedule():
    _, terms = nft_terms()
    batch = make_batch(FakeModel())
    x0, s = batch.latents[terms.samples], terms.sigmas[:, None, None]
    noise = terms.targets + x0
    torch.testing.assert_close(terms.latents, (1 - s) * x0 + s * noise)
    assert terms.samples.tolist() == [sample for sample in range(8) for _ in range(2)]
    assert set(terms.sigmas.tolist()) <= set(SIGMAS[:-1].tolist())
    assert 0.8 < noise.std() < 1.2


def test_nft_times_repeat_only_when_all_are_used():
    loss = DiffusionNFT(setup(with_options(NFT, times=9)))
    times = loss.terms(make_batch(FakeModel()), range(8), KEYS).sigmas.reshape(8, 9)
    for row in times.tolist():
        assert len(set(row[:6])) == 6
        assert len(set(row)) == 6


@pytest.mark.parametrize(
    ("times", "share", "kept"),
    [(6, 1.0, 6), (6, 0.5, 3), (4, 0.25, 1), (5, 0.5, 3), (4, 0.01, 1), (6, 0.99, 6), (9, 0.5, 5)],
)
def test_the_noisiest_times_of_each_sample_are_trained_as_if_they_were_all(times, share, kept):
    """Brute force: of the rows of every sample those with the greatest flow times, the one drawn
    earlier of two that are equal, and nothing of them is changed."""
    training = with_options(NFT, times=times)
    _, everything = nft_terms(training)
    _, terms = nft_terms(with_options(training, noisiest=share))
    noisiest = []
    for first in range(0, 8 * times, times):
        rows = range(first, first + times)
        by_noise = sorted(rows, key=lambda row: (-everything.sigmas[row].item(), row))
        noisiest += sorted(by_noise[:kept])
    for name, tensor in vars(everything).items():
        assert torch.equal(getattr(terms, name), tensor[noisiest]), name


def test_nft_noise_belongs_to_the_sample_not_to_its_place():
    loss, all_terms = nft_terms()
    batch = make_batch(FakeModel())
    alone = loss.terms(batch, [5], [KEYS[5]])
    assert torch.equal(alone.latents, all_terms.latents[10:12])
    assert torch.equal(alone.sigmas, all_terms.sigmas[10:12])


def test_nft_at_the_old_policy_is_the_flow_matching_loss_and_pulls_by_the_advantage():
    """Both errors are L(v) there: the loss is c * L / b and its gradient (2r - 1) * c * L'."""
    training = msgspec.structs.replace(with_options(NFT, strength=0.5), advantage_clip=1.0)
    loss, terms = nft_terms(training)
    v = velocities(len(terms), 0).requires_grad_()
    losses, metrics = loss.evaluate(terms, Velocities(v, v.detach(), None))
    (gradient,) = torch.autograd.grad(losses.sum(), v)

    miss = terms.sigmas[:, None, None] * (terms.targets - v.detach())
    w = miss.abs().flatten(1).mean(1)
    torch.testing.assert_close(losses, (miss**2).flatten(1).mean(1) / w / 0.5)
    share = (terms.advantages / 2 + 0.5).clamp(0, 1)
    slope = (2 * share - 1) / w / miss[0].numel()
    expected = slope[:, None, None] * -2 * terms.sigmas[:, None, None] * miss
    torch.testing.assert_close(gradient, expected, rtol=1e-4, atol=1e-6)
    assert all(values.abs().max() == 0 for values in metrics.values())


@pytest.mark.parametrize("advantage", [-1e9, -5.0, -1.0, 0.0, 2.5, 5.0, 1e9])
def test_nft_targets_stay_between_0_and_1(advantage):
    """Only within [0, 1] does no side of the contrast get a negative weight."""
    loss, terms = nft_terms()
    terms = Terms(**{**vars(terms), "advantages": torch.full_like(terms.advantages, advantage)})
    perfect = terms.targets.clone()
    other = velocities(len(terms), 1)
    losses, _ = loss.evaluate(terms, Velocities(perfect, other, None))
    r = min(max(advantage / 10 + 0.5, 0), 1)
    # With b = 1, v+ = v is perfect, so that only the negative side is left, with weight 1 - r.
    miss = 2 * terms.sigmas[:, None, None] * (other - terms.targets)
    negative = (miss**2).flatten(1).mean(1) / miss.abs().flatten(1).mean(1)
    torch.testing.assert_close(losses, 5 * (1 - r) * negative)
