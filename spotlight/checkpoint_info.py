"""What a model checkpoint says about itself, without loading it.

A checkpoint is a folder in diffusers layout. Only JSON files and the JSON headers of safetensors
files are read. A checkpoint without a VAE works in pixel space.
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from spotlight.assets import resolve_checkpoint
from spotlight.errors import CheckpointError
from spotlight.jobs import LoraSpec, ModelSpec
from spotlight.policies.degrees import possible_degrees, refusal

FAMILIES = {"QwenImageTransformer2DModel": "qwen-image"}
"""Families of models by the class of their transformer in diffusers."""

T = TypeVar("T")
_LARGEST_HEADER = 100_000_000


class CheckpointInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The model of a job, as far as files tell."""

    folder: Path
    family: str
    parameters: int
    """Of the transformer."""
    trainable: int
    """Parameters that the job trains: all of them, or those of the adapters."""
    weights_nbytes: int
    """Size of the transformer's weight files."""
    pixels_per_token: int
    """Edge of the square of pixels that becomes one token."""
    channels: int
    """Channels of a token."""
    pixel_space: bool
    """Whether the model denoises pixels rather than a VAE's latents."""
    needs_transformers: bool
    """Whether its text encoder is one of the transformers package."""
    heads: int
    """Attention heads of the transformer."""
    text_tokens: int | None
    """Tokens of every prompt; None where the files do not tell."""
    fingerprint: str
    """The same for checkpoints whose denoising steps take the same time."""

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


class _TextEncoder(msgspec.Struct, frozen=True):
    dim: int
    length: int


class _Vae(msgspec.Struct, frozen=True):
    z_dim: int = 16
    temperal_downsample: tuple[bool, ...] = (False, True, True)


def inspect_checkpoint(model: ModelSpec) -> CheckpointInfo:
    """Describe a job's checkpoint; raises `CheckpointError` naming the file or the field."""
    folder = resolve_checkpoint(model.checkpoint)
    index = _read_json(folder / "model_index.json", dict[str, Any])
    parts = {
        part: entry[1]
        for part, entry in index.items()
        if isinstance(entry, list) and len(entry) == 2 and entry[1]
    }
    for part in ("transformer", *parts):
        if not (folder / part).is_dir():
            raise _wrong(folder / part, "is missing; copy the whole checkpoint")
    family = _family(folder / "model_index.json", parts.get("transformer"))
    config_path = folder / "transformer" / "config.json"
    config = _read_json(config_path, _Transformer)
    _check_transformer(config_path, config)
    shapes = _weight_shapes(folder / "transformer")
    _check_fit(config_path, config, shapes)
    pixels_per_token, channels = _packing(folder, config, "vae" in parts)
    if config.in_channels != channels:
        raise _wrong(
            config_path, f"in_channels is {config.in_channels}, but tokens have {channels} channels"
        )
    text_tokens = _text_tokens(folder, parts, config)
    return CheckpointInfo(
        folder=folder,
        family=family,
        parameters=sum(math.prod(shape) for shape in shapes.values()),
        trainable=_trainable(model, shapes),
        weights_nbytes=sum(path.stat().st_size for path in _weight_files(folder / "transformer")),
        pixels_per_token=pixels_per_token,
        channels=channels,
        pixel_space="vae" not in parts,
        needs_transformers=parts.get("text_encoder") != "TokenTextEncoder",
        heads=config.num_attention_heads,
        text_tokens=text_tokens,
        fingerprint=hashlib.sha256(msgspec.json.encode(config)).hexdigest()[:16],
    )


def _wrong(path: Path, problem: str) -> CheckpointError:
    return CheckpointError(f"model.checkpoint: {path} {problem}")


