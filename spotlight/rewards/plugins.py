"""Scorers that users wrote: finds the class that a job's `python` names.

A name is `package.module:Class`, or that of an entry point of the group `spotlight.rewards`. Only a
class with a method `score` is ever called, with the reward's `options`. Imports no numpy.
"""

from __future__ import annotations

import importlib
import inspect
from importlib.metadata import entry_points
from typing import Any

from spotlight.errors import JobError
from spotlight.jobs import RewardSpec
from spotlight.jobs.rewards import GROUP, scorer_target
from spotlight.own_classes import no_such_class, require_class
from spotlight.permissions import Permissions
from spotlight.text import error_text

_METHODS = {"score": 2}
"""What a scorer must have, and of how many arguments: `images` and `prompts`."""


def load_scorer(spec: RewardSpec, permissions: Permissions) -> Any:
    """The scorer of a reward of `kind: python`.

    Raises `JobError` when its code may not run here, there is none by its name, it is not a class
    with a method `score` that takes images and prompts, or it cannot be made with the reward's
    options.
    """
    target = _target(spec)
    permissions.require_code(f"reward `{spec.name}`", target)
    module_name, _, class_name = target.partition(":")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # whatever a foreign module raises, it cannot be imported
        raise _refusal(
            spec, f"{module_name} cannot be imported here ({error_text(error)})"
        ) from error
    found = getattr(module, class_name, None)
    if found is None:
        raise _refusal(spec, no_such_class(module_name, class_name, vars(module)))
    if not inspect.isclass(found) or not callable(getattr(found, "score", None)):
        raise _refusal(spec, f"{target} is not a class with a method `score(images, prompts)`")
    try:
        scorer: Any = found(**spec.options)
    except Exception as error:
        raise _refusal(
            spec,
            f"{target} cannot be made with the options {sorted(spec.options)}"
            f" ({error_text(error)})",
        ) from error
    try:
        inspect.signature(scorer.score).bind(None, None)
    except TypeError as error:
        raise _refusal(
            spec, f"{target}.score must take two arguments, `images` and `prompts`"
        ) from error
    return scorer


def check_plugin(spec: RewardSpec) -> None:
    """Raise `JobError` unless the class of a reward of `kind: python` is where the job says and can
    score, as far as can be told without running any of its code.
    """
    require_class(f"reward `{spec.name}`", _target(spec), _METHODS)


def _target(spec: RewardSpec) -> str:
    """`module:Class`, of an entry point too."""
    target = scorer_target(spec.python)
    if target is None:
        known = ", ".join(f"`{name}`" for name in sorted(entry_points(group=GROUP).names)) or "none"
        raise _refusal(
            spec,
            f"no installed package has an entry point `{spec.python}` in the group `{GROUP}`; there"
            f" is {known}; or write `package.module:Class`",
        )
    return target


def _refusal(spec: RewardSpec, problem: str) -> JobError:
    return JobError(f"reward `{spec.name}`", problem)
