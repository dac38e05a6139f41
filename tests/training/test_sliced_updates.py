"""Updates whose slices several compute: the bits of one rank that computes all of them."""

import msgspec
import pytest
import torch

from spotlight.training.batches import deal, key
from spotlight.training.losses import Velocities, build_loss
from spotlight.training.trainer import Trainer

from .fakes import GRPO, NFT, NOISY, SAMPLER, FakeModel, make_batch, same_bits, with_options
from .qwen import SIZE, tiny_model
from .slice_kit import Helper, came_in, train_with_help, weights_of

SLICES = 5
AWM = msgspec.structs.replace(NFT, loss="awm", options={"times": 3}, kl=0.1)
GUARD = msgspec.structs.replace(GRPO, loss="grpo_guard", options={"clip_range": 0.1})
CASES = {
    # name: (training, sampler, reuse)
    "nft": (with_options(NFT, times=3), SAMPLER, False),
    "nft with old policy and reference": (
        msgspec.structs.replace(with_options(NFT, times=3), rollout_decay=0.5, kl=0.1),
        SAMPLER,
        False,
    ),
    "nft at the noisiest times": (with_options(NFT, times=5, noisiest=0.5), SAMPLER, False),
    "nft with shared noise": (with_options(NFT, times=3, shared_noise=True), SAMPLER, False),
    "nft of older samples": (with_options(NFT, times=3), SAMPLER, True),
    "nft offloaded": (msgspec.structs.replace(NFT, cpu_offload=True), SAMPLER, False),
    "awm": (AWM, SAMPLER, False),
    "flow grpo": (GRPO, NOISY, False),
    "flow grpo of older samples": (msgspec.structs.replace(GRPO, kl=0.1), NOISY, True),
    "grpo guard": (GUARD, NOISY, False),
    "grpo guard of older samples": (msgspec.structs.replace(GUARD, kl=0.1), NOISY, True),
}
HELPED = {
    "everything": lambda index: True,
    "the later half": lambda index: index >= SLICES // 2,
    "every second slice": lambda index: index % 2 == 0,
}


def sliced(training, slices=SLICES):
    return msgspec.structs.replace(training, slices=slices, micro_batch=2, updates_per_iteration=2)


def build(training, sampler=SAMPLER, *, reuse=False, model=None):
    model = model or FakeModel()
    return Trainer(model, training, sampler, seed=0, iterations=10, reuse=reuse)


@pytest.mark.parametrize("helped", HELPED)
@pytest.mark.parametrize("case", CASES)
def test_the_bits_do_not_depend_on_who_computes_the_slices(case, helped):
    rule, sampler, reuse = CASES[case]
    training, batch = sliced(rule), make_batch(FakeModel(seed=5), sampler, count=7)
    alone, together = (build(training, sampler, reuse=reuse) for _ in range(2))
    helper = Helper(FakeModel(seed=9), training, sampler, reuse=reuse)
    for iteration in range(3):
        expected = alone.train(iteration, batch)
        assert train_with_help(together, helper, iteration, batch, HELPED[helped]) == expected
    assert same_bits(together.state_dict(), alone.state_dict())
    assert same_bits(together.rollout_state(), alone.rollout_state())


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("lora", [False, True])
def test_so_with_a_transformer_all_or_adapters_of_which_are_trained(lora, checkpointing):
    sampler = msgspec.structs.replace(SAMPLER, **SIZE, guidance=2.0)
    training = msgspec.structs.replace(
        sliced(NFT), guidance=1.5, kl=0.1, activation_checkpointing=checkpointing
    )
    batch = make_batch(tiny_model(lora=lora), sampler, count=5)
    alone, together = (build(training, sampler, model=tiny_model(lora=lora)) for _ in range(2))
    helper = Helper(tiny_model(lora=lora), training, sampler)
    for iteration in range(2):
        expected = alone.train(iteration, batch)
        found = train_with_help(together, helper, iteration, batch, HELPED["every second slice"])
        assert found == expected
    assert same_bits(together.state_dict(), alone.state_dict())


def test_so_with_a_bfloat16_model():
    training, batch = sliced(NFT), make_batch(FakeModel(), count=7)
    models = [FakeModel(dtype=torch.bfloat16) for _ in range(3)]
    alone, together = (build(training, model=model) for model in models[:2])
    helper = Helper(models[2], training, SAMPLER)
    for iteration in range(2):
        alone.train(iteration, batch)
        train_with_help(together, helper, iteration, batch, HELPED["the later half"])
    assert same_bits(together.state_dict(), alone.state_dict())


@pytest.mark.parametrize("rule", [NFT, msgspec.structs.replace(NFT, rollout_decay=0.5)])
def test_so_in_an_iteration_of_two_parts(rule):
    training = sliced(rule)
    first, rest = make_batch(FakeModel()), make_batch(FakeModel(seed=3))
    alone, together = (build(training, reuse=True) for _ in range(2))
    helper = Helper(FakeModel(seed=9), training, SAMPLER, reuse=True)
    began = together.rollout_state()
    for batch, updates in ((first, range(1)), (rest, range(1, 2))):
        expected = alone.train(4, batch, updates)
        found = train_with_help(
            together, helper, 4, batch, HELPED["everything"], updates, began=began
        )
        assert found == expected
    assert same_bits(together.state_dict(), alone.state_dict())


