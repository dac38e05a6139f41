"""Kinds of prompts that are about as hard as each other: what is known of some of them is a guess
for the others. Imports no numpy: the coordinator asks."""

from __future__ import annotations

from collections.abc import Iterable

from spotlight.assets import read_metadata
from spotlight.jobs import RewardSpec
from spotlight.rewards.geneval import by_prompt
from spotlight.rewards.quotes import quoted_text


def read_categories(reward: RewardSpec, prompts: Iterable[str]) -> dict[str, str]:
    """Of each prompt: GenEval's tag where its metadata is, else the length of the text that it asks
    for.

    Raises `JobError` when a file of metadata cannot be read.
    """
    metadata = by_prompt(one for name in reward.metadata for one in read_metadata(name))
    tags = {prompt: one.tag for prompt, one in metadata.items()}
    return {prompt: tags.get(prompt, f"{len(quoted_text(prompt))} letters") for prompt in prompts}
