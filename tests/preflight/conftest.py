"""A tiny checkpoint, and jobs on it, for the tests of what is checked before a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from preflight_kit import SHAPES, TRANSFORMER, MakeJob, write_safetensors, write_text_encoder

from spotlight.jobs import JobSpec, job_from_data


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A tiny pixel-space checkpoint in diffusers layout."""
    folder = tmp_path / "checkpoint"
    for part in ("transformer", "scheduler", "text_encoder"):
        (folder / part).mkdir(parents=True)
    index = {
        "_class_name": "QwenImagePipeline",
        "scheduler": ["diffusers", "FlowMatchEulerDiscreteScheduler"],
        "text_encoder": ["spotlight", "TokenTextEncoder"],
        "tokenizer": [None, None],
        "transformer": ["diffusers", "QwenImageTransformer2DModel"],
        "vae": [None, None],
    }
    (folder / "model_index.json").write_text(json.dumps(index))
    (folder / "transformer" / "config.json").write_text(json.dumps(TRANSFORMER))
    write_text_encoder(folder / "text_encoder")
    write_safetensors(folder / "transformer" / "diffusion_pytorch_model.safetensors", SHAPES)
    return folder


@pytest.fixture
def make_job(checkpoint: Path, tmp_path: Path) -> MakeJob:
    """Builds jobs on the tiny checkpoint with ten training and two validation prompts."""
    train, validation = tmp_path / "train.txt", tmp_path / "validation.txt"
    train.write_text("".join(f'the number "{i}"\n' for i in range(10)))
    validation.write_text('the number "10"\nthe number "11"\n')

    def make(**changes: Any) -> JobSpec:
        data: dict[str, Any] = {
            "name": "job",
            "model": {"checkpoint": str(checkpoint)},
            "prompts": {"train": str(train), "validation": str(validation)},
            "sampler": {"height": 32, "width": 64},
        }
        return job_from_data({**data, **changes})

    return make
