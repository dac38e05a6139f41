"""What a class or function of the user's own is, as far as its source tells without any of it being
run.

Only what is certain counts: a class that is imported, made by a call, or stands under `if` or `try`
may be anything, and so may the methods of one that inherits from such a class, has a metaclass, is
decorated, or is handed to a call. Whoever imports it finds out.
"""

from __future__ import annotations

import ast
import difflib
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from spotlight.errors import JobError
from spotlight.own_code import require_module
from spotlight.text import plain

_Function = ast.FunctionDef | ast.AsyncFunctionDef
_DOES = ast.Expr | ast.For | ast.With
"""What a module does when it is imported, beside what it binds."""


class Call(NamedTuple):
    """How a function is called."""

    arguments: int
    """How many arguments it gets by their places."""
    named: Collection[str] = ()
    """The arguments that it gets by their names."""


def require_class(
    field: str, target: str, methods: Mapping[str, int], function: Call | None = None
) -> None:
    """Raise `JobError` naming the field if there is no such module, or `module:Class` is certainly
    no class with these methods, each of which takes so many arguments besides `self`; nor a
    `function` that can be called so, where one may stand in its place. The class is made with the
    named arguments of that function, then, and must take them.
    """
    module, _, name = target.partition(":")
    found = require_module(field, target)
    if found.origin is None or not found.origin.endswith(".py"):
        return  # compiled, or a folder: only importing it could tell
    try:
        tree = ast.parse(Path(found.origin).read_bytes())
    except (OSError, SyntaxError, ValueError) as error:
        raise JobError(field, f"{found.origin} cannot be read ({plain(error)})") from error
    names, complete = _names(tree)
    if complete and name not in names:
        raise JobError(field, not_there(module, _kind(function), name, names))
    _Module(field, target, tree, function).require(name, methods)


def not_there(module: str, kind: str, name: str, names: Iterable[str]) -> str:
    """That a module which has these names has no such class or function, and which may be meant."""
    close = difflib.get_close_matches(name, list(names), n=1)
    advice = f"; did you mean `{close[0]}`?" if close else ""
    return f"{module} has no {kind} {name}{advice}"


def _kind(function: Call | None) -> str:
    return "class" if function is None else "class or function"


