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
from spotlight.training.checkpoints import HEADER, OFFSETS, read_header
from spotlight.training.weights import Rows


class _Piece(NamedTuple):
    """Rows of a tensor in one file."""

    first: int
    end: int
    file: Any
    path: Path


class StateFiles:
    """Open files. Raises `CheckpointError` naming the one that is truncated, foreign or too new."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._pieces: dict[str, list[_Piece]] = defaultdict(list)
        self._shapes: dict[str, tuple[int, ...]] = {}
        self.metadata: dict[str, str] = {}
        for path in paths:
            try:
                self._open(path)
            except (OSError, SafetensorError, ValueError, LookupError, TypeError) as error:
                raise CheckpointError(
                    f"{path}: not a complete part of a checkpoint ({error}); resume from an earlier"
                    " one"
                ) from error

    def _open(self, path: Path) -> None:
        file = safe_open(path, framework="pt", device="cpu")
        about = file.metadata() or {}
        metadata = read_header(path, about.get(HEADER))
        if self.metadata and metadata != self.metadata:
            raise CheckpointError(f"{path}: a part of another checkpoint than the others; take its")
        self.metadata = metadata
        offsets = json.loads(about[OFFSETS]) if OFFSETS in about else None
        for name in file.keys():  # noqa: SIM118
            shape = tuple(file.get_slice(name).get_shape())
            first = int(offsets[name]["saved_offsets"][0]) if offsets and shape else 0
            rows = shape[0] if shape else 1
            self._pieces[name].append(_Piece(first, first + rows, file, path))
            self._shapes[name] = shape

    def for_rank(self, rows: Mapping[str, Rows]) -> Mapping[str, Tensor]:
        """The tensors `role/weight`, of which a rank holds these `rows` of every weight. They are
        read whenever they are asked for; that raises `CheckpointError` where a part is missing, or
        of another model.
        """
        return _OwnRows(self, rows)

    @property
    def names(self) -> list[str]:
        """Of all tensors."""
        return list(self._pieces)

    def read(self, name: str, rows: Rows | None) -> Tensor:
        """These rows of a tensor; with None, all of one that every file has whole."""
        pieces = sorted(self._pieces[name], key=lambda piece: piece.first)
        if rows is None or not rows.shape:
            return self._get(pieces[0], name, None)
        whole = (max(piece.end for piece in pieces), *self._shapes[name][1:])
        if whole != rows.shape:
            raise CheckpointError(
                f"weights: {name} is {whole}, but this model has {rows.shape}; the checkpoint is of"
                " another model, or a part of it is missing"
            )
        at, end, found = rows.first, rows.first + rows.held[0], []
        for piece in pieces:
            if piece.first <= at < min(piece.end, end):
                last = min(piece.end, end)
                found.append(self._get(piece, name, slice(at - piece.first, last - piece.first)))
                at = last
        if at < end:
            raise CheckpointError(f"weights: no part has row {at} of {name}; name all parts")
        return torch.cat(found) if found else torch.empty(rows.held)

    @staticmethod
    def _get(piece: _Piece, name: str, rows: slice | None) -> Tensor:
        try:
            found: Tensor = (
                piece.file.get_tensor(name)
                if rows is None
                else piece.file.get_slice(name)[rows.start : rows.stop]
            )
        except SafetensorError as error:
            raise CheckpointError(f"{piece.path}: {name} cannot be read ({error})") from error
        return found


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
        return self._files.read(name, self._rows.get(weight))

    def __contains__(self, name: object) -> bool:
        return name in self._files.names

    def __iter__(self) -> Iterator[str]:
        return iter(self._files.names)

    def __len__(self) -> int:
        return len(self._files.names)
