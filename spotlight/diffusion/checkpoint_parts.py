"""Loads the parts of a checkpoint: models of diffusers and transformers, and tokenizers.

The libraries make up what is missing, ignore what they do not know, and compute with what is no
number. So the names and shapes of a part's tensors are compared with those of its model, which is
built without memory for it, before anything is loaded; and what was loaded must be finite.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import diffusers
import torch
from safetensors.torch import load_file
from torch import Tensor

from spotlight.diffusion.checkpoint_files import Shape, Weights, read_weights, shown, wrong
from spotlight.diffusion.finite import first_not_finite
from spotlight.errors import CheckpointError


def load_weights(
    cls: Any, folder: Path, part: str, *, device: torch.device | str = "cpu", **options: Any
) -> Any:
    """A part with tensors, on `device` and in evaluation mode; raises `CheckpointError` naming file
    and tensor where they are not those of its model, or not finite.
    """
    weights = check_weights(cls, folder, part)
    options |= {"use_safetensors": True, "variant": weights.variant}
    model = load_part(cls, folder, part, **options).to(device).eval()
    _require_finite(model, folder / part, weights)
    return model


def load_part(cls: Any, folder: Path, part: str, **options: Any) -> Any:
    """Any part, from its folder; raises `CheckpointError`."""
    with _explained(_present(folder, part)):
        return cls.from_pretrained(folder / part, local_files_only=True, **options)


def load_tokenizer(folder: Path, part: str) -> Any:
    """Raises `CheckpointError`, also where only other packages could convert it."""
    from transformers import AutoTokenizer

    try:
        return load_part(AutoTokenizer, folder, part)
    except CheckpointError as error:
        if (folder / part / "tokenizer.json").is_file():
            raise
        raise wrong(
            folder / part,
            "holds no tokenizer.json, and a tokenizer that cannot be converted to one here; where"
            " sentencepiece and tiktoken are installed, `AutoTokenizer.from_pretrained(FOLDER)"
            ".save_pretrained(FOLDER)` writes it",
        ) from error


def check_weights(cls: Any, folder: Path, part: str) -> Weights:
    """What the files of a part hold, by their headers: just what its model has. Nothing is loaded.

    Raises `CheckpointError` naming the file and the tensor that is missing, unknown to the model,
    or of another shape.
    """
    path = _present(folder, part)
    weights = read_weights(path)
    with _explained(path):
        compare = _of_diffusers if issubclass(cls, diffusers.ModelMixin) else _of_transformers
        found = compare(cls, path, weights)
    _refuse_prefix(cls, path, found, weights)
    if found.missing:
        raise CheckpointError(
            f"model.checkpoint: the weights in {path} lack {found.missing[0]}"
            f"{_others(found.missing)}; copy the whole checkpoint again"
        )
    for name, (shape, asked) in sorted(found.misshapen.items()):
        raise wrong(
            weights.files.get(name, path),
            f"holds `{name}` of shape {list(shape)}, but {path / 'config.json'} asks for"
            f" {list(asked)}; copy both from the same checkpoint",
        )
    if found.unknown:
        raise wrong(
            weights.files.get(found.unknown[0], path),
            f"holds {shown(found.unknown[0])}{_others(found.unknown)}, which no {cls.__name__} of"
            f" {path / 'config.json'} has; copy both from the same checkpoint",
        )
    return weights


@dataclass(frozen=True)
class _Differences:
    """Of a part's files from its model."""

    missing: list[str]
    unknown: list[str]
    misshapen: Mapping[str, tuple[Shape, Shape]]
    """Shapes in the file, and in the model."""


def _of_diffusers(cls: Any, path: Path, weights: Weights) -> _Differences:
    with torch.device("meta"):
        model = cls.from_config(cls.load_config(path, local_files_only=True))
    tensors = _without_memory(weights)
    model._fix_state_dict_keys_on_load(tensors)  # what attention was called in old files
    asked = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    found = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    ignored = cls._keys_to_ignore_on_load_unexpected or ()
    return _Differences(
        sorted(asked.keys() - found.keys()),
        sorted(
            name
            for name in found.keys() - asked.keys()
            if not any(re.search(pattern, name) for pattern in ignored)
        ),
        {
            name: (shape, asked[name])
            for name, shape in found.items()
            if name in asked and shape != asked[name]
        },
    )


def _of_transformers(cls: Any, path: Path, weights: Weights) -> _Differences:
    """By the library itself, which knows what its models were called in older files."""
    _, found = cls.from_pretrained(
        None,
        config=cls.config_class.from_pretrained(path, local_files_only=True),
        state_dict=_without_memory(weights),
        device_map={"": "meta"},
        ignore_mismatched_sizes=True,
        output_loading_info=True,
    )
    return _Differences(
        sorted(found["missing_keys"]),
        sorted(found["unexpected_keys"]),
        {name: (tuple(shape), tuple(asked)) for name, shape, asked in found["mismatched_keys"]},
    )


def _without_memory(weights: Weights) -> dict[str, Tensor]:
    return {name: torch.empty(shape, device="meta") for name, shape in weights.shapes.items()}


def _refuse_prefix(cls: Any, path: Path, found: _Differences, weights: Weights) -> None:
    """Raise the `CheckpointError` of tensors that are the model's but for what their names begin
    with.
    """
    longer = next(iter(found.unknown), "")
    for name in found.missing:
        prefix = longer.removesuffix(name)
        if prefix != longer and {*found.unknown} <= {prefix + each for each in found.missing}:
            raise wrong(
                weights.files.get(longer, path),
                f"holds {shown(longer)} where {cls.__name__} has `{name}`; rename the tensors"
                f" without the prefix {shown(prefix)}",
            )


def _require_finite(model: Any, path: Path, weights: Weights) -> None:
    """Raise the `CheckpointError` of a model that has a weight which is NaN or infinite."""
    name = first_not_finite(model.state_dict())
    if name is None:
        return
    for file in sorted({*weights.files.values()}):
        with _explained(path):
            found = first_not_finite(load_file(file))
        if found is not None:
            raise wrong(file, f"holds values in `{found}` that are NaN or infinite; copy it again")
    raise wrong(path, f"holds values in `{name}` that are too large for this machine's precision")


def _present(folder: Path, part: str) -> Path:
    path = folder / part
    if not path.is_dir():
        raise CheckpointError(f"model.checkpoint: {path} is missing; copy the whole checkpoint")
    return path


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    """What the libraries raise for a folder, as `CheckpointError`."""
    try:
        yield
    except (CheckpointError, MemoryError):
        raise
    except Exception as error:  # the libraries raise anything for a strange configuration
        reason = " ".join(str(error).split())
        raise CheckpointError(f"model.checkpoint: {path} cannot be loaded: {reason}") from error


def _others(names: list[str]) -> str:
    """How many there are besides the first."""
    return f" and {len(names) - 1} more" if len(names) > 1 else ""
