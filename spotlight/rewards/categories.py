"""Categories of prompts that are about equally hard: what is known of some prompts is an estimate
for the others. Imports no numpy: the coordinator asks."""

from __future__ import annotations

from collections.abc import Iterable

from spotlight.rewards.quotes import quoted_text
from spotlight.types import Prompt


def categories(prompts: Iterable[Prompt]) -> dict[str, str]:
    """Of each prompt, by its text: the `tag` of its metadata, as GenEval's has one, else the length
    of the text that it asks for.
    """
    return {prompt.text: _category(prompt) for prompt in prompts}


def _category(prompt: Prompt) -> str:
    tag = prompt.metadata.get("tag")
    return tag if isinstance(tag, str) else f"{len(quoted_text(prompt.text))} letters"
