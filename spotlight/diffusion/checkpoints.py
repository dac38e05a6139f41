"""Load a model from a checkpoint in diffusers layout (model_index.json).

A folder has transformer, scheduler, text encoders, tokenizers and VAE, as its family says. A tiny
Qwen-Image checkpoint may have no vae, which means pixel space, and a `TokenTextEncoder` for a text
encoder. Nothing in a checkpoint can run code: weights are safetensors only.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from functools import partial
from importlib.metadata import version
from types import MappingProxyType
from typing import Any, cast

import diffusers
import msgspec
import torch
from torch import Tensor

from spotlight.diffusion.checkpoint_names import find_checkpoint, find_description
from spotlight.diffusion.checkpoint_parts import (
    check_weights,
    load_part,
    load_tokenizer,
    load_weights,
)
from spotlight.diffusion.embedding_cache import EmbeddingCache
from spotlight.diffusion.experts import Experts
from spotlight.diffusion.families.base import TOKEN_ENCODER, CheckpointFolder, Facts, Family
from spotlight.diffusion.families.registry import FAMILIES, open_checkpoint
from spotlight.diffusion.flow_model import FlowModel, trainable_state
from spotlight.diffusion.images import ImageCodec, PixelCodec, VaeCodec
from spotlight.diffusion.model import DiffusionModel
from spotlight.diffusion.quantisation import quantisation
from spotlight.diffusion.text import FamilyTextEncoder, TextEncoder, TokenTextEncoder
from spotlight.errors import CheckpointError, MissingDependency, how_to_install
from spotlight.jobs import LoraSpec, ModelSpec


def load_model(
    spec: ModelSpec,
    *,
    device: torch.device | str | None = None,
    cache: EmbeddingCache | None = None,
    images: Mapping[str, bytes] = MappingProxyType({}),
) -> DiffusionModel:
    """The model of a job, on `device` (else on `default_device`), in evaluation mode.

    float32 on the CPU, bfloat16 elsewhere; adapters are float32 and start as the identity, with the
    same values in every process. With a `cache` of embeddings the text encoders are loaded once a
    prompt must be encoded. `images` are the files of those that prompts come with, by their
    digests. Raises `CheckpointError` naming the folder, file or field that is wrong,
    and `MissingDependency`.
    """
    device = default_device() if device is None else torch.device(device)
    dtype = _dtype_on(device)
    path = find_checkpoint(spec.checkpoint)
    family, folder = open_checkpoint(path)
    facts = family.inspect(folder)
    transformer = _load_transformer(spec, family, folder, device, dtype)
    model = FlowModel(
        family,
        transformer,
        load_part(getattr(diffusers, folder.parts["scheduler"]), path, "scheduler"),
        _load_text_encoder(family, folder, device, dtype, cache, images),
        _load_codec(family, folder, facts, transformer, device, dtype),
        spec.negative_prompt,
        spec.guidance_2,
    )
    return model


def check_model(spec: ModelSpec) -> None:
    """Find out whether a job's model can be loaded, without loading its weights: the names and
    shapes of all tensors are those of the models, and tokenizers and the scheduler can be used.

    Raises `CheckpointError` naming the folder, file or tensor that is wrong, and
    `MissingDependency`.
    """
    family, folder = open_checkpoint(find_description(spec.checkpoint))
    for part in folder.transformers:
        check_weights(getattr(diffusers, family.transformer), folder.path, part)
    load_part(getattr(diffusers, folder.parts["scheduler"]), folder.path, "scheduler")
    if "vae" in folder.parts:
        check_weights(getattr(diffusers, family.vae), folder.path, "vae")
    if TOKEN_ENCODER in folder.parts.values():
        TokenTextEncoder.load(folder.path / "text_encoder")
        return
    import transformers

    for part, name in family.text_encoders.items():
        check_weights(getattr(transformers, name), folder.path, part)
    for part in family.tokenizers:
        load_tokenizer(folder.path, part)


def default_device() -> torch.device:
    """CUDA where torch sees a GPU, else the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def with_own_transformer(model: DiffusionModel, spec: ModelSpec) -> DiffusionModel:
    """The same model but for a transformer of its own, on the same device and as it is before any
    training. Raises as `load_model`.
    """
    family, folder = open_checkpoint(find_checkpoint(spec.checkpoint))
    device, other = model.device, copy.copy(model)
    other.transformer = _load_transformer(spec, family, folder, device, _dtype_on(device))
    return other


def with_other_transformer(model: DiffusionModel, spec: ModelSpec) -> DiffusionModel:
    """The same text encoder and VAE with the transformer and the schedule of another checkpoint, on
    the same device; nobody trains it. Raises as `load_model`.
    """
    family, folder = open_checkpoint(find_checkpoint(spec.checkpoint))
    device = model.device
    transformer = _load_transformer(spec, family, folder, device, _dtype_on(device))
    scheduler = load_part(getattr(diffusers, folder.parts["scheduler"]), folder.path, "scheduler")
    transformer.requires_grad_(False)
    return cast(FlowModel, model).with_transformer(family, transformer, scheduler)


def untrained_state(spec: ModelSpec, device: torch.device) -> dict[str, Tensor]:
    """What is trainable of a job's model on `device`, as it is before any training; on the CPU, and
    without loading anything else. Raises as `load_model`.
    """
    spec = msgspec.structs.replace(spec, quantize="none")  # adapters do not depend on it
    family, folder = open_checkpoint(find_checkpoint(spec.checkpoint))
    cpu, dtype = torch.device("cpu"), _dtype_on(device)
    return trainable_state(_load_transformer(spec, family, folder, cpu, dtype))


