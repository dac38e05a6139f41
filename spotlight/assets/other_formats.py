"""Recognises a list of prompts that is written for another reader, as a table, YAML or a numbered
list, so that none of its marks is trained on. Pure: no I/O.

Only what hardly anybody would mean as a prompt is refused; and whatever is refused here can be said
in JSON lines, which leave nothing to guess.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from pathlib import PurePath

import msgspec

_BY_NAME = {".csv": "CSV", ".tsv": "TSV", ".yaml": "YAML", ".yml": "YAML"}
_JSON_OBJECT = re.compile(r"""\{[ \t]*["']""")
_LINES = (
    (r"[!-/:-@\[-`{-~\s]+", "holds no words"),
    (r"[-*+•]\s.*", "is an item of a list"),
    (r"#+\s.*", "is a heading or a comment"),
    (r"\|.*\|", "is a row of a table"),
    (r"""(-\s+)?["']?prompts?["']?\s*[:=].*""", "gives a prompt a name"),
    (r".*\t.*", "has a tab, as rows of a table have"),
    (r'.*\\".*', "has escaped quotes, as JSON writes them"),
)
"""What a line is, by what all of it looks like."""
_PATTERNS = [(re.compile(pattern, re.IGNORECASE), what) for pattern, what in _LINES]
_HEADS = {"prompt", "prompts", "text", "texts", "caption", "captions"}
"""What the column of prompts is called in a table."""
_SEPARATORS = {",": r",(?![\s\d])", ";": r";(?!\s)", "|": r"\|"}
"""What separates the cells of a table. A comma in a sentence is followed by a space, and one in a
number by a digit."""
_NUMBER = re.compile(
    r"[(\[#]?(?:prompt\s*)?(\d{1,6})\s*(?:[.):\]\u2013\u2014-]+\s|[,;|](?!\d))", re.IGNORECASE
)


def format_by_name(name: str) -> str | None:
    """What a file says it is by how its name ends; None if it does not say."""
    found = _BY_NAME.get(PurePath(name).suffix.lower())
    return None if found is None else f"is {found} by its name"


def is_json_lines(text: str) -> bool:
    """Whether a text begins with a JSON object, with the name of a field on its first line,
    or with what was meant as one."""
    return _JSON_OBJECT.match(text.lstrip()) is not None


def other_format(lines: Sequence[str]) -> tuple[int, str] | None:
    """The first of these lines, stripped and none of them blank, that shows that this is no list
    with a prompt a line: its index and what it is. None if there is none.
    """
    if lines and _is_head(lines[0]):
        return 0, "is the head of a table"
    last: int | None = None
    for index, line in enumerate(lines):
        what = _what_it_is(line)
        if what is not None:
            return index, what
        before, last = last, _number(line)
        if before is not None and last == before + 1:
            return index - 1, "has a number, and the line after it the next one"
    if any(_cells_match(lines, pattern) for pattern in _SEPARATORS.values()):
        return 0, "is a row of a table, as all lines are"
    return None


def _what_it_is(line: str) -> str | None:
    if line[0] in "[{" and _is_json(line):
        return "is JSON"
    if '""' in line and _doubles_quotes(line):
        return "has doubled quotes, as CSV writes them"
    return next((what for pattern, what in _PATTERNS if pattern.fullmatch(line)), None)


def _is_json(line: str) -> bool:
    try:
        msgspec.json.decode(line)
    except (msgspec.DecodeError, RecursionError):
        return False
    return True


def _doubles_quotes(line: str) -> bool:
    """Whether a quoted cell of a table has quotes in it."""
    try:
        rows = [next(csv.reader([line], delimiter=each)) for each in _SEPARATORS]
    except csv.Error:  # longer than any cell
        return False
    return any('""' not in "".join(cells) for cells in rows)


def _is_head(line: str) -> bool:
    """Whether a line has nothing but names of columns, one of them that of the prompts."""
    cells = [cell.strip(" \"'").lower() for cell in re.split(r"[,;|\t]", line)]
    return not _HEADS.isdisjoint(cells) and all(re.fullmatch(r"[\w-]*", cell) for cell in cells)


def _number(line: str) -> int | None:
    """With which number of a list a line begins."""
    found = _NUMBER.match(line)
    return int(found[1]) if found else None


def _cells_match(lines: Sequence[str], separator: str) -> bool:
    """Whether there are several lines, and all have as many cells, and at least two."""
    counts = (len(re.findall(separator, re.sub(r'"[^"]*"', "", line))) for line in lines)
    first = next(counts, 0)
    return len(lines) > 1 and first > 0 and all(count == first for count in counts)
