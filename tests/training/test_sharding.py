"""A model that one rank has sharded: all that is gathered is its own."""

import msgspec
import pytest
import torch
from torch.distributed.fsdp import FSDPModule

from spotlight.training.sharding import shard
from spotlight.training.trainer import Trainer
from spotlight.transport.collectives import init_group

from .fakes import GRPO, NFT, NOISY, SAMPLER, FakeModel, make_batch
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


def test_every_block_is_gathered_by_itself(group):
    transformer = tiny_model().transformer
    shard(transformer, group)
    modules = (*transformer.transformer_blocks, transformer)
    assert all(isinstance(module, FSDPModule) for module in modules)


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


def test_a_rank_without_a_group_has_everything_whole():
    trainer = Trainer(FakeModel(), msgspec.structs.replace(NFT, sharded=True), SAMPLER, seed=0)
    assert all(rows.held == rows.shape for rows in trainer.rows.values())
