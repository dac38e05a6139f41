"""Adapters on a transformer whose frozen weights are quantised."""

from __future__ import annotations

import copy
from pathlib import Path

import msgspec
import pytest
import torch

from spotlight.diffusion.checkpoints import load_model, untrained_state
from spotlight.diffusion.finite import first_not_finite
from spotlight.diffusion.model import DiffusionModel
from spotlight.errors import CheckpointError, JobError, MissingDependency
from spotlight.jobs import LoraSpec, ModelSpec
from spotlight.preflight.checkpoint_facts import inspect_checkpoint
from spotlight.preflight.memory import transformer_bytes
from spotlight.training.trainer import Trainer
from spotlight.types import Quantize
from spotlight_simulation.tiny_families import make_tiny_checkpoint
from tests.training.fakes import NFT, SAMPLER, make_batch, same_bits

FAMILIES = ("qwen-image", "sd3", "flux", "wan", "wan-a14b")
SIZE = {"height": 32, "width": 32}


def spec_of(folder: Path, kind: Quantize = "fp8") -> ModelSpec:
    lora = LoraSpec(rank=4, alpha=8)
    return ModelSpec(checkpoint=str(folder), tuning="lora", lora=lora, quantize=kind)


@pytest.fixture
def torchao() -> None:
    pytest.importorskip("torchao", reason="fp8 needs torchao")


@pytest.fixture(params=FAMILIES)
def checkpoint(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    make_tiny_checkpoint(request.param, tmp_path / "base")
    return tmp_path / "base"


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    make_tiny_checkpoint("sd3", tmp_path / "base")
    return tmp_path / "base"


def velocity(model: DiffusionModel) -> torch.Tensor:
    noise = torch.Generator().manual_seed(2)
    latents = torch.randn(4, *model.latent_shape(**SIZE), generator=noise)
    prompts = model.encode_prompts(["a cat", "a dog"] * 2)
    return model.velocity(latents, torch.tensor([0.9, 0.7, 0.4, 0.1]), prompts, **SIZE)


def held(model: DiffusionModel) -> int:
    """Bytes of the transformer's weights without adapters."""
    total = 0
    for name, weight in model.transformer.state_dict().items():
        if ".lora_" not in name:
            inside = getattr(weight, "__tensor_flatten__", None)
            parts = [getattr(weight, name) for name in inside()[0]] if inside else [weight]
            total += sum(part.nbytes for part in parts)
    return total


@pytest.mark.usefixtures("torchao")
def test_a_quantised_transformer_computes_about_what_it_does_in_full(checkpoint: Path) -> None:
    whole = velocity(load_model(spec_of(checkpoint, "none"), device="cpu"))
    found = velocity(load_model(spec_of(checkpoint), device="cpu"))
    off = (found - whole).square().mean().sqrt() / whole.square().mean().sqrt()
    assert 1e-3 < off < 0.1
    assert torch.equal(found, velocity(load_model(spec_of(checkpoint), device="cpu")))


@pytest.mark.usefixtures("torchao")
def test_the_plan_counts_the_bytes_of_quantised_weights(checkpoint: Path) -> None:
    info = inspect_checkpoint(spec_of(checkpoint))
    counted = transformer_bytes("fp8", info, 4)
    found = held(load_model(spec_of(checkpoint), device="cpu"))
    # Of Wan some small matrices are not quantised, which are a tenth of a tiny one.
    assert found == pytest.approx(counted, rel=0.15 if "wan" in info.family.name else 0.02)
    assert found < held(load_model(spec_of(checkpoint, "none"), device="cpu")) / 2


@pytest.mark.usefixtures("torchao")
def test_only_adapters_are_trained_beside_quantised_weights(tiny: Path) -> None:
    model = load_model(spec_of(tiny), device="cpu")
    sampler = msgspec.structs.replace(SAMPLER, **SIZE)
    batch = make_batch(copy.copy(model), sampler, count=8)
    began = {name: tensor.clone() for name, tensor in model.trainable_state().items()}
    assert all(".lora_" in name for name in began)
    trainer = Trainer(model, NFT, sampler, seed=0)
    trainer.train(0, batch)
    assert first_not_finite(trainer.state_dict()) is None
    assert any(not torch.equal(model.trainable_state()[name], it) for name, it in began.items())


@pytest.mark.usefixtures("torchao")
def test_adapters_begin_alike_on_quantised_weights_and_on_others(tiny: Path) -> None:
    states = [
        load_model(spec_of(tiny), device="cpu").trainable_state(),
        load_model(spec_of(tiny, "none"), device="cpu").trainable_state(),
        untrained_state(spec_of(tiny, "nf4"), torch.device("cpu")),
    ]
    assert same_bits(states[0], states[1]) and same_bits(states[1], states[2])


@pytest.mark.usefixtures("torchao")
def test_a_value_that_is_no_number_is_found_before_it_is_quantised_away(tiny: Path) -> None:
    from safetensors.torch import load_file, save_file

    file = tiny / "transformer" / "diffusion_pytorch_model.safetensors"
    tensors = load_file(file)
    name = next(name for name, it in tensors.items() if it.dim() == 2 and "attn.to_q" in name)
    tensors[name][0, 0] = float("nan")
    save_file(tensors, file)
    with pytest.raises(CheckpointError, match=f"holds values in `{name}` that are NaN"):
        load_model(spec_of(tiny), device="cpu")


def test_nf4_is_refused_on_a_cpu_before_anything_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_tiny_checkpoint("sd3", tmp_path / "base")
    monkeypatch.setattr("spotlight.diffusion.quantisation.find_spec", lambda _: object())
    with pytest.raises(JobError, match="must be `fp8` on a CPU: `nf4` needs a GPU"):
        load_model(spec_of(tmp_path / "base", "nf4"), device="cpu")


@pytest.mark.parametrize(("kind", "package"), [("fp8", "torchao"), ("nf4", "bitsandbytes")])
def test_a_missing_library_is_named(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, kind: Quantize, package: str
) -> None:
    monkeypatch.setattr("spotlight.diffusion.quantisation.find_spec", lambda _: None)
    with pytest.raises(MissingDependency, match=rf"`model\.quantize: {kind}` needs {package}; pip"):
        load_model(spec_of(tiny, kind), device="cpu")
