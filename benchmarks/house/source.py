"""What the text of the package says about it: its lines, its constructors, its functions, and which
of its files are checked for types."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = "spotlight"
_Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Source:
    """The files of the package: their text by their path below the root of the repository."""

    texts: Mapping[str, str]

    @property
    def lines(self) -> int:
        """All of them, empty ones and docstrings included."""
        return sum(len(text.splitlines()) for text in self.texts.values())

    def constructors(self) -> Iterator[tuple[str, _Function]]:
        """Every `__init__` that is written, with the name of its class."""
        for tree in self._trees():
            for node in ast.walk(tree):
                for part in node.body if isinstance(node, ast.ClassDef) else ():
                    if isinstance(part, ast.FunctionDef) and part.name == "__init__":
                        assert isinstance(node, ast.ClassDef)
                        yield node.name, part

    def callable_parameters(self) -> Iterator[str]:
        """Parameters of constructors whose annotation says `Callable`, as `Class.parameter`."""
        for name, function in self.constructors():
            given = function.args
            for parameter in (*given.posonlyargs, *given.args, *given.kwonlyargs):
                if _says_callable(parameter.annotation):
                    yield f"{name}.{parameter.arg}"

    def callable_fields(self) -> Iterator[str]:
        """Fields of dataclasses and structs whose annotation says so; they are parameters, too, of
        a constructor that nobody wrote."""
        for tree in self._trees():
            for node in ast.walk(tree):
                for part in node.body if isinstance(node, ast.ClassDef) else ():
                    if isinstance(part, ast.AnnAssign) and _says_callable(part.annotation):
                        assert isinstance(node, ast.ClassDef)
                        yield f"{node.name}.{ast.unparse(part.target)}"

    def longest_function(self) -> tuple[int, str]:
        """The lines of the longest, from its `def` to its end, and its name with its file."""
        return max(
            (_length(node), f"{path}:{node.name}")
            for path, text in self.texts.items()
            for node in ast.walk(ast.parse(text))
            if isinstance(node, _Function)
        )

    def typed_share(self, settings: Mapping[str, object]) -> float:
        """The share of the lines that mypy checks strictly with these settings (`tool.mypy`)."""
        listed = settings.get("files", [])
        assert isinstance(listed, list)
        checked = {
            path
            for path in self.texts
            if settings.get("strict") and any(_is_below(path, str(each)) for each in listed)
        } - set(self._excused(settings))
        lines = sum(len(self.texts[path].splitlines()) for path in checked)
        return lines / self.lines

    def _excused(self, settings: Mapping[str, object]) -> Iterator[str]:
        """Files of ours whose errors an override ignores, or that it checks less strictly."""
        overrides = settings.get("overrides", [])
        assert isinstance(overrides, list)
        for override in overrides:
            named = override["module"]
            for module in [named] if isinstance(named, str) else named:
                folder = module.removesuffix(".*").replace(".", "/")
                if set(override) - {"module", "ignore_missing_imports"}:
                    yield from (
                        path
                        for path in self.texts
                        if _is_below(path, folder) or path == f"{folder}.py"
                    )

    def _trees(self) -> Iterator[ast.Module]:
        for text in self.texts.values():
            yield ast.parse(text)


def package(root: Path = ROOT) -> Source:
    """The package without the examples, which are linked into it and are no part of it."""
    files = sorted(path for path in (root / PACKAGE).rglob("*.py") if not _is_linked(path, root))
    return Source({str(path.relative_to(root)): path.read_text("utf-8") for path in files})


def mypy_settings(root: Path = ROOT) -> Mapping[str, object]:
    """What `pyproject.toml` says to mypy."""
    settings: Mapping[str, object] = tomllib.loads(
        (root / "pyproject.toml").read_text(encoding="utf-8")
    )["tool"]["mypy"]
    return settings


def _is_linked(path: Path, root: Path) -> bool:
    return any(parent.is_symlink() for parent in path.parents if parent.is_relative_to(root))


def _is_below(path: str, place: str) -> bool:
    return path == place or path.startswith(f"{place.rstrip('/')}/")


def _says_callable(annotation: ast.expr | None) -> bool:
    return annotation is not None and "Callable[" in ast.unparse(annotation)


def _length(node: _Function) -> int:
    assert node.end_lineno is not None
    return node.end_lineno - node.lineno + 1
