"""Which prompts a `TokenTextEncoder` can read; it says so without torch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotlight.diffusion.vocabulary import TokenVocabulary
from spotlight.errors import JobError

VOCABULARY = TokenVocabulary(("the", "number"), '"0123456789', length=8, dim=24)


@given(st.lists(st.text(alphabet='the number"019\u0130\u00fc\u3000', max_size=20), max_size=20))
def test_a_prompt_is_too_long_when_it_cannot_be_turned_into_tokens(prompts: list[str]) -> None:
    found = VOCABULARY.too_long(prompts)
    for index, prompt in enumerate(prompts):
        if index in found:
            with pytest.raises(JobError, match=f"has {found[index]} tokens"):
                VOCABULARY.tokens(prompt)
        else:
            VOCABULARY.tokens(prompt)


def test_the_prompts_that_are_too_long_are_told_by_their_places() -> None:
    assert VOCABULARY.too_long(["12345678", "123456789", 'the "12"', "abcdefghij"]) == {1: 9, 3: 10}


def test_neither_it_nor_the_tokens_of_qwen_import_torch() -> None:
    code = (
        "import sys, spotlight.diffusion.vocabulary, spotlight.diffusion.families.qwen_tokens;"
        "sys.exit(any(name in sys.modules for name in ('torch', 'numpy', 'transformers')))"
    )
    root = Path(__file__).resolve().parent.parent.parent
    subprocess.run([sys.executable, "-c", code], check=True, timeout=30, cwd=root)
