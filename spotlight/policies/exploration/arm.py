"""What the bandit has of a prompt group: an arm, of which a pull is one candidate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from spotlight.policies.exploration.prompt_population import Population
from spotlight.policies.exploration.reward_scales import combined
from spotlight.policies.exploration.reward_spread import Evidence


@dataclass
class Arm:
    """The prompt group, and what became of its candidates."""

    prompt: str
    category: str
    issued: int = 0
    """How many candidates were handed out."""
    awaited: set[int] = field(default_factory=set)
    """The seeds of those that have no score yet."""
    forgotten: set[int] = field(default_factory=set)
    """The seeds of those that will have none."""
    rewards: dict[int, tuple[float, ...]] = field(default_factory=dict)
    """The rewards by seed, as recorded."""
    values: list[float] = field(default_factory=list)
    """The rewards of each candidate as one number, ascending."""
    evidence: Evidence = field(default_factory=Evidence)
    """What the `values` tell of the prompt."""
    told: Population = field(default_factory=Population)
    """What they told of all prompts of its category."""
    contrast: float = 0.0
    """The contrast of the best of them."""
    again: float = 0.0
    """What one more candidate would add, if its reward were any of the `values` again."""
    parameter: float = 0.0
    """The parameter that is expected by what is believed of the prompt."""


def values_of(arm: Arm, scale: Sequence[float]) -> list[float]:
    """The rewards of an arm, each as one number, ascending."""
    return sorted(combined(rewards, scale) for rewards in arm.rewards.values())
