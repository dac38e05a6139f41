"""Reads a job from YAML; an error names the path of the field."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, get_origin

import msgspec
import yaml

from spotlight.errors import JobError, UnreadableFile
from spotlight.files import MEBIBYTE, path_problem, read_text
from spotlight.jobs.changes import changed
from spotlight.jobs.former_fields import FORMER, as_meant, brought_up
from spotlight.jobs.hub_names import HUB
from spotlight.jobs.losses import LOSSES
from spotlight.jobs.plain_yaml import PlainYAMLError, read_yaml
from spotlight.jobs.problems import hints, job_error, number_problem, options, section_type
from spotlight.jobs.rewards import RewardSpec
from spotlight.jobs.spec import JobSpec, WorkSpec
from spotlight.jobs.stamp import KEY, Stamp, stamp_of
from spotlight.jobs.training import TrainingSpec

LARGEST_JOB_FILE = MEBIBYTE
"""Bytes of a job file, or of a run folder's config.yaml: one with every field has some three
thousand."""


def load_job(path: Path, changes: Sequence[str] = ()) -> JobSpec:
    """Read a job from a YAML file; relative prompt and checkpoint paths become absolute.

    `changes` are fields to set otherwise, each as `path=value` (see `changed`). Raises
    `JobError` with the path of the field (or of the file) and what to do.
    """
    return job_from_data(job_data(path, changes), base=path.parent)


def job_data(path: Path, changes: Sequence[str] = ()) -> dict[str, Any]:
    """What a job file says, with `changes`, as plain data that nobody has validated; raises
    `JobError`."""
    try:
        text = read_text(path, most=LARGEST_JOB_FILE)
    except UnreadableFile as error:
        raise JobError(str(path), f"{error.problem}; give the path of a job file (YAML)") from error
    return _data(text, str(path), changes)


def parse_job(
    text: str, *, source: str = "job", base: Path | None = None, changes: Sequence[str] = ()
) -> JobSpec:
    """Parse and validate a job. `base` is the folder that relative paths start from; for `changes`
    see `changed`.
    """
    return job_from_data(_data(text, source, changes), base=base)


def job_of_run(data: dict[str, Any]) -> JobSpec:
    """The job that a run was made with, perhaps of an earlier version, which it keeps to; raises
    `JobError`."""
    return job_from_data(as_meant(data))


def parse_job_of_run(text: str, *, source: str) -> JobSpec:
    """The same from a run folder's `config.yaml`; raises `JobError`."""
    return job_of_run(_data(text, source, ()))


def _data(text: str, source: str, changes: Sequence[str]) -> dict[str, Any]:
    try:
        data = read_yaml(text)
    except PlainYAMLError as error:
        raise JobError(source, str(error)) from error
    if not isinstance(data, dict):
        raise JobError(source, "must hold a mapping with `name`, `model`, `prompts` and `sampler`")
    return changed(data, changes, [*job_paths(), *FORMER])


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
        raise job_error(str(error), data, JobSpec) from error


def job_paths(spec: type[msgspec.Struct] = JobSpec, prefix: str = "") -> list[str]:
    """The paths of all sections and fields of a job; `[]` stands for any place in a list, and
    `.*` for any name in a mapping."""
    paths: list[str] = []
    for name, hint in hints(spec).items():
        paths.append(f"{prefix}{name}")
        is_list = any(get_origin(option) is tuple for option in options(hint))
        inside = f"{prefix}{name}[]" if is_list else f"{prefix}{name}"
        if is_list:
            paths.append(inside)
        if get_origin(hint) is Mapping:
            paths.append(f"{inside}.*")
        if spec is TrainingSpec and name == "options":
            known = {one for facts in LOSSES.values() for one in facts.options.__struct_fields__}
            paths += [f"{inside}.{one}" for one in sorted(known)]
        section = section_type(hint)
        if section is not None:
            paths += job_paths(section, f"{inside}.")
    return paths


def work_from_data(data: dict[str, Any]) -> WorkSpec:
    """Validate what workers must know, given as plain data; raises `JobError`."""
    _refuse_unknown_keys(data, WorkSpec, "")
    try:
        return msgspec.convert(data, WorkSpec)
    except msgspec.ValidationError as error:
        raise job_error(str(error), data, WorkSpec) from error


SectionT = TypeVar("SectionT", bound=msgspec.Struct)


def section_from_text(text: str, spec: type[SectionT], source: str) -> SectionT:
    """A section of a job that stands in a file of its own, YAML or JSON; raises `JobError`."""
    try:
        data = read_yaml(text)
    except PlainYAMLError as error:
        raise JobError(source, str(error)) from error
    if not isinstance(data, dict):
        raise JobError(source, f"must hold fields, such as `{spec.__struct_fields__[0]}`")
    try:
        _refuse_unknown_keys(data, spec, "")
        return msgspec.convert(data, spec)
    except msgspec.ValidationError as error:
        wrong = job_error(str(error), data, spec)
    except JobError as error:
        wrong = error
    raise JobError(f"{source}: {wrong.path}", wrong.problem)


def job_to_yaml(job: JobSpec, stamp: Stamp | None = None) -> str:
    """The whole job, defaults included, as YAML; a `stamp` comes first."""
    head = {} if stamp is None else {KEY: msgspec.to_builtins(stamp)}
    return yaml.safe_dump(head | msgspec.to_builtins(job), sort_keys=False)


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
        if reward.clip is not None:
            named = {
                name: absolute(f"{field}.clip.{name}", value)
                for name in ("checkpoint", "processor")
                if (value := getattr(reward.clip, name))
            }
            clip = msgspec.structs.replace(reward.clip, **named)
            return msgspec.structs.replace(reward, clip=clip)
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
            job.model,
            checkpoint=absolute("model.checkpoint", job.model.checkpoint),
            start=absolute("model.start", job.model.start) if job.model.start else "",
        ),
        exploration=msgspec.structs.replace(
            job.exploration,
            preview_checkpoint=absolute("exploration.preview_checkpoint", previews)
            if (previews := job.exploration.preview_checkpoint)
            else "",
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
    known = hints(spec)
    for key, value in data.items():
        path = f"{prefix}{key}"
        if key not in known:
            close = difflib.get_close_matches(str(key), list(known), n=1)
            advice = (
                f"did you mean `{close[0]}`?"
                if close
                else f"known here: {', '.join(sorted(known))}"
            )
            raise JobError(path, f"unknown key; {advice}")
        if problem := number_problem(value):
            raise JobError(path, problem)
        section = section_type(known[key])
        if section is not None and isinstance(value, dict):
            _refuse_unknown_keys(value, section, f"{path}.")
        for index, each in enumerate(value if isinstance(value, list) else ()):
            if section is not None and isinstance(each, dict):
                _refuse_unknown_keys(each, section, f"{path}[{index}].")
