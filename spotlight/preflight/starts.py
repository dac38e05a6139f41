"""Finds the weights that a job begins with (`model.start`), and says why they do not fit its model.

Reads configurations and the headers of safetensors files; no library is needed for that.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import msgspec

from spotlight.diffusion.checkpoint_files import (
    Header,
    Shape,
    read_header,
    read_json,
    read_weights,
    shown,
)
from spotlight.diffusion.checkpoint_names import find_description
from spotlight.diffusion.families.base import SECOND
from spotlight.diffusion.families.registry import family_of, open_transformers
from spotlight.errors import CheckpointError, JobError, UserError
from spotlight.jobs import ModelSpec
from spotlight.jobs.start_names import StartName, Which
from spotlight.policies.checkpoint_retention import best_version, scores_of
from spotlight.preflight.trainable import trainable_shapes
from spotlight.store.checkpoint_header import EARLIER_UPDATES, FACTOR, START, UPDATES
from spotlight.store.run_folder import (
    checkpoint_path,
    is_run,
    read_config,
    saved_iterations,
    validations_of,
)
from spotlight.store.start_file import Piece

FIELD = "model.start"
_PEFT, _PEFT_CONFIG = "adapter_model.safetensors", "adapter_config.json"
_OF_PIPELINES = "pytorch_lora_weights.safetensors"
_ADAPTER = re.compile(
    r"(?:base_model\.model\.)?(?:transformer\.)?(?P<layer>.+)"
    r"\.(?P<part>lora_A|lora_B|lora\.down|lora\.up)(?:\.default)?\.weight"
)
"""How peft and diffusers call a matrix of an adapter."""
_PARTS = {"lora.down": "lora_A", "lora.up": "lora_B"}
_ALPHA = re.compile(r"(?:base_model\.model\.)?(?:transformer\.)?(?P<layer>.+)\.alpha")
_LAST_WORD = re.compile(r"[^.]+(?:\.\d+)*$")
"""The last word of the name of a layer, with the numbers behind it."""
_ROLES = ("weights", "ema", "adam_mean", "adam_square", "old")
"""What a checkpoint has of a trainer that another one may begin with."""


class Start(NamedTuple):
    """Weights that fit a job's model."""

    name: str
    """The name that `model.start` has for them, now and later."""
    pieces: Mapping[str, Piece]
    """Tensors `role/weight` by their names in a training checkpoint."""
    factor: float
    """The number by which the second matrix of each adapter is to be multiplied."""
    score: float | None = None
    """The validation score that they had; None if it is not known."""
    updates: int = 0
    """The optimizer's updates in its moments; 0 without moments."""

    @property
    def metadata(self) -> dict[str, str]:
        """What the checkpoint that they become says of itself."""
        return {START: self.name, FACTOR: repr(self.factor), EARLIER_UPDATES: str(self.updates)}


def find_start(model: ModelSpec) -> Start:
    """The weights that a job with this model begins with. Raises `JobError` of `model.start` where
    there are none, or where they are no weights of this model."""
    name = StartName.parse(model.start)
    try:
        start = _found(model, name)
        _require_fit(model, start)
    except JobError:
        raise
    except UserError as error:
        _refuse(str(error).removeprefix("model.checkpoint: "))
    return start


def _found(model: ModelSpec, name: StartName) -> Start:
    path = name.path
    if is_run(path):
        return _of_run(model, path, name.which)
    if name.which is not None:
        _refuse(f"{path} is no run folder, so nothing of it can be named by @{name.which}")
    if model.start_optimizer:
        _refuse(
            f"{path} is no run folder, and has no optimizer's state; leave out"
            " `model.start_optimizer`"
        )
    parts = open_transformers(find_description(model.checkpoint))[1].transformers
    if len(parts) == 1:
        return _of_adapters(model, path) if path.is_file() else _of_folder(model, path)
    if path.is_file():
        _refuse(
            f"{path} is of one transformer, and this model has two; name a folder with"
            f" {' and '.join(f'`{part}`' for part in parts)}, as exports have them"
        )
    each = {prefix: _of_folder(model, path / part) for part, prefix in parts.items()}
    factors = {start.factor for start in each.values()}
    if len(factors) > 1:
        _refuse(f"{path} has adapters of several scales in {', '.join(parts)}")
    pieces = {
        f"weights/{prefix}{name.removeprefix('weights/')}": piece
        for prefix, start in each.items()
        for name, piece in start.pieces.items()
    }
    return Start(str(path), pieces, factors.pop())


def _of_folder(model: ModelSpec, path: Path) -> Start:
    """The weights of one transformer."""
    for file in (_PEFT, _OF_PIPELINES):
        if (path / file).is_file():
            return _of_adapters(model, path / file)
    for folder in (path / "transformer", path):
        if (folder / "config.json").is_file():
            return _of_transformer(model, folder, str(path))
    _refuse(
        f"{path} is no run folder and no safetensors file, and holds neither a transformer"
        f" (config.json) nor adapters ({_PEFT} or {_OF_PIPELINES})"
    )


