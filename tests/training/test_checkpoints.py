import json

import pytest
import torch
from safetensors.torch import save_file

from spotlight.errors import CheckpointError
from spotlight.training.checkpoints import load_checkpoint, save_checkpoint
from spotlight.training.trainer import Trainer

from .fakes import NFT, SAMPLER, FakeModel, make_batch, same_bits

TENSORS = {"weights/a": torch.randn(3, 4), "updates": torch.tensor(7), "none": torch.zeros(0)}
METADATA = {"job": "ab12", "iteration": "3"}


def test_tensors_and_metadata_come_back_to_the_bit(tmp_path):
    path = tmp_path / "3.safetensors"
    save_checkpoint(path, TENSORS, METADATA)
    tensors, metadata = load_checkpoint(path)
    assert same_bits(tensors, TENSORS)
    assert metadata == METADATA


def test_a_trainer_resumed_from_disk_goes_on_with_the_same_bits(tmp_path):
    batch = make_batch(FakeModel())
    trainer = Trainer(FakeModel(), NFT, SAMPLER, seed=0)
    trainer.train(0, batch)
    save_checkpoint(tmp_path / "0", trainer.state_dict(), METADATA)
    trainer.train(1, batch)

    resumed = Trainer(FakeModel(seed=5), NFT, SAMPLER, seed=0)
    resumed.load_state_dict(load_checkpoint(tmp_path / "0")[0])
    resumed.train(1, batch)
    assert same_bits(resumed.state_dict(), trainer.state_dict())


def test_saving_replaces_and_leaves_nothing_else(tmp_path):
    path = tmp_path / "latest"
    save_checkpoint(path, TENSORS, METADATA)
    save_checkpoint(path, TENSORS, {"iteration": "4"})
    assert load_checkpoint(path)[1] == {"iteration": "4"}
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.99])
def test_a_truncated_file_is_named(tmp_path, share):
    path = tmp_path / "broken"
    save_checkpoint(path, TENSORS, METADATA)
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])
    with pytest.raises(CheckpointError, match=r"broken: .*resume from an earlier one"):
        load_checkpoint(path)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(CheckpointError, match="absent"):
        load_checkpoint(tmp_path / "absent")


@pytest.mark.parametrize(
    "header", [None, {"spotlight": "no json"}, {"spotlight": json.dumps(["list"])}]
)
def test_a_foreign_file_is_refused(tmp_path, header):
    save_file({"x": torch.zeros(1)}, tmp_path / "foreign", header)
    with pytest.raises(CheckpointError, match="no training checkpoint"):
        load_checkpoint(tmp_path / "foreign")


def test_a_newer_format_is_refused(tmp_path):
    header = {"format": "spotlight-training", "version": 99, "metadata": {}}
    save_file({"x": torch.zeros(1)}, tmp_path / "new", {"spotlight": json.dumps(header)})
    with pytest.raises(CheckpointError, match="version 99"):
        load_checkpoint(tmp_path / "new")


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(CheckpointError, match="cannot be written"):
        save_checkpoint(tmp_path / "file" / "checkpoint", TENSORS, METADATA)
