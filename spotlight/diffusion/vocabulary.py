"""What a `TokenTextEncoder` can read. Imports no torch: prompts are checked without it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from spotlight.errors import JobError


@dataclass(frozen=True)
class TokenVocabulary:
    """Whole words of a small vocabulary are one token each, and so are all other characters."""

    words: tuple[str, ...]
    """Words that are one token each."""
    characters: str
    """Characters that are one token each; any other character is the unknown token."""
    length: int
    """Tokens of every prompt: shorter prompts end in padding tokens, longer ones are refused."""
    dim: int
    """Channels of an embedding."""

    @property
    def size(self) -> int:
        """Rows of the embedding table: padding, unknown, characters, words."""
        return 2 + len(self.characters) + len(self.words)

    def tokens(self, prompt: str) -> list[int]:
        """Token ids of `prompt`, exactly `length` of them; whitespace only separates tokens."""
        flat = [token for piece in _pieces(prompt) for token in self._token(piece)]
        if len(flat) > self.length:
            raise JobError(
                "prompts",
                f"prompt {prompt!r} has {len(flat)} tokens, but this checkpoint reads at most"
                f" {self.length};"
                " shorten it",
            )
        return flat + [0] * (self.length - len(flat))

    def too_long(self, prompts: Sequence[str]) -> dict[int, int]:
        """Tokens of each prompt that has more than `length`, by its place in the list."""
        lengths = _Lengths.fromkeys(self.words, 1)
        counts = [sum(map(lengths.__getitem__, _pieces(prompt))) for prompt in prompts]
        return {index: count for index, count in enumerate(counts) if count > self.length}

    def _token(self, piece: str) -> list[int]:
        if piece in self.words:
            return [2 + len(self.characters) + self.words.index(piece)]
        return [
            self.characters.find(character) + 2 if character in self.characters else 1
            for character in piece
        ]


class _Lengths(dict[str, int]):
    """Tokens of each piece; a job has far more prompts than different pieces."""

    def __missing__(self, piece: str) -> int:
        self[piece] = length = len(piece)
        return length


_PIECE = re.compile(r"[A-Za-z]+|\S")


def _pieces(prompt: str) -> list[str]:
    return _PIECE.findall(prompt.lower())
