"""Reads lists of prompts: a text a line, or a JSON object a line.

    {"prompt": "a red circle", "tag": "colors", "include": [...]}

`prompt` is the text; the other fields are whatever the job's scorers want to know of it. GenEval's
metadata (`geneval`) is one such format. Pure: no I/O.
"""

from __future__ import annotations

from typing import Any

import msgspec

from spotlight.errors import JobError
from spotlight.files import Lines
from spotlight.types import Prompt

LARGEST_METADATA = 8192
"""Bytes of the further fields of a prompt: they travel with each of its requests."""


def parse_text(text: str, source: str) -> Lines[Prompt]:
    """The prompts in `text`, one a line, blank lines left out; `source` names the file."""
    texts = [line.strip() for line in text.splitlines()]
    numbers = [number for number, line in enumerate(texts, start=1) if line]
    return Lines(source, [Prompt(line) for line in texts if line], numbers)


def parse_jsonl(text: str, source: str) -> Lines[Prompt]:
    """The same of JSON objects with a `prompt`.

    Raises `JobError` naming the line and what is wrong with it. A prompt may occur again, with the
    same fields.
    """
    decoder = msgspec.json.Decoder(dict[str, Any])
    lines: Lines[Prompt] = Lines(source, [], [])
    known: dict[str, Prompt] = {}
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            prompt = _prompt(decoder.decode(line), len(line))
            if known.setdefault(prompt.text, prompt) != prompt:
                raise ValueError("its prompt occurred before with other fields; keep one of them")
        except msgspec.ValidationError as error:
            raise _refusal(source, number, "must be an object, such as {}") from error
        except RecursionError as error:
            raise _refusal(source, number, "is nested too deep") from error
        except msgspec.DecodeError as error:
            raise _refusal(source, number, f"is not JSON ({error}); write {{}}") from error
        except ValueError as error:
            raise _refusal(source, number, str(error)) from error
        lines.items.append(prompt)
        lines.numbers.append(number)
    return lines


def metadata_json(prompt: Prompt) -> str:
    """What a request carries of a prompt's metadata; empty for none."""
    return msgspec.json.encode(prompt.metadata).decode() if prompt.metadata else ""


def _prompt(fields: dict[str, Any], length: int) -> Prompt:
    text = fields.pop("prompt", None)
    if not isinstance(text, str):
        raise ValueError("`prompt` is missing or not text; write {}")
    if not text.strip():
        raise ValueError("`prompt`: must not be empty")
    if text != text.strip():
        raise ValueError("`prompt`: must not begin or end with a space")
    prompt = Prompt(text, fields)
    if length > LARGEST_METADATA and len(metadata_json(prompt).encode()) > LARGEST_METADATA:
        raise ValueError(
            f"its further fields have more than {LARGEST_METADATA:,} bytes; shorten them"
        )
    return prompt


def _refusal(source: str, number: int, problem: str) -> JobError:
    example = '`{"prompt": "a red circle"}`'
    return JobError("prompts", f"{source}, line {number}: {problem.replace('{}', example)}")
