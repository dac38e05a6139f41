"""Reads YAML as plain data, within bounds.

Five traps of YAML are removed: `1e-4` is a number; a key given twice is an error; so is half of a
character (`"\\ud800"`), which no text may hold; what cannot be made into the value that it says it
is (the date 2001-99-99) is an error with its line; and neither nesting nor aliases of aliases make
a small file stand for more than is ever read.
"""

from __future__ import annotations

import re
from typing import Any

import yaml

_DEEPEST = 20
"""Levels of nesting; a job has five."""
_MOST_NODES = 10_000
"""Keys and values, with those that aliases stand for; a job has a few hundred."""


class PlainYAMLError(ValueError):
    """The text is no YAML that is read here; the message says where and why, in one line."""


def read_yaml(text: str) -> Any:
    """The data in `text`. Raises `PlainYAMLError`."""
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" at line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or str(error).partition("\n")[0]
        raise PlainYAMLError(f"is not valid YAML{where}: {problem}") from error


class _Loader(yaml.SafeLoader):
    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = 0
        self._nodes = 0
        self._sizes: dict[yaml.Node | None, int] = {}
        """The size of each node that is complete, with all that is inside it."""

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event: yaml.Event = self.peek_event()  # type: ignore[no-untyped-call]
        self._depth += 1
        _require(self._depth <= _DEEPEST, f"it is nested more than {_DEEPEST} deep", event)
        before = self._nodes
        node = super().compose_node(parent, index)
        if isinstance(event, yaml.AliasEvent):
            _require(node in self._sizes, "an alias stands inside what it stands for", event)
            self._nodes += self._sizes[node]
        else:
            self._nodes += 1
            self._sizes[node] = self._nodes - before
        _require(self._nodes <= _MOST_NODES, f"it has more than {_MOST_NODES} values", event)
        self._depth -= 1
        return node

    def construct_scalar(self, node: yaml.ScalarNode | yaml.MappingNode) -> Any:
        value = super().construct_scalar(node)
        halves = [each for each in value if "\ud800" <= each <= "\udfff"]
        _require(not halves, "this text has half of a character (a lone surrogate)", node)
        return value

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except (ValueError, ArithmeticError, LookupError, AttributeError) as error:
            kind = node.tag.rpartition(":")[2]
            problem = f"this is not a value of type `{kind}`"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark) from error

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                _require(key.value not in seen, f"key `{key.value}` is given twice", key)
                seen.add(key.value)
        return super().construct_mapping(node, deep)


# YAML 1.1 reads a number with an exponent only when it also has a point and the exponent a sign.
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+"),
    list("-+.0123456789"),
)


def _require(condition: bool, problem: str, at: yaml.Event | yaml.Node) -> None:
    if not condition:
        mark: Any = at.start_mark
        raise yaml.MarkedYAMLError(None, None, problem, mark)
