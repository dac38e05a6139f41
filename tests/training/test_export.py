"""What a job exports is what it validates: loaded by others, it computes the very same."""

import shutil
from pathlib import Path

import pytest
import torch
from diffusers import (
    FlowMatchEulerDiscreteScheduler,
    QwenImagePipeline,
    QwenImageTransformer2DModel,
    SD3Transformer2DModel,
)
from peft import PeftModel
from safetensors.torch import load_file, save_file

from spotlight.diffusion.checkpoints import add_adapters, load_model
from spotlight.diffusion.families.qwen_image import QwenImage
from spotlight.errors import CheckpointError
from spotlight.jobs import LoraSpec, ModelSpec
from spotlight.training.checkpoints import save_checkpoint
from spotlight.training.export import export_checkpoint
from spotlight_simulation.tiny_families import make_tiny_checkpoint

from .qwen import bare_transformer, tiny_model

LORA = LoraSpec(rank=3, alpha=6)


def outputs(transformer) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        return transformer(
            hidden_states=torch.randn(4, 16, 48, generator=generator),
            timestep=torch.linspace(0.2, 1, 4),
            encoder_hidden_states=torch.randn(4, 6, 24, generator=generator),
            encoder_hidden_states_mask=None,
            img_shapes=[[(1, 4, 4)]] * 4,
            return_dict=False,
        )[0]


class Trained:
    """A job's model after some training, and its checkpoint."""

    def __init__(self, folder: Path, *, lora: bool = False) -> None:
        self.base = folder / "base"
        bare_transformer().save_pretrained(self.base / "transformer")
        (self.base / "model_index.json").write_text(
            '{"transformer": ["diffusers", "QwenImageTransformer2DModel"]}'
        )
        tuning = "lora" if lora else "full"
        self.spec = ModelSpec(checkpoint=str(self.base), tuning=tuning, lora=LORA)
        self.model = tiny_model()
        if lora:
            add_adapters(self.model.transformer, LORA, QwenImage.lora_targets)
        self.ema, self.newest = self._weights(2), self._weights(3)
        self.checkpoint = folder / "checkpoint.safetensors"
        roles = {"ema": self.ema, "weights": self.newest, "adam_mean": self._weights(4)}
        tensors = {
            f"{role}/{name}": it for role, named in roles.items() for name, it in named.items()
        }
        save_checkpoint(self.checkpoint, tensors, {})

    def _weights(self, seed: int) -> dict[str, torch.Tensor]:
        generator = torch.Generator().manual_seed(seed)
        return {
            name: tensor + 0.1 * torch.randn(tensor.shape, generator=generator)
            for name, tensor in self.model.trainable_state().items()
        }

    def export(self, folder: Path, **options) -> Path:
        export_checkpoint(self.spec, self.checkpoint, folder, **options)
        return folder

    def validated(self) -> torch.Tensor:
        """What the model computes with the averaged weights, as validation has it."""
        self.model.load_trainable_state(self.ema)
        return outputs(self.model.transformer)


def pipeline(transformer) -> QwenImagePipeline:
    return QwenImagePipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(),
        vae=None,
        text_encoder=None,
        tokenizer=None,
        transformer=transformer,
    )


def test_a_full_export_computes_in_plain_diffusers_what_was_validated(tmp_path):
    trained = Trained(tmp_path)
    folder = trained.export(tmp_path / "out" / "transformer")
    loaded = QwenImageTransformer2DModel.from_pretrained(folder).eval()
    assert torch.equal(outputs(loaded), trained.validated())
    assert not torch.equal(outputs(loaded), outputs(bare_transformer()))


def test_the_newest_weights_are_exported_when_asked_for(tmp_path):
    trained = Trained(tmp_path)
    folder = trained.export(tmp_path / "out", role="weights")
    loaded = QwenImageTransformer2DModel.from_pretrained(folder).state_dict()
    assert loaded.keys() == trained.newest.keys()
    assert all(torch.equal(loaded[name], trained.newest[name]) for name in loaded)


def test_whole_weights_are_the_average_itself_though_the_jobs_checkpoint_is_coarser(tmp_path):
    trained = Trained(tmp_path)
    file = "diffusion_pytorch_model.safetensors"
    base = trained.base / "transformer" / file
    save_file({name: it.bfloat16() for name, it in load_file(base).items()}, base)
    written = load_file(trained.export(tmp_path / "out") / file)
    assert written.keys() == trained.ema.keys()
    assert all(torch.equal(written[name], trained.ema[name]) for name in written)


@pytest.mark.parametrize("options", [{}, {"adapter_name": "default"}], ids=["unnamed", "named"])
def test_adapters_compute_in_diffusers_own_pipeline_what_was_validated(tmp_path, options):
    trained = Trained(tmp_path, lora=True)
    loaded = pipeline(bare_transformer())

    loaded.load_lora_weights(trained.export(tmp_path / "adapter"), **options)

    parameters = {name: it for name, it in loaded.transformer.named_parameters() if "lora_" in name}
    assert len(parameters) == len(trained.ema) > 0
    assert torch.equal(outputs(loaded.transformer), trained.validated())
    assert not torch.equal(outputs(loaded.transformer), outputs(bare_transformer()))


