"""Scorers that users wrote: finds the class that a job's `python` names.

A name is `package.module:Class`, or that of an entry point of the group `spotlight.rewards`. Only a
class with a method `score` is ever called, with the reward's `options`. Imports no numpy.
"""

from __future__ import annotations

import ast
import difflib
import importlib
import inspect
from collections.abc import Iterable
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from spotlight.errors import JobError
from spotlight.jobs import RewardSpec
from spotlight.own_code import require_module

GROUP = "spotlight.rewards"


def load_scorer(spec: RewardSpec) -> Any:
    """The scorer of a reward of `kind: python`.

    Raises `JobError` when there is none by its name, it is not a class with a method `score` that
    takes images and prompts, or it cannot be made with the reward's options.
    """
    target = _target(spec)
    module_name, _, class_name = target.partition(":")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # whatever a foreign module raises, it cannot be imported
        raise _refusal(
            spec, f"{module_name} cannot be imported here ({type(error).__name__}: {_line(error)})"
        ) from error
    found = getattr(module, class_name, None)
    if found is None:
        raise _refusal(spec, _no_such_class(module_name, class_name, vars(module)))
    if not inspect.isclass(found) or not callable(getattr(found, "score", None)):
        raise _refusal(spec, f"{target} is not a class with a method `score(images, prompts)`")
    try:
        scorer = found(**spec.options)
    except Exception as error:
        raise _refusal(
            spec,
            f"{target} cannot be made with the options {sorted(spec.options)}"
            f" ({type(error).__name__}: {_line(error)})",
        ) from error
    try:
        inspect.signature(scorer.score).bind(None, None)
    except TypeError as error:
        raise _refusal(
            spec, f"{target}.score must take two arguments, `images` and `prompts`"
        ) from error
    return scorer


def check_plugin(spec: RewardSpec) -> None:
    """Raise `JobError` unless the class of a reward of `kind: python` is where the job says, as far
    as can be told without running any of its code.
    """
    target = _target(spec)
    module_name, _, class_name = target.partition(":")
    found = require_module(f"reward `{spec.name}`", target)
    if found.origin is None or not found.origin.endswith(".py"):
        return  # compiled, or a folder: only importing it could tell
    try:
        tree = ast.parse(Path(found.origin).read_bytes())
    except (OSError, SyntaxError, ValueError) as error:
        raise _refusal(spec, f"{found.origin} cannot be read ({_line(error)})") from error
    names, complete = _names(tree)
    if complete and class_name not in names:
        raise _refusal(spec, _no_such_class(module_name, class_name, names))


def _target(spec: RewardSpec) -> str:
    """`module:Class`, of an entry point too."""
    if ":" in spec.python:
        return spec.python
    points = entry_points(group=GROUP)
    if spec.python not in points.names:
        known = ", ".join(f"`{name}`" for name in sorted(points.names)) or "none"
        raise _refusal(
            spec,
            f"no installed package has an entry point `{spec.python}` in the group `{GROUP}`; there"
            f" is {known}; or write `package.module:Class`",
        )
    point = points[spec.python]
    return f"{point.module}:{point.attr}"


def _names(tree: ast.Module) -> tuple[set[str], bool]:
    """The names that a module has, and whether these are certainly all."""
    names: set[str] = set()
    complete = True
    for node in tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
            complete = complete and "*" not in names
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {target.id for target in targets if isinstance(target, ast.Name)}
        elif not isinstance(node, ast.Expr):
            complete = False  # what stands under `if` or `try` may be there or not
    return names, complete and "__getattr__" not in names


def _no_such_class(module: str, name: str, names: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(names), n=1)
    advice = f"; did you mean `{close[0]}`?" if close else ""
    return f"{module} has no class {name}{advice}"


def _line(error: Exception) -> str:
    """What an error says, on one line."""
    return " ".join(str(error).split()) or "no reason given"


def _refusal(spec: RewardSpec, problem: str) -> JobError:
    return JobError(f"reward `{spec.name}`", problem)
