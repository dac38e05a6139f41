"""Text encoders: from prompts to embeddings of one fixed length per checkpoint.

`QwenTextEncoder` is the text side of diffusers' QwenImagePipeline. `TokenTextEncoder` is a table
lookup for tiny checkpoints: whole words of a small vocabulary, otherwise single characters, plus a
learned or fixed vector per position. Each prompt is encoded by itself, so its embedding never
depends on the prompts beside it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from spotlight.diffusion.qwen_tokens import QWEN_TEMPLATE, QWEN_TEMPLATE_TOKENS
from spotlight.diffusion.vocabulary import TokenVocabulary
from spotlight.errors import CheckpointError, JobError


class TextEncoder(Protocol):
    """Encodes one prompt."""

    dim: int
    """Channels of an embedding."""
    pads: bool
    """Whether some tokens may be padding that attention must not see."""

    def encode(self, prompt: str) -> tuple[Tensor, Tensor]:
        """Embedding [L, dim] float32 and mask [L] bool; raises `JobError` when the prompt is too
        long.
        """
        ...


class TokenTextEncoder:
    """A frozen embedding table for the tokens and one vector for every position."""

    pads = False
    """Padding is a token like any other: attention sees it, so no mask is needed."""

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
        self.dim = vocabulary.dim
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

    def encode(self, prompt: str) -> tuple[Tensor, Tensor]:
        """Embedding [L, dim] float32 and an all-true mask [L]."""
        tokens = torch.tensor(self.vocabulary.tokens(prompt))
        return self._table[tokens] + self._positions, torch.ones(len(tokens), dtype=torch.bool)


class QwenTextEncoder:
    """Qwen2.5-VL's last hidden states of the filled template, without the template's own leading
    tokens.
    """

    pads = True

    def __init__(
        self, tokenizer: Any, model: Any, *, length: int, drop: int = QWEN_TEMPLATE_TOKENS
    ) -> None:
        """`length` is the fixed number of tokens of every embedding, `drop` the template tokens to
        leave out.
        """
        self._tokenizer = tokenizer
        self._model = model
        self._length = length
        self._drop = drop
        self.dim: int = model.config.get_text_config().hidden_size

    @torch.no_grad()
    def encode(self, prompt: str) -> tuple[Tensor, Tensor]:
        """Embedding [L, dim] float32, zero where padded, and its mask [L]."""
        filled = self._tokenizer([QWEN_TEMPLATE.format(prompt)], return_tensors="pt").to(
            self._model.device
        )
        output = self._model(
            input_ids=filled.input_ids,
            attention_mask=filled.attention_mask,
            output_hidden_states=True,
        )
        hidden = output.hidden_states[-1][0, self._drop :].float()
        if len(hidden) > self._length:
            raise JobError(
                "prompts",
                f"prompt {prompt!r} has {len(hidden)} tokens, but at most {self._length} are"
                f" read; shorten it",
            )
        embeds = hidden.new_zeros(self._length, hidden.shape[1])
        embeds[: len(hidden)] = hidden
        return embeds, torch.arange(self._length, device=hidden.device) < len(hidden)


def stack_encoded(encoded: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Embeddings [B, L, D] and masks [B, L] of prompts that were encoded one by one."""
    return torch.stack([embeds for embeds, _ in encoded]), torch.stack(
        [mask for _, mask in encoded]
    )
