"""A worker whose previews another model makes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import torch
from job_kit import request
from member_kit import one_thread

from spotlight.actors.worker.shared_model import SharedModel
from spotlight.actors.worker.torch_engine import TorchEngine
from spotlight.actors.worker.torch_model import TorchModel
from spotlight.actors.worker.worker_state import WorkerContext
from spotlight.diffusion.checkpoints import load_model
from spotlight.diffusion.samplers import sample
from spotlight.errors import JobError
from spotlight.jobs import LoraSpec, ModelSpec
from spotlight.types import Request, SamplingSettings
from spotlight_simulation.tiny_families import make_tiny_checkpoint

PREVIEW = SamplingSettings(
    kind="ode", steps=2, height=32, width=64, frames=5, micro_batch=2, preview_model=True
)
ROLLOUT = msgspec.structs.replace(PREVIEW, steps=3, preview_model=False)


@pytest.fixture(autouse=True)
def equal_bits() -> Iterator[None]:
    with one_thread():
        yield


@pytest.fixture(scope="module")
def specs(tmp_path_factory: pytest.TempPathFactory) -> tuple[ModelSpec, ModelSpec]:
    """The model that is trained, and the one for previews."""
    folder = tmp_path_factory.mktemp("checkpoints")
    for name in ("wan", "anyflow"):
        make_tiny_checkpoint(name, folder / name)
    wan = ModelSpec(checkpoint=str(folder / "wan"), tuning="lora", lora=LoraSpec(rank=2))
    return wan, ModelSpec(checkpoint=str(folder / "anyflow"))


@pytest.fixture
def model(specs: tuple[ModelSpec, ModelSpec]) -> TorchModel:
    engine = TorchEngine()
    model = engine.load(specs[0])
    engine.load_previewer(model, specs[1])
    return model


def requests(settings: SamplingSettings) -> list[Request]:
    return [msgspec.structs.replace(request(n), settings=settings) for n in range(2)]


def denoised(model: TorchModel, settings: SamplingSettings) -> torch.Tensor:
    denoising = model.begin(requests(settings), None)
    while not denoising.done:
        denoising.step()
    return denoising.result().latents


def alone(spec: ModelSpec, settings: SamplingSettings) -> torch.Tensor:
    """What a model draws that nothing else is beside."""
    these = requests(settings)
    prompts, seeds = [it.prompt for it in these], [it.seed for it in these]
    return sample(load_model(spec, device="cpu"), prompts, seeds, settings).latents


def test_a_preview_is_what_its_checkpoint_draws_and_a_sample_what_the_trained_one_draws(
    model: TorchModel, specs: tuple[ModelSpec, ModelSpec]
) -> None:
    trained, previewer = specs
    assert torch.equal(denoised(model, PREVIEW), alone(previewer, PREVIEW))
    assert torch.equal(denoised(model, ROLLOUT), alone(trained, ROLLOUT))


def test_trained_weights_change_samples_and_no_previews(model: TorchModel) -> None:
    preview, rollout = denoised(model, PREVIEW), denoised(model, ROLLOUT)
    weights = model.model.trainable_state()
    model.use({name: tensor + 0.1 for name, tensor in weights.items()})
    assert torch.equal(denoised(model, PREVIEW), preview)
    assert not torch.equal(denoised(model, ROLLOUT), rollout)


def test_nothing_of_the_model_for_previews_is_trained(model: TorchModel) -> None:
    assert model.previewer is not None
    assert not model.previewer.trainable_state()


def test_a_preview_of_a_model_that_is_not_loaded_is_refused(
    specs: tuple[ModelSpec, ModelSpec],
) -> None:
    with pytest.raises(JobError, match=r"^exploration\.preview_checkpoint: is not loaded"):
        TorchEngine().load(specs[0]).begin(requests(PREVIEW), None)


def test_a_worker_loads_it_once_and_lets_go_of_it_in_a_job_without(
    specs: tuple[ModelSpec, ModelSpec],
) -> None:
    shared = SharedModel(WorkerContext("w", 1, ""), TorchEngine())
    model = shared.load(specs[0])
    assert isinstance(model, TorchModel)
    shared.load_previewer(model, specs[1])
    first = model.previewer
    shared.load_previewer(model, specs[1])
    assert model.previewer is first is not None
    shared.load_previewer(model, None)
    assert model.previewer is None
    assert shared.loaded(specs[0]) is model


def test_a_new_model_comes_without_one(specs: tuple[ModelSpec, ModelSpec], tmp_path: Path) -> None:
    shared = SharedModel(WorkerContext("w", 1, ""), TorchEngine())
    shared.load_previewer(shared.load(specs[0]), specs[1])
    shared.load(msgspec.structs.replace(specs[0], negative_prompt="grey"))
    assert not shared.previews_by(specs[1])
