"""What people read can be read: docstrings of fields say something by themselves, and no paragraph
is a wall."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CODE = ("spotlight", "spotlight_simulation", "benchmarks", "tools")
PAGES = [*sorted((ROOT / "docs").glob("*.md")), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
LONGEST_PARAGRAPH = 150
FEWEST_WORDS = 3
NO_BEGINNING = re.compile(
    r"(about|above|after|against|along|among|around|as|at|before|behind|below|beneath|besides?"
    r"|between|beyond|by|during|except|for|from|in|inside|into|like|near|of|off|on|onto|out|outside"
    r"|over|per|since|so|than|that|through|towards?|under|until|unto|up|upon|via|with|within"
    r"|without)\b",
    re.IGNORECASE,
)
"""Words that begin a description of something that is not named: "Of its latest plan."."""


def files() -> list[Path]:
    found = [path for folder in CODE for path in sorted((ROOT / folder).rglob("*.py"))]
    return [path for path in found if (ROOT / "spotlight" / "examples") not in path.parents]


def docstrings_of_fields(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """The line and the text of every string that stands behind an assignment."""
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        for assignment, said in pairwise(body) if isinstance(body, list) else ():
            if (
                isinstance(assignment, ast.Assign | ast.AnnAssign)
                and isinstance(said, ast.Expr)
                and isinstance(said.value, ast.Constant)
                and isinstance(said.value.value, str)
            ):
                yield said.lineno, " ".join(said.value.value.split())


def is_fragment(text: str) -> bool:
    """Whether it can be understood only beside its field's name, or not even then."""
    return len(text.split()) < FEWEST_WORDS or NO_BEGINNING.match(text) is not None


def docstrings(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """The name and the docstring of a module, and of everything in it that has one."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield getattr(node, "name", "the module"), ast.get_docstring(node) or ""


def paragraphs(text: str) -> Iterator[str]:
    """Prose alone: items of lists and rows of tables are paragraphs of their own; code, what is
    indented like it, and drawings are left out."""
    prose = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    prose = re.sub(r"^(?: {4,}\S|[│├└]).*$", "", prose, flags=re.MULTILINE)
    yield from re.split(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.)\s)|\n(?=#)|\n(?=\|)", prose)


def walls(text: str) -> list[str]:
    return [each for each in paragraphs(text) if len(each.split()) > LONGEST_PARAGRAPH]


def test_a_field_is_described_by_what_can_be_read_alone() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {text}"
        for path in files()
        for line, text in docstrings_of_fields(ast.parse(path.read_text(encoding="utf-8")))
        if is_fragment(text)
    ]
    assert not found, "write whole sentences, such as `The number of its latest plan.`:\n" + (
        "\n".join(found)
    )


@pytest.mark.parametrize(
    ("text", "fragment"),
    [
        ("Of its latest plan.", True),
        ("By rank: who was heard of.", True),
        ("That wait at the dispatcher.", True),
        ("Bytes.", True),
        ("The number of its latest plan.", False),
        ("Whether it has left.", False),
        ("Bytes of the largest message.", False),
    ],
)
def test_a_fragment_is_told_from_a_sentence(text: str, fragment: bool) -> None:
    assert is_fragment(text) == fragment


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_paragraph_of_a_page_is_a_wall(page: Path) -> None:
    assert walls(page.read_text(encoding="utf-8")) == []


def test_no_paragraph_of_a_docstring_is_a_wall() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in files()
        for name, text in docstrings(ast.parse(path.read_text(encoding="utf-8")))
        if walls(text)
    ]
    assert found == []
