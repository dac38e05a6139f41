"""Reads a job from YAML; an error names the path of the field."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
import yaml

from spotlight.errors import JobError, UnreadableFile
from spotlight.files import MEBIBYTE, path_problem, read_text
from spotlight.jobs.changes import changed
from spotlight.jobs.former_fields import FORMER, brought_up
from spotlight.jobs.hub_names import HUB
from spotlight.jobs.plain_yaml import PlainYAMLError, read_yaml
from spotlight.jobs.rewards import RewardSpec
from spotlight.jobs.spec import JobSpec, WorkSpec
from spotlight.jobs.stamp import KEY, Stamp, stamp_of

LARGEST_JOB_FILE = MEBIBYTE
"""Bytes of a job file, or of a run folder's config.yaml: one with every field has some three
thousand."""

_KINDS = {
    "bool": "`true` or `false`",
    "int": "a whole number",
    "float": "a number",
    "str": "text",
    "array": "a list",
    "object": "a section with fields",
}
"""What a field must be, by the name that msgspec has for it."""
_LONGEST_ECHO = 100
"""Characters of what a field was given that a message repeats."""


def load_job(path: Path, changes: Sequence[str] = ()) -> JobSpec:
    """Read a job from a YAML file; relative prompt and checkpoint paths become absolute.

    `changes` are fields to set otherwise, each as `path=value` (see `changed`). Raises
    `JobError` with the path of the field (or of the file) and what to do.
    """
    try:
        text = read_text(path, most=LARGEST_JOB_FILE)
    except UnreadableFile as error:
        raise JobError(str(path), f"{error.problem}; give the path of a job file (YAML)") from error
    return parse_job(text, source=str(path), base=path.parent, changes=changes)


def parse_job(
    text: str, *, source: str = "job", base: Path | None = None, changes: Sequence[str] = ()
) -> JobSpec:
    """Parse and validate a job. `base` is the folder that relative paths start from; for `changes`
    see `changed`.
    """
    try:
        data = read_yaml(text)
    except PlainYAMLError as error:
        raise JobError(source, str(error)) from error
    if not isinstance(data, dict):
        raise JobError(source, "must hold a mapping with `name`, `model`, `prompts` and `sampler`")
    return job_from_data(changed(data, changes, [*job_paths(), *FORMER]), base=base)


def job_from_data(data: dict[str, Any], *, base: Path | None = None) -> JobSpec:
    """Validate a job given as plain data, perhaps of an earlier version; raises `JobError`. `base`
    is the folder that relative paths start from.
    """
    stamp = stamp_of(data)
    try:
        job = _validated({key: value for key, value in data.items() if key != KEY})
    except JobError as error:
        raise stamp.explain(error) from error
    return _resolve_paths(job, base) if base else job


def _validated(data: Mapping[str, Any]) -> JobSpec:
    data = brought_up(data)
    _refuse_unknown_keys(data, JobSpec, "")
    try:
        return msgspec.convert(data, JobSpec)
    except msgspec.ValidationError as error:
        raise _job_error(str(error)) from error


def job_paths(spec: type[msgspec.Struct] = JobSpec, prefix: str = "") -> list[str]:
    """The paths of all sections and fields of a job; `[]` stands for any place in a list."""
    paths: list[str] = []
    for name, hint in _hints(spec).items():
        paths.append(f"{prefix}{name}")
        is_list = any(get_origin(option) is tuple for option in _options(hint))
        inside = f"{prefix}{name}[]" if is_list else f"{prefix}{name}"
        if is_list:
            paths.append(inside)
        section = _section_type(hint)
        if section is not None:
            paths += job_paths(section, f"{inside}.")
    return paths


def work_from_data(data: dict[str, Any]) -> WorkSpec:
    """Validate what workers must know, given as plain data; raises `JobError`."""
    _refuse_unknown_keys(data, WorkSpec, "")
    try:
        return msgspec.convert(data, WorkSpec)
    except msgspec.ValidationError as error:
        raise _job_error(str(error)) from error


def job_to_yaml(job: JobSpec, stamp: Stamp | None = None) -> str:
    """The whole job, defaults included, as YAML; a `stamp` comes first."""
    head = {} if stamp is None else {KEY: msgspec.to_builtins(stamp)}
    return yaml.safe_dump(head | msgspec.to_builtins(job), sort_keys=False)


@cache
def _hints(spec: type[msgspec.Struct]) -> Mapping[str, Any]:
    """The types of its fields; asking for them takes longer than all else that is done here."""
    return get_type_hints(spec)


def _resolve_paths(job: JobSpec, base: Path) -> JobSpec:
    def absolute(field: str, value: str) -> str:
        if value.startswith(("builtin:", HUB)):
            return value
        try:
            path = str((base / Path(value).expanduser()).resolve())
        except (OSError, RuntimeError) as error:  # no such user; links in a circle
            raise JobError(
                field, f"`{value}` does not lead anywhere; write the whole path"
            ) from error
        problem = path_problem(path)
        if problem is not None:
            raise JobError(field, f"`{value}` leads to a path that {problem}")
        return path

    def with_files(field: str, rewards: Sequence[RewardSpec]) -> tuple[RewardSpec, ...]:
        return tuple(with_file(f"{field}[{index}]", reward) for index, reward in enumerate(rewards))

    def with_file(field: str, reward: RewardSpec) -> RewardSpec:
        endpoint = reward.http or reward.judge
        if endpoint is None or endpoint.authorization_file is None:
            return reward
        field = f"{field}.{reward.kind}"
        file = absolute(f"{field}.authorization_file", endpoint.authorization_file)
        endpoint = msgspec.structs.replace(endpoint, authorization_file=file)
        return msgspec.structs.replace(reward, **{reward.kind: endpoint})

    return msgspec.structs.replace(
        job,
        model=msgspec.structs.replace(
            job.model, checkpoint=absolute("model.checkpoint", job.model.checkpoint)
        ),
        prompts=msgspec.structs.replace(
            job.prompts,
            train=absolute("prompts.train", job.prompts.train),
            validation=absolute("prompts.validation", job.prompts.validation),
        ),
        rewards=with_files("rewards", job.rewards),
        validation=msgspec.structs.replace(
            job.validation,
            rewards=with_files("validation.rewards", job.validation.rewards),
        ),
    )


def _refuse_unknown_keys(data: dict[str, Any], spec: type[msgspec.Struct], prefix: str) -> None:
    hints = _hints(spec)
    for key, value in data.items():
        path = f"{prefix}{key}"
        if key not in hints:
            close = difflib.get_close_matches(str(key), list(hints), n=1)
            advice = (
                f"did you mean `{close[0]}`?"
                if close
                else f"known here: {', '.join(sorted(hints))}"
            )
            raise JobError(path, f"unknown key; {advice}")
        if isinstance(value, float) and not math.isfinite(value):
            raise JobError(path, f"must be a finite number, not {value}")
        if isinstance(value, int) and not -(2**63) <= value < 2**63:
            raise JobError(path, "must be a number of 64 bits at most")
        section = _section_type(hints[key])
        if section is not None and isinstance(value, dict):
            _refuse_unknown_keys(value, section, f"{path}.")
        for index, each in enumerate(value if isinstance(value, list) else ()):
            if section is not None and isinstance(each, dict):
                _refuse_unknown_keys(each, section, f"{path}[{index}].")


def _section_type(hint: Any) -> type[msgspec.Struct] | None:
    """The section that a field is, or that the items of its list are."""
    for option in _options(hint):
        if get_origin(option) is tuple:
            option = get_args(option)[0]
        if isinstance(option, type) and issubclass(option, msgspec.Struct):
            return option
    return None


def _options(hint: Any) -> tuple[Any, ...]:
    """The types that a union is of; a type itself if it is none."""
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


def _choices(path: str) -> str:
    """What the field at a path may say, in words; empty if it names no words."""
    hint: Any = JobSpec
    for name in re.sub(r"\[\d+\]", "", path).split("."):
        hint = _hints(_section_type(hint) or JobSpec).get(name)
        if hint is None:
            return ""
    words = [
        f"`{choice}`"
        for option in _options(hint)
        if get_origin(option) is Literal
        for choice in get_args(option)
    ]
    if words and int in _options(hint):
        words.append("a whole number")
    return " or ".join(part for part in (", ".join(words[:-1]), *words[-1:]) if part)


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST_ECHO else f"{text[:_LONGEST_ECHO]}..."


def _job_error(message: str) -> JobError:
    """Turn msgspec's "problem - at `$.a.b`" into a path and a problem."""
    problem, _, where = message.partition(" - at `$")
    path = where.rstrip("`").lstrip(".")
    marked = re.match(r"([a-z0-9_.\[\]]+)\|", problem)  # msgspec's own messages say `int | null`
    if marked:
        field, problem = marked[1], problem[marked.end() :]
        path = f"{path}.{field}" if path else field
    missing = re.search(r"missing required field `(\w+)`", problem)
    if missing:
        return JobError(f"{path}.{missing[1]}" if path else missing[1], "is missing; add it")
    other = re.fullmatch(r"Invalid enum value '(.*)'", problem, flags=re.DOTALL)
    if other:
        return JobError(path, f"must be {_choices(path)}, not `{_shortened(other[1])}`")
    found = re.fullmatch(r"Expected `([^`]*)`, got `(\w+)`", problem)
    if found and path:
        expected, given = found.groups()
        wanted = _choices(path) or _KINDS.get(expected.removesuffix(" | null"))
        if wanted:
            if given == "null":
                empty = f"must be {wanted}, but is empty; leave it out for its default"
                return JobError(path, empty)
            is_word = given == "bool" and "str" in expected
            quotes = " (yes, no, on and off need quotes in YAML)" if is_word else ""
            return JobError(path, f"must be {wanted}, not of type `{given}`{quotes}")
    return JobError(path or "job", problem[:1].lower() + problem[1:])
