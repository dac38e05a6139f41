"""A model that one rank has sharded: all that is gathered is its own."""

import msgspec
import pytest
import torch
from diffusers import WanTransformer3DModel
from torch.distributed.fsdp import FSDPModule

from spotlight.diffusion.checkpoints import load_model
from spotlight.jobs import ModelSpec
from spotlight.training.sharded_weights import ShardedWeights
from spotlight.training.sharding import shard
from spotlight.training.trainer import Trainer
from spotlight.training.weights import FlatWeights
from spotlight_simulation.rank_groups import init_group
from spotlight_simulation.tiny_families import make_tiny_checkpoint

from .fakes import GRPO, NFT, NOISY, SAMPLER, FakeModel, make_batch, same_bits
from .qwen import SIZE, tiny_model

pytestmark = pytest.mark.filterwarnings("ignore:FSDP2-wrapped module:UserWarning")
RULES = {"nft": (NFT, SAMPLER), "grpo": (GRPO, NOISY)}


@pytest.fixture
def group():
    with init_group(0, 1, timeout_s=20.0) as group:
        yield group


@pytest.mark.parametrize("rule", RULES)
def test_a_bfloat16_model_computes_what_it_does_whole(group, rule):
    training, sampler = RULES[rule]
    sampler = msgspec.structs.replace(sampler, **SIZE)
    reports, states = [], []
    for sharded in (False, True):
        model = tiny_model()
        batch = make_batch(model, sampler, count=4)
        model.transformer.bfloat16()
        spec = msgspec.structs.replace(training, sharded=sharded, learning_rate=1e-4)
        trainer = Trainer(model, spec, sampler, seed=0, group=group if sharded else None)
        assert model.transformer.dtype == torch.bfloat16
        reports.append(trainer.train(0, batch))
        states.append(trainer.state_dict())
        assert all(it.dtype == torch.bfloat16 for it in trainer.rollout_state().values())
    first = [{k: v for k, v in it.items() if k.startswith("first_")} for it in reports]
    assert first[0] == first[1]
    for name, tensor in states[0].items():
        assert states[1][name].dtype == tensor.dtype
        torch.testing.assert_close(states[1][name], tensor, rtol=1e-2, atol=3e-4)


@pytest.mark.parametrize("twice", [False, True], ids=["kept", "computed-twice"])
def test_modules_that_stay_in_float32_compute_in_it_when_sharded(group, tmp_path, twice):
    make_tiny_checkpoint("wan", tmp_path)
    generator = torch.Generator().manual_seed(0)
    inputs = {
        "hidden_states": torch.randn(2, 4, 2, 8, 8, generator=generator).bfloat16(),
        "encoder_hidden_states": torch.randn(2, 5, 32, generator=generator).bfloat16(),
        "timestep": torch.tensor([900.0, 370.0]),
    }
    outputs, gradients = [], []
    for sharded in (False, True):
        transformer = WanTransformer3DModel.from_pretrained(
            tmp_path / "transformer", torch_dtype=torch.bfloat16
        )
        dtypes = {it.dtype for it in transformer.parameters()}
        assert dtypes == {torch.bfloat16, torch.float32}
        if sharded:
            shard(transformer, group)
        if twice:
            transformer.enable_gradient_checkpointing()
        output = transformer(**inputs, return_dict=False)[0]
        output.float().square().mean().backward()
        found = {name: it.grad for name, it in transformer.named_parameters()}
        outputs.append(output)
        gradients.append({name: it.to_local() if sharded else it for name, it in found.items()})
    assert torch.equal(*outputs)
    for name, gradient in gradients[0].items():
        found, off = gradients[1][name], gradients[1][name] - gradient.float()
        assert off.norm() < 0.02 * gradient.float().norm() + 1e-6, name
        rounds = torch.equal(found, found.bfloat16().float())
        assert rounds == (gradient.dtype == torch.bfloat16), name


