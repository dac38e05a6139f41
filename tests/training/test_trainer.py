import msgspec
import pytest
import torch

from spotlight.errors import CheckpointError
from spotlight.training.batches import TrainingBatch, deal, key
from spotlight.training.losses import Velocities
from spotlight.training.trainer import Trainer, TrainingDiverged

from .fakes import GRPO, NFT, NOISY, SAMPLER, FakeModel, make_batch, same_bits, with_options

GUARD = msgspec.structs.replace(GRPO, loss="grpo_guard", options={"clip_range": 0.1})

RULES = [
    pytest.param(NFT, SAMPLER, id="nft"),
    pytest.param(
        msgspec.structs.replace(NFT, rollout_decay=0.5, kl=0.1), SAMPLER, id="nft-old-policy-kl"
    ),
    pytest.param(GRPO, NOISY, id="grpo"),
    pytest.param(msgspec.structs.replace(GRPO, kl=0.1), NOISY, id="grpo-kl"),
    pytest.param(
        msgspec.structs.replace(NFT, learning_rate_schedule="cosine", warmup_updates=3),
        SAMPLER,
        id="nft-cosine",
    ),
    pytest.param(
        msgspec.structs.replace(NFT, rollout_decay=0.5, rollout_decay_growth=0.1),
        SAMPLER,
        id="nft-old-policy-that-grows",
    ),
    pytest.param(with_options(NFT, noisiest=0.5), SAMPLER, id="nft-noisiest"),
    pytest.param(with_options(NFT, shared_noise=True), SAMPLER, id="nft-shared"),
    pytest.param(
        msgspec.structs.replace(NFT, loss="awm", options={"times": 2}, kl=0.1), SAMPLER, id="awm"
    ),
    pytest.param(GUARD, NOISY, id="grpo-guard"),
]


def build(training=NFT, sampler=SAMPLER, *, seed=0, model=None):
    return Trainer(model or FakeModel(), training, sampler, seed=seed, iterations=10)


def flat(state):
    return torch.cat([tensor.flatten() for tensor in state.values()])


@pytest.mark.parametrize(("training", "sampler"), RULES)
def test_training_changes_the_weights_and_reports(training, sampler):
    trainer = build(training, sampler)
    before = flat(trainer.rollout_state())
    report = trainer.train(0, make_batch(FakeModel(), sampler))
    assert trainer.updates == 2
    assert not torch.equal(before, flat(trainer.rollout_state()))
    assert {"loss", "grad_norm", "kl"} < report.keys()
    assert all(isinstance(value, float) for value in report.values())


@pytest.mark.parametrize(("training", "sampler"), RULES)
def test_the_same_seed_gives_the_same_bits(training, sampler):
    states = []
    for _ in range(2):
        trainer = build(training, sampler)
        trainer.train(0, make_batch(FakeModel(), sampler))
        states.append(trainer.state_dict())
    assert same_bits(*states)


def test_another_seed_or_iteration_draws_other_noise():
    states = []
    for seed, iteration in ((0, 0), (1, 0), (0, 1)):
        trainer = build(seed=seed)
        trainer.train(iteration, make_batch(FakeModel()))
        states.append(flat(trainer.rollout_state()))
    assert not torch.equal(states[0], states[1])
    assert not torch.equal(states[0], states[2])


def test_every_iteration_noises_the_same_samples_anew():
    """Of one sample, so that no other order of the samples tells iterations apart."""
    training = msgspec.structs.replace(NFT, updates_per_iteration=1)
    batch = make_batch(FakeModel(), count=1)
    losses = [build(training).train(iteration, batch)["loss"] for iteration in (0, 1)]
    assert losses[0] != losses[1]


@pytest.mark.parametrize(("training", "sampler"), RULES)
def test_resuming_gives_the_same_bits_as_going_on(training, sampler):
    batch = make_batch(FakeModel(), sampler)
    whole = build(training, sampler)
    whole.train(0, batch)
    saved = whole.state_dict()
    expected = whole.train(1, batch)

    resumed = build(training, sampler, model=FakeModel(seed=9))
    resumed.load_state_dict(saved)
    assert resumed.train(1, batch) == expected
    assert same_bits(resumed.state_dict(), whole.state_dict())
    assert same_bits(resumed.rollout_state(), whole.rollout_state())


def test_a_fresh_state_can_be_loaded():
    trainer, other = build(), build(model=FakeModel(seed=9))
    other.load_state_dict(trainer.state_dict())
    assert same_bits(other.state_dict(), trainer.state_dict())
    batch = make_batch(FakeModel())
    assert other.train(0, batch) == trainer.train(0, batch)


