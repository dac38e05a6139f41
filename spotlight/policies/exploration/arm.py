"""What the bandit has of a prompt group: an arm, of which a pull is one candidate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from spotlight.policies.exploration.prompt_population import Population
from spotlight.policies.exploration.reward_scales import combined
from spotlight.policies.exploration.reward_spread import Evidence


@dataclass
class Arm:
    """One of them."""

    prompt: str
    category: str
    cost: float
    issued: int = 0
    awaited: set[int] = field(default_factory=set)
    forgotten: set[int] = field(default_factory=set)
    rewards: dict[int, tuple[float, ...]] = field(default_factory=dict)
    """By seed, as recorded."""
    values: list[float] = field(default_factory=list)
    """The same, each as one number, ascending."""
    evidence: Evidence = field(default_factory=Evidence)
    told: Population = field(default_factory=Population)
    contrast: float = 0.0
    again: float = 0.0
    """What one more candidate would add, if its reward were any of the `values` again."""
    parameter: float = 0.0
    """The one that is expected by what is believed of the prompt."""


def values_of(arm: Arm, scale: Sequence[float]) -> list[float]:
    """The rewards of an arm, each as one number, ascending."""
    return sorted(combined(rewards, scale) for rewards in arm.rewards.values())
