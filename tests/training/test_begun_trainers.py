"""A job begins with weights that were trained before, with or without the optimizer's moments."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import torch
from safetensors.torch import save_file

from spotlight.diffusion.checkpoint_files import read_header
from spotlight.errors import CheckpointError
from spotlight.store.checkpoint_header import EARLIER_UPDATES, FACTOR, START
from spotlight.store.start_file import Piece, write_start
from spotlight.training.state_files import StateFile, StateFiles
from spotlight.training.trainer import Trainer
from spotlight.training.weights import Rows

from .fakes import NFT, SAMPLER, FakeModel, make_batch, same_bits

FULL = msgspec.structs.replace(NFT, rollout_decay=0.5, kl=0.1)


def build(training=NFT, seed: int = 0) -> Trainer:
    return Trainer(FakeModel(seed=seed), training, SAMPLER, seed=0, iterations=10)


def weights_of(trainer: Trainer) -> dict[str, torch.Tensor]:
    state = trainer.state_dict()
    return {name: it for name, it in state.items() if name.startswith("weights/")}


def test_all_that_a_trainer_keeps_begins_with_the_same_weights() -> None:
    taken = weights_of(build(seed=5))
    trainer = build(FULL)
    trainer.begin_with(taken)
    state = trainer.state_dict()
    for role in ("weights", "ema", "old", "reference"):
        for name, tensor in taken.items():
            assert torch.equal(state[name.replace("weights/", f"{role}/")], tensor), role
    assert same_bits(trainer.rollout_state(), trainer.evaluation_state())
    assert int(state["updates"]) == 0
    assert not state["adam_mean/first.weight"].any()


def test_the_first_update_is_that_of_a_model_with_these_weights() -> None:
    other = FakeModel(seed=5)
    batch = make_batch(other, SAMPLER)
    own = Trainer(other, FULL, SAMPLER, seed=0, iterations=10)
    begun = build(FULL)
    begun.begin_with(weights_of(own))
    assert begun.train(0, batch) == own.train(0, batch)
    assert same_bits(begun.state_dict(), own.state_dict())


def test_with_the_optimizers_moments_training_goes_on_as_if_it_had_not_ended() -> None:
    batch = make_batch(FakeModel(), SAMPLER)
    whole = build()
    whole.train(0, batch)
    state = whole.state_dict()
    begun = build(seed=3)
    begun.begin_with({k: v for k, v in state.items() if k != "updates"}, int(state["updates"]))
    whole.train(1, batch)
    begun.train(1, batch)
    assert same_bits(begun.rollout_state(), whole.rollout_state())
    assert begun.updates == whole.updates - 2


def test_a_state_remembers_the_updates_with_whose_moments_the_job_began() -> None:
    batch = make_batch(FakeModel(), SAMPLER)
    first = build()
    first.train(0, batch)
    moments = {k: v for k, v in first.state_dict().items() if k != "updates"}
    begun = build()
    begun.begin_with(moments, 2)
    begun.train(0, batch)
    resumed = build()
    resumed.load_state_dict(begun.state_dict())
    begun.train(1, batch)
    resumed.train(1, batch)
    assert same_bits(begun.state_dict(), resumed.state_dict())


def test_weights_of_another_model_are_refused() -> None:
    taken = weights_of(build())
    del taken["weights/first.bias"]
    with pytest.raises(CheckpointError, match=r"first\.bias is missing"):
        build().begin_with(taken)


def test_a_rank_gets_its_rows_of_them_as_the_jobs_model_has_them(tmp_path: Path) -> None:
    """Adapters in another precision, and of another scale than the job's."""
    name = "layer.lora_B.default.weight"
    tensor = torch.arange(12.0).reshape(6, 2).bfloat16()
    save_file({name: tensor}, tmp_path / "file.safetensors")
    header = read_header(tmp_path / "file.safetensors")
    piece = Piece(tmp_path / "file.safetensors", header.begin, 24, "BF16", (6, 2))
    metadata = {START: "somewhere", FACTOR: "2.0", EARLIER_UPDATES: "7"}
    write_start(tmp_path / "start.safetensors", {f"weights/{name}": piece}, metadata)

    files = StateFiles([StateFile(tmp_path / "start.safetensors")])

    assert files.is_start
    assert files.earlier_updates == 7
    own = files.for_rank({name: Rows((6, 2), 2, (3, 2))})[f"weights/{name}"]
    assert own.dtype == torch.float32
    assert torch.equal(own, 2 * tensor[2:5].float())