def _read_json(path: Path, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except OSError as error:
        raise _wrong(
            path, f"cannot be read ({error.strerror}); give a folder in diffusers layout"
        ) from error
    except msgspec.DecodeError as error:
        raise _wrong(path, f"is not what it should be: {error}") from error


def _family(path: Path, transformer: str | None) -> str:
    if transformer not in FAMILIES:
        known = ", ".join(f"{family} ({name})" for name, family in FAMILIES.items())
        raise _wrong(
            path, f"names the transformer `{transformer}`, which is not known here; known: {known}"
        )
    return FAMILIES[transformer]


def _check_transformer(path: Path, config: _Transformer) -> None:
    for field in (
        "patch_size",
        "in_channels",
        "num_layers",
        "attention_head_dim",
        "num_attention_heads",
        "joint_attention_dim",
    ):
        if getattr(config, field) < 1:
            raise _wrong(path, f"has {field} {getattr(config, field)}; it must be at least 1")
    axes = config.axes_dims_rope
    if sum(axes) != config.attention_head_dim:
        raise _wrong(
            path,
            f"has attention_head_dim {config.attention_head_dim}, but its axes_dims_rope "
            f"{list(axes)} add up to {sum(axes)}; they must be equal",
        )
    if any(axis < 2 or axis % 2 for axis in axes):
        raise _wrong(path, f"has axes_dims_rope {list(axes)}; each must be even and positive")
    produced = config.patch_size**2 * (config.out_channels or config.in_channels)
    if produced != config.in_channels:
        raise _wrong(
            path,
            f"makes {produced} channels of patch_size {config.patch_size} and out_channels "
            f"{config.out_channels}, but has in_channels {config.in_channels}; they must be equal",
        )


def _check_fit(path: Path, config: _Transformer, shapes: dict[str, list[int]]) -> None:
    width = config.num_attention_heads * config.attention_head_dim
    expected = {
        "img_in.weight": [width, config.in_channels],
        "txt_in.weight": [width, config.joint_attention_dim],
    }
    for name, shape in expected.items():
        if name in shapes and shapes[name] != shape:
            raise _wrong(
                path, f"asks for {name} of shape {shape}, but the weights have {shapes[name]}"
            )


def _packing(folder: Path, config: _Transformer, has_vae: bool) -> tuple[int, int]:
    """(pixels along a token's edge, channels of a token)."""
    if not has_vae:
        colours = config.out_channels or config.in_channels
        return config.patch_size, colours * config.patch_size**2
    vae = _read_json(folder / "vae" / "config.json", _Vae)
    return 2 * 2 ** len(vae.temperal_downsample), 4 * vae.z_dim


def _text_tokens(folder: Path, parts: dict[str, str], config: _Transformer) -> int | None:
    """Length of every prompt, where it can be known, after a check that the encoder fits."""
    if parts.get("text_encoder") != "TokenTextEncoder":
        return None
    path = folder / "text_encoder" / "config.json"
    encoder = _read_json(path, _TextEncoder)
    if encoder.dim != config.joint_attention_dim:
        raise _wrong(
            path,
            f"has dim {encoder.dim}, but the transformer's joint_attention_dim is "
            f"{config.joint_attention_dim}; they must be equal",
        )
    return encoder.length


def _weight_files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.safetensors"))


def _weight_shapes(folder: Path) -> dict[str, list[int]]:
    """Shape of every tensor by name; raises `CheckpointError` for absent or cut-off files."""
    files = _weight_files(folder)
    if not files:
        raise _wrong(folder, "holds no weights (*.safetensors); copy the whole checkpoint")
    for index in folder.glob("*.safetensors.index.json"):
        named = _read_json(index, dict[str, Any]).get("weight_map") or {}
        absent = sorted(set(named.values()) - {file.name for file in files})
        if absent:
            raise _wrong(folder / absent[0], "is missing; copy the whole checkpoint")
    shapes: dict[str, list[int]] = {}
    for file in files:
        shapes |= _header_shapes(file)
    return shapes


def _header_shapes(path: Path) -> dict[str, list[int]]:
    """Names and shapes from a safetensors header, which also tells how long the file must be."""
    nbytes = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
        text = file.read(length) if 2 <= length <= min(_LARGEST_HEADER, nbytes - 8) else b""
    try:
        header = json.loads(text)
        tensors = {name: entry for name, entry in header.items() if name != "__metadata__"}
        end = max((entry["data_offsets"][1] for entry in tensors.values()), default=0)
        shapes = {name: [int(size) for size in entry["shape"]] for name, entry in tensors.items()}
    except (ValueError, AttributeError, KeyError, TypeError, IndexError) as error:
        raise _wrong(
            path, "is not a safetensors file; copy it again (with Git LFS, run `git lfs pull`)"
        ) from error
    if nbytes < 8 + length + end:
        raise _wrong(path, f"is cut off at {nbytes} of {8 + length + end} bytes; copy it again")
    return shapes


def _trainable(model: ModelSpec, shapes: dict[str, list[int]]) -> int:
    if model.tuning == "full":
        return sum(math.prod(shape) for shape in shapes.values())
    return sum(_adapter_parameters(target, model.lora, shapes) for target in model.lora.targets)


def _adapter_parameters(target: str, lora: LoraSpec, shapes: dict[str, list[int]]) -> int:
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
