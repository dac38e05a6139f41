"""Loading checkpoint folders, the built-in one above all."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from spotlight.assets import read_prompts, resolve_checkpoint
from spotlight.diffusion.checkpoints import load_model
from spotlight.diffusion.model import DiffusionModel
from spotlight.diffusion.samplers import sample
from spotlight.errors import CheckpointError, JobError
from spotlight.jobs import LoraSpec, ModelSpec
from spotlight.types import SamplingSettings

BUILTIN = ModelSpec(checkpoint="builtin:ocr-tiny")
LORA = ModelSpec(checkpoint="builtin:ocr-tiny", tuning="lora", lora=LoraSpec(rank=2, alpha=4))


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A copy of the built-in checkpoint, to be damaged."""
    folder = tmp_path / "checkpoint"
    shutil.copytree(resolve_checkpoint("builtin:ocr-tiny"), folder)
    return folder


def load(folder: Path) -> DiffusionModel:
    return load_model(ModelSpec(checkpoint=str(folder)), device="cpu")


def images(model: DiffusionModel, guidance: float = 1.0) -> np.ndarray:
    settings = SamplingSettings(
        kind="ode", steps=2, height=16, width=48, guidance=guidance, micro_batch=4
    )
    prompts = read_prompts("builtin:ocr-tiny/validation")[:2]
    return model.decode(sample(model, prompts, [1, 2], settings).latents, 16, 48)


def test_the_builtin_checkpoint_draws_images_in_float32() -> None:
    model = load_model(BUILTIN, device="cpu")
    assert {tensor.dtype for tensor in model.trainable_state().values()} == {torch.float32}
    assert model.latent_shape(16, 48) == (48, 16)
    assert images(model).shape == (2, 16, 48, 3)


def test_full_tuning_trains_every_weight() -> None:
    model = load_model(BUILTIN, device="cpu")
    names = {name for name, _ in model.transformer.named_parameters()}
    assert model.trainable_state().keys() == names


def test_the_builtin_checkpoint_can_be_guided() -> None:
    model = load_model(BUILTIN, device="cpu")
    assert not np.array_equal(images(model), images(model, guidance=3.0))


def test_adapters_alone_are_trained_and_start_as_the_identity() -> None:
    full, lora = load_model(BUILTIN, device="cpu"), load_model(LORA, device="cpu")
    assert all("lora_" in name for name in lora.trainable_state())
    assert np.array_equal(images(full), images(lora))


def test_adapters_start_alike_in_every_process() -> None:
    torch.manual_seed(1)
    first = load_model(LORA, device="cpu").trainable_state()
    torch.manual_seed(2)
    second = load_model(LORA, device="cpu").trainable_state()
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_an_adapter_target_that_is_not_there_is_named() -> None:
    lora = LoraSpec(rank=2, alpha=2, targets=("to_q", "to_nothing"))
    with pytest.raises(CheckpointError, match=r"model\.lora\.targets.*to_nothing"):
        load_model(ModelSpec(checkpoint="builtin:ocr-tiny", tuning="lora", lora=lora))


@pytest.mark.parametrize(
    "part", ["model_index.json", "transformer", "scheduler", "text_encoder/config.json"]
)
def test_a_missing_part_is_named(checkpoint: Path, part: str) -> None:
    path = checkpoint / part
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    with pytest.raises(CheckpointError, match=part):
        load(checkpoint)


def test_an_index_of_another_family_is_refused(checkpoint: Path) -> None:
    (checkpoint / "model_index.json").write_text('{"transformer": ["diffusers", "Other"]}')
    with pytest.raises(CheckpointError, match="QwenImageTransformer2DModel"):
        load(checkpoint)


def test_an_index_that_is_not_json_is_refused(checkpoint: Path) -> None:
    (checkpoint / "model_index.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"model_index\.json is not what it should be"):
        load(checkpoint)


def test_another_text_encoder_is_refused_by_name(checkpoint: Path) -> None:
    path = checkpoint / "model_index.json"
    index = {**json.loads(path.read_text()), "text_encoder": ["transformers", "T5"]}
    path.write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match="no text_encoder that is known"):
        load(checkpoint)


def test_truncated_weights_are_refused(checkpoint: Path) -> None:
    [path] = (checkpoint / "transformer").glob("*.safetensors")
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(CheckpointError, match="transformer"):
        load(checkpoint)


def test_weights_that_lack_a_tensor_are_refused_by_its_name(checkpoint: Path) -> None:
    [path] = (checkpoint / "transformer").glob("*.safetensors")
    tensors = load_file(path)
    del tensors["proj_out.weight"]
    save_file(tensors, path, {"format": "pt"})
    with pytest.raises(CheckpointError, match=r"transformer lack proj_out\.weight"):
        load(checkpoint)


def test_a_damaged_text_encoder_is_named(checkpoint: Path) -> None:
    path = checkpoint / "text_encoder" / "model.safetensors"
    damaged = bytearray(path.read_bytes())
    damaged[8:40] = b"x" * 32
    path.write_bytes(damaged)
    with pytest.raises(CheckpointError, match=r"text_encoder.model\.safetensors is not"):
        load(checkpoint)


@pytest.mark.parametrize("name", ["builtin:nothing", "builtin:../assets/ocr-tiny", "/no/folder"])
def test_a_checkpoint_that_is_not_there_is_named(name: str) -> None:
    with pytest.raises(CheckpointError, match="ocr-tiny"):
        resolve_checkpoint(name)


def test_no_validation_prompt_is_trained_on() -> None:
    train = read_prompts("builtin:ocr-tiny/train")
    validation = read_prompts("builtin:ocr-tiny/validation")
    assert (len(train), len(validation)) == (512, 32)
    assert not set(train) & set(validation)


def test_prompt_lists_that_are_not_there_are_named() -> None:
    with pytest.raises(JobError, match="ocr-tiny/train"):
        read_prompts("builtin:ocr-tiny/other")


def test_an_empty_prompt_list_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "prompts.txt"
    path.write_text("\n \n")
    with pytest.raises(JobError, match="empty"):
        read_prompts(path)
