"""Checks a scorer's answer. Imports no numpy."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from spotlight.errors import ScoringError
from spotlight.jobs import RewardSpec
from spotlight.text import LONGEST_ERROR, error_text, plain
from spotlight.types import Prompt


class AnyScorer(Protocol):
    """A scorer of any kind of images; see `spotlight.rewards.base.Scorer`."""

    def score(self, images: Any, prompts: Sequence[Prompt]) -> Sequence[float]:
        """Rewards, one per image."""
        ...


def score_with(
    scorer: AnyScorer, spec: RewardSpec, images: Any, prompts: Sequence[Prompt]
) -> tuple[float, ...]:
    """The rewards that a scorer gives, as plain numbers.

    Raises `ScoringError` naming the reward, whatever the scorer raises, when its answer is not one
    number within the declared range for each image, and when it compares the images of a prompt but
    these are not two or more of one: then nothing of it counts.
    """
    try:
        _require_group(spec, prompts)
        return _checked(scorer.score(images, prompts), spec, len(prompts))
    except ScoringError as error:
        raise ScoringError(f"reward `{spec.name}`: {plain(error, LONGEST_ERROR)}") from error
    except (Exception, SystemExit) as error:  # of foreign code, whatever it is: there is no reward
        raise ScoringError(f"reward `{spec.name}`: {error_text(error)}") from error


def _require_group(spec: RewardSpec, prompts: Sequence[Prompt]) -> None:
    if not spec.groupwise:
        return
    if len(prompts) < 2:
        raise ScoringError("it compares images of a prompt, and there is one only")
    if any(prompt != prompts[0] for prompt in prompts):
        raise ScoringError("it compares images of a prompt, and these are of several")


def _checked(answer: Any, spec: RewardSpec, images: int) -> tuple[float, ...]:
    if not isinstance(answer, Iterable):
        raise ScoringError(f"the scorer gave no list of numbers, but {type(answer).__name__}")
    given = list(answer)  # which may run code of the scorer's
    try:
        rewards = tuple(map(float, given))
    except (TypeError, ValueError) as error:  # nowhere in its code: there is nothing to trace
        raise ScoringError(f"the scorer gave no list of numbers ({plain(error)})") from None
    if len(rewards) != images:
        raise ScoringError(f"the scorer gave {len(rewards)} rewards for {images} images")
    problems = filter(None, map(spec.problem_with, rewards))
    if problem := next(problems, ""):
        raise ScoringError(f"{problem}; correct the scorer, or the reward's `range`")
    return rewards
