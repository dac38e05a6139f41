from __future__ import annotations

import weakref
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from spotlight.diffusion.geometry import Grid
from spotlight.diffusion.images import PixelCodec, to_uint8
from spotlight.errors import JobError, NotFinite


@pytest.mark.parametrize("colours", [1, 3])
def test_pixels_survive_packing(colours: int) -> None:
    images = torch.rand(2, colours, 16, 48) * 2 - 1
    codec = PixelCodec(4, colours)
    latents = codec.encode(images)
    assert latents.shape == (2, 48, 16 * colours)
    assert torch.equal(codec.decode(latents, Grid(1, 4, 12))[:, :, 0], images)


def test_tokens_go_row_by_row() -> None:
    images = torch.zeros(1, 1, 8, 8)
    images[:, :, :4, 4:] = 1
    assert PixelCodec(4, 1).encode(images).mean(2).tolist() == [[0, 1, 0, 0]]


def test_grey_images_get_three_equal_channels() -> None:
    pixels = to_uint8(torch.tensor([-2.0, -1.0, 0.0, 1.0, 3.0]).view(1, 1, 1, 1, 5))
    assert pixels.dtype == np.uint8
    assert pixels[0, 0, :, 0].tolist() == [0, 0, 128, 255, 255]
    assert np.array_equal(pixels[..., 0], pixels[..., 2])


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_an_image_that_is_not_finite_is_never_a_black_or_white_one(value: float) -> None:
    images = torch.zeros(3, 3, 1, 4, 4)
    images[2, 1, 0, 3, 0] = value
    with pytest.raises(NotFinite, match="1 of 3 decoded images") as odd:
        to_uint8(images)
    assert odd.value.rows == (2,)


@pytest.mark.parametrize(("height", "width", "field"), [(18, 48, "height"), (16, 50, "width")])
def test_a_size_that_does_not_fit_the_patches_is_refused_by_name(
    height: int, width: int, field: str
) -> None:
    with pytest.raises(JobError, match=rf"sampler\.{field}"):
        PixelCodec(4, 1).geometry.grid(height, width)


def test_a_sample_leaves_the_device_before_the_next_one_is_decoded() -> None:
    alive: weakref.WeakSet[torch.Tensor] = weakref.WeakSet()

    def decoded(count: int) -> Iterator[torch.Tensor]:
        for _ in range(count):
            assert len(alive) <= 1, "a group of videos has no room there at once"
            frames = torch.zeros(3, 2, 4, 4)
            alive.add(frames)
            yield frames
            del frames

    assert to_uint8(decoded(5)).shape == (5, 2, 4, 4, 3)
