"""How the transformers of several families are called."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from spotlight.diffusion.families.base import ModelInput

if TYPE_CHECKING:
    from torch import Tensor


def forward(
    transformer: Any, given: ModelInput, *, latents: Tensor | None = None, **others: Any
) -> Tensor:
    """What a transformer of diffusers gives of latents and text, both in its dtype, and of `others`
    that it takes. `latents` are those of the sample unless it sees them in another way.
    """
    dtype = transformer.dtype
    output: Tensor = transformer(
        hidden_states=(given.latents if latents is None else latents).to(dtype),
        encoder_hidden_states=given.text("embeds", dtype),
        return_dict=False,
        **others,
    )[0]
    return output


def places(given: ModelInput, axes: int) -> Tensor:
    """Of each image token (0, row, column, 0, ...), float32 [T, axes]."""
    grid = given.grid
    found = given.latents.new_zeros(grid.rows, grid.columns, axes)
    found[..., 1] = found.new_tensor(range(grid.rows))[:, None]
    found[..., 2] = found.new_tensor(range(grid.columns))
    return found.flatten(0, 1)
