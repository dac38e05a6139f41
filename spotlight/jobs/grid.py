"""The jobs of a sweep: every combination of the values that some fields are to have, with each
seed.

    grid("ocr", ["training.learning_rate=1e-4,3e-4"], "0..1")

are four jobs: `ocr-learning_rate-0.0001-seed-0` and so on. Pure.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from spotlight.errors import UserError
from spotlight.jobs.plain_yaml import PlainYAMLError, read_yaml

MOST_JOBS = 100
_LONGEST_NAME = 64
_SEEDS = re.compile(r"(?P<first>\d{1,18})(\.\.(?P<last>\d{1,18}))?")


class Variant(NamedTuple):
    """One job of a sweep."""

    name: str
    changes: tuple[str, ...]
    """Fields of the job file that are set otherwise, each as `path=value`."""


class _Value(NamedTuple):
    change: str
    label: str
    """What the name says of it."""


def grid(name: str, over: Sequence[str], seeds: str) -> tuple[Variant, ...]:
    """The jobs of a sweep, in the order of the fields and their values.

    Args:
        name: that all names begin with.
        over: each `path=value,value,...`, values as YAML.
        seeds: `0..3`, `1,5,7`, or both; empty for the seed of the job file.

    Raises `UserError` for what cannot be read, what is given twice, and more than `MOST_JOBS` jobs.
    """
    axes = [_values(each) for each in over]
    if seeds:
        axes.append([_Value(f"seed={seed}", f"seed-{seed}") for seed in _seeds(seeds)])
    if not axes:
        raise UserError("give --over PATH=VALUE,VALUE or --seeds FIRST..LAST: what is to differ?")
    paths = [axis[0].change.partition("=")[0] for axis in axes]
    if twice := next((path for path in paths if paths.count(path) > 1), ""):
        raise UserError(f"--over {twice}: is given twice; write all of its values behind one =")
    jobs = 1
    for axis in axes:
        jobs *= len(axis)
    if jobs > MOST_JOBS:
        raise UserError(
            f"these are {jobs:,} jobs, and a sweep has at most {MOST_JOBS}; leave out some values"
            " or seeds"
        )
    return tuple(_variant(name, values) for values in itertools.product(*axes))


def _variant(name: str, values: Sequence[_Value]) -> Variant:
    whole = "-".join([name, *(value.label for value in values)])
    if len(whole) > _LONGEST_NAME:
        raise UserError(
            f"the name `{whole}` has more than {_LONGEST_NAME} characters; give a shorter --name"
        )
    changes = (*(value.change for value in values), f"name={json.dumps(whole)}")
    return Variant(whole, changes)


def _values(over: str) -> list[_Value]:
    path, equals, text = over.partition("=")
    path = path.strip()
    if not equals or not path or not text.strip():
        raise UserError(f"--over {over!r}: write PATH=VALUE,VALUE, such as sampler.steps=8,12")
    try:
        values = read_yaml(f"[{text}]")
    except PlainYAMLError as error:
        raise UserError(f"--over {path}: the list of values {error}") from error
    field = re.split(r"[.\[\]]+", path.rstrip("]"))[-1]
    found = [
        _Value(f"{path}={json.dumps(value, default=str)}", f"{field}-{_label(value)}")
        for value in values
    ]
    if len({value.label for value in found}) < len(found):
        raise UserError(f"--over {path}: two of the values have the same name in {text}")
    return found


def _label(value: Any) -> str:
    """A value in letters that a name may have."""
    plain = f"{value:g}" if isinstance(value, float) else str(value)
    return re.sub(r"[^A-Za-z0-9._]+", "-", plain.replace("e-0", "e-")).strip("-") or "none"


def _seeds(text: str) -> list[int]:
    seeds: list[int] = []
    for part in text.split(","):
        found = _SEEDS.fullmatch(part.strip())
        first = int(found["first"]) if found else 1
        last = int(found["last"] or first) if found else 0
        if last < first:
            raise UserError(f"--seeds {text}: write FIRST..LAST, such as 0..3, or a list: 1,5,7")
        if last - first >= MOST_JOBS:
            raise UserError(f"--seeds {text}: these are more than {MOST_JOBS}")
        seeds += range(first, last + 1)
    if len(set(seeds)) < len(seeds):
        raise UserError(f"--seeds {text}: a seed is given twice")
    return seeds
