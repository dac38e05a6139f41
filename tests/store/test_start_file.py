"""The weights that a run begins with are a checkpoint made of tensors of other files."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from spotlight.diffusion.checkpoint_files import read_header
from spotlight.store.checkpoint_header import FACTOR, START
from spotlight.store.start_file import Piece, write_start
from spotlight.training.checkpoints import load_checkpoint, load_role

METADATA = {START: "somewhere", FACTOR: "0.5"}


def pieces(path: Path, names: dict[str, str]) -> dict[str, Piece]:
    """Tensors of a file, by the names that they get."""
    header = read_header(path)
    found = {}
    for name, new in names.items():
        tensor = header.tensors[name]
        begin, end = tensor.data_offsets
        found[new] = Piece(path, header.begin + begin, end - begin, tensor.dtype, tensor.shape)
    return found


def test_tensors_of_several_files_and_kinds_keep_their_bits(tmp_path: Path) -> None:
    first = {"a": torch.randn(3, 5), "b": torch.randn(7).bfloat16(), "c": torch.tensor(4)}
    second = {"d": torch.randn(2, 2).half()}
    save_file(first, tmp_path / "first.safetensors")
    save_file(second, tmp_path / "second.safetensors")
    made = pieces(tmp_path / "first.safetensors", {"b": "weights/b", "c": "updates"})
    made |= pieces(tmp_path / "second.safetensors", {"d": "weights/d"})

    write_start(tmp_path / "checkpoints" / "start.safetensors", made, METADATA)

    found, metadata = load_checkpoint(tmp_path / "checkpoints" / "start.safetensors")
    assert metadata == METADATA
    assert [*found] == ["updates", "weights/b", "weights/d"]
    assert torch.equal(found["weights/b"], first["b"])
    assert found["updates"] == 4
    assert torch.equal(found["weights/d"], second["d"])


def test_its_average_is_the_weights_themselves_with_the_scale_of_the_jobs_adapters(
    tmp_path: Path,
) -> None:
    tensors = {"x.lora_A.default.weight": torch.ones(2), "x.lora_B.default.weight": torch.ones(2)}
    save_file(tensors, tmp_path / "file.safetensors")
    made = pieces(tmp_path / "file.safetensors", {name: f"weights/{name}" for name in tensors})
    write_start(tmp_path / "start.safetensors", made, METADATA)
    for role in ("ema", "weights"):
        found = load_role(tmp_path / "start.safetensors", role)
        assert found["x.lora_A.default.weight"].tolist() == [1, 1]
        assert found["x.lora_B.default.weight"].tolist() == [0.5, 0.5]


def test_a_file_that_was_cut_off_meanwhile_leaves_nothing(tmp_path: Path) -> None:
    save_file({"a": torch.ones(100)}, tmp_path / "file.safetensors")
    made = pieces(tmp_path / "file.safetensors", {"a": "weights/a"})
    (tmp_path / "file.safetensors").write_bytes(b"")
    with pytest.raises(OSError, match="is shorter than it was"):
        write_start(tmp_path / "new" / "start.safetensors", made, METADATA)
    assert not [*(tmp_path / "new").iterdir()]
