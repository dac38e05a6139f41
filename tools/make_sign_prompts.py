"""Make lists of prompts for signs with several words, in several lengths.

    python tools/make_sign_prompts.py --folder spotlight/assets/signs/prompts

The four digits of the tiny tasks leave a published model little to learn; signs with many words are
harder, and in several lengths some are neither solved nor hopeless. Both lists are JSON lines whose
`tag` is the number of words; no text is in both. The same seed makes the same lists.
"""

from __future__ import annotations

import argparse
import random
from pathlib import Path

import msgspec

WORDS = {
    "what": (
        "Bread", "Coffee", "Flowers", "Books", "Honey", "Cheese", "Bicycles", "Tickets", "Oranges",
        "Lemonade", "Pottery", "Candles", "Music", "Umbrellas", "Chocolate", "Furniture",
        "Breakfast", "Haircuts", "Sandwiches", "Newspapers",
    ),
    "how": (
        "Fresh", "Local", "Famous", "Handmade", "Cheap", "Organic", "Golden", "Little", "Royal",
        "Grandma's", "Wonderful", "Seasonal", "Homemade", "Italian", "Midnight", "Genuine",
    ),
    "where": ("Upstairs", "Outside", "Inside", "Downstairs", "Here", "Nearby", "Everywhere"),
    "when": (
        "Today", "Tomorrow", "Tonight", "Sunday", "Monday", "Friday", "Saturday", "Weekends",
        "January", "October",
    ),
    "number": ("2", "3", "5", "7", "12", "24", "30", "48", "60", "75", "99", "2026"),
    "and": ("and", "with", "or"),
    "from": ("from", "until", "after", "before"),
    "only": ("Only",),
    "gate": ("Gate", "Room", "Platform", "Floor"),
}  # fmt: skip
LENGTHS = (
    ("what",),
    ("how", "what"),
    ("how", "what", "when"),
    ("how", "what", "and", "how", "what"),
    ("how", "what", "and", "what", "where", "from", "when"),
    ("only", "number", "how", "what", "and", "how", "what", "gate", "number", "when"),
)
"""What the words of a sign are, from one word to ten."""
SCENES = (
    "a wooden sign in front of a shop that says {}",
    "a neon sign at night that says {}",
    "a chalkboard in a café with the words {}",
    "a poster on a brick wall that says {}",
    "a road sign in the mountains that says {}",
    "a paper banner across a village street that says {}",
    "a metal plate on an old door with the words {}",
    "a shop window with the painted words {}",
    "a cardboard sign held by a smiling woman that says {}",
    "a billboard beside a motorway that says {}",
)
TRAINED, VALIDATED = 80, 8
"""How many prompts there are of each length but the first, of which there are fewer; the first has
as many validated."""

Line = dict[str, str]
"""A prompt and its tag."""


def main() -> None:
    """Write both lists."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", required=True, type=Path)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    for name, lines in zip(("train", "validation"), sign_lists(options.seed), strict=True):
        text = "".join(msgspec.json.encode(line).decode() + "\n" for line in lines)
        (options.folder / f"{name}.jsonl").write_text(text, encoding="utf-8")


def sign_lists(seed: int) -> tuple[list[Line], list[Line]]:
    """To train on, in random order, and to validate on, from short to long."""
    rng = random.Random(seed)
    train: list[Line] = []
    validation: list[Line] = []
    for kinds in LENGTHS:
        texts = _texts(kinds, TRAINED + VALIDATED, rng)
        lines = [
            {
                "tag": f"{len(kinds)} word{'s' * (len(kinds) > 1)}",
                "prompt": rng.choice(SCENES).format(f'"{text}"'),
            }
            for text in texts
        ]
        validation += lines[:VALIDATED]
        train += lines[VALIDATED:]
    rng.shuffle(train)
    return train, validation


def _texts(kinds: tuple[str, ...], most: int, rng: random.Random) -> list[str]:
    """Different texts, at most so many: all of one word, if there are fewer."""
    if len(kinds) == 1:
        return rng.sample(WORDS[kinds[0]], len(WORDS[kinds[0]]))
    found: dict[str, None] = {}
    while len(found) < most:
        words = [rng.choice(WORDS[kind]) for kind in kinds]
        if len({word for word in words if len(word) > 2}) == sum(len(word) > 2 for word in words):
            found[" ".join(words)] = None
    return list(found)


if __name__ == "__main__":
    main()