def import_model_classes() -> None:
    """Import the classes of every family's transformer, scheduler and VAE, which diffusers does
    when the first model is loaded otherwise; adapters come with them."""
    for family in FAMILIES.values():
        for name in (family.transformer, family.vae, *family.schedulers):
            getattr(diffusers, name)


def _dtype_on(device: torch.device) -> torch.dtype:
    return torch.float32 if device.type == "cpu" else torch.bfloat16


def _load_transformer(
    spec: ModelSpec,
    family: Family,
    folder: CheckpointFolder,
    device: torch.device,
    dtype: torch.dtype,
) -> Any:
    """With its adapters, if the job tunes adapters."""
    kind, loaded = getattr(diffusers, family.transformer), []
    for part in folder.transformers:
        options = quantisation(spec.quantize, device, dtype)
        transformer = load_weights(
            kind, folder.path, part, device=device, torch_dtype=dtype, **options
        )
        if spec.tuning == "lora":
            add_adapters(transformer, spec.lora, family.targets(spec.lora))
        _choose_attention(transformer, spec.attention)
        loaded.append(transformer)
    return loaded[0] if folder.boundary is None else Experts(*loaded, boundary=folder.boundary)


def _choose_attention(transformer: Any, kernels: str) -> None:
    """Raises `MissingDependency` where they are not installed, or not usable."""
    if kernels == "native":
        return
    try:
        transformer.set_attention_backend(kernels)
    except (RuntimeError, ValueError, ImportError) as error:
        raise MissingDependency(f"`model.attention: {kernels}` cannot be used: {error}") from error


def add_adapters(transformer: Any, lora: LoraSpec, targets: Sequence[str]) -> None:
    """Freeze the transformer and inject trainable low-rank adapters into modules with these names;
    their random part is the same in every process.

    Raises `CheckpointError` naming `model.lora.targets` when a target is not in the transformer.
    """
    try:
        from peft import LoraConfig
    except ImportError as error:
        raise MissingDependency(
            f"`model.tuning: lora` needs peft; {how_to_install('worker')}"
        ) from error
    names = [name for name, _ in transformer.named_modules()]
    for target in targets:
        if not any(name == target or name.endswith(f".{target}") for name in names):
            raise CheckpointError(
                f"model.lora.targets: no module `{target}` in this transformer; name modules"
                f" such as `to_q`"
            )
    transformer.requires_grad_(False)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        transformer.add_adapter(
            LoraConfig(r=lora.rank, lora_alpha=lora.alpha, target_modules=list(targets))
        )
    for name, parameter in transformer.named_parameters():
        if "lora_" in name:
            parameter.data = parameter.data.float()
            parameter.requires_grad_(True)


def _load_text_encoder(
    family: Family,
    folder: CheckpointFolder,
    device: torch.device,
    dtype: torch.dtype,
    cache: EmbeddingCache | None,
    images: Mapping[str, bytes],
) -> TextEncoder:
    if TOKEN_ENCODER in folder.parts.values():
        return TokenTextEncoder.load(folder.path / "text_encoder")
    load = partial(_load_encoders, family, folder, dtype)
    if cache is None:
        return FamilyTextEncoder(family, load, device, images=images)
    for part in family.text_encoders:
        folder.shapes(part)  # what is missing, or cut off, shows at once
    parts = [folder.path / part for part in _readers(family)]
    versions = [f"{name} {version(name)}" for name in ("torch", "transformers", "tokenizers")]
    where = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    made_by = (family.name, cache.checksum(parts), *versions, where, str(dtype))
    return FamilyTextEncoder(family, load, device, (cache, " ".join(made_by)), images)


def _readers(family: Family) -> tuple[str, ...]:
    """The parts that read prompts, and the images that they come with."""
    of_images = ("processor", "vae") if family.image_processor else ()
    return (*family.text_encoders, *family.tokenizers, *of_images)


def _load_encoders(family: Family, folder: CheckpointFolder, dtype: torch.dtype) -> dict[str, Any]:
    """Text encoders and tokenizers by their part, on the CPU."""
    # It takes seconds to import, and tiny checkpoints do without it.
    import transformers

    parts = {}
    for part, name in family.text_encoders.items():
        encoder = load_weights(getattr(transformers, name), folder.path, part, dtype=dtype)
        parts[part] = encoder.requires_grad_(False)
    for part in family.tokenizers:
        parts[part] = load_tokenizer(folder.path, part)
    if family.image_processor:
        kind = getattr(transformers, family.image_processor)
        parts["processor"] = load_part(kind, folder.path, "processor")
        vae = load_weights(getattr(diffusers, family.vae), folder.path, "vae", torch_dtype=dtype)
        parts["vae"] = vae.requires_grad_(False)
    return parts


def _load_codec(
    family: Family,
    folder: CheckpointFolder,
    facts: Facts,
    transformer: Any,
    device: torch.device,
    dtype: torch.dtype,
) -> ImageCodec:
    if facts.pixel_space:
        config = transformer.config
        return PixelCodec(config.patch_size, config.out_channels or config.in_channels)
    kind = getattr(diffusers, family.vae)
    vae = load_weights(kind, folder.path, "vae", device=device, torch_dtype=dtype)
    return VaeCodec(family, vae.requires_grad_(False), facts.geometry)
