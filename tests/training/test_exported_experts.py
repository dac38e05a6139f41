"""Exports of a model with two transformers: each is a file of its own, and each reader has both."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from diffusers import WanTransformer3DModel
from peft import PeftModel

from benchmarks.family_exports import TOLERANCE
from spotlight.diffusion.checkpoints import load_model
from spotlight.diffusion.experts import experts_of
from spotlight.errors import JobError
from spotlight.jobs import LoraSpec, ModelSpec
from spotlight.preflight.starts import find_start
from spotlight.training.checkpoints import save_checkpoint
from spotlight.training.export import export_checkpoint
from spotlight.types import COMFYUI_FILES_OF_TWO, ExportFormat
from spotlight_simulation.text_pipelines import load_pipeline
from spotlight_simulation.tiny_families import make_tiny_checkpoint

PARTS = ("transformer", "transformer_2")


class Trained:
    """A model whose weights moved, and whose checkpoint is on disk."""

    def __init__(self, folder: Path, **model: Any) -> None:
        self.folder = folder
        make_tiny_checkpoint("wan-a14b", folder / "base")
        self.spec = ModelSpec(checkpoint=str(folder / "base"), lora=LoraSpec(rank=2), **model)
        self.model: Any = load_model(self.spec, device="cpu")
        generator = torch.Generator().manual_seed(1)
        self.weights = {
            name: it + 0.2 * torch.randn(it.shape, generator=generator)
            for name, it in self.model.trainable_state().items()
        }
        self.model.load_trainable_state(self.weights)
        tensors = {f"ema/{name}": it for name, it in self.weights.items()}
        save_checkpoint(folder / "checkpoint.safetensors", tensors, {})

    def exported(self, format: ExportFormat) -> Path:
        folder = self.folder / format
        checkpoint = self.folder / "checkpoint.safetensors"
        export_checkpoint(self.spec, checkpoint, folder, format=format)
        return folder

    def require_equal(self, *transformers: Any) -> None:
        """Each computes what was trained, and what the other does not."""
        expected = [outputs(each) for each in experts_of(self.model.transformer)]
        assert (expected[0] - expected[1]).abs().max() > 0.01
        for transformer, wanted in zip(transformers, expected, strict=True):
            assert (outputs(transformer) - wanted).abs().max() <= TOLERANCE


@torch.no_grad()
def outputs(transformer: Any) -> torch.Tensor:
    generator = torch.Generator().manual_seed(2)
    found: torch.Tensor = transformer(
        hidden_states=torch.randn(2, 4, 1, 8, 8, generator=generator),
        encoder_hidden_states=torch.randn(2, 5, 32, generator=generator),
        timestep=torch.tensor([900.0, 300.0]),
        return_dict=False,
    )[0]
    return found


@pytest.fixture(scope="module")
def adapters(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return Trained(tmp_path_factory.mktemp("adapters"), tuning="lora")


def test_the_pipeline_reads_both_adapters(adapters: Trained) -> None:
    folder, pipeline = adapters.exported("diffusers"), load_pipeline(adapters.folder / "base")
    pipeline.load_lora_weights(folder / "transformer")
    pipeline.load_lora_weights(folder / "transformer_2", load_into_transformer_2=True)
    adapters.require_equal(pipeline.transformer, pipeline.transformer_2)


def test_the_files_for_comfyui_are_one_for_high_noise_and_one_for_low(adapters: Trained) -> None:
    folder, pipeline = adapters.exported("comfyui"), load_pipeline(adapters.folder / "base")
    high, low = (folder / COMFYUI_FILES_OF_TWO[part] for part in PARTS)
    assert ("high_noise" in high.name, "low_noise" in low.name) == (True, True)
    pipeline.load_lora_weights(high)
    pipeline.load_lora_weights(low, load_into_transformer_2=True)
    adapters.require_equal(pipeline.transformer, pipeline.transformer_2)


def test_peft_reads_both_adapters(adapters: Trained) -> None:
    folder, base = adapters.exported("peft"), adapters.folder / "base"
    read = [
        PeftModel.from_pretrained(WanTransformer3DModel.from_pretrained(base / part), folder / part)
        for part in PARTS
    ]
    adapters.require_equal(*read)


def test_a_pipeline_has_both_with_what_adapters_add_to_them(adapters: Trained) -> None:
    pipeline = load_pipeline(adapters.exported("pipeline"))
    adapters.require_equal(pipeline.transformer, pipeline.transformer_2)


def test_a_job_begins_with_the_adapters_of_an_export(tmp_path: Path) -> None:
    trained = Trained(tmp_path, tuning="lora")
    folder = trained.exported("diffusers")
    spec = ModelSpec(
        checkpoint=trained.spec.checkpoint, tuning="lora", lora=LoraSpec(rank=2), start=str(folder)
    )
    start = find_start(spec)
    assert {name.removeprefix("weights/") for name in start.pieces} == {*trained.weights}
    (folder / "transformer_2" / "pytorch_lora_weights.safetensors").unlink()
    with pytest.raises(JobError, match=r"transformer_2 is no run folder .* nor adapters"):
        find_start(spec)
    file = folder / "transformer" / "pytorch_lora_weights.safetensors"
    with pytest.raises(JobError, match=r"one transformer, .* two; name a folder with `transformer"):
        find_start(msgspec.structs.replace(spec, start=str(file)))


def test_whole_weights_are_two_transformers_that_a_job_begins_with(tmp_path: Path) -> None:
    trained = Trained(tmp_path)
    folder = trained.exported("diffusers")
    trained.require_equal(*(WanTransformer3DModel.from_pretrained(folder / part) for part in PARTS))
    start = find_start(ModelSpec(checkpoint=trained.spec.checkpoint, start=str(folder)))
    assert {name.removeprefix("weights/") for name in start.pieces} == {*trained.weights}
