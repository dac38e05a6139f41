"""Exports the trained weights of a checkpoint in formats that other libraries load.

| job trains | format | folder for |
|---|---|---|
| all weights | `diffusers` | `from_pretrained` of the transformer's class |
| adapters | `diffusers` | `load_lora_weights` of the family's pipeline |
| adapters | `peft` | `PeftModel.from_pretrained` |
| adapters | `comfyui` | ComfyUI, which takes the file from `models/loras` |
| either | `pipeline` | `from_pretrained` of the family's pipeline, and a job's `model.checkpoint` |

Of a model with two transformers each is exported for itself, into a folder that is called as its
part; ComfyUI gets two files.

A pipeline has what is not trained from the job's checkpoint: as the same files where the disk gives
them a second name, else as copies. Adapters are added to its weights.

All hold safetensors only, in float32; no model is loaded. A model that computes in bfloat16 rounds
them when it loads them, as the workers did that validated them.

An adapter adds `alpha / rank * B A` to a weight. Many readers look at the tensors alone and add
`B A`, so the factor is multiplied into B, and whatever names an alpha says that it is the rank.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

import diffusers
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from spotlight.diffusion.checkpoint_files import read_index, read_weights
from spotlight.diffusion.checkpoint_names import find_checkpoint
from spotlight.diffusion.families.base import INDEX, CheckpointFolder, Family
from spotlight.diffusion.families.registry import open_transformers
from spotlight.errors import CheckpointError, MissingDependency, how_to_install
from spotlight.jobs import LoraSpec, ModelSpec
from spotlight.training.checkpoints import Role, load_role
from spotlight.types import (
    ADAPTER_FORMATS,
    COMFYUI_FILE,
    COMFYUI_FILES_OF_TWO,
    ExportFormat,
)

_ADAPTER = ".default."
"""How peft calls the adapter of a job in the names of its weights, and leaves away in files."""


def export_checkpoint(
    model: ModelSpec,
    checkpoint: Path,
    folder: Path,
    *,
    role: Role = "ema",
    format: ExportFormat = "diffusers",
    replace: bool = False,
) -> None:
    """Write weights of a training checkpoint to `folder`.

    Args:
        model: of the job that wrote the checkpoint.
        checkpoint: as `save_checkpoint` wrote it.
        folder: new or empty; with `replace`, what is there is deleted. It appears complete or not
            at all.
        role: the averaged weights that validation scores, or the newest.
        format: for whom; adapters alone can be written for peft. A `pipeline` is a checkpoint that
            a job takes.

    Raises `CheckpointError` naming the folder, the file or the weight, and `MissingDependency`.
    """
    if not replace and folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise CheckpointError(f"{folder}: already exists; export to a new or an empty folder")
    if format in ADAPTER_FORMATS and model.tuning != "lora":
        raise CheckpointError(
            f"{checkpoint}: the job trains all weights, but `{format}` takes only adapters; export"
            " it for diffusers"
        )
    family, base = open_transformers(find_checkpoint(model.checkpoint))
    weights = load_role(checkpoint, role)
    partial = folder.with_name(f".{folder.name}.partial")
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        if format == "pipeline":
            _share_parts(base, partial)
        for part, prefix in base.transformers.items():
            own = {
                name.removeprefix(prefix): it
                for name, it in weights.items()
                if name.startswith(prefix)
            }
            place = partial / part if prefix or format == "pipeline" else partial
            if format == "comfyui":
                file = COMFYUI_FILES_OF_TWO[part] if prefix else COMFYUI_FILE
                _save_for_comfyui(family, model.lora, _adapters(own, model.lora), partial / file)
            else:
                _save_part(family, base.path / part, model, own, format, place)
        shutil.rmtree(folder, ignore_errors=True)
        partial.replace(folder)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{folder}: cannot be written ({error}); choose another") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _save_part(
    family: Family,
    source: Path,
    model: ModelSpec,
    weights: Mapping[str, Tensor],
    format: ExportFormat,
    folder: Path,
) -> None:
    """What is trained of one transformer, which is from the folder `source`."""
    if format == "pipeline":
        _save_transformer(family, source, _merged(source, weights, model), folder)
    elif model.tuning == "full":
        _save_transformer(family, source, weights, folder)
    elif format == "diffusers":
        _save_for_pipelines(family, _adapters(weights, model.lora), folder)
    else:
        _save_for_peft(family, model.lora, _adapters(weights, model.lora), folder)


def _save_transformer(
    family: Family, source: Path, weights: Mapping[str, Tensor], folder: Path
) -> None:
    kind = getattr(diffusers, family.transformer)
    with torch.device("meta"):
        transformer = kind.from_config(kind.load_config(source))
    try:
        transformer.load_state_dict({**_untrained(family, source), **weights}, assign=True)
    except RuntimeError as error:
        raise CheckpointError(
            f"model.checkpoint: {source} is not the model that was trained ({error})"
        ) from error
    transformer.save_pretrained(folder, safe_serialization=True)


def _merged(source: Path, weights: Mapping[str, Tensor], model: ModelSpec) -> Mapping[str, Tensor]:
    """The weights of the transformer with what adapters add to them."""
    if model.tuning == "full":
        return weights
    files = read_weights(source).files
    adapters, merged = _adapters(weights, model.lora), dict[str, Tensor]()
    for file in sorted({*files.values()}):
        with safe_open(file, "pt") as opened:
            merged |= {name: opened.get_tensor(name).float() for name in opened.keys()}  # noqa: SIM118
    for name, down in adapters.items():
        if ".lora_A." in name:
            up = adapters[name.replace(".lora_A.", ".lora_B.")]
            merged[name.replace(".lora_A.", ".")] += up @ down
    return merged


def _share_parts(base: CheckpointFolder, folder: Path) -> None:
    """The files of a checkpoint but for its transformers', as far as its index names them."""
    source = base.path
    shutil.copyfile(source / INDEX, folder / INDEX)
    for part in sorted({*read_index(source / INDEX)} - {*base.transformers}):
        for file in sorted((source / part).rglob("*")):
            if file.is_file():
                place = folder / file.relative_to(source)
                place.parent.mkdir(parents=True, exist_ok=True)
                _share(file.resolve(), place)


