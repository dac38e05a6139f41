"""Docstrings of classes and of their fields, read from the source: Python keeps none of a field."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from pathlib import Path


def read_docstrings(source: Path) -> dict[str, str]:
    """Docstrings in a file by `Class` and by `Class.field`, on one line each."""
    found: dict[str, str] = {}
    for node in ast.parse(source.read_text(encoding="utf-8")).body:
        if not isinstance(node, ast.ClassDef):
            continue
        found[node.name] = _one_line(ast.get_docstring(node) or "")
        for statement, after in zip(node.body, node.body[1:], strict=False):
            if (
                isinstance(statement, ast.AnnAssign)
                and isinstance(statement.target, ast.Name)
                and isinstance(after, ast.Expr)
                and isinstance(after.value, ast.Constant)
                and isinstance(after.value.value, str)
            ):
                found[f"{node.name}.{statement.target.id}"] = _one_line(after.value.value)
    return found


def field_docstring(docs: Mapping[str, str], kind: type, field: str) -> str:
    """That of a field, which may be inherited, out of what was read; empty where it has none."""
    names = (f"{each.__name__}.{field}" for each in kind.__mro__)
    return next((docs[name] for name in names if name in docs), "")


def _one_line(text: str) -> str:
    return " ".join(text.split())
