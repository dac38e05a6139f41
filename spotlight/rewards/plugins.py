"""Scorers that users wrote: finds the class or function that a job's `python` names.

A name is `package.module:Class`, `package.module:function`, or that of an entry point of the group
`spotlight.rewards`. A class with a method `score` is made with the reward's `options`; a function
gets them with every batch. Imports no numpy.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any

from spotlight.errors import JobError
from spotlight.jobs import RewardSpec
from spotlight.jobs.rewards import GROUP, scorer_target
from spotlight.own_classes import Call, not_there, require_class
from spotlight.permissions import Permissions
from spotlight.text import error_text
from spotlight.types import Prompt

_METHODS = {"score": 2}
"""What a scorer must have, and of how many arguments: `images` and `prompts`."""


@dataclass(frozen=True)
class FunctionScorer:
    """Scores with a function `(images, prompts, **options)`."""

    function: Callable[..., Sequence[float]]
    options: dict[str, Any]

    def score(self, images: Any, prompts: Sequence[Prompt]) -> Sequence[float]:
        """See `spotlight.rewards.base.Scorer`."""
        return self.function(images, prompts, **self.options)


def load_scorer(spec: RewardSpec, permissions: Permissions) -> Any:
    """The scorer of a reward of `kind: python`.

    Raises `JobError` when its code may not run here, there is none by its name, it is neither a
    class with a method `score` nor a function that takes images and prompts, or it does not take
    the reward's options.
    """
    target = _target(spec)
    permissions.require_code(f"reward `{spec.name}`", target)
    module_name, _, name = target.partition(":")
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:  # whatever a foreign module raises: it is not there
        raise _refusal(
            spec, f"{module_name} cannot be imported here ({error_text(error)})"
        ) from error
    found = getattr(module, name, None)
    if found is None:
        raise _refusal(spec, not_there(module_name, "class or function", name, vars(module)))
    if inspect.isclass(found):
        return _made(spec, target, found)
    if not inspect.isroutine(found) or inspect.iscoroutinefunction(found):
        raise _refusal(
            spec,
            f"{target} is neither a function of `images` and `prompts` nor a class with a method"
            " `score(images, prompts)`",
        )
    _require_arguments(spec, target, found, spec.options)
    return FunctionScorer(found, dict(spec.options))


def _made(spec: RewardSpec, target: str, found: type) -> Any:
    if not callable(getattr(found, "score", None)):
        raise _refusal(spec, f"{target} is not a class with a method `score(images, prompts)`")
    try:
        scorer: Any = found(**spec.options)
    except (Exception, SystemExit) as error:
        raise _refusal(
            spec,
            f"{target} cannot be made with the options {sorted(spec.options)}"
            f" ({error_text(error)})",
        ) from error
    _require_arguments(spec, f"{target}.score", scorer.score, {})
    return scorer


def _require_arguments(
    spec: RewardSpec, what: str, function: Callable[..., Any], options: Mapping[str, Any]
) -> None:
    try:
        inspect.signature(function).bind(None, None, **options)
    except TypeError as error:
        also = f", and the options {sorted(options)}" if options else ""
        raise _refusal(
            spec, f"{what} must take two arguments, `images` and `prompts`{also}"
        ) from error
    except ValueError:  # compiled code may not tell its arguments; calling it does
        return


def check_plugin(spec: RewardSpec) -> None:
    """Raise `JobError` unless the class or function of a reward of `kind: python` is where the job
    says and can score, as far as can be told without running any of its code.
    """
    call = Call(2, spec.options)
    require_class(f"reward `{spec.name}`", _target(spec), _METHODS, call)


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
