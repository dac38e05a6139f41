"""Where code of the user's own is, for workers on this machine, and what can be said of it without
running it.
"""

from __future__ import annotations

import ast
import difflib
import sys
from collections.abc import Iterable, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

from spotlight.errors import JobError
from spotlight.text import plain


def find_module(name: str) -> ModuleSpec | None:
    """Where a module is, without importing the packages that it is in; None if it is nowhere."""
    package, _, inner = name.partition(".")
    # Workers look in the folder that Spotlight was started in, the command itself does not.
    here = [str(Path.cwd()), *sys.path]
    found = PathFinder.find_spec(package, here) or _installed(package, None)
    while found is not None and inner:
        name, _, inner = inner.partition(".")
        found = _installed(f"{found.name}.{name}", found.submodule_search_locations or ())
    return found


def _installed(name: str, path: Sequence[str] | None) -> ModuleSpec | None:
    # Every finder is asked, as an import does: packages installed as editable have one of their
    # own, and are not on the path.
    specs = (finder.find_spec(name, path) for finder in sys.meta_path)
    return next((spec for spec in specs if spec is not None), None)


def require_module(field: str, target: str) -> ModuleSpec:
    """Where the module of `module:Class` is. Raises `JobError` naming the field when it is nowhere
    here."""
    module = target.partition(":")[0]
    found = find_module(module)
    if found is None:
        raise JobError(
            field,
            f"`{target}`: there is no module `{module}` on this machine; install its package, start"
            " Spotlight in the folder that holds it, or name that folder in the environment"
            " variable PYTHONPATH",
        )
    return found


def check_class(field: str, target: str, methods: Sequence[str]) -> None:
    """Raise `JobError` unless the class `module:Class` is there and has these methods, as far as
    can be told without running any of its code.
    """
    module, _, name = target.partition(":")
    found = require_module(field, target)
    if found.origin is None or not found.origin.endswith(".py"):
        return  # compiled, or a folder: only importing it could tell
    try:
        tree = ast.parse(Path(found.origin).read_bytes())
    except (OSError, SyntaxError, ValueError) as error:
        raise JobError(field, f"{found.origin} cannot be read ({plain(error)})") from error
    names, complete = _names(tree.body)
    if complete and name not in names:
        raise JobError(field, no_such_class(module, name, names))
    for node in tree.body:
        if getattr(node, "name", None) == name and not _may_have(node, methods):
            raise JobError(field, not_a_class(target, methods))


def not_a_class(target: str, methods: Sequence[str]) -> str:
    """That something is no class of the user's own that could be called."""
    return f"`{target}` is not a class with the methods {', '.join(methods)}"


def _may_have(node: ast.stmt, methods: Sequence[str]) -> bool:
    """Whether that is a class that has these methods, or may inherit them."""
    if not isinstance(node, ast.ClassDef):
        return False
    names, complete = _names(node.body)
    inherits = bool(node.bases or node.keywords or node.decorator_list)
    return inherits or not complete or names.issuperset(methods)


def no_such_class(module: str, name: str, names: Iterable[str]) -> str:
    """That a module has other names than this one."""
    close = difflib.get_close_matches(name, list(names), n=1)
    advice = f"; did you mean `{close[0]}`?" if close else ""
    return f"{module} has no class {name}{advice}"


def _names(body: Sequence[ast.stmt]) -> tuple[set[str], bool]:
    """The names that a module or a class has, and whether these are certainly all."""
    names: set[str] = set()
    complete = True
    for node in body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
            complete = complete and "*" not in names
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {target.id for target in targets if isinstance(target, ast.Name)}
        elif not isinstance(node, ast.Expr | ast.Pass):
            complete = False  # what stands under `if` or `try` may be there or not
    return names, complete and "__getattr__" not in names
