"""What a scorer may answer. Imports no numpy."""

from __future__ import annotations

from typing import Any

from spotlight.errors import ScoringError
from spotlight.jobs import RewardSpec


def checked_rewards(spec: RewardSpec, answer: Any, images: int) -> tuple[float, ...]:
    """What a scorer answered for so many images, as plain numbers.

    Raises `ScoringError` when it is not one number within the declared range for each image: then
    the scorer has failed, and nothing of its answer counts.
    """
    try:
        rewards = [float(each) for each in answer]
    except (TypeError, ValueError) as error:
        raise ScoringError(
            f"reward `{spec.name}`: the scorer gave {type(answer).__name__}, not a list of numbers"
        ) from error
    if len(rewards) != images:
        raise ScoringError(
            f"reward `{spec.name}`: the scorer gave {len(rewards)} rewards for {images} images"
        )
    for reward in rewards:
        problem = spec.problem_with(reward)
        if problem:
            raise ScoringError(
                f"reward `{spec.name}`: {problem}; correct the scorer, or the reward's `range`"
            )
    return tuple(rewards)
