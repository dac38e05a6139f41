"""Rows that some ranks left, as others read them."""

import tempfile
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from spotlight.errors import CheckpointError
from spotlight.training.checkpoints import save_checkpoint
from spotlight.training.state_files import StateFile, StateFiles
from spotlight.training.weights import Rows


def rows_of(length: int, rank: int, world: int) -> Rows:
    """As FSDP2 shares a tensor [length, 2] out."""
    chunk = -(-length // world)
    first = min(rank * chunk, length)
    return Rows((length, 2), first, (min(chunk, length - first), 2))


def leave(folder: Path, world: int, **tensors: torch.Tensor) -> list[StateFile]:
    """What so many ranks leave of tensors [n, 2]."""
    files = []
    for rank in range(world):
        rows = {name: rows_of(len(it), rank, world) for name, it in tensors.items()}
        state = {
            f"ema/{name}": it[rows[name].first :][: rows[name].held[0]]
            for name, it in tensors.items()
        }
        path = folder / f"{rank}-of-{world}"
        save_checkpoint(path, state | {"updates": torch.tensor(7)}, {"n": str(len(state))}, rows)
        files.append(StateFile(path))
    return files


@given(st.integers(1, 9), st.integers(1, 5), st.integers(1, 5))
def test_any_number_of_ranks_reads_what_another_number_left(
    length: int, left: int, read: int
) -> None:
    whole = torch.arange(2.0 * length).view(length, 2)
    with tempfile.TemporaryDirectory() as folder:
        files = StateFiles(leave(Path(folder), left, a=whole))
    for rank in range(read):
        rows = rows_of(length, rank, read)
        state = files.for_rank({"a": rows})
        assert torch.equal(state["ema/a"], whole[rows.first :][: rows.held[0]])
        assert state["updates"] == 7


def test_a_rank_of_as_many_reads_its_own_part_alone(tmp_path: Path) -> None:
    whole = torch.arange(10.0).view(5, 2)
    own = leave(tmp_path, 3, a=whole)[1]
    state = StateFiles([own]).for_rank({"a": rows_of(5, 1, 3)})
    assert torch.equal(state["ema/a"], whole[2:4])


@pytest.mark.parametrize("length", [4, 6])
def test_rows_of_another_model_are_refused(tmp_path: Path, length: int) -> None:
    files = StateFiles(leave(tmp_path, 2, a=torch.zeros(5, 2)))
    with pytest.raises(CheckpointError, match=f"a.*\\({length}, 2\\).* another model"):
        files.for_rank({"a": rows_of(length, 1, 2)})["ema/a"]
    with pytest.raises(CheckpointError, match="this model has no a"):
        files.for_rank({})["ema/a"]


def test_parts_of_different_checkpoints_are_refused(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    one = leave(tmp_path, 2, a=torch.zeros(4, 2))[0]
    other = leave(tmp_path / "other", 2, a=torch.zeros(4, 2), b=torch.zeros(4, 2))[1]
    with pytest.raises(CheckpointError, match="another checkpoint"):
        StateFiles([one, other])


def test_a_part_that_is_cut_off_is_named(tmp_path: Path) -> None:
    leave(tmp_path, 2, a=torch.zeros(4, 2))
    path = tmp_path / "1-of-2"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match="1-of-2: not a complete checkpoint"):
        StateFile(path)
