"""The state of training in files, from which a rank reads the rows that it holds: one file that has
all, or a part from each rank that left it, however many those were.

The files are mapped, and may be deleted meanwhile: what is not read is never in memory.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from spotlight.errors import CheckpointError
from spotlight.store.checkpoint_header import EARLIER_UPDATES, HEADER, START
from spotlight.training.checkpoints import OFFSETS, read_header, scaled
from spotlight.training.weights import Rows

_WHOLE = {"saved_offsets": [0]}


class _Piece(NamedTuple):
    """Rows of a tensor in one file."""

    first: int
    end: int
    row: tuple[int, ...]
    """Shape of one."""
    file: Any

    def read(self, name: str, rows: slice | None) -> Tensor:
        found: Tensor = (
            self.file.get_tensor(name)
            if rows is None
            else self.file.get_slice(name)[rows.start : rows.stop]
        )
        return found


def _piece(file: Any, name: str, begins: Sequence[int]) -> _Piece:
    length, *row = file.get_slice(name).get_shape() or [1]
    first = begins[0] if begins else 0
    return _Piece(first, first + length, tuple(row), file)


class StateFile:
    """An open file. Raises `CheckpointError` naming it when it is truncated, foreign or too new."""

    def __init__(self, path: Path) -> None:
        try:
            file = safe_open(path, framework="pt", device="cpu")
            about = file.metadata() or {}
            self.metadata = read_header(path, about.get(HEADER))
            offsets = json.loads(about.get(OFFSETS, "{}"))
            self.pieces = {
                name: _piece(file, name, offsets.get(name, _WHOLE)["saved_offsets"])
                for name in file.keys()  # noqa: SIM118
            }
        except (OSError, SafetensorError, ValueError, LookupError, TypeError) as error:
            raise CheckpointError(
                f"{path}: not a complete checkpoint, or part of one ({error}); resume from an"
                " earlier one"
            ) from error


class StateFiles:
    """All files of a state. Raises `CheckpointError` when they are of different ones."""

    def __init__(self, files: Sequence[StateFile]) -> None:
        self._pieces: dict[str, list[_Piece]] = defaultdict(list)
        self._metadata = files[0].metadata
        for file in files:
            if file.metadata != files[0].metadata:
                raise CheckpointError(
                    f"{file.metadata} is a part of another checkpoint than {files[0].metadata}"
                )
            for name, piece in file.pieces.items():
                self._pieces[name].append(piece)

    def for_rank(self, rows: Mapping[str, Rows]) -> Mapping[str, Tensor]:
        """The tensors `role/weight`, of which a rank holds these `rows` of every weight. They are
        read whenever they are asked for; that raises `CheckpointError` where a part is missing, or
        of another model.
        """
        return _OwnRows(self, rows)

    @property
    def is_start(self) -> bool:
        """Whether they are the weights that a run begins with, rather than a state of its own."""
        return START in self._metadata

    @property
    def earlier_updates(self) -> int:
        """The optimizer's updates in the moments with which a run begins; 0 if it has none."""
        return int(self._metadata.get(EARLIER_UPDATES, 0))

    @property
    def names(self) -> list[str]:
        """Of all tensors."""
        return list(self._pieces)

    def scaled(self, name: str, tensor: Tensor) -> Tensor:
        """A tensor of theirs as the job's model has it."""
        return scaled(name, tensor, self._metadata)

    def read(self, name: str, rows: Rows | None) -> Tensor:
        """These rows of a tensor; with None, all of one that every file has whole."""
        pieces = sorted(self._pieces[name], key=lambda piece: piece.first)
        if rows is None or not rows.shape:
            return pieces[0].read(name, None)
        odd = {piece.row for piece in pieces} - {rows.shape[1:]}
        if odd or max(piece.end for piece in pieces) > rows.shape[0]:
            raise CheckpointError(
                f"weights: rows of {name} are not those of this model, which is {rows.shape}; the"
                " checkpoint is of another model"
            )
        at, end, found = rows.first, rows.first + rows.held[0], []
        for piece in pieces:
            if piece.first <= at < min(piece.end, end):
                last = min(piece.end, end)
                found.append(piece.read(name, slice(at - piece.first, last - piece.first)))
                at = last
        if at < end:
            raise CheckpointError(
                f"weights: nobody left row {at} of {name}, which is {rows.shape} in this model; the"
                " checkpoint is of another model, or a part of it is missing"
            )
        return torch.cat(found) if found else torch.empty(rows.held)


class _OwnRows(Mapping[str, Tensor]):
    def __init__(self, files: StateFiles, rows: Mapping[str, Rows]) -> None:
        self._files = files
        self._rows = rows

    def __getitem__(self, name: str) -> Tensor:
        _, _, weight = name.partition("/")
        if weight and weight not in self._rows:
            raise CheckpointError(
                f"weights: this model has no {weight}; the checkpoint is of another model"
            )
        found = self._files.read(name, self._rows.get(weight))
        return self._files.scaled(name, found)

    def __contains__(self, name: object) -> bool:
        return name in self._files.names

    def __iter__(self) -> Iterator[str]:
        return iter(self._files.names)

    def __len__(self) -> int:
        return len(self._files.names)
