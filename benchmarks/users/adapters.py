"""Exported adapters, and whoever reads them.

A reader of `READERS` knows names and tensors, and nothing of Spotlight; each must compute what the
trained model computes.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import diffusers
import torch
from peft import PeftModel
from safetensors.torch import load_file
from torch import Tensor

from benchmarks.users.case import Figures, case, require
from spotlight.diffusion.checkpoints import load_model
from spotlight.diffusion.families.registry import family_of
from spotlight.diffusion.model import DiffusionModel
from spotlight.jobs import LoraSpec, ModelSpec
from spotlight.training.checkpoints import save_checkpoint
from spotlight.training.export import export_checkpoint
from spotlight.types import COMFYUI_FILE
from spotlight_simulation.tiny_families import make_tiny_checkpoint

FAMILIES = ("qwen-image", "sd3", "flux", "wan", "krea2", "flux2-klein", "z-image")
_FOR_DIFFUSERS, _FOR_PEFT, _FOR_COMFYUI = "for-diffusers", "for-peft", "for-comfyui"
_MOST = 1e-5


class Exported:
    """A tiny model of a family with adapters that are not the identity, and what was exported of
    it to `folder`.
    """

    def __init__(self, family: str, folder: Path, lora: LoraSpec | None = None) -> None:
        self.family, self.folder, self._base = family, folder, folder / "base"
        make_tiny_checkpoint(family, self._base)
        spec = ModelSpec(checkpoint=str(self._base), tuning="lora", lora=lora or LoraSpec())
        self._model = load_model(spec, device="cpu")
        generator = torch.Generator().manual_seed(1)
        adapters = {
            name: tensor + 0.2 * torch.randn(tensor.shape, generator=generator)
            for name, tensor in self._model.trainable_state().items()
        }
        self._model.load_trainable_state(adapters)
        saved = folder / "checkpoint.safetensors"
        save_checkpoint(saved, {f"ema/{name}": it for name, it in adapters.items()}, {})
        export_checkpoint(spec, saved, folder / _FOR_DIFFUSERS)
        export_checkpoint(spec, saved, folder / _FOR_PEFT, format="peft")
        export_checkpoint(spec, saved, folder / _FOR_COMFYUI, format="comfyui")

    @property
    def tensors(self) -> dict[str, Tensor]:
        """Of the export for diffusers, without what its file says beside them."""
        return load_file(self.folder / _FOR_DIFFUSERS / "pytorch_lora_weights.safetensors")

    def pipeline(self) -> Any:
        """The family's, without any adapter."""
        return getattr(diffusers, family_of(self._base).pipeline).from_pretrained(self._base)

    def bare(self) -> Any:
        """The transformer without any adapter."""
        kind = getattr(diffusers, family_of(self._base).transformer)
        return kind.from_pretrained(self._base / "transformer").eval()

    def velocity(self, transformer: Any = None) -> Tensor:
        """What the trained model computes, or with another transformer in it."""
        model: DiffusionModel = copy.copy(self._model)
        model.transformer = transformer or model.transformer
        noise = torch.Generator().manual_seed(2)
        latents = torch.randn(2, *model.latent_shape(32, 32), generator=noise)
        sigmas, prompts = torch.tensor([0.9, 0.4]), model.encode_prompts(["a cat", "a dog"])
        with torch.no_grad():
            return model.velocity(latents, sigmas, prompts, height=32, width=32)


def _read_by_pipeline(exported: Exported) -> Any:
    pipeline = exported.pipeline()
    pipeline.load_lora_weights(exported.folder / _FOR_DIFFUSERS)
    return pipeline.transformer.eval()


def _read_by_transformer(exported: Exported) -> Any:
    transformer = exported.bare()
    transformer.load_lora_adapter(exported.tensors)
    return transformer


def _read_by_peft(exported: Exported) -> Any:
    transformer = exported.bare()
    PeftModel.from_pretrained(transformer, exported.folder / _FOR_PEFT)
    return transformer.eval()


def _read_by_product(exported: Exported) -> Any:
    transformer, tensors = exported.bare(), exported.tensors
    lowering = [name for name in tensors if name.endswith(".lora_A.weight")]
    require(len(tensors) == 2 * len(lowering) > 0, sorted(tensors))
    for name in lowering:
        module = name.removeprefix("transformer.").removesuffix(".lora_A.weight")
        weight = transformer.get_parameter(f"{module}.weight")
        weight.data += tensors[name.replace("lora_A", "lora_B")] @ tensors[name]
    return transformer


def _read_as_comfyui(exported: Exported) -> Any:
    """Names that are not those of diffusers are left to its own converters of ComfyUI's, of which
    that of Krea 2 takes no alphas. Else what ComfyUI does: `alpha / rank * B A`."""
    tensors = load_file(exported.folder / _FOR_COMFYUI / COMFYUI_FILE)
    if any(name.startswith("diffusion_model.") for name in tensors):
        pipeline, takes_alphas = exported.pipeline(), exported.family != "krea2"
        named = {
            name: it for name, it in tensors.items() if takes_alphas or not name.endswith(".alpha")
        }
        pipeline.load_lora_weights(named)
        return pipeline.transformer.eval()
    transformer = exported.bare()
    modules = [name.removesuffix(".alpha") for name in tensors if name.endswith(".alpha")]
    require(len(tensors) == 3 * len(modules) > 0, sorted(tensors))
    for module in modules:
        down, up = (tensors[f"{module}.lora_{each}.weight"] for each in "AB")
        strength = tensors[f"{module}.alpha"].item() / len(down)
        weight = transformer.get_parameter(f"{module.removeprefix('transformer.')}.weight")
        weight.data += strength * up @ down
    return transformer


PRODUCT = "a plain product W + B A"
READERS: dict[str, Callable[[Exported], Any]] = {
    "diffusers' load_lora_weights": _read_by_pipeline,
    "diffusers' load_lora_adapter, from tensors alone": _read_by_transformer,
    "peft": _read_by_peft,
    "ComfyUI's names and alphas": _read_as_comfyui,
    PRODUCT: _read_by_product,
}
"""Each gives the transformer that computes with the adapter."""


def _reads(family: str, reader: str) -> Callable[[Path], Figures]:
    def check(folder: Path) -> Figures:
        exported = Exported(family, folder)
        wanted, bare = exported.velocity(), exported.velocity(exported.bare())
        require((wanted - bare).abs().max().item() > 1e-2, "the adapter changes nothing")
        off = (exported.velocity(READERS[reader](exported)) - wanted).abs().max().item()
        require(off <= _MOST, f"off by {off:.2g}")
        return {"adapter_max_difference": off} if reader == PRODUCT else {}

    return check


for _family in FAMILIES:
    for _reader in READERS:
        _is_quick = (_family, _reader) == ("flux", PRODUCT)
        case(f"an adapter of {_family}, read by {_reader}", quick=_is_quick)(
            _reads(_family, _reader)
        )
