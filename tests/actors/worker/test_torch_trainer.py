"""What a trainer rank fetches, and what its batches are made of."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from job_kit import job
from torch import Tensor

from spotlight.actors.protocol.trainer import StartTrainer, Train
from spotlight.actors.worker.torch_trainer import TorchTrainer, assemble
from spotlight.diffusion.checkpoints import load_model
from spotlight.diffusion.progress import Progress
from spotlight.errors import TransferFailed
from spotlight.training.checkpoints import save_checkpoint
from spotlight.training.state_files import StateFile
from spotlight.transport.tensors.bundles import pack
from spotlight.types import BundleOffer, StoreEndpoint, TrainingSample
from tests.training.fakes import same_bits

STORE = StoreEndpoint("127.0.0.1", 1, "token", "m", "/r")
A, B = (BundleOffer(key, 1, 1, STORE) for key in "ab")
MESSAGE = Train(
    0,
    0,
    tuple(
        TrainingSample(*row)
        for row in (("p", B, 1, 0.5, 7), ("q", A, 0, -0.5, 8), ("p", B, 0, 0.25, 9))
    ),
)


def build(*state: StateFile) -> TorchTrainer:
    """The only rank, from a state or from the job's model."""
    order = StartTrainer("job", job(), 0, 1, "", 0, (), 1)
    return TorchTrainer(order, load_model(job().model), state, "", None, lambda: None)


def left(state: Mapping[str, Tensor], path: Path) -> StateFile:
    save_checkpoint(path, state, {})
    return StateFile(path)


def bundles(*, noisy: int = 0) -> dict[str, dict[str, Tensor]]:
    """Two bundles of two samples each, denoised with so many noisy steps."""
    made = {}
    for key, n in (("a", 1.0), ("b", 2.0)):
        latents = torch.tensor([[n], [n + 0.5]])
        states = latents.unsqueeze(1).repeat(1, noisy + 1 if noisy else 0, 1)
        nothing = latents.unsqueeze(1)[:, :0]
        progress = Progress(5, latents, states, latents.repeat(1, noisy), nothing)
        made[key] = progress.tensors()
    return made


def test_rows_are_in_the_order_of_the_message() -> None:
    batch = assemble(MESSAGE.samples, [0, 1, 2], bundles(), 0)
    assert batch.prompts == ["p", "q", "p"]
    assert batch.latents.flatten().tolist() == [2.5, 1.0, 2.0]
    assert batch.advantages.tolist() == [0.5, -0.5, 0.25]


def test_samples_of_steps_without_noise_have_no_states_to_train_on() -> None:
    batch = assemble(MESSAGE.samples, [0, 1, 2], bundles(), 0)
    assert batch.window_states is batch.log_probs is None


def test_the_states_of_noisy_steps_are_in_the_order_of_the_message() -> None:
    batch = assemble(MESSAGE.samples, [0, 1, 2], bundles(noisy=2), 0)
    assert batch.window_states is not None
    assert batch.log_probs is not None
    assert batch.window_states.squeeze(2).tolist() == [[2.5] * 3, [1.0] * 3, [2.0] * 3]
    assert batch.log_probs.tolist() == [[2.5] * 2, [1.0] * 2, [2.0] * 2]


def test_the_rows_of_other_ranks_need_not_be_there() -> None:
    only_a = {"a": bundles()["a"]}
    batch = assemble(MESSAGE.samples, [1], only_a, 0)
    assert batch.latents.flatten().tolist() == [0.0, 1.0, 0.0]


@pytest.fixture(scope="module")
def trainer() -> TorchTrainer:
    return build()


def test_the_only_rank_wants_all_samples(trainer: TorchTrainer) -> None:
    assert [offer.key for offer in trainer.wants(MESSAGE)] == ["a", "b"]


def test_a_rank_that_begins_from_a_state_has_the_same_weights(
    trainer: TorchTrainer, tmp_path: Path
) -> None:
    state = trainer.state().tensors
    other = {name: it + 1 if it.is_floating_point() else it for name, it in state.items()}
    elsewhere = build(left(other, tmp_path / "other"))
    assert not same_bits(elsewhere.weights("rollout"), trainer.weights("rollout"))
    again = build(left(state, tmp_path / "same"))
    assert same_bits(again.weights("rollout"), trainer.weights("rollout"))
    assert same_bits(again.weights("evaluation"), trainer.weights("evaluation"))


@pytest.mark.parametrize(
    "data", [b"", b"garbage", pack({"gradient": torch.zeros(3)}), pack({"sums": torch.zeros(3)})]
)
def test_what_is_no_gradient_is_refused_as_such(trainer: TorchTrainer, data: bytes) -> None:
    with pytest.raises(TransferFailed):
        trainer.add(data)