def _refuse(problem: str) -> NoReturn:
    raise JobError(FIELD, problem)


# --- a run ---


def _of_run(model: ModelSpec, run: Path, which: Which | None) -> Start:
    of_run = read_config(run).model
    if of_run.tuning != model.tuning:
        _refuse(f"{run} trained `model.tuning: {of_run.tuning}`, and this job {model.tuning}")
    scores = scores_of(validations_of(run))
    iteration = _iteration(run, which, scores)
    path = run / checkpoint_path(iteration)
    header = read_header(path)
    factor, updates = _scale(of_run) / _scale(model), 0
    if model.start_optimizer:
        if factor != 1:
            _refuse(
                f"{run} trained adapters of another `alpha / rank`, for which the optimizer's"
                " state is none; leave out `model.start_optimizer`"
            )
        pieces = {
            name: _piece(path, header, name)
            for name in header.tensors
            if name.partition("/")[0] in _ROLES
        }
        if "adam_mean" not in {name.partition("/")[0] for name in pieces}:
            _refuse(f"{path} has no optimizer's state; leave out `model.start_optimizer`")
        updates = sum(
            int(_number(_piece(path, header, name)))
            for name in (UPDATES, EARLIER_UPDATES)
            if name in header.tensors
        )
    else:
        role = "ema" if any(name.startswith("ema/") for name in header.tensors) else "weights"
        pieces = {
            f"weights/{name.removeprefix(f'{role}/')}": _piece(path, header, name)
            for name in header.tensors
            if name.startswith(f"{role}/")
        }
    return Start(f"{run}@{iteration}", pieces, factor, scores.get(iteration), updates)


def _iteration(run: Path, which: Which | None, scores: Mapping[int, float]) -> int:
    saved = saved_iterations(run)
    if not saved:
        _refuse(f"{run} has no checkpoint yet")
    if which == "last":
        return saved[-1]
    if isinstance(which, int):
        if which not in saved:
            there = ", ".join(map(str, saved))
            _refuse(f"{run} has no checkpoint after {which} iterations; there are: {there}")
        return which
    best = best_version({one: scores[one] for one in saved if one in scores})
    if best is None:
        _refuse(f"no checkpoint of {run} is validated; name one, as {run}@last")
    return best


def _piece(path: Path, header: Header, name: str) -> Piece:
    tensor = header.tensors[name]
    begin, end = tensor.data_offsets
    return Piece(path, header.begin + begin, end - begin, tensor.dtype, tensor.shape)


def _scale(model: ModelSpec) -> float:
    return model.lora.alpha / model.lora.rank if model.tuning == "lora" else 1.0


# --- a transformer ---


def _of_transformer(model: ModelSpec, folder: Path, name: str) -> Start:
    if model.tuning != "full":
        _refuse(
            f"{folder} holds a whole transformer, and this job trains adapters; name a pipeline"
            " with it as `model.checkpoint` (`spotlight export --format pipeline` writes one)"
        )
    files = read_weights(folder).files
    headers = {file: read_header(file) for file in {*files.values()}}
    untrained = family_of(find_description(model.checkpoint)).untrained
    pieces = {
        f"weights/{tensor}": _piece(file, headers[file], tensor)
        for tensor, file in files.items()
        if tensor not in untrained
    }
    return Start(name, pieces, 1.0)


# --- adapters ---


class _PeftConfig(msgspec.Struct, frozen=True):
    """adapter_config.json, as far as it says what the adapters compute."""

    r: int = 8
    lora_alpha: float = 8
    use_rslora: bool = False
    use_dora: bool = False
    bias: str = "none"
    rank_pattern: dict[str, Any] | None = None
    alpha_pattern: dict[str, Any] | None = None
    modules_to_save: list[str] | None = None

    def scale(self, where: Path | str) -> float:
        """What `B A` is multiplied by. Raises `JobError` for adapters that compute more."""
        for field in ("use_dora", "rank_pattern", "alpha_pattern", "modules_to_save"):
            if getattr(self, field):
                _refuse(f"{where} has `{field}`, which the adapters of a job do not have")
        if self.bias != "none":
            _refuse(f"{where} trains biases (`bias: {self.bias}`), which jobs do not")
        return self.lora_alpha / (math.sqrt(self.r) if self.use_rslora else self.r)


