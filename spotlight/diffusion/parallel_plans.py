"""Where each family of transformers is cut into shards, and where the shards come together again.

The cuts are diffusers' own context-parallel plans, so that they fit the forward pass of the
installed version, or those of the family where diffusers has none. What such plans do not say is
which tokens an attention module sees: that every family says of itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from diffusers.models._modeling_parallel import ContextParallelInput, ContextParallelOutput
from torch import nn

from spotlight.diffusion.families.base import Family
from spotlight.diffusion.families.registry import FAMILIES, of_transformer
from spotlight.errors import CannotShard

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
    """The sequences whose shards make up the queries, keys and values of a module. A module with
    none has whole keys on every member, so it needs no exchange."""
    joined: Mapping[str, tuple[str, ...]]
    """These sequences lie one behind the other in an input."""
    image: str
    """The sequence that the gathered outputs are made of."""
    leading: str | None
    """The sequence that stands whole before every part of one that is cut."""
    heads: int
    """The number of its attention heads."""


def plan_of(transformer: Any) -> ParallelPlan:
    """The plan of the transformer's family; raises `CannotShard` for a family that is not known."""
    kind: Any = type(transformer)
    families = of_transformer(kind.__name__)
    if not families:
        known = sorted({family.transformer for family in FAMILIES.values()})
        raise CannotShard(
            f"model: {kind.__name__} cannot be denoised by several members together; use a degree"
            f" of 1, or one of {', '.join(known)}"
        )
    family = families[0]  # those of one transformer are cut in one way
    cuts = kind._cp_plan if family.cuts is None else _own_cuts(family)
    splits = {pattern: cut for pattern, cut in cuts.items() if isinstance(cut, dict)}
    return ParallelPlan(
        inputs={pattern: _keyed_by(str, cut) for pattern, cut in splits.items()},
        outputs={pattern: _keyed_by(int, cut) for pattern, cut in splits.items()},
        gathers={
            pattern: cut for pattern, cut in cuts.items() if isinstance(cut, ContextParallelOutput)
        },
        attention=family.attention,
        joined=family.joined,
        image=family.image,
        leading=family.leading,
        heads=transformer.config[family.heads],
    )


def _own_cuts(family: Family) -> dict[str, Any]:
    """Those that the family names, as diffusers writes them."""
    cuts: dict[str, Any] = {
        pattern: {where: ContextParallelInput(split_dim=dim) for where, dim in places.items()}
        for pattern, places in (family.cuts or {}).items()
    }
    for pattern, dim in family.gathers.items():
        cuts[pattern] = ContextParallelOutput(gather_dim=dim)
    return cuts


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
