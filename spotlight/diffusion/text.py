"""Text encoders: from prompts to conditioning of one fixed length per checkpoint.

`FamilyTextEncoder` is the text side of a family's pipeline. It is on the accelerator only while it
encodes, and is not even loaded while the disk has the embeddings. `TokenTextEncoder` is a table
lookup for tiny checkpoints: whole words of a small vocabulary, otherwise single characters, plus a
learned or fixed vector per position. Each prompt is encoded by itself, so its embedding never
depends on the prompts beside it.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

import structlog
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from spotlight.condition_images import named
from spotlight.diffusion.embedding_cache import EmbeddingCache
from spotlight.diffusion.families.base import Family
from spotlight.diffusion.finite import first_not_finite
from spotlight.diffusion.images import SourceImage
from spotlight.diffusion.vocabulary import TokenVocabulary
from spotlight.errors import CheckpointError, JobError

log = structlog.get_logger(__name__)

Encoded = dict[str, Tensor]
"""Named tensors of one prompt, without a batch, on the CPU."""


class TextEncoder(Protocol):
    """Encodes prompts."""

    def encode(self, prompts: Sequence[str]) -> list[Encoded]:
        """Each by itself; raises `JobError` when a prompt is too long."""
        ...

    def padded(self, encoded: Encoded, tokens: int | None) -> Encoded:
        """Of the same shapes for every prompt, of so many `tokens` where there is a choice; None
        for as many as it can read. Raises `JobError` when the prompt has more.
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
            encoder = cls(vocabulary, tensors["table"], tensors["positions"])
        except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
            raise CheckpointError(
                f"model.checkpoint: {folder} is not a token text encoder: config.json or"
                f" model.safetensors is damaged ({error}); copy it again"
            ) from error
        odd = first_not_finite(tensors)
        if odd is not None:
            raise CheckpointError(
                f"model.checkpoint: {folder / 'model.safetensors'} holds values in `{odd}` that are"
                " NaN or infinite; copy it again"
            )
        return encoder

    def save(self, folder: Path) -> None:
        """Write what `load` reads."""
        folder.mkdir(parents=True, exist_ok=True)
        config = {"_class_name": "TokenTextEncoder", **asdict(self.vocabulary)}
        (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        save_file(
            {"table": self._table.contiguous(), "positions": self._positions.contiguous()},
            folder / "model.safetensors",
        )

    def encode(self, prompts: Sequence[str]) -> list[Encoded]:
        """See `TextEncoder`; `embeds` [L, dim] float32."""
        tokens = [torch.tensor(self.vocabulary.tokens(prompt)) for prompt in prompts]
        return [{"embeds": self._table[each] + self._positions} for each in tokens]

    def padded(self, encoded: Encoded, tokens: int | None) -> Encoded:
        """See `TextEncoder`; there is one length."""
        return encoded


class FamilyTextEncoder:
    """The tokenizers and text encoders of a checkpoint, read as its family reads them.

    Args:
        load: loads them onto the CPU, by their names in the checkpoint.
        cache: where embeddings are kept, and what says which encoder made them; None keeps none,
            and loads the encoders at once.
        images: files of the images that prompts come with, by their digests; more may be there
            later.
    """

    def __init__(
        self,
        family: Family,
        load: Callable[[], Mapping[str, Any]],
        device: torch.device,
        cache: tuple[EmbeddingCache, str] | None = None,
        images: Mapping[str, bytes] = MappingProxyType({}),
    ) -> None:
        self._family = family
        self._load = load
        self._device = device
        self._cache = cache
        self._images = images
        self._parts = None if cache is not None else load()
        self._encoding = threading.Lock()
        """A thread that was left behind may still encode."""

    def encode(self, prompts: Sequence[str]) -> list[Encoded]:
        """See `TextEncoder`."""
        found = {prompt: self._read(prompt) for prompt in prompts}
        missing = [prompt for prompt, encoded in found.items() if encoded is None]
        made = dict(zip(missing, self._encode(missing), strict=True)) if missing else {}
        return [found[prompt] or made[prompt] for prompt in prompts]

    def padded(self, encoded: Encoded, tokens: int | None) -> Encoded:
        """See `TextEncoder`."""
        return self._family.padded(encoded, tokens or self._family.most_tokens)

    def _read(self, prompt: str) -> Encoded | None:
        if self._cache is None:
            return None
        cache, encoder = self._cache
        return cache.read(self._made_by(encoder), prompt)

    @torch.no_grad()
    def _encode(self, prompts: Sequence[str]) -> list[Encoded]:
        with self._encoding, self._on_device() as parts:
            made = []
            for prompt in prompts:
                encoded = self._encode_one(parts, prompt)
                made.append({name: tensor.cpu() for name, tensor in encoded.items()})
        if self._cache is not None:
            cache, encoder = self._cache
            for prompt, encoded in zip(prompts, made, strict=True):
                cache.write(self._made_by(encoder), prompt, encoded)
        return made

    def _encode_one(self, parts: Mapping[str, Any], prompt: str) -> Encoded:
        text, digest = named(prompt) if self._family.image_processor else (prompt, "")
        if not digest:
            return self._family.encode(parts, prompt)
        if digest not in self._images:
            raise JobError("prompts", f"the image {digest} of prompt {text!r} is not here")
        try:
            image = SourceImage(self._images[digest])
        except ValueError as error:
            raise JobError("prompts", f"the image {digest} of prompt {text!r} {error}") from error
        return self._family.encode_with(parts, text, image)

    def _made_by(self, encoder: str) -> str:
        """On a CPU the number of threads decides bits, too."""
        return f"{encoder} {torch.get_num_threads()}" if self._device.type == "cpu" else encoder

    @contextmanager
    def _on_device(self) -> Iterator[Mapping[str, Any]]:
        """The encoders are on the accelerator within, and leave it to the model."""
        if self._parts is None:
            self._parts = self._load()
            log.info("text_encoders_loaded", process=os.getpid())
        models = [part for part in self._parts.values() if isinstance(part, torch.nn.Module)]
        for model in models:
            model.to(self._device)
        try:
            yield self._parts
        finally:
            for model in models:
                model.to("cpu")