def test_every_block_is_gathered_by_itself(group):
    transformer = tiny_model().transformer
    shard(transformer, group)
    modules = (*transformer.transformer_blocks, transformer)
    assert all(isinstance(module, FSDPModule) for module in modules)


@pytest.mark.parametrize("times", [[900.0, 370.0], [370.0, 120.0]], ids=["both", "one"])
def test_two_transformers_compute_what_they_do_whole_and_run_together(group, tmp_path, times):
    make_tiny_checkpoint("wan-a14b", tmp_path)
    generator = torch.Generator().manual_seed(0)
    inputs = {
        "hidden_states": torch.randn(2, 4, 2, 8, 8, generator=generator),
        "encoder_hidden_states": torch.randn(2, 5, 32, generator=generator),
        "timestep": torch.tensor(times),
    }
    outputs, gradients = [], []
    for sharded in (False, True):
        model = load_model(ModelSpec(checkpoint=str(tmp_path)), device="cpu").transformer
        if sharded:
            shard(model, group)
            assert model.both
        output = model(**inputs)[0]
        output.square().mean().backward()
        outputs.append(output)
        gradients.append({name: it.grad for name, it in model.named_parameters()})
    torch.testing.assert_close(*outputs)
    assert all(it is not None for it in gradients[1].values()), "other ranks would wait for it"
    for name, gradient in gradients[0].items():
        wanted = torch.zeros_like(gradients[1][name].to_local()) if gradient is None else gradient
        torch.testing.assert_close(gradients[1][name].to_local(), wanted)


def test_activations_may_be_computed_twice(group):
    sampler = msgspec.structs.replace(SAMPLER, **SIZE)
    states = []
    for twice in (False, True):
        model = tiny_model()
        spec = msgspec.structs.replace(NFT, sharded=True, activation_checkpointing=twice)
        trainer = Trainer(model, spec, sampler, seed=0, group=group)
        trainer.train(0, make_batch(tiny_model(), sampler, count=4))
        states.append(trainer.state_dict())
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


@pytest.mark.parametrize(("sharded", "dtype"), [(False, torch.bfloat16), (True, torch.float32)])
def test_offloaded_weights_learn_the_same_bits(group, sharded, dtype):
    sampler = msgspec.structs.replace(SAMPLER, **SIZE)
    states, published = [], []
    for offloaded in (False, True):
        model = tiny_model()
        batch = make_batch(model, sampler, count=4)
        model.transformer.to(dtype)
        spec = msgspec.structs.replace(
            NFT, sharded=sharded, cpu_offload=offloaded, micro_batch=3, kl=0.1
        )
        trainer = Trainer(model, spec, sampler, seed=0, group=group if sharded else None)
        trainer.train(0, batch)
        trainer.train(1, batch)
        states.append(trainer.state_dict())
        published.append(trainer.rollout_state())
    assert same_bits(*states)
    assert same_bits(*published)


@pytest.mark.parametrize("sharded", [False, True])
def test_offloaded_gradients_are_taken_from_the_model_after_every_pass(group, sharded):
    model = tiny_model()
    kind = ShardedWeights if sharded else FlatWeights
    weights = kind(model, group if sharded else None, offloaded=True)
    parameters = list(model.transformer.parameters())
    assert weights.values.device == weights.gradient.device == torch.device("cpu")
    weights.backward.start(weights.gradient)
    for count in (1, 2):
        assert all(parameter.grad is None for parameter in parameters)
        for parameter in parameters:
            parameter.grad = torch.ones_like(parameter)
        weights.backward.collect()
        assert torch.equal(weights.gradient, torch.full_like(weights.gradient, count))


def test_a_rank_without_a_group_has_everything_whole():
    trainer = Trainer(FakeModel(), msgspec.structs.replace(NFT, sharded=True), SAMPLER, seed=0)
    assert all(rows.held == rows.shape for rows in trainer.rows.values())