def _share(file: Path, place: Path) -> None:
    try:
        os.link(file, place)
    except OSError:  # on another disk, or one without links
        shutil.copyfile(file, place)


def _untrained(family: Family, source: Path) -> dict[str, Tensor]:
    """What the transformer has besides its parameters, as it is in the job's checkpoint."""
    found: dict[str, Tensor] = {}
    files = read_weights(source).files if family.untrained else {}
    for name in family.untrained.intersection(files):
        with safe_open(files[name], "pt") as file:
            found[name] = file.get_tensor(name).float()
    return found


def _adapters(weights: Mapping[str, Tensor], lora: LoraSpec) -> dict[str, Tensor]:
    """As files name them, and so that `B A` is all that an adapter adds to a weight."""
    scale = lora.alpha / lora.rank
    return {
        name.replace(_ADAPTER, "."): (it * scale if ".lora_B." in name else it).contiguous()
        for name, it in weights.items()
    }


def _save_for_pipelines(family: Family, adapters: dict[str, Tensor], folder: Path) -> None:
    getattr(diffusers, family.pipeline).save_lora_weights(folder, transformer_lora_layers=adapters)


def _save_for_comfyui(
    family: Family, lora: LoraSpec, adapters: Mapping[str, Tensor], file: Path
) -> None:
    """ComfyUI adds `alpha / rank * B A`, with the alpha of each module, or of 1 without one."""
    named = dict[str, Tensor]()
    for name, it in adapters.items():
        module, matrix = name.split(".lora_")
        theirs = family.name_in_comfyui(module)
        if theirs is None:
            raise CheckpointError(
                f"--format comfyui: what ComfyUI calls the modules of {family.name} is not known"
                " here; use `--format diffusers`"
            )
        named[f"{theirs}.lora_{matrix}"] = it
        named[f"{theirs}.alpha"] = torch.tensor(float(lora.rank))
    save_file(named, file, {"format": "pt"})


def _save_for_peft(
    family: Family, lora: LoraSpec, adapters: Mapping[str, Tensor], folder: Path
) -> None:
    try:
        from peft import LoraConfig
    except ImportError as error:
        raise MissingDependency(
            f"an export for peft needs peft: {how_to_install('worker')}"
        ) from error
    LoraConfig(
        r=lora.rank,
        lora_alpha=lora.rank,
        target_modules=sorted(family.targets(lora)),
        inference_mode=True,
    ).save_pretrained(str(folder))
    named = {f"base_model.model.{name}": it for name, it in adapters.items()}
    save_file(named, folder / "adapter_model.safetensors", {"format": "pt"})