def test_states_are_copies():
    trainer = build()
    rollout, saved = trainer.rollout_state(), trainer.state_dict()
    kept = {name: tensor.clone() for name, tensor in rollout.items()}
    trainer.train(0, make_batch(FakeModel()))
    assert same_bits(rollout, kept)
    assert saved["updates"] == 0


def test_the_model_holds_the_newest_weights_after_training():
    model = FakeModel()
    trainer = build(msgspec.structs.replace(NFT, rollout_decay=0.5), model=model)
    trainer.train(0, make_batch(FakeModel()))
    state = trainer.state_dict()
    held = model.trainable_state().items()
    assert all(torch.equal(state[f"weights/{name}"], tensor) for name, tensor in held)
    assert all(parameter.grad is None for parameter in model.transformer.parameters())


def test_training_goes_on_from_its_own_weights_whatever_the_model_was_used_for():
    model, batch = FakeModel(), make_batch(FakeModel())
    trainer, undisturbed = build(model=model), build()
    for one in (trainer, undisturbed):
        one.train(0, batch)
    model.load_trainable_state(FakeModel(seed=9).trainable_state())
    assert trainer.train(1, batch) == undisturbed.train(1, batch)


def test_rollouts_use_the_newest_weights_without_an_old_policy():
    trainer = build()
    trainer.train(0, make_batch(FakeModel()))
    state = trainer.state_dict()
    assert all(torch.equal(state[f"weights/{n}"], t) for n, t in trainer.rollout_state().items())
    assert not any(name.startswith(("old/", "reference/")) for name in state)


def test_a_bfloat16_model_publishes_the_bits_that_it_computes_with_and_no_more():
    model = FakeModel(dtype=torch.bfloat16)
    trainer = build(model=model)
    trainer.train(0, make_batch(FakeModel()))
    published, held = trainer.rollout_state(), model.trainable_state()
    assert {tensor.dtype for tensor in published.values()} == {torch.bfloat16}
    assert same_bits(published, dict(held))
    assert all(each.dtype == torch.float32 for each in list(trainer.state_dict().values())[1:])


def test_the_old_policy_follows_by_the_rollout_decay():
    trainer = build(msgspec.structs.replace(NFT, rollout_decay=0.75))
    first = trainer.rollout_state()
    trainer.train(0, make_batch(FakeModel()))
    state = trainer.state_dict()
    for name, tensor in trainer.rollout_state().items():
        newest = state[f"weights/{name}"]
        torch.testing.assert_close(tensor, 0.75 * first[name] + 0.25 * newest)


def test_the_old_policys_decay_may_grow_with_the_updates():
    training = msgspec.structs.replace(
        NFT, rollout_decay=0.3, rollout_decay_after=1, rollout_decay_growth=0.1
    )
    trainer = build(training)
    old = flat(trainer.rollout_state())
    for iteration, decay in enumerate((0.1, 0.3, 0.3)):  # after 2, 4 and 6 updates
        trainer.train(iteration, make_batch(FakeModel()))
        newest = [t for n, t in trainer.state_dict().items() if n.startswith("weights/")]
        old = decay * old + (1 - decay) * torch.cat([tensor.flatten() for tensor in newest])
        torch.testing.assert_close(flat(trainer.rollout_state()), old)


def test_validation_uses_the_average_of_all_updates():
    training = msgspec.structs.replace(NFT, ema_decay=0.5, updates_per_iteration=1)
    trainer = build(training)
    batch = make_batch(FakeModel())
    start = flat(trainer.rollout_state())
    trainer.train(0, batch)
    first = flat(trainer.rollout_state())
    trainer.train(1, batch)
    second = flat(trainer.rollout_state())
    expected = 0.25 * start + 0.25 * first + 0.5 * second
    torch.testing.assert_close(flat(trainer.evaluation_state()), expected)


def test_the_reference_stays_the_initial_weights():
    trainer = build(msgspec.structs.replace(NFT, kl=0.5))
    initial = trainer.rollout_state()
    trainer.train(0, make_batch(FakeModel()))
    state = trainer.state_dict()
    assert all(torch.equal(state[f"reference/{n}"], t) for n, t in initial.items())


