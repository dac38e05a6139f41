from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from spotlight.diffusion.text import TokenTextEncoder, TokenVocabulary
from spotlight.errors import CheckpointError, JobError

VOCABULARY = TokenVocabulary(("the", "number"), '"0123456789', length=8, dim=24)


def encoder() -> TokenTextEncoder:
    return TokenTextEncoder.create(VOCABULARY, torch.Generator().manual_seed(0))


def test_words_are_one_token_and_everything_else_is_characters() -> None:
    the, number = 2 + 11, 2 + 12
    assert VOCABULARY.tokens('The number "907"') == [the, number, 2, 12, 3, 10, 2, 0]


def test_unknown_characters_share_one_token() -> None:
    assert VOCABULARY.tokens("ab ü") == [1, 1, 1, 0, 0, 0, 0, 0]


def test_a_prompt_that_is_too_long_is_refused_by_name() -> None:
    with pytest.raises(JobError, match=r"123456789.*at most 8"):
        VOCABULARY.tokens("123456789")


def test_every_prompt_has_the_same_length() -> None:
    for prompt in ("", '"1"', 'the number "1234"'):
        assert encoder().encode([prompt])[0]["embeds"].shape == (8, 24)


def test_the_same_digit_differs_by_position() -> None:
    embeds = encoder().encode(["11"])[0]["embeds"]
    assert not torch.equal(embeds[0], embeds[1])


def test_a_saved_encoder_encodes_the_same(tmp_path: Path) -> None:
    encoder().save(tmp_path)
    prompt = 'the number "4821"'
    assert torch.equal(
        TokenTextEncoder.load(tmp_path).encode([prompt])[0]["embeds"],
        encoder().encode([prompt])[0]["embeds"],
    )


def test_a_table_of_another_shape_is_refused_by_name(tmp_path: Path) -> None:
    encoder().save(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "length": 9}))
    with pytest.raises(CheckpointError, match=r"text_encoder\.positions"):
        TokenTextEncoder.load(tmp_path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=str(tmp_path)):
        TokenTextEncoder.load(tmp_path)