def _of_adapters(model: ModelSpec, path: Path) -> Start:
    header = read_header(path)
    if model.tuning != "lora":
        _refuse(f"{path} holds adapters, and this job trains all weights; set model.tuning=lora")
    pieces, alphas = dict[str, Piece](), dict[str, Piece]()
    for name in header.tensors:
        matrix, alpha = _ADAPTER.fullmatch(name), _ALPHA.fullmatch(name)
        if matrix is not None:
            part = _PARTS.get(matrix["part"], matrix["part"])
            named = f"weights/{matrix['layer']}.{part}.default.weight"
            pieces[named] = _piece(path, header, name)
        elif alpha is not None:
            alphas[alpha["layer"]] = _piece(path, header, name)
        else:
            _refuse(f"{path} holds {shown(name)}, which is no adapter as diffusers or peft name it")
    if not pieces:
        _refuse(f"{path} holds no adapters")
    _require_rank(model, path, pieces)
    scale = _scale_of_file(path, header, alphas, model.lora.rank)
    return Start(str(path), pieces, scale / _scale(model))


def _require_rank(model: ModelSpec, path: Path, pieces: Mapping[str, Piece]) -> None:
    ranks = {piece.shape[0] for name, piece in pieces.items() if ".lora_A." in name and piece.shape}
    if len(ranks) > 1:
        _refuse(f"{path} has adapters of several ranks ({', '.join(map(str, sorted(ranks)))})")
    if ranks != {model.lora.rank}:
        found = max(ranks, default=0)
        _refuse(
            f"{path} has adapters of rank {found}, and this job of rank {model.lora.rank}; set"
            f" model.lora.rank={found}"
        )


def _scale_of_file(path: Path, header: Header, alphas: Mapping[str, Piece], rank: int) -> float:
    """What readers of the file multiply `B A` by."""
    config = path.with_name(_PEFT_CONFIG)
    if config.is_file():
        return read_json(config, _PeftConfig).scale(config)
    if told := header.metadata.get("lora_adapter_metadata"):
        try:
            data: dict[str, Any] = msgspec.json.decode(told, type=dict[str, Any])
            of_transformer = {
                name.removeprefix("transformer."): value for name, value in data.items()
            }
            return msgspec.convert(of_transformer, _PeftConfig).scale(path)
        except msgspec.MsgspecError as error:
            raise CheckpointError(f"{path}: lora_adapter_metadata is damaged: {error}") from error
    found = {_number(piece) for piece in alphas.values()}
    if len(found) > 1:
        _refuse(f"{path} has adapters of several scales ({', '.join(map(str, sorted(found)))})")
    return found.pop() / rank if found else 1.0


def _number(piece: Piece) -> float:
    with piece.path.open("rb") as file:
        file.seek(piece.begin)
        data = file.read(piece.nbytes)
    kinds = {"F64": "<d", "F32": "<f", "F16": "<e", "I64": "<q"}
    if piece.dtype == "BF16":
        data = b"\0\0" + data
    try:
        (number,) = struct.unpack(kinds.get(piece.dtype, "<f"), data)
    except struct.error as error:
        raise CheckpointError(f"{piece.path} has no number where there should be one") from error
    return float(number)


# --- whether they fit ---


def _require_fit(model: ModelSpec, start: Start) -> None:
    expected = trainable_shapes(model)
    for role in {name.partition("/")[0] for name in start.pieces if "/" in name}:
        found = {
            name.removeprefix(f"{role}/"): piece.shape
            for name, piece in start.pieces.items()
            if name.startswith(f"{role}/")
        }
        _require_names(model, start.name, expected.keys(), found.keys())
        _require_shapes(start.name, expected, found)


def _require_names(
    model: ModelSpec, name: str, expected: Collection[str], found: Collection[str]
) -> None:
    has, wanted = _transformers(found), _transformers(expected)
    if has != wanted:
        _refuse(f"{name} has {has}, and this model {wanted}: it is of another model")
    unknown, missing = sorted({*found} - {*expected}), sorted({*expected} - {*found})
    advice = f"; set model.lora.targets=[{_targets(found)}]" if model.tuning == "lora" else ""
    if unknown:
        _refuse(f"{name} has {shown(unknown[0])}{_more(unknown)}, and this model not{advice}")
    if missing:
        _refuse(f"{name} lacks {shown(missing[0])}{_more(missing)} of this model{advice}")


def _transformers(names: Iterable[str]) -> str:
    """Of how many the weights with these names are."""
    is_of_two = any(name.startswith(f"{SECOND}.") for name in names)
    return "two transformers" if is_of_two else "one transformer"


def _require_shapes(name: str, expected: Mapping[str, Shape], found: Mapping[str, Shape]) -> None:
    for each, shape in expected.items():
        if found[each] != shape:
            _refuse(
                f"{name} has {shown(each)} of shape {list(found[each])}, and this model of"
                f" {list(shape)}: it is of another model"
            )


def _targets(found: Iterable[str]) -> str:
    """The last words of the names of the layers with adapters, with the numbers behind them."""
    layers = {name.partition(".lora_")[0] for name in found if ".lora_A." in name}
    return ",".join(sorted({_LAST_WORD.findall(layer)[0] for layer in layers}))


def _more(names: list[str]) -> str:
    return f" and {len(names) - 1} more" if len(names) > 1 else ""
