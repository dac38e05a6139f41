"""Changes to a job file from the command line: `sampler.steps=12`, values as YAML.

A path names a field as errors do: `training.loss`, `rewards[0].weight`. A section or a list that is
set as a whole takes the place of what the file says.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from typing import Any

from spotlight.errors import JobError
from spotlight.jobs.plain_yaml import PlainYAMLError, read_yaml

_NEAREST = 3


def changed(data: dict[str, Any], changes: Sequence[str], known: Sequence[str]) -> dict[str, Any]:
    """A job file's data with these changes, made in order; `data` stays as it is.

    Args:
        changes: each `path=value`.
        known: every path that a job can have, with `[]` for any place in a list, and `.*` for any
            name in a mapping.

    Raises `JobError` naming the path, for one that is not known with those nearest to it.
    """
    result: dict[str, Any] = _copied(data) if changes else data
    for change in changes:
        path, equals, text = change.partition("=")
        path = path.strip()
        if not equals or not path:
            raise JobError("--set", f"`{change}` has no value; write path=value")
        place = re.sub(r"\[\d+\]", "[]", path)
        if place not in known and re.sub(r"\.\w+$", ".*", place) not in known:
            near = difflib.get_close_matches(path, known, n=_NEAREST, cutoff=0.5)
            advice = f"; did you mean {' or '.join(f'`{one}`' for one in near)}?" if near else ""
            raise JobError("--set", f"a job has no field `{path}`{advice}")
        try:
            value = read_yaml(text)
        except PlainYAMLError as error:
            raise JobError(f"--set {path}", f"the value {error}") from error
        _set(result, path, value)
    return result


def _set(data: dict[str, Any], path: str, value: Any) -> None:
    *above, last = (
        int(part[1:-1]) if part.startswith("[") else part
        for part in re.findall(r"\w+|\[\d+\]", path)
    )
    node: Any = data
    for part in above:
        if isinstance(node, dict) and node.get(part) is None:
            node[part] = {}
        node = _item(node, part, path)
    _item(node, last, path, there=isinstance(last, int))
    node[last] = value


def _item(node: Any, part: str | int, path: str, *, there: bool = True) -> Any:
    """What a section or list holds; with `there` it must be there."""
    if isinstance(part, int) and not (isinstance(node, list) and part < len(node)):
        raise JobError(
            f"--set {path}",
            f"the job file has no item [{part}] there; set the whole list, as `NAME=[...]`",
        )
    if isinstance(part, str) and not isinstance(node, dict):
        raise JobError(
            f"--set {path}", "the field above it is not a section in the job file; fix that"
        )
    return node[part] if there else None


def _copied(data: Any) -> Any:
    """Without the parts that aliases of YAML share."""
    if isinstance(data, dict):
        return {key: _copied(value) for key, value in data.items()}
    return [_copied(value) for value in data] if isinstance(data, list) else data
