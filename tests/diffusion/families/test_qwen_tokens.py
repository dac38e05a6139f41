"""Counting the tokens of prompts as the text encoder of Qwen-Image does, checked against the
tokenizer that it loads.
"""

from __future__ import annotations

import json
import random
import re
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers
from transformers import AutoTokenizer

from spotlight.diffusion.families import qwen_tokens
from spotlight.diffusion.families.qwen_tokens import (
    QWEN_TEMPLATE,
    QWEN_TEMPLATE_TOKENS,
    QWEN_TEXT_LENGTH,
    too_long,
)
from spotlight.errors import CheckpointError, MissingDependency

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


def write_tokenizer(folder: Path) -> None:
    """A tokenizer in Qwen's files: single bytes, and the words of the template. So the template has
    as many tokens before and after the prompt as with Qwen's own vocabulary.
    """
    folder.mkdir()
    learner = Tokenizer(models.BPE())
    learner.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r" ?\p{L}+|[^\p{L}]"), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=1000,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    learner.train_from_iterator([re.sub(r"<.*?>", "\n", QWEN_TEMPLATE)], trainer)
    learner.model.save(str(folder))
    added = {
        str(learner.get_vocab_size() + n): {"content": text, "special": True, "normalized": False}
        for n, text in enumerate(SPECIAL)
    }
    config = {"tokenizer_class": "Qwen2Tokenizer", "added_tokens_decoder": added}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("checkpoint") / "tokenizer"
    write_tokenizer(path)
    return path


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Any:
    return AutoTokenizer.from_pretrained(folder, local_files_only=True)


def encoded(tokenizer: Any, prompt: str) -> int:
    """Tokens that the encoder is left with."""
    return len(tokenizer([QWEN_TEMPLATE.format(prompt)]).input_ids[0]) - QWEN_TEMPLATE_TOKENS


def test_the_template_is_as_long_as_with_the_vocabulary_of_qwen(tokenizer: Any) -> None:
    assert encoded(tokenizer, "") == 5


def test_a_prompt_is_as_long_as_its_tokenizer_says(folder: Path, tokenizer: Any) -> None:
    rng = random.Random(0)
    letters = "abc DEF 019 '\"(){}.,;\n\u00e9e\u0301\ufb01\u4e2d\u3042\U0001f600\u0344"
    prompts = [
        "".join(rng.choice(letters) for _ in range(rng.randint(80, 260))).strip()
        for _ in range(200)
    ] + ["the color of the image " * n + "size" for n in range(30, 60)]
    prompts += [f"<|im_start|>{'x' * 240}", "don't we'll I'm " * 20]
    counts = [encoded(tokenizer, prompt) for prompt in prompts]
    wanted = {n: count for n, count in enumerate(counts) if count > QWEN_TEXT_LENGTH}
    assert 20 < len(wanted) < len(prompts) - 20
    assert too_long(folder, prompts, QWEN_TEXT_LENGTH) == wanted


def test_a_tokenizer_in_one_file_counts_alike(folder: Path, tokenizer: Any, tmp_path: Path) -> None:
    tokenizer.save_pretrained(tmp_path)
    (tmp_path / "vocab.json").unlink(missing_ok=True)
    assert (tmp_path / "tokenizer.json").exists()
    prompts = ["x" * n for n in range(245, 260)]
    assert (
        too_long(tmp_path, prompts, QWEN_TEXT_LENGTH)
        == too_long(folder, prompts, QWEN_TEXT_LENGTH)
        != {}
    )


def test_the_longest_prompt_that_fits_is_let_through(folder: Path) -> None:
    most = QWEN_TEXT_LENGTH - 5
    prompts = ["x" * most, "x" * (most + 1), "\u00fc" * (most // 2)]
    assert too_long(folder, prompts, QWEN_TEXT_LENGTH) == {1: 257}


def test_tokens_are_counted_for_a_shorter_length_too(folder: Path) -> None:
    prompts = ["a cat", "x" * 59, "x" * 60, "x" * 200]
    assert too_long(folder, prompts, 64) == {2: 65, 3: 205}


def without_tokenizers(name: str) -> ModuleSpec | None:
    return None if name == "tokenizers" else find_spec(name)


def test_short_prompts_need_no_tokenizer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(qwen_tokens, "find_spec", without_tokenizers)
    assert too_long(tmp_path / "absent", ["a cat", "\u4e2d" * 80] * 100, QWEN_TEXT_LENGTH) == {}


def test_for_long_prompts_what_reads_the_tokenizer_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    monkeypatch.setattr(qwen_tokens, "find_spec", without_tokenizers)
    with pytest.raises(MissingDependency, match=r"^prompts: 1 are so long .* pip install token"):
        too_long(folder, ["a cat", "x" * 300], QWEN_TEXT_LENGTH)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("vocab.json", None),
        ("vocab.json", "[" * 100_000),
        ("vocab.json", "[]"),
        ("vocab.json", '{"secret": 1}'),
        ("merges.txt", None),
        ("merges.txt", "secret word\n"),
        ("merges.txt", "secret"),
        ("tokenizer_config.json", "{"),
        ("tokenizer.json", '{"secret": 1}'),
    ],
)
def test_a_tokenizer_that_cannot_be_read_is_named_and_not_quoted(
    tmp_path: Path, name: str, content: str | None
) -> None:
    write_tokenizer(tmp_path / "tokenizer")
    (tmp_path / "tokenizer" / name).unlink(missing_ok=True)
    if content is not None:
        (tmp_path / "tokenizer" / name).write_text(content)
    with pytest.raises(CheckpointError, match=r"^model\.checkpoint: .*tokenizer") as caught:
        too_long(tmp_path / "tokenizer", ["x" * 300], QWEN_TEXT_LENGTH)
    assert "secret" not in str(caught.value)