def test_one_update_is_adamw_on_the_clipped_mean_gradient():
    """A plain PyTorch loop over the same terms makes the same step."""
    training = msgspec.structs.replace(NFT, updates_per_iteration=1, gradient_clip=0.01)
    model, batch = FakeModel(), make_batch(FakeModel())
    trainer = build(training)
    (hand,) = deal(8, 1, key(0, 3))
    terms = trainer._terms(3, 0, batch, hand)
    report = trainer.train(3, batch)

    parameters = list(model.transformer.parameters())
    optimizer = torch.optim.AdamW(parameters, lr=1e-2, weight_decay=1e-4)
    prompts = model.encode_prompts([batch.prompts[row] for row in terms.samples])
    velocity = model.velocity(terms.latents, terms.sigmas, prompts, height=8, width=8)
    loss = trainer._loss.evaluate(terms, Velocities(velocity, velocity.detach(), None))[0].mean()
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(parameters, 0.01)
    optimizer.step()

    assert report["loss"] == pytest.approx(loss.item(), rel=1e-5)
    assert report["grad_norm"] == pytest.approx(norm.item(), rel=1e-5)
    plain = torch.cat([parameter.detach().flatten() for parameter in parameters])
    torch.testing.assert_close(flat(trainer.rollout_state()), plain, rtol=1e-5, atol=1e-6)


def test_an_update_on_the_noisiest_times_is_plain_torch_on_their_rows():
    training = msgspec.structs.replace(
        NFT, options={"times": 4}, updates_per_iteration=1, gradient_clip=1e6
    )
    model, batch = FakeModel(), make_batch(FakeModel())
    (hand,) = deal(8, 1, key(0, 3))
    terms = build(training)._terms(3, 0, batch, hand)
    noisiest = terms.sigmas.view(8, 4).topk(2).indices + torch.arange(0, 32, 4)[:, None]
    terms = terms.select(noisiest.flatten(), model.device)

    prompts = model.encode_prompts([batch.prompts[row] for row in terms.samples])
    velocity = model.velocity(terms.latents, terms.sigmas, prompts, height=8, width=8)
    clean, s = batch.latents[terms.samples], terms.sigmas[:, None, None]
    old, share = velocity.detach(), (batch.advantages[terms.samples] / 10 + 0.5).clamp(0, 1)
    loss = torch.zeros(())
    for weight, change in ((share, velocity - old), (1 - share, old - velocity)):
        miss = terms.latents - s * (old + change) - clean  # with a strength of 1
        scale = miss.detach().abs().mean(dim=(1, 2)).clamp(min=1e-5)
        loss = loss + 5 * (weight * (miss**2).mean(dim=(1, 2)) / scale).mean()
    loss.backward()
    parameters = list(model.transformer.parameters())
    torch.optim.AdamW(parameters, lr=1e-2, weight_decay=1e-4).step()

    trainer = build(with_options(training, noisiest=0.5))
    report = trainer.train(3, batch)
    assert report["loss"] == pytest.approx(loss.item(), rel=1e-5)
    plain = torch.cat([parameter.detach().flatten() for parameter in parameters])
    torch.testing.assert_close(flat(trainer.rollout_state()), plain, rtol=1e-4, atol=1e-5)


def test_the_optimizer_steps_by_the_rate_of_each_update():
    """In its first update Adam moves every weight by the learning rate."""
    training = msgspec.structs.replace(
        NFT, updates_per_iteration=1, warmup_updates=9, weight_decay=0.0
    )
    trainer = build(training)
    before = flat(trainer.rollout_state())
    report = trainer.train(0, make_batch(FakeModel()))
    assert report["learning_rate"] == pytest.approx(1e-3)
    moved = (flat(trainer.rollout_state()) - before).abs()
    torch.testing.assert_close(moved.median(), torch.tensor(1e-3), rtol=1e-3, atol=0)


@pytest.mark.parametrize("clip", [1e-3, 1e6])
def test_gradients_are_clipped_on_their_global_norm(clip):
    trainer = build(msgspec.structs.replace(NFT, updates_per_iteration=1, gradient_clip=clip))
    report = trainer.train(0, make_batch(FakeModel()))
    saved = trainer.state_dict()
    moments = [tensor.flatten() for name, tensor in saved.items() if "adam_mean/" in name]
    stepped = torch.cat(moments).norm().item() / (1 - 0.9)
    assert stepped == pytest.approx(min(clip, report["grad_norm"]), rel=1e-4)


