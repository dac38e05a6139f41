"""Reads lists of prompts: a text a line, or a JSON object a line.

    {"prompt": "a red circle", "tag": "colors", "include": [...]}

`prompt` is the text; the other fields are whatever the job's scorers want to know of it. GenEval's
metadata (`geneval`) is one such format. Pure: no I/O.

Only `\\n`, `\\r\\n` and `\\r` end a line, as editors count them.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from spotlight.assets.other_formats import format_by_name, is_json_lines, other_format
from spotlight.errors import JobError
from spotlight.files import Lines, text_problem
from spotlight.types import Prompt

LARGEST_METADATA = 8192
"""Bytes of the further fields of a prompt: they travel with each of its requests."""
_HOW_TO_WRITE = (
    "such a list is not read: give a text with nothing but a prompt a line, or JSON lines such as"
    " {}"
)
"""What to do about a list of prompts in another format."""


def parse_prompts(text: str, source: str) -> Lines[Prompt]:
    """The prompts of either kind of list; `source` names the file. What begins as JSON lines is
    read as them, whatever the file is called. Raises as `parse_text` and `parse_jsonl`.
    """
    if source.endswith(".jsonl") or is_json_lines(text):
        return parse_jsonl(text, source)
    other = format_by_name(source)
    if other is not None:
        raise JobError("prompts", _advised(f"{source} {other}; {_HOW_TO_WRITE}"))
    return parse_text(text, source)


def parse_text(text: str, source: str) -> Lines[Prompt]:
    """The prompts in `text`, one a line, blank lines left out.

    Raises `JobError` naming a line that holds stray characters, or that shows that this is no such
    list.
    """
    texts = [line.strip() for line in re.split(r"\r\n|\r|\n", text)]
    numbers = [number for number, line in enumerate(texts, start=1) if line]
    found = Lines(source, [Prompt(line) for line in texts if line], numbers)
    for index, prompt in enumerate(found.items):
        problem = text_problem(prompt.text, allowed="\t")
        if problem is not None:
            raise _refusal(source, numbers[index], f"{problem}; remove it")
    other = other_format([prompt.text for prompt in found.items])
    if other is not None:
        index, what = other
        raise _refusal(source, numbers[index], f"{what}; {_HOW_TO_WRITE}")
    return found


def parse_jsonl(text: str, source: str) -> Lines[Prompt]:
    """The same of JSON objects with a `prompt`.

    Raises `JobError` naming the line and what is wrong with it. A prompt may occur again, with the
    same fields, or with another `image`.
    """
    decoder = msgspec.json.Decoder(dict[str, Any])
    lines: Lines[Prompt] = Lines(source, [], [])
    known: dict[tuple[str, str], Prompt] = {}
    for number, line in enumerate(re.split(r"\r\n|\r|\n", text), start=1):
        if not line.strip():
            continue
        try:
            prompt = _prompt(decoder.decode(line), len(line))
            image = str(prompt.metadata.get("image"))  # that is to be changed, if any is
            if known.setdefault((prompt.text, image), prompt) != prompt:
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
    problem = text_problem(text, allowed="\n\t")
    if problem is not None:
        raise ValueError(f"`prompt`: {problem}; remove it")
    prompt = Prompt(text, fields)
    if length > LARGEST_METADATA and len(metadata_json(prompt).encode()) > LARGEST_METADATA:
        raise ValueError(
            f"its further fields have more than {LARGEST_METADATA:,} bytes; shorten them"
        )
    return prompt


def _refusal(source: str, number: int, problem: str) -> JobError:
    return JobError("prompts", _advised(f"{source}, line {number}: {problem}"))


def _advised(problem: str) -> str:
    """With an example in the place of `{}`."""
    return problem.replace("{}", '`{"prompt": "a red circle"}`')
