"""Qwen-Image-Edit (2509 and later): Qwen-Image that is given an image and told how to change it.

The image is read twice, as its pipeline does: by the text encoder, at about 384 x 384 pixels, and
by the VAE, at about a megapixel whatever is drawn; its latents are tokens behind the noisy ones.
All images of a job have one size, so that all its requests have as many tokens.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from spotlight.condition_images import named
from spotlight.diffusion.activations import Activations, Pass
from spotlight.diffusion.families import qwen_tokens
from spotlight.diffusion.families.autoencoders import encode_qwen
from spotlight.diffusion.families.base import CheckpointFolder, Facts, ModelInput
from spotlight.diffusion.families.passes import forward
from spotlight.diffusion.families.prompts import read_qwen, refuse_too_long
from spotlight.diffusion.families.qwen_image import QwenImage, TransformerOfQwen
from spotlight.diffusion.families.qwen_tokens import Template
from spotlight.errors import JobError

if TYPE_CHECKING:
    from torch import Tensor

    from spotlight.diffusion.images import SourceImage

_PAD = "<|image_pad|>"


def _template(pads: int) -> str:
    """What diffusers' QwenImageEditPlusPipeline puts a prompt into, with an image of so many
    tokens.
    """
    return (
        "<|im_start|>system\nDescribe the key features of the input image (color, shape, size,"
        " texture, objects, background), then explain how the user's text instruction should alter"
        " or modify the image. Generate a new image that meets the user's requirements while"
        " maintaining consistency with the original input where appropriate.<|im_end|>\n"
        f"<|im_start|>user\nPicture 1: <|vision_start|>{_PAD * pads}<|vision_end|>{{}}<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


QWEN_EDIT = Template(_template(224), dropped=64, around=240, longest=1024)
"""An image has at most so many tokens; a square one has 196."""
_READ_AREA, _ENCODED_AREA = 384 * 384, 1024 * 1024
"""Pixels of the image for the text encoder, and for the VAE."""
_PACKED = 2


class QwenImageEdit(QwenImage):
    """See `Family`."""

    name = "qwen-image-edit"
    pipeline = "QwenImageEditPlusPipeline"
    image_processor = "Qwen2VLImageProcessorPil"
    in_pixel_space = False
    most_tokens = QWEN_EDIT.longest
    text_lengths = (320, 384, 512, QWEN_EDIT.longest)

    def inspect(self, folder: CheckpointFolder) -> Facts:
        """See `Family`."""
        facts = super().inspect(folder)
        geometry, width = facts.geometry, cast(TransformerOfQwen, facts.config).joint_attention_dim
        latents = _condition_tokens(geometry.pixels_per_token) * geometry.channels
        text = 2 * QWEN_EDIT.longest * width  # that of the negative prompt, too
        return replace(facts, conditioning=text + latents)

    def too_long(self, folder: Path, prompts: Sequence[str], most: int) -> dict[int, int]:
        """See `Family`; what the image takes is counted at its most."""
        texts = [named(prompt).text for prompt in prompts]
        return qwen_tokens.too_long(folder / "tokenizer", texts, most, QWEN_EDIT)

    def encode(self, parts: Mapping[str, Any], prompt: str) -> dict[str, Tensor]:
        """Raises `JobError`: there is nothing to be changed."""
        raise JobError("prompts", f"prompt {prompt!r} has no image, which this model is to change")

    def encode_with(
        self, parts: Mapping[str, Any], prompt: str, image: SourceImage
    ) -> dict[str, Tensor]:
        """The last hidden states of the filled template, image included, without the template's
        own leading tokens; and the latents of the image, [rows, columns, C].
        """
        processor = parts["processor"]
        seen = processor(images=[image.resized(*_scaled(image, _READ_AREA))], return_tensors="pt")
        pads = int(seen["image_grid_thw"].prod()) // processor.merge_size**2
        output = read_qwen(
            parts,
            _template(pads).format(prompt),
            pixel_values=seen["pixel_values"],
            image_grid_thw=seen["image_grid_thw"],
        )
        hidden = output.hidden_states[-1][0, QWEN_EDIT.dropped :].float()
        refuse_too_long(prompt, len(hidden), QWEN_EDIT.longest)
        return {"embeds": hidden, "image": _latents(parts["vae"], image)}

    def velocity(self, transformer: Any, given: ModelInput) -> Tensor:
        """See `Family`; the image's tokens are behind the noisy ones, and only these are drawn."""
        dtype, latents, grid = transformer.dtype, given.latents, given.grid
        image = given.text("image", dtype)
        behind = image.flatten(1, 2)
        tokens = behind.new_empty(len(latents), grid.tokens + behind.shape[1], behind.shape[2])
        tokens[:, : grid.tokens] = latents
        tokens[:, grid.tokens :] = behind
        shapes = [(1, grid.rows, grid.columns), (1, *image.shape[1:3])]
        velocity = forward(
            transformer,
            given,
            latents=tokens,
            timestep=given.rounded_sigmas(dtype),
            encoder_hidden_states_mask=given.conditioning["mask"],
            img_shapes=[shapes] * len(tokens),
        )
        return velocity[:, : grid.tokens]

    def activations(self, facts: Facts, step: Pass) -> Activations:
        """See `Family`."""
        tokens = step.tokens + _condition_tokens(facts.geometry.pixels_per_token)
        text = step.text_tokens or QWEN_EDIT.longest
        return super().activations(facts, replace(step, tokens=tokens, text_tokens=text))


def _condition_tokens(edge: int) -> int:
    """Of an image, about."""
    return _ENCODED_AREA // edge**2


def _scaled(image: SourceImage, area: int) -> tuple[int, int]:
    """Its width and height at about so many pixels, in multiples of 32."""
    ratio = image.width / image.height
    width = math.sqrt(area * ratio)
    return round(width / 32) * 32, round(width / ratio / 32) * 32


def _latents(vae: Any, image: SourceImage) -> Tensor:
    """Of an image, [rows, columns, C]."""
    edge = _PACKED * 2 ** len(vae.config.temperal_downsample)
    width, height = (pixels // edge * edge for pixels in _scaled(image, _ENCODED_AREA))
    latents = encode_qwen(vae, image.pixels(width, height))
    _, channels, _, rows, columns = latents.shape
    cut = latents.view(channels, rows // _PACKED, _PACKED, columns // _PACKED, _PACKED)
    return cut.permute(1, 3, 0, 2, 4).flatten(2).float()
