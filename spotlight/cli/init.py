"""`spotlight init`: a job file to begin with, and the examples that ship with Spotlight."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from spotlight.errors import UserError
from spotlight.jobs.template import job_template

EXAMPLES = Path(__file__).parent.parent / "examples"


def example_names() -> list[str]:
    """The job files among the examples, by their names without the ending."""
    return sorted(file.stem for file in EXAMPLES.glob("*.yaml"))


def example_lines() -> Iterator[str]:
    """The examples, a line each with what it is."""
    names = example_names()
    width = max(map(len, names), default=0)
    yield "examples (spotlight init FILE --example NAME):"
    for name in names:
        yield f"  {name:{width}}  {_first_sentence((EXAMPLES / f'{name}.yaml').read_text())}"


def write_job_file(file: Path, example: str) -> Path:
    """Write a new job file: a copy of an example, or one with every field. Returns its path."""
    if example and example not in example_names():
        raise UserError(
            f"--example: there is no `{example}`; there are {', '.join(example_names())}"
        )
    text = (EXAMPLES / f"{example}.yaml").read_text() if example else job_template()
    try:
        with open(file, "x", encoding="utf-8") as target:
            target.write(text)
    except FileExistsError as error:
        raise UserError(f"{file} is there already; name another file") from error
    except (OSError, ValueError) as error:
        problem = getattr(error, "strerror", None) or str(error)
        raise UserError(f"{file}: {problem}; name a file that can be written") from error
    return file


def _first_sentence(text: str) -> str:
    """Of the comment at the head of a file."""
    head = re.match(r"(?:#.*\n)*", text)
    words = " ".join(line.lstrip("# ") for line in (head[0] if head else "").splitlines())
    return re.split(r"(?<=[.:])\s", words, maxsplit=1)[0].rstrip(".:")
