"""Kinds of prompts that are about as hard as each other: what is known of some of them is a guess
for the others. Imports no numpy: the coordinator asks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from spotlight.assets.geneval import PromptMetadata
from spotlight.rewards.quotes import quoted_text


def categories(prompts: Iterable[str], metadata: Mapping[str, PromptMetadata]) -> dict[str, str]:
    """Of each prompt: GenEval's tag where its metadata is, else the length of the text that it asks
    for.
    """
    return {
        prompt: metadata[prompt].tag
        if prompt in metadata
        else f"{len(quoted_text(prompt))} letters"
        for prompt in prompts
    }
