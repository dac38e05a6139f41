"""Text encoders with a cache: loaded when a prompt must be encoded, with the same bits either
way.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from spotlight.diffusion import checkpoints
from spotlight.diffusion.checkpoints import load_model
from spotlight.diffusion.embedding_cache import EmbeddingCache
from spotlight.diffusion.families.registry import FAMILIES
from spotlight.diffusion.samplers import resume, sample, start
from spotlight.errors import CheckpointError, JobError
from spotlight.jobs import ModelSpec
from spotlight.types import SamplingSettings

NAMES = [family.name for family in FAMILIES.values() if not family.image_processor]
PROMPTS = ["a cat", "two birds", "a cat"]
"""Some 180 tokens each: the tiny tokenizer merges nothing, not even the template."""

Checkpoints = Callable[[str], Path]


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Families whose text encoders were loaded."""
    load, found = checkpoints._load_encoders, []

    def counted(family: Any, *others: Any) -> Any:
        found.append(family.name)
        return load(family, *others)

    monkeypatch.setattr(checkpoints, "_load_encoders", counted)
    return found


@pytest.mark.parametrize("name", NAMES)
def test_the_second_worker_of_a_node_loads_no_text_encoder_and_has_the_same_bits(
    checkpoint_of: Checkpoints, name: str, tmp_path: Path, loads: list[str]
) -> None:
    spec = ModelSpec(checkpoint=str(checkpoint_of(name)))
    plain = load_model(spec, device="cpu").encode_prompts(PROMPTS).tensors
    loads.clear()
    first = load_model(spec, device="cpu", cache=EmbeddingCache(tmp_path))
    assert loads == []
    made = first.encode_prompts(PROMPTS).tensors
    assert loads == [name]
    second = load_model(spec, device="cpu", cache=EmbeddingCache(tmp_path))
    found = second.encode_prompts(PROMPTS[::-1]).tensors
    assert loads == [name]
    for key, tensor in plain.items():
        assert torch.equal(made[key], tensor)
        assert torch.equal(found[key], tensor.flip(0))


def test_another_text_encoder_at_the_same_place_is_told_apart(
    checkpoint_of: Checkpoints, tmp_path: Path, loads: list[str]
) -> None:
    folder = tmp_path / "checkpoint"
    shutil.copytree(checkpoint_of("flux"), folder)
    spec, cache = ModelSpec(checkpoint=str(folder)), EmbeddingCache(tmp_path / "embeddings")
    load_model(spec, device="cpu", cache=cache).encode_prompts(PROMPTS)
    (folder / "tokenizer" / "added.json").write_text("{}")
    load_model(spec, device="cpu", cache=cache).encode_prompts(PROMPTS)
    assert loads == ["flux", "flux"]


def test_a_text_encoder_that_is_cut_off_is_refused_before_any_prompt(
    checkpoint_of: Checkpoints, tmp_path: Path
) -> None:
    folder = tmp_path / "checkpoint"
    shutil.copytree(checkpoint_of("flux"), folder)
    weights = folder / "text_encoder" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-8])
    spec, cache = ModelSpec(checkpoint=str(folder)), EmbeddingCache(tmp_path / "embeddings")
    with pytest.raises(CheckpointError, match=r"text_encoder.*is cut off"):
        load_model(spec, device="cpu", cache=cache)


def settings(tokens: int | None) -> SamplingSettings:
    return SamplingSettings(
        kind="flow_sde",
        steps=4,
        height=32,
        width=64,
        guidance=2.0,
        window=(1, 2),
        micro_batch=4,
        text_tokens=tokens,
    )


@pytest.mark.parametrize("tokens", [192, 224, None])
def test_with_any_length_a_sample_is_the_same_in_other_company_and_order_and_after_a_commit(
    checkpoint_of: Checkpoints, tokens: int | None
) -> None:
    model = load_model(ModelSpec(checkpoint=str(checkpoint_of("qwen-image"))), device="cpu")
    chosen, prompts, seeds = settings(tokens), PROMPTS[:2], [1, 2]
    together = sample(model, prompts, seeds, chosen).latents
    assert torch.equal(sample(model, prompts[::-1], seeds[::-1], chosen).latents.flip(0), together)
    alone = start(model, prompts[1:], seeds[1:], chosen)
    alone.step()
    alone.step()
    resumed = resume(model, prompts[1:], seeds[1:], chosen, alone.progress())
    while not resumed.done:
        resumed.step()
    assert torch.equal(resumed.latents, together[1:])


def test_padding_is_hidden_from_the_transformer(checkpoint_of: Checkpoints) -> None:
    model = load_model(ModelSpec(checkpoint=str(checkpoint_of("qwen-image"))), device="cpu")
    short, long = (sample(model, PROMPTS, [1, 2, 3], settings(n)).latents for n in (224, None))
    assert model.encode_prompts(PROMPTS, 224).tensors["embeds"].shape[1] == 224
    torch.testing.assert_close(short, long, rtol=1e-4, atol=1e-5)


def test_a_prompt_that_is_longer_than_its_padding_is_refused(checkpoint_of: Checkpoints) -> None:
    model = load_model(ModelSpec(checkpoint=str(checkpoint_of("qwen-image"))), device="cpu")
    with pytest.raises(JobError, match=r"^sampler\.text_tokens: a prompt has .* padded to 64"):
        model.encode_prompts(["a cat"], 64)
