import pytest
import torch
from diffusers import (
    FlowMatchEulerDiscreteScheduler,
    QwenImagePipeline,
    QwenImageTransformer2DModel,
)

from spotlight.diffusion.checkpoints import add_adapters
from spotlight.errors import CheckpointError
from spotlight.jobs import LoraSpec
from spotlight.training.export import export_transformer

from .qwen import bare_transformer, tiny_model


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


def trained(model) -> dict[str, torch.Tensor]:
    """Other weights than the model holds."""
    generator = torch.Generator().manual_seed(2)
    return {
        name: tensor + 0.1 * torch.randn(tensor.shape, generator=generator)
        for name, tensor in model.trainable_state().items()
    }


def test_a_full_export_loads_with_plain_diffusers(tmp_path):
    model = tiny_model()
    weights = trained(model)
    export_transformer(model, weights, tmp_path / "out" / "transformer")
    loaded = QwenImageTransformer2DModel.from_pretrained(tmp_path / "out" / "transformer").eval()
    assert loaded.state_dict().keys() == weights.keys()
    assert all(torch.equal(loaded.state_dict()[name], weights[name]) for name in weights)
    assert torch.equal(outputs(loaded), outputs(model.transformer))
    assert not torch.equal(outputs(loaded), outputs(bare_transformer()))


def test_an_adapter_export_is_loaded_whole_by_diffusers_own_pipeline(tmp_path):
    model = tiny_model()
    add_adapters(model.transformer, LoraSpec(rank=3, alpha=5))
    weights = trained(model)
    export_transformer(model, weights, tmp_path / "adapter")
    pipeline = QwenImagePipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(),
        vae=None,
        text_encoder=None,
        tokenizer=None,
        transformer=bare_transformer(),
    )

    pipeline.load_lora_weights(tmp_path / "adapter", adapter_name="default")

    assert pipeline.get_list_adapters() == {"transformer": ["default"]}
    loaded = dict(pipeline.transformer.named_parameters())
    assert {name for name in loaded if "lora_" in name} == weights.keys()
    assert all(torch.equal(loaded[name], weights[name]) for name in weights)
    assert torch.equal(outputs(pipeline.transformer), outputs(model.transformer))
    assert not torch.equal(outputs(pipeline.transformer), outputs(bare_transformer()))


@pytest.mark.parametrize(
    ("lora", "files"),
    [
        (False, {"config.json", "diffusion_pytorch_model.safetensors"}),
        (True, {"pytorch_lora_weights.safetensors"}),
    ],
)
def test_an_export_holds_no_pickle_and_leaves_nothing_else(tmp_path, lora, files):
    model = tiny_model(lora=lora)
    export_transformer(model, trained(model), tmp_path / "out")
    assert {path.name for path in (tmp_path / "out").iterdir()} == files
    assert list(tmp_path.iterdir()) == [tmp_path / "out"]


def test_a_folder_that_is_not_empty_is_left_alone(tmp_path):
    (tmp_path / "mine").write_text("keep")
    with pytest.raises(CheckpointError, match="new or an empty folder"):
        export_transformer(tiny_model(), tiny_model().trainable_state(), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