class _Module:
    """What stands at the top of a module."""

    def __init__(self, field: str, target: str, tree: ast.Module, function: Call | None) -> None:
        self._field = field
        self._target = target
        self._tree = tree
        self._function = function

    def require(self, name: str, methods: Mapping[str, int]) -> None:
        """Raise `JobError` if what this name is bound to certainly lacks a method."""
        bound = self._bound(name)
        wanted = f"a class with {_listed(methods)}"
        if isinstance(bound, _Function) and not bound.decorator_list:
            self._require_function(bound, wanted)
            return
        if isinstance(bound, ast.Assign) and isinstance(bound.value, ast.Lambda | ast.Constant):
            if self._function is not None and isinstance(bound.value, ast.Lambda):
                return
            raise JobError(self._field, f"{self._target} is not {wanted}")
        for method, arguments in methods.items():
            found = self._method(bound, method, ())
            if found is None:
                raise JobError(
                    self._field, f"{self._target} has no method `{method}`; it must be {wanted}"
                )
            if isinstance(found, _Function) and not _takes(found, 1 + arguments):
                raise JobError(
                    self._field,
                    f"{self._target}.{method} must take {arguments} arguments; it must be {wanted}",
                )
        if self._function is not None:
            self._require_made(bound, self._function.named)

    def _require_made(self, bound: ast.stmt | None, named: Collection[str]) -> None:
        """That the class can be made with these arguments."""
        found = self._method(bound, "__init__", ())
        if self._method(bound, "__new__", ()) is not None:
            return
        if isinstance(found, _Function) and not found.decorator_list:
            self._require_given(found, 1, named)
        if named and (
            found is None or (isinstance(found, _Function) and not _takes(found, 1, named))
        ):
            raise JobError(self._field, f"{self._target} does not take the options {sorted(named)}")

    def _require_given(self, found: _Function, places: int, named: Collection[str]) -> None:
        lacking = sorted(_needed(found, places) - set(named))
        if lacking:
            names = ", ".join(f"`{name}`" for name in lacking)
            raise JobError(self._field, f"{self._target} also needs {names}; give it in `options`")

    def _require_function(self, found: _Function, wanted: str) -> None:
        call = self._function
        if call is None:
            raise JobError(self._field, f"{self._target} is a function, not {wanted}")
        if isinstance(found, ast.AsyncFunctionDef):
            raise JobError(self._field, f"{self._target} must not be `async`")
        self._require_given(found, call.arguments, call.named)
        if not _takes(found, call.arguments, call.named):
            options = f" and the options {sorted(call.named)}" if call.named else ""
            raise JobError(
                self._field, f"{self._target} must take {call.arguments} arguments{options}"
            )

    def _bound(self, name: str) -> ast.stmt | None:
        """The only statement that binds a name; None if there are others, it is elsewhere, or the
        module hands what is bound to a call, such as `setattr`, which may change it."""
        found = [node for node in ast.walk(self._tree) if _binds(node, name)]
        if len(found) != 1 or found[0] not in self._tree.body:
            return None
        doing = (node for node in self._tree.body if isinstance(node, _DOES))
        is_named = any(
            isinstance(node, ast.Name) and node.id == name
            for statement in doing
            for node in ast.walk(statement)
        )
        return None if is_named else found[0]

    def _method(
        self, bound: ast.stmt | None, method: str, seen: Collection[str]
    ) -> ast.AST | bool | None:
        """The method, None if there certainly is none, True where nobody can tell."""
        if not isinstance(bound, ast.ClassDef) or bound.decorator_list or bound.keywords:
            return True
        found = [node for node in ast.walk(bound) if _binds(node, method)]
        if found:
            return found[0] if len(found) == 1 and found[0] in bound.body else True
        inherited: list[ast.AST | bool] = []
        for base in bound.bases:
            if not isinstance(base, ast.Name) or base.id in seen:
                return True
            if base.id == "object":
                continue
            its = self._method(self._bound(base.id), method, [*seen, bound.name])
            if its is not None and its not in inherited:
                inherited.append(its)
        if len(inherited) > 1:  # which one goes first depends on what the bases inherit from
            return True
        return inherited[0] if inherited else None


def _binds(node: ast.AST, name: str) -> bool:
    """Whether a name, or an attribute of this name, is set there."""
    match node:
        case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
            return node.name == name
        case ast.Import() | ast.ImportFrom():
            imported = {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
            return not imported.isdisjoint((name, "*"))
        case ast.Assign() | ast.AnnAssign() | ast.AugAssign():
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            inner = [each for target in targets for each in ast.walk(target)]
            return any(
                name in (getattr(each, "id", ""), getattr(each, "attr", "")) for each in inner
            )
    return False


def _takes(function: _Function, count: int, named: Collection[str] = ()) -> bool:
    """Whether it can be called with so many arguments (`self` counts), and these by their names."""
    if function.decorator_list:
        return True
    arguments = function.args
    places = [*arguments.posonlyargs, *arguments.args]
    by_name = {each.arg for each in (*arguments.args, *arguments.kwonlyargs)}
    by_name -= {each.arg for each in places[:count]}
    return (
        (count <= len(places) or arguments.vararg is not None)
        and _needed(function, count) <= set(named)
        and (by_name >= set(named) or arguments.kwarg is not None)
    )


def _needed(function: _Function, count: int) -> set[str]:
    """The arguments that a call must give besides so many by their places."""
    arguments = function.args
    places = [*arguments.posonlyargs, *arguments.args]
    needed = {each.arg for each in places[count : len(places) - len(arguments.defaults)]}
    return needed | {
        each.arg
        for each, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
        if default is None
    }


def _listed(methods: Mapping[str, int]) -> str:
    words = " and ".join(f"`{name}`" for name in methods)
    return f"the method {words}" if len(methods) == 1 else f"the methods {words}"


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
