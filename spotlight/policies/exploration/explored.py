"""The plan of an iteration's exploration, and its result."""

from __future__ import annotations

from dataclasses import dataclass

from spotlight.policies.exploration.choice_worth import ChoiceWorth
from spotlight.policies.exploration.reward_spread import Knowledge
from spotlight.types import Record


@dataclass(frozen=True)
class ExplorationPlan:
    """Explore the prompts of an iteration with the weights that members hold, for the time that
    training takes.
    """

    iteration: int
    weights_version: int
    prompts: tuple[str, ...]
    categories: tuple[str, ...]
    """Of the prompts: those of one category are about as hard."""
    window_s: float
    """Predicted training time; ignored when the budget is fixed."""
    knowledge: Knowledge
    """What earlier iterations taught of these prompts and of all categories."""
    share: float
    """Of the previews that the job allows."""


class Explored(Record, frozen=True, tag=True):
    """The seeds to train on for each prompt group; the journal keeps it."""

    iteration: int
    seeds: tuple[tuple[int, ...], ...]
    preview_rewards: tuple[tuple[float | None, ...], ...]
    """Preview reward of each chosen seed; None where exploration did not reach."""
    previews: int
    late: int
    knowledge: Knowledge = Knowledge()
    """What is known now of the prompts and categories that were explored."""
    probe_seeds: tuple[tuple[int, ...], ...] = ()
    """Seeds to regenerate even if they are not chosen, per prompt group, and their preview
    rewards."""
    probe_rewards: tuple[tuple[float, ...], ...] = ()
    contrast_at_random: float = 0.0
    """That as many previewed seeds would have, had any been taken, of any prompts."""
    contrast_of_any: float | None = None
    """The same as a root mean square over the groups, as the contrast of samples is told; None
    unless a group has two previews."""
    reused: tuple[int, ...] = ()
    """Prompt groups whose previews are the samples, as they are: they were made with the weights of
    the iteration before."""
    later: tuple[int, ...] = ()
    """Of these, the ones that the later updates train on: others of their previews may still be
    chosen while the first updates are taken. Empty where an iteration is trained in one part."""
    scale: tuple[float, ...] = ()
    """What each reward of a preview was multiplied with before they were summed; empty where
    nothing was previewed."""
    worth: ChoiceWorth = ChoiceWorth()
    """What the rewards of these previews tell of the worth of a choice."""
