"""Fields that jobs had in earlier versions, and what became of each.

A job file, and the `config.yaml` of a run folder, may be of an earlier version. Before it is
validated, every field of `FORMER` that it has is moved to where it is now, or dropped where it
asked for nothing; any other is refused by its name, with the version that still reads it.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from spotlight.errors import JobError
from spotlight.jobs.losses import LOSSES

OWN = "module:Class"
"""Stands for every loss that is none of those in the box."""
_NOTHING: Final = object()
_DEFAULT_LOSS = "diffusion_nft"


class Former(NamedTuple):
    """A field that a job no longer has."""

    until: str
    """The last version that reads it, such as `0.1.0`."""
    default: Any = _NOTHING
    """What it was when nobody set it. A file that says this asks for nothing, as run folders say
    every field, and the field is dropped."""
    to: str = ""
    """The path of the field that took its place and means the same; empty if none did."""
    losses: frozenset[str] | None = None
    """The values of `training.loss` with which it has moved, `OWN` among them for losses of the
    user's own; None stands for all. With any other loss it had no effect, and is treated as one
    that did not move."""
    advice: str = "leave it out"
    """What to write instead, as the end of the message that refuses it."""


_UNDER_OPTIONS = "put it under `training.options` if your loss takes it, or leave it out"


def _option(name: str, default: Any, *losses: str) -> Former:
    """A field that was of these losses only, and is an option of each."""
    return Former(
        "0.1.0", default, f"training.options.{name}", frozenset(losses), advice=_UNDER_OPTIONS
    )


FORMER: Mapping[str, Former] = {
    "sampler.window.stride": Former(
        "0.1.0", default=1, advice="a sliding window moves by one step; leave it out"
    ),
    "training.nft_strength": _option("strength", 1.0, "diffusion_nft"),
    "training.nft_times": _option("times", 4, "diffusion_nft", "awm", OWN),
    "training.nft_noisiest": _option("noisiest", 1.0, "diffusion_nft", "awm", OWN),
    "training.nft_shared_noise": _option("shared_noise", False, "diffusion_nft", "awm", OWN),
    "training.awm_kl": _option("old_kl", 1.0, "awm"),
    "training.clip_range": _option("clip_range", None, "awm", "flow_grpo", "grpo_guard"),
    "exploration.effort": Former(
        "before 0.1.0", default="fixed", advice="choose `exploration.preview_steps` yourself"
    ),
    "reward": Former(
        "before 0.1.0",
        advice="it has become a list: write `rewards: [{kind: ocr}]`, put `attempts` and"
        " `on_failure` under `scoring`, and name files of metadata as `prompts`",
    ),
}
"""The former fields by path; an item of a list has none. A row is never removed: run folders live
for years."""

LATER: Mapping[str, str] = {"training.guidance": "sampler.guidance"}
"""Fields by path that a run of an earlier version had not, and whose default means another thing
than what it did: each with the path of the field that decided it. A run keeps to it."""


def as_meant(data: Mapping[str, Any], later: Mapping[str, str] = LATER) -> dict[str, Any]:
    """The plain data of a run's job with what they meant where they lack a field; `data` stays as
    it is. A run's own files say every field that its version had."""
    result = copy.deepcopy(dict(data))
    for path, decided in later.items():
        if _holds(result, decided) and not _holds(result, path):
            _put(result, decided, path, _get(result, decided, None))
    return result


def brought_up(data: Mapping[str, Any], former: Mapping[str, Former] = FORMER) -> dict[str, Any]:
    """A job's plain data without the fields of earlier versions; `data` stays as it is.

    Raises `JobError` naming a field that says something which this version cannot do.
    """
    found = {path: field for path, field in former.items() if _holds(data, path)}
    if not found:
        return dict(data)
    result = copy.deepcopy(dict(data))
    loss = _get(result, "training.loss", _DEFAULT_LOSS)
    for path, field in found.items():
        value = _take(result, path)
        if _moves(field, value, loss):
            if _holds(result, field.to):
                raise JobError(path, f"is now `{field.to}`, which is given too; remove this one")
            _put(result, path, field.to, value)
        elif field.default is _NOTHING or value != field.default:
            raise JobError(
                path, f"is no field any more; {field.advice} (Spotlight {field.until} reads it)"
            )
    return result


def moved(data: Mapping[str, Any], former: Mapping[str, Former] = FORMER) -> list[tuple[str, str]]:
    """The fields of earlier versions that a job's plain data have, each with what to write now."""
    loss = _get(data, "training.loss", _DEFAULT_LOSS)
    return [
        (path, field.to)
        for path, field in former.items()
        if _holds(data, path) and _moves(field, _get(data, path, None), loss)
    ]


def _moves(field: Former, value: Any, loss: Any) -> bool:
    """Whether a field that says this moves in a job with this loss.

    An empty one asked for the default, which may differ by loss. A loss of the user's own need not
    have an option, so it is given one only where that says something.
    """
    if not field.to or (value is None and field.default is None):
        return False
    if field.losses is None:
        return True
    if isinstance(loss, str) and loss in LOSSES:
        return loss in field.losses
    return OWN in field.losses and value != field.default


def _holds(data: Mapping[str, Any], path: str) -> bool:
    return _get(data, path, _NOTHING) is not _NOTHING


def _get(data: Any, path: str, default: Any) -> Any:
    for name in path.split("."):
        if not isinstance(data, dict) or name not in data:
            return default
        data = data[name]
    return data


def _take(data: dict[str, Any], path: str) -> Any:
    *above, name = path.split(".")
    return (_get(data, ".".join(above), {}) if above else data).pop(name)


def _put(data: Any, path: str, to: str, value: Any) -> None:
    *above, name = to.split(".")
    for section in above:
        data = data.setdefault(section, {})
        if not isinstance(data, dict):
            raise JobError(path, f"is now `{to}`, and `{section}` above that is no section")
    data[name] = value
