import pytest
import torch
from diffusers import QwenImageTransformer2DModel
from peft import PeftModel

from spotlight.errors import CheckpointError
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


def train_a_little(model) -> None:
    generator = torch.Generator().manual_seed(2)
    changed = {
        name: tensor + 0.1 * torch.randn(tensor.shape, generator=generator)
        for name, tensor in model.trainable_state().items()
    }
    model.load_trainable_state(changed)


def test_a_full_export_loads_with_plain_diffusers(tmp_path):
    model = tiny_model()
    train_a_little(model)
    export_transformer(model, tmp_path / "out" / "transformer")
    loaded = QwenImageTransformer2DModel.from_pretrained(tmp_path / "out" / "transformer").eval()
    assert torch.equal(outputs(loaded), outputs(model.transformer))
    assert not torch.equal(outputs(loaded), outputs(bare_transformer()))


def test_an_adapter_export_loads_with_plain_peft(tmp_path):
    model = tiny_model(lora=True)
    train_a_little(model)
    export_transformer(model, tmp_path / "adapter")
    loaded = PeftModel.from_pretrained(bare_transformer(), tmp_path / "adapter").eval()
    torch.testing.assert_close(outputs(loaded), outputs(model.transformer), rtol=0, atol=1e-6)
    assert not torch.equal(outputs(loaded), outputs(bare_transformer()))
    assert not model.transformer.peft_config["default"].inference_mode


@pytest.mark.parametrize("lora", [False, True])
def test_an_export_holds_no_pickle(tmp_path, lora):
    export_transformer(tiny_model(lora=lora), tmp_path / "out")
    assert {path.suffix for path in (tmp_path / "out").iterdir()} == {".json", ".safetensors"}
    assert list(tmp_path.iterdir()) == [tmp_path / "out"]


def test_a_folder_that_is_not_empty_is_left_alone(tmp_path):
    (tmp_path / "mine").write_text("keep")
    with pytest.raises(CheckpointError, match="new or an empty folder"):
        export_transformer(tiny_model(), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
