"""Prompts as CLIP and T5 encoders read them, which several families have.

The encoders of Stable Diffusion 3, FLUX and Wan read prompts of one length: shorter ones are
padded. CLIP cuts off what is behind its 77 tokens, as in every pipeline that has a T5 encoder
beside it; what T5 cannot read is refused.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from spotlight.diffusion.checkpoint_files import wrong
from spotlight.diffusion.families.base import Size
from spotlight.diffusion.families.qwen_tokens import QWEN_CHAT, no_tokenizers
from spotlight.errors import JobError, UnreadableFile
from spotlight.files import MEBIBYTE, read_bytes

if TYPE_CHECKING:
    from torch import Tensor

CLIP_TOKENS = 77
"""Tokens that CLIP reads, its two marks included."""
_MARKS = 2
"""Tokens that T5 may add: one before the text, one behind it."""
_LARGEST_TOKENIZER = 64 * MEBIBYTE


class Clip(msgspec.Struct, frozen=True):
    """config.json of a CLIP text encoder; defaults are those of transformers."""

    hidden_size: Size = 512
    projection_dim: Size = 512


class T5(msgspec.Struct, frozen=True):
    """config.json of a T5 or UMT5 encoder; defaults are those of transformers."""

    d_model: Size = 512


class Qwen3(msgspec.Struct, frozen=True):
    """config.json of a Qwen3, and what a Qwen3-VL says of its language model; defaults are those of
    transformers.
    """

    hidden_size: Size = 4096
    num_hidden_layers: Size = 32

    def require_layer(self, path: Path, layer: int) -> None:
        """Raise the `CheckpointError` of an encoder that has no such layer."""
        if self.num_hidden_layers < layer:
            raise wrong(
                path,
                f"has {self.num_hidden_layers} layers, but the transformer is given layer {layer};"
                " copy the text_encoder of this very checkpoint",
            )


class Qwen3Vl(msgspec.Struct, frozen=True):
    """config.json of a Qwen3-VL."""

    text_config: Qwen3 = Qwen3()


def read_clip(parts: Mapping[str, Any], number: str, prompt: str) -> Any:
    """The output of the CLIP encoder `text_encoder{number}`, with all hidden states."""
    encoder, tokenizer = parts[f"text_encoder{number}"], parts[f"tokenizer{number}"]
    tokens = tokenizer(
        [prompt],
        padding="max_length",
        max_length=CLIP_TOKENS,
        truncation=True,
        return_tensors="pt",
    )
    return encoder(tokens.input_ids.to(encoder.device), output_hidden_states=True)


def read_t5(
    parts: Mapping[str, Any], number: str, prompt: str, length: int, *, masked: bool = False
) -> Tensor:
    """Embeddings [length, D] float32 of the T5 encoder `text_encoder{number}`.

    `masked` hides the padding from the encoder, and makes its embeddings zero. Raises `JobError`
    for a prompt of more than `length` tokens.
    """
    encoder, tokenizer = parts[f"text_encoder{number}"], parts[f"tokenizer{number}"]
    tokens = tokenizer([prompt], padding="max_length", max_length=length, return_tensors="pt")
    ids = tokens.input_ids.to(encoder.device)
    refuse_too_long(prompt, ids.shape[1], length)
    if not masked:
        plain: Tensor = encoder(ids)[0][0].float()
        return plain
    mask = tokens.attention_mask.to(encoder.device)
    embeds: Tensor = encoder(ids, mask).last_hidden_state[0].float()
    embeds[int(mask.sum()) :] = 0
    return embeds


def read_chat(parts: Mapping[str, Any], prompt: str, *, think: bool, padded: bool = False) -> Any:
    """The output of a Qwen3 that is asked a prompt, with all hidden states; `padded` for as many
    tokens as `QWEN_CHAT` reads. Raises `JobError` for a prompt of more.
    """
    tokenizer = parts["tokenizer"]
    messages = [{"role": "user", "content": prompt}]
    filled = tokenizer.apply_chat_template(
        messages, tokenize=False, add_generation_prompt=True, enable_thinking=think
    )
    padding = {"padding": "max_length", "max_length": QWEN_CHAT.longest} if padded else {}
    tokens = tokenizer([filled], return_tensors="pt", **padding)
    refuse_too_long(prompt, tokens.input_ids.shape[1], QWEN_CHAT.longest)
    return _read_tokens(parts, tokens)


def read_qwen(parts: Mapping[str, Any], filled: str, **seen: Tensor) -> Any:
    """The output of a Qwen for a filled template, and for images that it has `seen`, with all
    hidden states.
    """
    return _read_tokens(parts, parts["tokenizer"]([filled], return_tensors="pt"), **seen)


def _read_tokens(parts: Mapping[str, Any], tokens: Any, **seen: Tensor) -> Any:
    encoder = parts["text_encoder"]
    return encoder(
        input_ids=tokens.input_ids.to(encoder.device),
        attention_mask=tokens.attention_mask.to(encoder.device),
        output_hidden_states=True,
        **{name: tensor.to(encoder.device) for name, tensor in seen.items()},
    )


def stacked(layers: Sequence[Tensor]) -> Tensor:
    """Hidden states [tokens, D] of several layers side by side, [tokens, layers, D] float32."""
    tokens, width = layers[0].shape
    embeds = layers[0].new_zeros(tokens, len(layers), width).float()
    for number, layer in enumerate(layers):
        embeds[:, number] = layer
    return embeds


def refuse_too_long(prompt: str, tokens: int, most: int) -> None:
    """Raise the `JobError` of a prompt that has more tokens than are read."""
    if tokens > most:
        raise JobError(
            "prompts",
            f"prompt {prompt!r} has {tokens} tokens, but at most {most} are read; shorten it",
        )


def too_long_for_t5(folder: Path, prompts: Sequence[str], most: int) -> dict[int, int]:
    """Tokens of each prompt that has more than `most`, by its place in the list.

    `folder` holds the tokenizer. A token covers a character at least, so that only long prompts are
    tokenised. Raises `CheckpointError` naming the file that is wrong, and `MissingDependency`.
    """
    doubtful = [index for index, prompt in enumerate(prompts) if _characters(prompt) > most]
    if not doubtful:
        return {}
    if find_spec("tokenizers") is None:
        raise no_tokenizers(len(doubtful), folder)
    from tokenizers import Tokenizer

    path = folder / "tokenizer.json"
    try:
        tokenizer = Tokenizer.from_buffer(read_bytes(path, most=_LARGEST_TOKENIZER))
    except UnreadableFile as error:
        raise wrong(path, f"{error.problem}; copy the whole checkpoint") from error
    except Exception as error:  # the tokenizers package raises nothing more exact
        raise wrong(path, "is no tokenizer that can be read; copy it again") from error
    tokenizer.no_padding()
    tokenizer.no_truncation()
    counts = {index: len(tokenizer.encode(prompts[index])) for index in doubtful}
    return {index: count for index, count in counts.items() if count > most}


def _characters(prompt: str) -> int:
    return len(unicodedata.normalize("NFKC", prompt)) + _MARKS
