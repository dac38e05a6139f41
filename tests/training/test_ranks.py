"""Several real processes train together."""

from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import msgspec
import pytest
import torch

from spotlight.errors import TrainingDiverged
from spotlight.training.checkpoints import load_checkpoint, save_checkpoint
from spotlight.training.trainer import Trainer
from spotlight.transport.collectives import listen
from spotlight_simulation.rank_groups import init_group
from tests.warm_processes import warm_processes

from .fakes import GRPO, NFT, NOISY, SAMPLER, FakeModel, make_batch, same_bits, with_options
from .slice_kit import Helper, train_with_help

TIMEOUT_S = 30.0
RULES = {
    "nft": (msgspec.structs.replace(NFT, rollout_decay=0.5, kl=0.1), SAMPLER),
    "nft-noisiest": (with_options(NFT, times=5, noisiest=0.5), SAMPLER),
    "nft-shared": (with_options(NFT, shared_noise=True), SAMPLER),
    "grpo": (GRPO, NOISY),
    "grpo-reuse": (GRPO, NOISY),  # the second iteration's samples are of the initial weights
}


SLICED = [rule for rule in RULES if rule != "grpo-reuse"]


def train(rule: str, count: int, **ranks) -> dict[str, torch.Tensor]:
    training, sampler = RULES[rule]
    # Rank 1 starts from other weights: rank 0's count.
    model, reuse = FakeModel(seed=ranks.get("rank", 0)), rule == "grpo-reuse"
    trainer = Trainer(model, training, sampler, seed=0, reuse=reuse, **ranks)
    for iteration in range(2):
        trainer.train(iteration, make_batch(FakeModel(), sampler, count=count))
    return trainer.state_dict()


def helped(rule: str, helps, **ranks) -> dict[str, torch.Tensor]:
    """What two iterations lead to if others compute some of this rank's slices."""
    training, sampler = RULES[rule]
    training = msgspec.structs.replace(training, slices=3, micro_batch=2)
    trainer = Trainer(FakeModel(), training, sampler, seed=0, **ranks)
    helper = Helper(FakeModel(seed=9), training, sampler)
    for iteration in range(2):
        batch = make_batch(FakeModel(), sampler, count=7)
        train_with_help(trainer, helper, iteration, batch, helps)
    return trainer.state_dict()


def run_rank(rank: int, port: int, listener, folder: Path) -> list[str]:
    """All that one rank of two does; returns the errors that it had."""
    torch.set_num_threads(1)
    with init_group(rank, 2, port=port, timeout_s=TIMEOUT_S, listener=listener) as group:
        for rule in RULES:
            for count in (8, 7):
                state = train(rule, count, rank=rank, world=2, group=group)
                save_checkpoint(folder / f"{rule}-{count}-{rank}", state, {})
        for rule in SLICED:
            # Each rank is helped with other slices.
            for name, helps in {"alone": lambda _: False, "helped": lambda i: i != rank}.items():
                state = helped(rule, helps, rank=rank, world=2, group=group)
                save_checkpoint(folder / f"{rule}-{name}-{rank}", state, {})
        return [spoiled(slices, rank=rank, world=2, group=group) for slices in (1, 3)]


def spoiled(slices: int, **ranks) -> str:
    """The error of this rank if a sample of one rank has a loss that is not finite."""
    batch = make_batch(FakeModel(), count=6)
    batch.seeds = [100 + number for number in range(6)]
    batch.latents[3] = float("nan")
    training = msgspec.structs.replace(NFT, slices=slices, micro_batch=2, updates_per_iteration=1)
    trainer = Trainer(FakeModel(), training, SAMPLER, seed=0, **ranks)
    with pytest.raises(TrainingDiverged) as refused:
        trainer.train(0, batch)
    return str(refused.value)


@pytest.fixture(scope="module")
def outcome(tmp_path_factory):
    """The folder of both ranks' states, and rank 0's and rank 1's errors."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("ranks")
    context = warm_processes()
    with listen("127.0.0.1") as listener, ProcessPoolExecutor(1, mp_context=context) as pool:
        port = listener.getsockname()[1]
        other = pool.submit(run_rank, 1, port, None, folder)
        own = run_rank(0, port, listener, folder)
        return folder, (own, other.result(TIMEOUT_S))


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("count", [8, 7])
def test_two_ranks_make_the_same_update_as_one(outcome, rule, count):
    folder, _ = outcome
    state, _ = load_checkpoint(folder / f"{rule}-{count}-0")
    alone = train(rule, count)
    assert state.keys() == alone.keys()
    for name, tensor in alone.items():
        torch.testing.assert_close(state[name], tensor, rtol=1e-3, atol=2e-5)


@pytest.mark.parametrize("rule", RULES)
def test_both_ranks_hold_the_same_bits(outcome, rule):
    folder, _ = outcome
    assert same_bits(*(load_checkpoint(folder / f"{rule}-8-{rank}")[0] for rank in range(2)))


@pytest.mark.parametrize("rule", SLICED)
def test_the_bits_of_two_ranks_do_not_depend_on_who_helps_them(outcome, rule):
    folder, _ = outcome
    states = [
        load_checkpoint(folder / f"{rule}-{name}-{rank}")[0]
        for name in ("alone", "helped")
        for rank in range(2)
    ]
    assert all(same_bits(state, states[0]) for state in states)


def test_one_rank_s_nan_stops_both_and_both_name_the_sample(outcome):
    _, (errors, others) = outcome
    assert errors == others
    assert all("of prompt 'three', seed 103; resume from" in error for error in errors)
