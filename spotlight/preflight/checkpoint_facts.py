"""What a model checkpoint says about itself, without loading it.

A checkpoint is a folder in diffusers layout. Only JSON files and the JSON headers of safetensors
files are read. A checkpoint without a VAE works in pixel space.

An error names the file and what is wrong with it, with sizes where they do not fit, but with no
other text of the file: the checkpoint may be one that somebody else named.
"""

from __future__ import annotations

import hashlib
import math
import os
import stat
from pathlib import Path
from typing import Annotated, Any

import msgspec

from spotlight.assets import resolve_checkpoint
from spotlight.diffusion.vocabulary import TokenVocabulary
from spotlight.errors import CheckpointError
from spotlight.files import irregularity
from spotlight.jobs import LoraSpec, ModelSpec
from spotlight.policies.grouping.degrees import possible_degrees, refusal
from spotlight.preflight.weights_facts import Shape, read_json, read_weights, wrong

FAMILIES = {"QwenImageTransformer2DModel": "qwen-image"}
"""Families of models by the class of their transformer in diffusers."""

_TOKEN_ENCODER, _QWEN_ENCODER = "TokenTextEncoder", "Qwen2_5_VLForConditionalGeneration"
_TEXT_ENCODERS = (_TOKEN_ENCODER, _QWEN_ENCODER)

_PARTS = ("transformer", "scheduler", "text_encoder", "tokenizer", "vae")
"""Parts of a checkpoint that workers load."""
_WEIGHTS = ("transformer", "text_encoder", "vae")
"""Those of them that hold weights."""
_GREATEST = 1_000_000
"""Of any size that a configuration names: a thousand times that of known models."""


class CheckpointInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The model of a job, as far as files tell."""

    folder: Path
    family: str
    parameters: int
    """Of the transformer."""
    trainable: int
    """Parameters that the job trains: all of them, or those of the adapters."""
    pixels_per_token: int
    """Edge of the square of pixels that becomes one token."""
    channels: int
    """Channels of a token."""
    pixel_space: bool
    """Whether the model denoises pixels rather than a VAE's latents."""
    vocabulary: TokenVocabulary | None
    """What its text encoder reads; None if that is Qwen2.5-VL."""
    heads: int
    """Attention heads of the transformer."""
    fingerprint: str
    """The same for checkpoints whose denoising steps take the same time."""

    @property
    def needs_transformers(self) -> bool:
        """Whether its text encoder is one of the transformers package."""
        return self.vocabulary is None

    @property
    def text_tokens(self) -> int | None:
        """Tokens of every prompt; None where the files do not tell."""
        return self.vocabulary.length if self.vocabulary else None

    def tokens(self, height: int, width: int) -> int:
        """Tokens of an image of that many pixels."""
        return (height // self.pixels_per_token) * (width // self.pixels_per_token)

    def refusal(self, degree: int, height: int, width: int) -> str | None:
        """Why so many members cannot denoise an image of that many pixels together; None when they
        can.
        """
        return refusal(
            degree,
            heads=self.heads,
            image_tokens=self.tokens(height, width),
            text_tokens=self.text_tokens,
            ring_possible=True,
        )

    def degrees(
        self, most: int, height: int, width: int, *, wished: int | None = None
    ) -> tuple[int, ...]:
        """Degrees up to `most` at which such images can be denoised, rising; 1 is the first.

        Whether attention can go round in a ring depends on the device, which only a worker knows:
        a degree that needs one is only among them if it is `wished`.
        """
        most = min(most, self.tokens(height, width))
        plain = possible_degrees(
            min(most, self.heads),
            heads=self.heads,
            image_tokens=self.tokens(height, width),
            text_tokens=self.text_tokens,
            ring_possible=False,
        )
        if wished is None or wished > most or self.refusal(wished, height, width):
            return plain
        return tuple(sorted({*plain, wished}))


class _Transformer(msgspec.Struct, frozen=True):
    """transformer/config.json of the Qwen-Image family; defaults are those of diffusers."""

    patch_size: int = 2
    in_channels: int = 64
    out_channels: int | None = 16
    num_layers: int = 60
    attention_head_dim: int = 128
    num_attention_heads: int = 24
    joint_attention_dim: int = 3584
    axes_dims_rope: tuple[int, int, int] = (16, 56, 56)


_Size = Annotated[int, msgspec.Meta(ge=1, le=_GREATEST)]


class _TextEncoder(msgspec.Struct, frozen=True):
    """text_encoder/config.json of a `TokenTextEncoder`."""

    dim: _Size
    length: _Size
    words: tuple[str, ...]
    characters: str


class _Vae(msgspec.Struct, frozen=True):
    """vae/config.json; defaults are those of diffusers."""

    z_dim: _Size = 16
    temperal_downsample: Annotated[tuple[bool, ...], msgspec.Meta(max_length=8)] = (
        False,
        True,
        True,
    )


def inspect_checkpoint(model: ModelSpec) -> CheckpointInfo:
    """Describe a job's checkpoint; raises `CheckpointError` naming the file or the field."""
    folder = resolve_checkpoint(model.checkpoint)
    index = read_json(folder / "model_index.json", dict[str, Any])
    parts = {
        part: index[part][1]
        for part in _PARTS
        if isinstance(index.get(part), list)
        and len(index[part]) == 2
        and isinstance(index[part][1], str)
    }
    if parts.get("text_encoder") == _QWEN_ENCODER:
        parts.setdefault("tokenizer", "")
    for part in {"transformer": "", **parts}:
        _check_files(folder / part)
    family = _family(folder / "model_index.json", parts)
    config_path = folder / "transformer" / "config.json"
    config = read_json(config_path, _Transformer)
    _check_transformer(config_path, config)
    weights = {part: read_weights(folder / part) for part in _WEIGHTS if part in parts}
    shapes = weights["transformer"]
    _check_fit(config_path, config, shapes)
    pixels_per_token, channels = _packing(folder, config, "vae" in parts)
    if config.in_channels != channels:
        raise wrong(
            config_path, f"in_channels is {config.in_channels}, but tokens have {channels} channels"
        )
    vocabulary = None
    if parts["text_encoder"] == _TOKEN_ENCODER:
        vocabulary = _vocabulary(folder, config, weights["text_encoder"])
    return CheckpointInfo(
        folder=folder,
        family=family,
        parameters=sum(math.prod(shape) for shape in shapes.values()),
        trainable=_trainable(model, shapes),
        pixels_per_token=pixels_per_token,
        channels=channels,
        pixel_space="vae" not in parts,
        vocabulary=vocabulary,
        heads=config.num_attention_heads,
        fingerprint=hashlib.sha256(msgspec.json.encode(config)).hexdigest()[:16],
    )


def _family(path: Path, parts: dict[str, str]) -> str:
    for part, classes in (("transformer", FAMILIES), ("text_encoder", _TEXT_ENCODERS)):
        if parts.get(part) not in classes:
            raise wrong(path, f"names no {part} that is known here; known: {', '.join(classes)}")
    return FAMILIES[parts["transformer"]]


def _check_files(folder: Path) -> None:
    """Everything that a worker may open is a file: on a named pipe it would wait for ever."""
    try:
        for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
            mode = entry.stat().st_mode
            problem = None if stat.S_ISDIR(mode) else irregularity(mode)
            if problem is not None:
                raise wrong(folder / entry.name, f"{problem}; copy the whole checkpoint")
    except FileNotFoundError as error:
        missing = Path(error.filename or folder)
        raise wrong(missing, "is missing; copy the whole checkpoint") from error
    except OSError as error:
        raise wrong(
            folder, f"cannot be read ({error.strerror}); copy the whole checkpoint"
        ) from error


def _check_transformer(path: Path, config: _Transformer) -> None:
    for field in (
        "patch_size",
        "in_channels",
        "num_layers",
        "attention_head_dim",
        "num_attention_heads",
        "joint_attention_dim",
    ):
        size = getattr(config, field)
        if not 1 <= size <= _GREATEST:
            raise wrong(
                path, f"has {field} {size}; it must be at least 1 and at most {_GREATEST:,}"
            )
    axes = config.axes_dims_rope
    if sum(axes) != config.attention_head_dim:
        raise wrong(
            path,
            f"has attention_head_dim {config.attention_head_dim}, but its axes_dims_rope "
            f"{list(axes)} add up to {sum(axes)}; they must be equal",
        )
    if any(axis < 2 or axis % 2 for axis in axes):
        raise wrong(path, f"has axes_dims_rope {list(axes)}; each must be even and positive")
    produced = config.patch_size**2 * (config.out_channels or config.in_channels)
    if produced != config.in_channels:
        raise wrong(
            path,
            f"makes {produced} channels of patch_size {config.patch_size} and out_channels "
            f"{config.out_channels}, but has in_channels {config.in_channels}; they must be equal",
        )


def _check_fit(path: Path, config: _Transformer, shapes: dict[str, Shape]) -> None:
    width = config.num_attention_heads * config.attention_head_dim
    expected = {
        "img_in.weight": (width, config.in_channels),
        "txt_in.weight": (width, config.joint_attention_dim),
    }
    for name, shape in expected.items():
        if name in shapes and shapes[name] != shape:
            raise wrong(
                path,
                f"asks for {name} of shape {list(shape)}, but the weights have "
                f"{list(shapes[name])}",
            )


def _packing(folder: Path, config: _Transformer, has_vae: bool) -> tuple[int, int]:
    """(pixels along a token's edge, channels of a token)."""
    if not has_vae:
        colours = config.out_channels or config.in_channels
        return config.patch_size, colours * config.patch_size**2
    vae = read_json(folder / "vae" / "config.json", _Vae)
    return 2 * 2 ** len(vae.temperal_downsample), 4 * vae.z_dim


def _vocabulary(folder: Path, config: _Transformer, shapes: dict[str, Shape]) -> TokenVocabulary:
    """What a `TokenTextEncoder` reads, after a check that it fits."""
    path = folder / "text_encoder" / "config.json"
    encoder = read_json(path, _TextEncoder)
    if encoder.dim != config.joint_attention_dim:
        raise wrong(
            path,
            f"has dim {encoder.dim}, but the transformer's joint_attention_dim is "
            f"{config.joint_attention_dim}; they must be equal",
        )
    vocabulary = TokenVocabulary(encoder.words, encoder.characters, encoder.length, encoder.dim)
    expected = {
        "table": (vocabulary.size, vocabulary.dim),
        "positions": (vocabulary.length, vocabulary.dim),
    }
    for name, shape in expected.items():
        if shapes.get(name) != shape:
            raise wrong(
                path, f"asks for a tensor `{name}` of shape {list(shape)}, which the weights lack"
            )
    return vocabulary


def _trainable(model: ModelSpec, shapes: dict[str, Shape]) -> int:
    if model.tuning == "full":
        return sum(math.prod(shape) for shape in shapes.values())
    return sum(_adapter_parameters(target, model.lora, shapes) for target in model.lora.targets)


def _adapter_parameters(target: str, lora: LoraSpec, shapes: dict[str, Shape]) -> int:
    """Parameters of the adapters on one target: rank x (inputs + outputs) of each linear layer."""
    linear = [
        shape
        for name, shape in shapes.items()
        if len(shape) == 2 and f".{name}".endswith(f".{target}.weight")
    ]
    if not linear:
        raise CheckpointError(
            f"model.lora.targets: no linear module `{target}` is in this transformer; "
            "name modules such as `to_q`"
        )
    return sum(lora.rank * (rows + columns) for rows, columns in linear)
