"""`spotlight init`: a first job file, and the examples that ship with Spotlight."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from spotlight.errors import UserError
from spotlight.jobs.template import job_template

EXAMPLES = Path(__file__).parent.parent / "examples"


def example_names() -> list[str]:
    """The job files among the examples, by their paths without the ending."""
    files = EXAMPLES.glob("**/*.yaml")
    return sorted(str(file.relative_to(EXAMPLES).with_suffix("")) for file in files)


def example_lines() -> Iterator[str]:
    """The examples, a line each with what it is."""
    names = example_names()
    width = max(map(len, names), default=0)
    yield "examples (spotlight init FILE --example NAME):"
    for name in names:
        yield f"  {name:{width}}  {_first_sentence(_source(name).read_text(encoding='utf-8'))}"


def write_job_file(file: Path, example: str) -> list[Path]:
    """Write a new job file: one with every field, or a copy of an example, with the files that lie
    beside that in a folder of its own. Returns what was written, the job file first.

    Raises `UserError` for an unknown example, and when a file is there already or cannot be
    written; nothing is overwritten.
    """
    if not example:
        return [_write(file, job_template())]
    if example not in example_names():
        raise UserError(
            f"--example: there is no `{example}`; there are {', '.join(example_names())}"
        )
    source = _source(example)
    others = [
        other
        for other in sorted(source.parent.iterdir())
        if source.parent != EXAMPLES and other.is_file() and other.suffix != ".yaml"
    ]
    targets = {file: source, **{file.with_name(other.name): other for other in others}}
    return [_write(target, it.read_text(encoding="utf-8")) for target, it in targets.items()]


def _source(example: str) -> Path:
    return EXAMPLES / f"{example}.yaml"


def _write(file: Path, text: str) -> Path:
    try:
        with open(file, "x", encoding="utf-8") as target:
            target.write(text)
    except FileExistsError as error:
        raise UserError(f"{file} already exists; name another file") from error
    except (OSError, ValueError) as error:
        problem = getattr(error, "strerror", None) or str(error)
        raise UserError(f"{file}: {problem}; name a file that can be written") from error
    return file


def _first_sentence(text: str) -> str:
    """Of the comment at the head of a file."""
    head = re.match(r"(?:#.*\n)*", text)
    words = " ".join(line.lstrip("# ") for line in (head[0] if head else "").splitlines())
    return re.split(r"(?<=[.:])\s", words, maxsplit=1)[0].rstrip(".:")