def test_micro_batches_do_not_change_the_update():
    states = []
    for size in (3, 16):
        trainer = build(msgspec.structs.replace(NFT, micro_batch=size))
        trainer.train(0, make_batch(FakeModel()))
        states.append(flat(trainer.rollout_state()))
    torch.testing.assert_close(*states, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("decay", [0.0, 0.5])
def test_nft_makes_no_needless_forward_passes(decay):
    """8 samples x 2 times in 2 updates: 8 rows for each, and 8 for its old policy."""
    model = FakeModel()
    trainer = build(msgspec.structs.replace(NFT, rollout_decay=decay), model=model)
    trainer.train(0, make_batch(FakeModel()))
    assert model.batch_sizes == [8] * (3 if decay == 0 else 4)


def test_half_of_the_flow_times_take_half_of_the_rows():
    model = FakeModel()
    build(with_options(NFT, noisiest=0.5), model=model).train(0, make_batch(FakeModel()))
    assert model.batch_sizes == [4] * 3


@pytest.mark.parametrize("shared", [True, False])
def test_equal_samples_of_a_prompt_that_share_noise_cancel_out(shared):
    """Of opposite advantages, so that without noise they say nothing."""
    latents = make_batch(FakeModel()).latents[:1].expand(3, -1, -1)
    batch = TrainingBatch(["a", "b", "a"], latents, torch.tensor([1.0, 0.0, -1.0]))
    training = msgspec.structs.replace(
        NFT, updates_per_iteration=1, options={"times": 2, "shared_noise": shared}
    )
    norm = build(training).train(0, batch)["grad_norm"]
    assert (norm < 1e-6) == shared


def test_grpo_replays_at_one_batch_size_and_starts_at_ratio_1():
    model = FakeModel()
    trainer = build(GRPO, NOISY, model=model)
    report = trainer.train(0, make_batch(FakeModel(), NOISY, count=7))
    assert set(model.batch_sizes) == {4}
    assert report["first_ratio_deviation"] == 0
    assert report["ratio_deviation"] > 0


def test_samples_that_cannot_be_dealt_evenly_all_count():
    trainer = build(msgspec.structs.replace(NFT, updates_per_iteration=3))
    trainer.train(0, make_batch(FakeModel(), count=7))
    assert trainer.updates == 3


def test_fewer_samples_than_updates_make_fewer_updates():
    trainer = build(msgspec.structs.replace(NFT, updates_per_iteration=3))
    trainer.train(0, make_batch(FakeModel(), count=2))
    assert trainer.updates == 2


def test_training_raises_the_reward_of_a_toy_problem():
    """Samples nearer to a target get better advantages; training moves samples there."""
    model = FakeModel()
    trainer = build(with_options(NFT, times=4), model=model)
    distances = []
    for iteration in range(15):
        batch = make_batch(model, count=16)
        distance = ((batch.latents - 1.0) ** 2).mean(dim=(1, 2))
        batch.advantages = (distance.mean() - distance) / distance.std()
        distances.append(distance.mean().item())
        trainer.train(iteration, batch)
    assert distances[-1] < 0.7 * distances[0]


@pytest.mark.parametrize("name", ["latents", "advantages"])
def test_a_nan_stops_with_an_error_and_changes_nothing(name):
    trainer = build()
    before = trainer.state_dict()
    batch = make_batch(FakeModel())
    getattr(batch, name).fill_(float("nan"))
    with pytest.raises(TrainingDiverged, match="iteration 4, update 0"):
        trainer.train(4, batch)
    assert same_bits(trainer.state_dict(), before)


def test_an_infinite_gradient_stops_with_an_error():
    trainer = build()
    batch = make_batch(FakeModel())
    batch.latents[0] = 1e30
    with pytest.raises(TrainingDiverged, match="gradient norm"):
        trainer.train(0, batch)


def test_a_bfloat16_model_learns_in_float32():
    """Steps of 1e-6 would vanish in bfloat16 weights, but add up in the trainer's own."""
    training = msgspec.structs.replace(NFT, learning_rate=1e-6)
    trainer = build(training, model=FakeModel(dtype=torch.bfloat16))

    def weights() -> torch.Tensor:
        state = trainer.state_dict()
        return flat({name: each for name, each in state.items() if name.startswith("weights/")})

    before = weights()
    trainer.train(0, make_batch(FakeModel()))
    after = weights()
    assert after.dtype == torch.float32
    assert (after != before).float().mean() > 0.9


def test_a_state_of_another_model_is_refused():
    trainer = build()
    state = trainer.state_dict()
    state["weights/first.weight"] = torch.zeros(2, 2)
    with pytest.raises(CheckpointError, match=r"first\.weight"):
        trainer.load_state_dict(state)


def test_a_state_of_another_kind_of_job_is_refused():
    state = build(msgspec.structs.replace(NFT, kl=0.1)).state_dict()
    with pytest.raises(CheckpointError, match="reference"):
        build().load_state_dict(state)


def test_a_rate_that_falls_needs_to_know_for_how_long():
    training = msgspec.structs.replace(NFT, learning_rate_schedule="linear")
    with pytest.raises(ValueError, match="iterations: a linear rate needs them"):
        Trainer(FakeModel(), training, SAMPLER, seed=0)


def test_several_ranks_need_a_group():
    with pytest.raises(ValueError, match="rank 1 of 2"):
        Trainer(FakeModel(), NFT, SAMPLER, seed=0, rank=1, world=2)
