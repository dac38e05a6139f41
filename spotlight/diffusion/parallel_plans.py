"""Where each family of transformers is cut into shards, and where the shards come together again.

The cuts are diffusers' own context-parallel plans, so that they fit the forward pass of the
installed version; Stable Diffusion 3, which has none, gets one here. What those plans do not say is
which tokens an attention module sees: that is written down here for every one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from diffusers import (
    FluxTransformer2DModel,
    QwenImageTransformer2DModel,
    SD3Transformer2DModel,
    WanTransformer3DModel,
)
from diffusers.models._modeling_parallel import ContextParallelInput, ContextParallelOutput
from torch import nn

from spotlight.errors import CannotShard

IMAGE, TEXT = "hidden_states", "encoder_hidden_states"
"""The token sequences, named as the transformers name them."""
JOINT = (IMAGE, TEXT)

Key = TypeVar("Key", str, int)


@dataclass(frozen=True)
class ParallelPlan:
    """Modules by pattern; "" is the transformer itself, "*" a number."""

    inputs: Mapping[str, Mapping[str, ContextParallelInput]]
    """Which arguments of a module are cut, by name, and where."""
    outputs: Mapping[str, Mapping[int, ContextParallelInput]]
    """Which outputs of a module are cut, by index, and where."""
    gathers: Mapping[str, ContextParallelOutput]
    """Modules whose output, made of image tokens, becomes whole again."""
    attention: Mapping[str, tuple[str, ...]]
    """Of which sequences the shards make up the queries, keys and values of a module. None at all:
    its keys are whole on every member, so it needs no exchange.
    """


_SD3_CUTS = {
    "transformer_blocks.0": {
        IMAGE: ContextParallelInput(split_dim=1, expected_dims=3),
        TEXT: ContextParallelInput(split_dim=1, expected_dims=3),
    },
    "proj_out": ContextParallelOutput(gather_dim=1, expected_dims=3),
}

_ATTENTION: dict[type, dict[str, tuple[str, ...]]] = {
    QwenImageTransformer2DModel: {"transformer_blocks.*.attn": JOINT},
    FluxTransformer2DModel: {
        "transformer_blocks.*.attn": JOINT,
        "single_transformer_blocks.*.attn": JOINT,
    },
    SD3Transformer2DModel: {
        "transformer_blocks.*.attn": JOINT,
        "transformer_blocks.*.attn2": (IMAGE,),
    },
    WanTransformer3DModel: {"blocks.*.attn1": (IMAGE,), "blocks.*.attn2": ()},
}


def plan_of(transformer: nn.Module) -> ParallelPlan:
    """The plan of the transformer's family; raises `CannotShard` for a family that is not known."""
    family: Any = type(transformer)
    if family not in _ATTENTION:
        known = ", ".join(known.__name__ for known in _ATTENTION)
        raise CannotShard(
            f"model: {family.__name__} cannot be denoised by several members together; use a degree"
            f" of 1, or one of {known}"
        )
    cuts = _SD3_CUTS if family is SD3Transformer2DModel else family._cp_plan
    splits = {pattern: cut for pattern, cut in cuts.items() if isinstance(cut, dict)}
    return ParallelPlan(
        inputs={pattern: _keyed_by(str, cut) for pattern, cut in splits.items()},
        outputs={pattern: _keyed_by(int, cut) for pattern, cut in splits.items()},
        gathers={
            pattern: cut for pattern, cut in cuts.items() if isinstance(cut, ContextParallelOutput)
        },
        attention=_ATTENTION[family],
    )


def matching(transformer: nn.Module, pattern: str) -> Iterator[nn.Module]:
    """The modules whose names match a pattern of a `ParallelPlan`, in the model's order."""
    expression = re.compile(re.escape(pattern).replace(r"\*", r"\d+"))
    for name, module in transformer.named_modules():
        if expression.fullmatch(name):
            yield module


def _keyed_by(
    kind: type[Key], cuts: Mapping[Any, ContextParallelInput]
) -> dict[Key, ContextParallelInput]:
    return {key: cut for key, cut in cuts.items() if isinstance(key, kind)}