@pytest.mark.parametrize("case", CASES)
def test_a_single_slice_can_be_computed_elsewhere_too(case):
    rule, sampler, reuse = CASES[case]
    batch = make_batch(FakeModel(seed=5), sampler, count=7)
    alone, together = (build(rule, sampler, reuse=reuse) for _ in range(2))
    helper = Helper(FakeModel(seed=9), rule, sampler, reuse=reuse)
    expected = alone.train(0, batch)
    assert train_with_help(together, helper, 0, batch, HELPED["everything"]) == expected
    assert same_bits(together.state_dict(), alone.state_dict())


@pytest.mark.parametrize("case", CASES)
def test_the_sum_of_the_slices_is_the_gradient_of_plain_torch(case):
    """Of the mean loss over all rows at once, in the second update, where policies differ."""
    rule, sampler, reuse = CASES[case]
    training, batch = sliced(rule), make_batch(FakeModel(seed=5), sampler, count=7)
    trainer = build(training, sampler, reuse=reuse)
    began = trainer.rollout_state()
    trainer.begin(0, batch)
    while trainer.next_slice < len(trainer.update.slices):
        trainer.compute()
    trainer.step()
    update, weights = trainer.update, weights_of(trainer, began)
    helper = Helper(FakeModel(seed=9), training, sampler, reuse=reuse)
    found = came_in(helper, update, batch, weights, range(len(update.slices)))

    loss, options = build_loss(FakeModel(), training, sampler, reuse=reuse)
    hand = deal(7, 2, key(0, 0))[1]
    shares = getattr(options, "shared_noise", False)
    draws = [batch.prompts.index(batch.prompts[it]) if shares else it for it in hand]
    terms = loss.terms(batch, hand, [key(0, 0, 1, draw) for draw in draws])
    velocities, models = {}, {role: FakeModel() for role in weights}
    for role, model in models.items():
        model.load_trainable_state(weights[role])
        prompts = model.encode_prompts([batch.prompts[row] for row in terms.samples])
        velocities[role] = model.velocity(terms.latents, terms.sigmas, prompts, height=8, width=8)
    old = velocities["old" if loss.uses_old_policy else "current"].detach()
    reference = velocities["reference"].detach() if "reference" in velocities else None
    given = Velocities(velocities["current"], old, reference)
    mean = loss.evaluate(terms, given)[0].mean()
    mean.backward()
    gradient = torch.cat([it.grad.flatten() for it in models["current"].transformer.parameters()])
    total = sum(each.gradient for each in found.values())
    assert (total - gradient).norm() / gradient.norm() < 1e-6
    sums = sum(each.sums for each in found.values()) * update.scale
    assert sums[0].item() == pytest.approx(mean.item(), rel=1e-5)


def test_passes_of_other_weights_are_those_that_the_loss_needs():
    training = sliced(msgspec.structs.replace(NFT, kl=0.1))
    trainer, batch = build(training), make_batch(FakeModel())
    helper = Helper(FakeModel(), training, SAMPLER)
    train_with_help(trainer, helper, 0, batch, lambda index: index == 0)
    assert helper.used == ["reference", "current", "old", "reference", "current"]


def test_others_may_put_weights_into_the_model_between_two_slices():
    training, batch = sliced(msgspec.structs.replace(NFT, kl=0.1)), make_batch(FakeModel())
    model = FakeModel()
    alone, disturbed = build(training), build(training, model=model)
    alone.train(0, batch)
    disturbed.begin(0, batch)
    while disturbed.update is not None:
        while disturbed.next_slice < len(disturbed.update.slices):
            model.load_trainable_state(FakeModel(seed=9).trainable_state())
            disturbed.compute()
        model.load_trainable_state(FakeModel(seed=9).trainable_state())
        disturbed.step()
    assert same_bits(disturbed.state_dict(), alone.state_dict())
    held = {f"weights/{name}": it for name, it in model.trainable_state().items()}
    assert all(torch.equal(alone.state_dict()[name], it) for name, it in held.items())


def test_a_slice_that_is_not_wanted_any_more_is_not_counted():
    training, batch = sliced(NFT), make_batch(FakeModel())
    alone, asked = build(training), build(training)
    alone.train(0, batch)
    asked.begin(0, batch)
    while asked.update is not None:
        while asked.next_slice < len(asked.update.slices):
            before = asked.next_slice
            assert not asked.compute(lambda: False)
            assert asked.next_slice == before
            assert asked.compute()
        asked.step()
    assert same_bits(asked.state_dict(), alone.state_dict())


def test_it_is_asked_before_every_micro_batch_whether_a_slice_is_wanted():
    training = sliced(msgspec.structs.replace(NFT, kl=0.1), slices=1)
    training = msgspec.structs.replace(training, slices=2)
    trainer, asked = build(training), []
    trainer.begin(0, make_batch(FakeModel()))
    rows = trainer.update.slices[0].rows
    trainer.compute(lambda: asked.append(True) or True)
    assert len(asked) == 2 * rows / training.micro_batch  # with those of the reference


def test_what_was_begun_is_given_up_for_what_is_begun_next():
    training, batch = sliced(NFT), make_batch(FakeModel())
    alone, again = build(training), build(training)
    again.begin(0, make_batch(FakeModel(seed=4)))
    again.compute()
    assert again.train(0, batch) == alone.train(0, batch)
    assert same_bits(again.state_dict(), alone.state_dict())


def test_more_slices_are_another_rounding_of_the_same_update():
    states = []
    for slices in (1, 3, 64):
        trainer = build(sliced(NFT, slices))
        trainer.train(0, make_batch(FakeModel()))
        states.append(torch.cat([it.flatten() for it in trainer.rollout_state().values()]))
    torch.testing.assert_close(states[1], states[0], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(states[2], states[0], rtol=1e-4, atol=1e-5)
