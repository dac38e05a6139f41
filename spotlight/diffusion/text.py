"""Text encoders: from prompts to conditioning of one fixed length per checkpoint.

`FamilyTextEncoder` is the text side of a family's pipeline. `TokenTextEncoder` is a table lookup
for tiny checkpoints: whole words of a small vocabulary, otherwise single characters, plus a learned
or fixed vector per position. Each prompt is encoded by itself, so its embedding never depends on
the prompts beside it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from spotlight.diffusion.families.base import Family
from spotlight.diffusion.vocabulary import TokenVocabulary
from spotlight.errors import CheckpointError


class TextEncoder(Protocol):
    """Encodes one prompt."""

    def encode(self, prompt: str) -> dict[str, Tensor]:
        """Named tensors without a batch, of the same shapes for every prompt; raises `JobError`
        when the prompt is too long.
        """
        ...


class TokenTextEncoder:
    """A frozen embedding table for the tokens and one vector for every position.

    Padding is a token like any other: attention sees it, so no mask is needed.
    """

    def __init__(self, vocabulary: TokenVocabulary, table: Tensor, positions: Tensor) -> None:
        """`table` [vocabulary.size, dim] and `positions` [length, dim]; raises `CheckpointError`
        for other shapes.
        """
        expected = {
            "table": (table, (vocabulary.size, vocabulary.dim)),
            "positions": (positions, (vocabulary.length, vocabulary.dim)),
        }
        for name, (tensor, shape) in expected.items():
            if tuple(tensor.shape) != shape:
                raise CheckpointError(
                    f"text_encoder.{name}: has shape {tuple(tensor.shape)}, but"
                    f" text_encoder/config.json asks for {shape}"
                )
        self.vocabulary = vocabulary
        self._table = table.float()
        self._positions = positions.float()

    @classmethod
    def create(cls, vocabulary: TokenVocabulary, generator: torch.Generator) -> TokenTextEncoder:
        """Random embeddings: distinct, which is all that a transformer trained on them needs."""
        table = torch.randn(vocabulary.size, vocabulary.dim, generator=generator)
        positions = torch.randn(vocabulary.length, vocabulary.dim, generator=generator)
        return cls(vocabulary, table, positions)

    @classmethod
    def load(cls, folder: Path) -> TokenTextEncoder:
        """Read config.json and model.safetensors; raises `CheckpointError` naming the file."""
        try:
            config: dict[str, Any] = json.loads(
                (folder / "config.json").read_text(encoding="utf-8")
            )
            vocabulary = TokenVocabulary(
                words=tuple(config["words"]),
                characters=config["characters"],
                length=int(config["length"]),
                dim=int(config["dim"]),
            )
            tensors = load_file(folder / "model.safetensors")
            return cls(vocabulary, tensors["table"], tensors["positions"])
        except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
            raise CheckpointError(
                f"model.checkpoint: {folder} is not a token text encoder: config.json or"
                f" model.safetensors is damaged ({error}); copy it again"
            ) from error

    def save(self, folder: Path) -> None:
        """Write what `load` reads."""
        folder.mkdir(parents=True, exist_ok=True)
        config = {"_class_name": "TokenTextEncoder", **asdict(self.vocabulary)}
        (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        save_file(
            {"table": self._table.contiguous(), "positions": self._positions.contiguous()},
            folder / "model.safetensors",
        )

    def encode(self, prompt: str) -> dict[str, Tensor]:
        """See `TextEncoder`; `embeds` [L, dim] float32."""
        tokens = torch.tensor(self.vocabulary.tokens(prompt))
        return {"embeds": self._table[tokens] + self._positions}


class FamilyTextEncoder:
    """The tokenizers and text encoders of a checkpoint, read as its family reads them."""

    def __init__(self, family: Family, parts: Mapping[str, Any]) -> None:
        """`parts` by their names in the checkpoint."""
        self._family = family
        self._parts = parts

    @torch.no_grad()
    def encode(self, prompt: str) -> dict[str, Tensor]:
        """See `TextEncoder`."""
        return self._family.encode(self._parts, prompt)
