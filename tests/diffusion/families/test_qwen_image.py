"""The Qwen-Image model against diffusers' own pipeline, with tiny random components."""

from __future__ import annotations

import pytest
import torch
from diffusers import (
    AutoencoderKLQwenImage,
    FlowMatchEulerDiscreteScheduler,
    QwenImagePipeline,
    QwenImageTransformer2DModel,
)

from spotlight.diffusion import flow_model
from spotlight.diffusion.checkpoints import load_model
from spotlight.diffusion.families.qwen_tokens import QWEN_TEMPLATE
from spotlight.diffusion.flow_model import FlowModel
from spotlight.diffusion.model import DiffusionModel
from spotlight.diffusion.noise import initial_noise
from spotlight.diffusion.samplers import sample
from spotlight.errors import CheckpointError
from spotlight.jobs import ModelSpec
from spotlight.types import SamplingSettings
from tests.diffusion.tiny_models import tiny_model

PROMPTS = ["a cat", 'a sign that says "open"']
SIZE = 32


def tiny_tokenizer() -> object:
    """A byte-level tokenizer without merges, padded to the 34 template tokens that the pipeline
    drops.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {character: index for index, character in enumerate(alphabet)}
    vocabulary["<|endoftext|>"] = len(vocabulary)
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<|endoftext|>")


def tiny_qwen_text_model() -> torch.nn.Module:
    from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

    torch.manual_seed(0)
    config = Qwen2_5_VLConfig(
        text_config={
            "hidden_size": 16,
            "intermediate_size": 16,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "num_key_value_heads": 2,
            "rope_scaling": {"mrope_section": [1, 1, 2], "rope_type": "default", "type": "default"},
            "rope_theta": 1000000.0,
            "vocab_size": 300,
        },
        vision_config={
            "depth": 1,
            "hidden_size": 16,
            "intermediate_size": 16,
            "num_heads": 2,
            "out_hidden_size": 16,
        },
        vocab_size=300,
    )
    return Qwen2_5_VLForConditionalGeneration(config).eval()


def tiny_pipeline() -> QwenImagePipeline:
    torch.manual_seed(0)
    vae = AutoencoderKLQwenImage(
        base_dim=12,
        z_dim=4,
        dim_mult=[1, 2, 4],
        num_res_blocks=1,
        temperal_downsample=[False, True],
        latents_mean=[0.1, -0.2, 0.3, 0.0],
        latents_std=[1.0, 2.0, 0.5, 1.5],
    )
    transformer = QwenImageTransformer2DModel(
        patch_size=2,
        in_channels=16,
        out_channels=4,
        num_layers=2,
        attention_head_dim=16,
        num_attention_heads=3,
        joint_attention_dim=16,
        axes_dims_rope=(8, 4, 4),
    )
    scheduler = FlowMatchEulerDiscreteScheduler(
        use_dynamic_shifting=True, base_shift=0.5, max_shift=0.9, max_image_seq_len=8192
    )
    pipeline = QwenImagePipeline(
        scheduler, vae.eval(), tiny_qwen_text_model(), tiny_tokenizer(), transformer.eval()
    )
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


@pytest.fixture(scope="module")
def pipeline() -> QwenImagePipeline:
    return tiny_pipeline()


@pytest.fixture(scope="module")
def checkpoint(pipeline: QwenImagePipeline, tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("checkpoint")
    pipeline.save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def real(checkpoint: str) -> DiffusionModel:
    return load_model(ModelSpec(checkpoint=checkpoint), device="cpu")


def test_prompts_are_encoded_as_by_the_pipeline(
    pipeline: QwenImagePipeline, real: DiffusionModel
) -> None:
    embeds, mask = pipeline.encode_prompt(PROMPTS, device="cpu")
    own = real.encode_prompts(PROMPTS).tensors
    length = embeds.shape[1]
    assert torch.equal(own["mask"][:, :length], mask.bool())
    assert not own["mask"][:, length:].any()
    torch.testing.assert_close(own["embeds"][:, :length], embeds, rtol=1e-4, atol=1e-5)


def test_the_template_is_the_pipelines(pipeline: QwenImagePipeline) -> None:
    assert pipeline.prompt_template_encode == QWEN_TEMPLATE


@pytest.mark.parametrize("guidance", [1.0, 4.0])
def test_images_are_those_of_the_pipeline(
    pipeline: QwenImagePipeline, real: DiffusionModel, guidance: float
) -> None:
    settings = SamplingSettings(
        kind="ode", steps=3, height=SIZE, width=SIZE, guidance=guidance, micro_batch=4
    )
    seeds = [1, 2]
    noise = initial_noise(seeds, real.latent_shape(SIZE, SIZE))
    options = {"negative_prompt": [" ", " "]} if guidance > 1 else {}
    common = {
        "prompt": PROMPTS,
        "true_cfg_scale": guidance,
        "height": SIZE,
        "width": SIZE,
        "num_inference_steps": 3,
        **options,
    }
    expected = pipeline(latents=noise.clone(), output_type="latent", **common).images
    images = pipeline(latents=noise.clone(), output_type="np", **common).images
    latents = sample(real, PROMPTS, seeds, settings).latents
    torch.testing.assert_close(latents, expected, rtol=1e-3, atol=1e-4)
    decoded = real.decode(latents, SIZE, SIZE).astype(float)
    assert abs(decoded - images * 255).max() <= 1


def test_guidance_pushes_away_from_the_jobs_negative_prompt_as_in_the_pipeline(
    pipeline: QwenImagePipeline, checkpoint: str, real: DiffusionModel
) -> None:
    spec = ModelSpec(checkpoint=checkpoint, negative_prompt="a grey picture")
    settings = SamplingSettings(
        kind="ode", steps=3, height=SIZE, width=SIZE, guidance=4.0, micro_batch=4
    )
    noise = initial_noise([1, 2], real.latent_shape(SIZE, SIZE))
    expected = pipeline(
        latents=noise.clone(),
        output_type="latent",
        prompt=PROMPTS,
        negative_prompt=[spec.negative_prompt] * 2,
        true_cfg_scale=4.0,
        height=SIZE,
        width=SIZE,
        num_inference_steps=3,
    ).images
    latents = sample(load_model(spec, device="cpu"), PROMPTS, [1, 2], settings).latents
    torch.testing.assert_close(latents, expected, rtol=1e-3, atol=1e-4)
    assert not torch.allclose(latents, sample(real, PROMPTS, [1, 2], settings).latents, atol=1e-3)


def test_sigmas_depend_on_the_number_of_tokens_as_in_the_pipeline(real: DiffusionModel) -> None:
    small, large = real.sigmas(4, 32, 32, None), real.sigmas(4, 256, 256, None)
    assert torch.all(large[1:-1] > small[1:-1])


def test_a_prompt_is_encoded_alone_so_its_bits_never_depend_on_others(real: DiffusionModel) -> None:
    together, alone = real.encode_prompts(PROMPTS), real.encode_prompts(PROMPTS[:1])
    assert torch.equal(together.tensors["embeds"][:1], alone.tensors["embeds"])


def test_the_prompts_used_last_are_encoded_once_and_the_others_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(flow_model, "CACHED_PROMPTS", 2)
    model, encoded = tiny_model(), []
    encode = model._text_encoder.encode

    def counting(prompts: list[str]) -> list[dict[str, torch.Tensor]]:
        encoded.extend(prompts)
        return encode(prompts)

    monkeypatch.setattr(model._text_encoder, "encode", counting)
    for prompt in ("1", "2", "1", "3", "1", "2"):
        model.encode_prompts([prompt])
    assert encoded == ["1", "2", "3", "2"]
    more_than_are_kept = model.encode_prompts(["1", "2", "3", "4"])
    assert len(more_than_are_kept) == 4
    assert len(model._encoded) == 2


def test_guidance_keeps_the_norm_of_every_token(model: FlowModel) -> None:
    latents, embeddings = initial_noise([1, 2], (48, 16)), model.encode_prompts(['"12"', '"34"'])
    sigmas = torch.tensor([0.5, 0.9])
    plain, guided = (
        model.velocity(latents, sigmas, embeddings, height=16, width=48, guidance=guidance)
        for guidance in (1.0, 3.0)
    )
    assert not torch.allclose(plain, guided)
    torch.testing.assert_close(plain.norm(dim=-1), guided.norm(dim=-1))


def test_velocities_are_differentiable(model: FlowModel) -> None:
    embeddings = model.encode_prompts(['"12"'])
    velocity = model.velocity(
        initial_noise([1], (48, 16)), torch.tensor([0.5]), embeddings, height=16, width=48
    )
    velocity.square().mean().backward()
    assert model.transformer.proj_out.weight.grad.abs().sum() > 0
    model.transformer.zero_grad()


def test_embeddings_can_be_selected_and_repeated(model: FlowModel) -> None:
    embeddings = model.encode_prompts(['"12"', '"34"'])
    picked = embeddings.select([1, 1, 0])
    assert len(picked) == 3
    assert torch.equal(picked.tensors["embeds"], embeddings.tensors["embeds"][[1, 1, 0]])


def test_trainable_state_can_be_loaded_back() -> None:
    model, other = tiny_model(), tiny_model()
    changed = {name: tensor + 1 for name, tensor in model.trainable_state().items()}
    other.load_trainable_state(changed)
    assert all(torch.equal(other.trainable_state()[name], changed[name]) for name in changed)


def test_weights_with_other_names_or_shapes_are_refused_by_name(model: FlowModel) -> None:
    state = dict(model.trainable_state())
    with pytest.raises(CheckpointError, match=r"proj_out\.extra"):
        model.load_trainable_state({**state, "proj_out.extra": torch.zeros(1)})
    with pytest.raises(CheckpointError, match=r"proj_out\.bias"):
        model.load_trainable_state({**state, "proj_out.bias": torch.zeros(3)})