def test_adapters_compute_with_peft_what_was_validated(tmp_path):
    trained = Trained(tmp_path, lora=True)
    folder = trained.export(tmp_path / "adapter", format="peft")

    loaded = PeftModel.from_pretrained(bare_transformer(), folder).eval()

    assert torch.equal(outputs(loaded), trained.validated())
    assert not torch.equal(outputs(loaded), outputs(bare_transformer()))


@pytest.mark.parametrize(
    ("lora", "format", "files"),
    [
        (False, "diffusers", {"config.json", "diffusion_pytorch_model.safetensors"}),
        (True, "diffusers", {"pytorch_lora_weights.safetensors"}),
        (True, "peft", {"adapter_config.json", "adapter_model.safetensors"}),
    ],
)
def test_an_export_holds_no_pickle_and_leaves_nothing_else(tmp_path, lora, format, files):
    trained = Trained(tmp_path, lora=lora)
    folder = trained.export(tmp_path / "out" / "here", format=format)
    assert {path.name for path in folder.iterdir()} == files
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["here"]


def test_what_is_not_trained_comes_from_the_copy_of_the_weights_that_the_job_loads(tmp_path):
    base, checkpoint = tmp_path / "base", tmp_path / "checkpoint.safetensors"
    make_tiny_checkpoint("sd3", base)
    usual = base / "transformer" / "diffusion_pytorch_model.safetensors"
    half = {name: it.half() for name, it in load_file(usual).items()}
    save_file(half, usual.with_name("diffusion_pytorch_model.fp16.safetensors"))
    usual.unlink()
    spec = ModelSpec(checkpoint=str(base))
    trained = load_model(spec, device="cpu").trainable_state()
    save_checkpoint(checkpoint, {f"ema/{name}": it for name, it in trained.items()}, {})

    export_checkpoint(spec, checkpoint, tmp_path / "out")

    loaded = SD3Transformer2DModel.from_pretrained(tmp_path / "out").state_dict()
    assert loaded.keys() == half.keys() > trained.keys()
    assert all(torch.equal(loaded[name], it.float()) for name, it in half.items())


def test_a_folder_that_is_not_empty_is_left_alone_unless_it_is_to_be_replaced(tmp_path):
    trained = Trained(tmp_path)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("keep")
    with pytest.raises(CheckpointError, match="new or an empty folder"):
        trained.export(tmp_path / "out")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["mine"]
    trained.export(tmp_path / "out", replace=True)
    assert (tmp_path / "out" / "config.json").exists()
    assert not (tmp_path / "out" / "mine").exists()


@pytest.mark.parametrize("format", ["peft", "comfyui"])
def test_whole_weights_are_no_adapters(tmp_path, format):
    with pytest.raises(CheckpointError, match=f"`{format}` takes only adapters"):
        Trained(tmp_path).export(tmp_path / "out", format=format)


def test_weights_of_another_model_are_refused_and_nothing_is_left(tmp_path):
    trained = Trained(tmp_path)
    other = trained.model.trainable_state()
    other.popitem()
    save_checkpoint(trained.checkpoint, {f"ema/{name}": it for name, it in other.items()}, {})
    with pytest.raises(CheckpointError, match="is not the model that was trained"):
        trained.export(tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_damaged_checkpoint_is_named(tmp_path):
    trained = Trained(tmp_path)
    trained.checkpoint.write_bytes(trained.checkpoint.read_bytes()[:1000])
    with pytest.raises(
        CheckpointError, match=r"checkpoint\.safetensors: not a complete checkpoint"
    ):
        trained.export(tmp_path / "out")


@pytest.mark.parametrize("lora", [False, True], ids=["all-weights", "adapters"])
def test_a_pipeline_is_a_checkpoint_that_computes_what_was_validated(tmp_path, lora):
    trained = Trained(tmp_path, lora=lora)
    (trained.base / "scheduler").mkdir()
    (trained.base / "scheduler" / "scheduler_config.json").write_text("{}")
    index = '{"transformer": ["diffusers", "QwenImageTransformer2DModel"], "scheduler": ["", ""]}'
    (trained.base / "model_index.json").write_text(index)

    folder = trained.export(tmp_path / "out", format="pipeline")

    assert (folder / "model_index.json").read_text() == index
    assert (folder / "scheduler" / "scheduler_config.json").read_text() == "{}"
    loaded = QwenImageTransformer2DModel.from_pretrained(folder / "transformer").eval()
    torch.testing.assert_close(outputs(loaded), trained.validated(), rtol=0, atol=1e-5 * lora)
    assert not torch.allclose(outputs(loaded), outputs(bare_transformer()), atol=1e-3)


def test_a_pipeline_outlives_the_checkpoint_that_it_shares_files_with(tmp_path):
    make_tiny_checkpoint("sd3", tmp_path / "base")
    spec = ModelSpec(checkpoint=str(tmp_path / "base"))
    model = load_model(spec, device="cpu")
    state = {f"ema/{name}": it + 1 for name, it in model.trainable_state().items()}
    save_checkpoint(tmp_path / "checkpoint.safetensors", state, {})
    export_checkpoint(
        spec, tmp_path / "checkpoint.safetensors", tmp_path / "out", format="pipeline"
    )
    shutil.rmtree(tmp_path / "base")

    loaded = load_model(ModelSpec(checkpoint=str(tmp_path / "out")), device="cpu")

    for name, tensor in loaded.trainable_state().items():
        assert torch.equal(tensor, state[f"ema/{name}"]), name
