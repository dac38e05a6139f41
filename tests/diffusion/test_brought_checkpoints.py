"""Checkpoints as users have them: what a check without weights says is what loading says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from transformers import Qwen3ForCausalLM, Qwen3Model

from benchmarks.users.checkpoints import (
    NOT_FINITE,
    NOT_ON_DISK,
    SOUND,
    WRONG,
    brought,
    loaded,
)
from spotlight.diffusion.checkpoint_names import find_checkpoint
from spotlight.diffusion.checkpoints import check_model, load_model
from spotlight.errors import CheckpointError
from spotlight.jobs import ModelSpec
from spotlight.preflight.checkpoint_facts import inspect_checkpoint
from spotlight_simulation.tiny_families import make_tiny_checkpoint


def checked(checkpoint: Path) -> str:
    """What is wrong with it, without loading it; nothing where it is sound."""
    spec = ModelSpec(checkpoint=str(checkpoint))
    try:
        inspect_checkpoint(spec)
        check_model(spec)
    except CheckpointError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("name", SOUND)
def test_what_is_sound_passes_and_is_loaded(tmp_path: Path, name: str) -> None:
    checkpoint = brought(tmp_path, SOUND[name])
    assert checked(checkpoint) == ""
    assert loaded(checkpoint) == ""


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_be_loaded_is_refused_in_a_line_that_names_it(
    tmp_path: Path, name: str
) -> None:
    change, words = WRONG[name]
    checkpoint = brought(tmp_path, change)
    said = checked(checkpoint)
    assert said.startswith("model.checkpoint: ") and all(word in said for word in words), said
    assert "\n" not in said and len(said) < 600
    assert loaded(checkpoint), "a worker loads what was refused"


@pytest.mark.parametrize("name", NOT_FINITE)
def test_what_is_not_finite_is_found_in_its_file(tmp_path: Path, name: str) -> None:
    change, words = NOT_FINITE[name]
    checkpoint = brought(tmp_path, change)
    assert checked(checkpoint) == "", "values are not in headers"
    said = loaded(checkpoint)
    assert all(word in said for word in words), said


@pytest.mark.parametrize("name", NOT_ON_DISK)
def test_a_name_of_the_hub_is_answered_with_how_a_job_writes_it(tmp_path: Path, name: str) -> None:
    for written in (name, str(tmp_path / name)):  # a job file's folder is put before it
        with pytest.raises(CheckpointError, match=f"write `{NOT_ON_DISK[name]}`"):
            find_checkpoint(written)


def test_a_folder_beside_others_is_not_taken_for_one_of_the_hub(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError) as caught:
        find_checkpoint(str(tmp_path / "flux"))
    assert "hf:" not in str(caught.value)


def test_a_text_encoder_may_be_saved_with_its_head(tmp_path: Path) -> None:
    """As that of Z-Image is, whose `model_index.json` names the encoder alone."""
    make_tiny_checkpoint("z-image", tmp_path)
    spec = ModelSpec(checkpoint=str(tmp_path))
    alone = load_model(spec, device="cpu").encode_prompts(["a cat"]).tensors["embeds"]
    encoder = Qwen3Model.from_pretrained(tmp_path / "text_encoder")
    encoder.config.tie_word_embeddings = True
    whole = Qwen3ForCausalLM(encoder.config)
    whole.model = encoder
    whole.tie_weights()
    whole.save_pretrained(tmp_path / "text_encoder")

    assert checked(tmp_path) == ""
    with_head = load_model(spec, device="cpu").encode_prompts(["a cat"]).tensors["embeds"]
    assert torch.equal(with_head, alone)
    config = json.loads((tmp_path / "text_encoder" / "config.json").read_text())
    assert config["architectures"] == ["Qwen3ForCausalLM"]
