from __future__ import annotations

import pytest
import torch

from spotlight.diffusion.geometry import Geometry, Grid, pack, unpack
from spotlight.errors import JobError

VIDEO = Geometry(2, 16, 64, frames_per_token=4, longest_edge=8)


def test_latents_survive_packing() -> None:
    latents = torch.rand(2, 3, 4, 6, 8)
    packed = pack(latents, 2)
    assert packed.shape == (2, 4 * 3 * 4, 3 * 4)
    assert torch.equal(unpack(packed, Grid(4, 3, 4), 2), latents)


def test_tokens_go_frame_by_frame_and_row_by_row() -> None:
    latents = torch.zeros(1, 1, 2, 4, 4)
    latents[:, :, 1, :2, 2:] = 1
    assert pack(latents, 2).mean(2).tolist() == [[0, 0, 0, 0, 0, 1, 0, 0]]


def test_the_first_frame_is_a_latent_frame_by_itself() -> None:
    assert [VIDEO.grid(32, 48, frames).frames for frames in (1, 5, 29)] == [1, 2, 8]
    assert VIDEO.grid(32, 48, 5).tokens == 2 * 2 * 3


@pytest.mark.parametrize(
    ("size", "problem"),
    [
        ((40, 48, 5), r"^sampler\.height: 40 pixels .* use 32 or 48"),
        ((32, 8, 5), r"^sampler\.width: 8 pixels .* use 16"),
        ((32, 144, 5), r"^sampler\.width: 144 pixels are more .* at most 128"),
        ((32, 48, 4), r"^sampler\.frames: 4 frames .* use 1 or 5"),
        ((32, 48, 33), r"^sampler\.frames: 33 frames are more .* at most 29"),
    ],
)
def test_a_size_that_does_not_fit_is_refused_by_field(
    size: tuple[int, int, int], problem: str
) -> None:
    with pytest.raises(JobError, match=problem):
        VIDEO.grid(*size)
