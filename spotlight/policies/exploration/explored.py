"""The plan of an iteration's exploration, and its result."""

from __future__ import annotations

from dataclasses import dataclass

from spotlight.policies.exploration.choice_worth import ChoiceWorth
from spotlight.policies.exploration.reward_spread import Knowledge
from spotlight.types import Record


@dataclass(frozen=True)
class ExplorationPlan:
    """Explore the prompts of an iteration, for the time that training takes."""

    iteration: int
    prompts: tuple[str, ...]
    """One for each prompt group; those of a prompt pool are among them."""
    categories: tuple[str, ...]
    """The category of each prompt: those of one are about as hard."""
    window_s: float
    """How many seconds training is predicted to take; ignored when the budget is fixed."""
    knowledge: Knowledge
    """What earlier iterations taught of these prompts and of all categories."""
    share: float
    """Which share of all previews that are allowed are worth making."""
    least: int = 0
    """How many previews the choice waits for, whenever training ends; ignored when the budget is
    fixed, or kept seeds are finished."""


class Explored(Record, frozen=True, tag=True):
    """The seeds to train on for each prompt group; the journal keeps it."""

    iteration: int
    seeds: tuple[tuple[int, ...], ...]
    preview_rewards: tuple[tuple[float | None, ...], ...]
    """The preview reward of each chosen seed; None where exploration did not reach."""
    previews: int
    """How many previews counted."""
    late: int
    """How many previews came too late, or were of no use any more."""
    knowledge: Knowledge = Knowledge()
    """What is known now of the prompts and categories that were explored."""
    probe_seeds: tuple[tuple[int, ...], ...] = ()
    """The seeds to regenerate even if they are not chosen, per prompt group."""
    probe_rewards: tuple[tuple[float, ...], ...] = ()
    """The preview rewards of these seeds."""
    contrast_at_random: float = 0.0
    """The contrast that as many previewed seeds would have, had any been taken, of any prompts."""
    contrast_of_any: float | None = None
    """The same contrast as a root mean square over the groups, as that of samples is told, by the
    previews that no reward had a say in: the first ones of the first prompts, as many as are kept
    and trained on. None unless a group has two of these."""
    random_groups: int = 0
    """How many groups tell that."""
    reused: tuple[int, ...] = ()
    """The prompt groups whose samples are there, made with the weights of their previews: these are
    the samples themselves, or were finished."""
    finished: bool = False
    """Whether the samples are the chosen seeds, denoised in full, and not the previews, which had
    fewer steps."""
    later: tuple[int, ...] = ()
    """Those of them that the later updates train on: others of their previews may still be chosen
    while the first updates are taken. Empty where an iteration is trained in one part."""
    scale: tuple[float, ...] = ()
    """What each reward of a preview was multiplied with before they were summed; empty where
    nothing was previewed."""
    worth: ChoiceWorth = ChoiceWorth()
    """What the rewards of these previews tell of the worth of a choice."""
