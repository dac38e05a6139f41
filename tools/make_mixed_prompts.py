"""Make the prompt lists of mixed difficulty, from solved to hopeless, of the tiny tasks.

    python tools/make_mixed_prompts.py --folder spotlight/assets

The lists that the checkpoints were made with ask for things that are about as hard; GenEval's do
not, and neither do most people's. Both lists are JSON lines with a `tag`, the category of a prompt.
"""

from __future__ import annotations

import argparse
import itertools
import random
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
from shape_scenes import all_prompts, both_counted

from spotlight.assets import read_prompts
from spotlight.assets.geneval import PromptMetadata

Line = dict[str, Any]
"""A prompt with its metadata."""

_OCR = {  # tag: prompts to train on, others to validate on
    "one_digit": (8, 2),
    "two_digits": (48, 6),
    "three_digits": (48, 6),
    "four_digits": (96, 10),  # of the checkpoint's own lists
    "word_and_digits": (40, 4),
    "words": (16, 4),
}
_DIGITS = {"one_digit": 1, "two_digits": 2, "three_digits": 3}
_WORDS = ("the", "number")
"""The model knows these, but has never drawn a letter."""

_COMPOSITIONAL = {"colors": 10, "counting": 30, "color_attr": 40, "position": 68, "too_many": 40}
"""Prompts to train on."""
_TOO_MANY_VALIDATED = 8


def main() -> None:
    """Write both lists of both tasks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", required=True, type=Path, help="of the checkpoints")
    folder = parser.parse_args().folder
    _write(folder / "ocr-tiny", *ocr_lists(folder / "ocr-tiny"))
    _write(folder / "compositional-tiny", *compositional_lists(folder / "compositional-tiny"))


def ocr_lists(folder: Path) -> tuple[list[Line], list[Line]]:
    """To train on, and to validate on. What has four digits is of the checkpoint's own lists, so
    that nothing is trained on that was held back when it was made."""
    train: list[Line] = []
    validation: list[Line] = []
    for tag, (trained, validated) in _OCR.items():
        if tag == "four_digits":
            old = read_prompts(folder / "prompts" / "train.txt")[:trained]
            new = read_prompts(folder / "prompts" / "validation.txt")[:validated]
        else:
            texts = [f'the number "{text}"' for text in _texts(tag)]
            drawn = random.Random(tag).sample(texts, trained + validated)
            old, new = drawn[:trained], drawn[trained:]
        train += [{"tag": tag, "prompt": text} for text in old]
        validation += [{"tag": tag, "prompt": text} for text in new]
    return _shuffled(train), validation


def _texts(tag: str) -> Iterator[str]:
    """All of this kind. A prompt has eight tokens: two words, the quotes, and four more."""
    if tag in _DIGITS:
        yield from map("".join, itertools.product("0123456789", repeat=_DIGITS[tag]))
    elif tag == "word_and_digits":
        for word, digits in itertools.product(_WORDS, range(1000)):
            yield from (f"{word} {digits:03d}", f"{digits:03d} {word}")
    else:
        for count in (1, 2, 3, 4):
            yield from map(" ".join, itertools.product(_WORDS, repeat=count))


def compositional_lists(folder: Path) -> tuple[list[Line], list[Line]]:
    """The same; the first four kinds are those of the checkpoint's own lists, too."""
    own = {name: _read(folder / "prompts" / f"{name}.jsonl") for name in ("train", "validation")}
    too_many = [msgspec.to_builtins(each) for each in _too_many()]
    random.Random("too_many").shuffle(too_many)
    train: list[Line] = []
    for tag, count in _COMPOSITIONAL.items():
        same = [line for line in own["train"] if line["tag"] == tag] or too_many
        train += same[:count]
    first = _COMPOSITIONAL["too_many"]
    return _shuffled(train), own["validation"] + too_many[first : first + _TOO_MANY_VALIDATED]


def _too_many() -> Iterable[PromptMetadata]:
    """More shapes than there are places for."""
    for pair in (each for each in all_prompts() if each.tag == "color_attr"):
        for counts in ((4, 3), (3, 4), (4, 4)):
            yield both_counted(pair, counts)


def _shuffled(lines: Sequence[Line]) -> list[Line]:
    return random.Random(0).sample(lines, len(lines))


def _read(path: Path) -> list[Line]:
    return [msgspec.json.decode(line) for line in path.read_text().splitlines()]


def _write(folder: Path, train: Sequence[Line], validation: Sequence[Line]) -> None:
    for name, lines in (("mixed-train", train), ("mixed-validation", validation)):
        text = "".join(msgspec.json.encode(line).decode() + "\n" for line in lines)
        (folder / "prompts" / f"{name}.jsonl").write_text(text)


if __name__ == "__main__":
    main()
