"""Which prompts the text encoders of Qwen can read, told without torch and transformers.

Their tokenizer merges the bytes of a text, so no text has more tokens than bytes: only prompts of
more bytes than tokens are allowed are tokenised, with the tokenizers package.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec

from spotlight.errors import CheckpointError, MissingDependency, UnreadableFile
from spotlight.files import MEBIBYTE, read_bytes

if TYPE_CHECKING:
    from tokenizers import Tokenizer

QWEN_TEMPLATE = (
    "<|im_start|>system\nDescribe the image by detailing the color, shape, size, texture,"
    " quantity, text, spatial relationships of the objects and background:<|im_end|>\n"
    "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
)
"""Prompt template of Qwen-Image (diffusers' QwenImagePipeline)."""

QWEN_TEMPLATE_TOKENS = 34
"""How many leading tokens of the filled template are dropped from the embedding."""

QWEN_TEXT_LENGTH = 256
"""Tokens that Qwen-Image prompts are padded to; prompts of the usual RL sets have fewer than 100.
"""


@dataclass(frozen=True)
class Template:
    """What a prompt is put into before it is tokenised."""

    text: str
    """The template, with {} for the prompt."""
    dropped: int
    """How many leading tokens are not given to the transformer."""
    around: int
    """How many other tokens it has besides the prompt's, in Qwen's vocabulary."""
    longest: int
    """Tokens of the longest prompt that is read, the template's included."""


QWEN_IMAGE = Template(QWEN_TEMPLATE, QWEN_TEMPLATE_TOKENS, 5, QWEN_TEXT_LENGTH)
QWEN_CHAT = Template(
    "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n", dropped=0, around=8, longest=512
)
"""What a user asks, as Qwen's chat template writes it."""
QWEN_CHAT_WITHOUT_THOUGHTS = Template(
    f"{QWEN_CHAT.text}<think>\n\n</think>\n\n", dropped=0, around=12, longest=512
)
"""The same where Qwen is told not to think."""

_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""Where Qwen2's tokenizer splits a text before it merges bytes."""
_LARGEST_VOCABULARY = 64 * MEBIBYTE
_AT_ONCE = 1000
"""Prompts; their tokens take a thousand times the memory of the text."""

T = TypeVar("T")


def too_long(
    folder: Path, prompts: Sequence[str], most: int, template: Template = QWEN_IMAGE
) -> dict[int, int]:
    """Tokens of each prompt that has more than `most`, by its place in the list.

    `folder` holds the tokenizer. Raises `CheckpointError` naming the file that is wrong, and
    `MissingDependency` when a prompt must be tokenised and cannot be.
    """
    room = most - template.around
    doubtful = [index for index, prompt in enumerate(prompts) if _nbytes(prompt) > room]
    can_count = find_spec("tokenizers") is not None
    if not doubtful and (most == template.longest or not can_count):
        return {}
    if not can_count:
        raise no_tokenizers(len(doubtful), folder)
    tokenizer = _load(folder)
    around = len(tokenizer.encode(template.text.format(""))) - template.dropped
    if around > template.around:  # another vocabulary than Qwen's, which has words of the template
        doubtful = list(range(len(prompts)))
    counts: dict[int, int] = {}
    for start in range(0, len(doubtful), _AT_ONCE):
        indices = doubtful[start : start + _AT_ONCE]
        encodings = tokenizer.encode_batch_fast([prompts[index] for index in indices])
        counts.update(zip(indices, (around + len(one) for one in encodings), strict=True))
    return {index: count for index, count in counts.items() if count > most}


def no_tokenizers(count: int, folder: Path) -> MissingDependency:
    """The error of so many prompts that must be tokenised, and cannot be."""
    return MissingDependency(
        f"prompts: {count} are so long that only the tokenizer in {folder} can tell whether they"
        " fit, but the package that reads it is not installed here: pip install tokenizers"
    )


def _nbytes(prompt: str) -> int:
    return len(unicodedata.normalize("NFC", prompt).encode())


class _AddedToken(msgspec.Struct, frozen=True):
    content: str


class _TokenizerConfig(msgspec.Struct, frozen=True):
    """tokenizer_config.json."""

    added_tokens_decoder: dict[str, _AddedToken] = {}


def _load(folder: Path) -> Tokenizer:
    """As transformers' Qwen2Tokenizer does, from tokenizer.json or from vocabulary and merges."""
    from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers

    try:
        if (folder / "tokenizer.json").exists():
            return Tokenizer.from_buffer(_read(folder / "tokenizer.json"))
        text = _read(folder / "merges.txt").decode("utf-8")
        lines = [line for line in text.split("\n") if line and not line.startswith("#version:")]
        pairs = [(one, other) for one, _, other in (line.partition(" ") for line in lines)]
        vocabulary = _read_json(folder / "vocab.json", dict[str, int])
        tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=pairs))
        config = _read_json(folder / "tokenizer_config.json", _TokenizerConfig)
    except UnreadableFile as error:
        raise CheckpointError(f"model.checkpoint: {error}; copy the whole checkpoint") from error
    except Exception as error:  # the tokenizers package raises nothing more exact
        raise CheckpointError(
            f"model.checkpoint: {folder} holds no tokenizer that can be read; copy it again"
        ) from error
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    added = [token.content for token in config.added_tokens_decoder.values()]
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in added])
    return tokenizer


def _read(path: Path) -> bytes:
    return read_bytes(path, most=_LARGEST_VOCABULARY)


def _read_json(path: Path, kind: type[T]) -> T:
    return msgspec.json.decode(_read(path), type=kind)
