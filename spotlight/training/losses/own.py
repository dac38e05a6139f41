"""Losses that users wrote: every error of one is a single line that names it."""

from __future__ import annotations

import importlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from typing import Any, cast

import msgspec
import torch
from torch import Tensor

from spotlight.errors import JobError, LossFailed, SpotlightError
from spotlight.jobs.losses import LossOptions, NoisedOptions, replays
from spotlight.record.run_metrics import IterationMetrics
from spotlight.text import error_text
from spotlight.training.batches import TrainingBatch
from spotlight.training.losses.base import Loss, LossSetup, Terms, Velocities

_TAKEN = {field.name for field in msgspec.structs.fields(IterationMetrics)} | {"kind"}
"""Metrics of the run, beside which those of the loss are written."""
_LONGEST_METRIC = 100
"""Characters of a metric's name."""
_MEMBERS = ("samplers", "metrics", "uses_old_policy", "terms", "evaluate")


class OwnLoss:
    """A `Loss` that is checked at every call. Its methods raise `LossFailed` when the loss raises,
    and when it returns something invalid.
    """

    def __init__(self, name: str, kind: Any, setup: LossSetup) -> None:
        """`name` is what the job calls it, `kind` its `own_class`; raises `JobError`."""
        self._name = name
        try:
            self._loss = cast(Loss, kind(setup))
        except JobError:
            raise
        except Exception as error:
            raise JobError(
                "training.loss", f"`{name}` cannot be made: {error_text(error)}"
            ) from error
        missing = [member for member in _MEMBERS if not hasattr(self._loss, member)]
        if missing:
            raise JobError("training.loss", f"`{name}` has no `{missing[0]}`; a loss needs one")
        self.samplers = self._names("samplers")
        self.metrics = self._names("metrics")
        for metric in self.metrics:
            if not (metric.isprintable() and 0 < len(metric) <= _LONGEST_METRIC):
                raise JobError(
                    "training.loss",
                    f"`{name}` has a metric called {metric[:_LONGEST_METRIC]!r}; use 1 to"
                    f" {_LONGEST_METRIC} printable characters",
                )
        taken = _TAKEN.intersection(self.metrics)
        if taken:
            raise JobError(
                "training.loss",
                f"`{name}` has a metric `{min(taken)}`, which every run has; rename it",
            )
        self.uses_old_policy = bool(self._loss.uses_old_policy)
        if setup.training.slices > 1 and not getattr(self._loss, "sums_over_slices", True):
            raise JobError(
                "training.slices",
                f"must be 1, not {setup.training.slices}, with the loss `{name}`: it cannot be"
                " summed over slices of an update (its `sums_over_slices` is False)",
            )

    def terms(self, batch: TrainingBatch, samples: Sequence[int], keys: Sequence[int]) -> Terms:
        """See `Loss`."""
        with self._named("terms"):
            terms = self._loss.terms(batch, samples, keys)
        self._require(isinstance(terms, Terms), "terms", f"returned {_kind(terms)}, not `Terms`")
        for field in fields(terms):
            value = getattr(terms, field.name)
            rows = len(value) if isinstance(value, Tensor) and value.dim() else None
            self._require(
                rows == len(terms),
                "terms",
                f"returned {rows} rows of `{field.name}`, but {len(terms)} of `samples`",
            )
        return terms

    def evaluate(self, terms: Terms, velocities: Velocities) -> tuple[Tensor, dict[str, Tensor]]:
        """See `Loss`."""
        with self._named("evaluate"):
            losses, metrics = self._loss.evaluate(terms, velocities)
        self._require(
            isinstance(metrics, Mapping), "evaluate", f"returned {_kind(metrics)} as metrics"
        )
        self._require_rows("losses", losses, terms)
        self._require(
            losses.requires_grad, "evaluate", "returned losses without a gradient in the velocities"
        )
        for name in self.metrics:
            self._require(name in metrics, "evaluate", f"returned no metric `{name}`")
            self._require_rows(f"metric `{name}`", metrics[name], terms)
        return losses, {name: metrics[name].detach() for name in self.metrics}

    def _names(self, member: str) -> tuple[str, ...]:
        names = getattr(self._loss, member)
        fine = isinstance(names, Collection) and not isinstance(names, str)
        if not fine or not all(isinstance(each, str) for each in names):
            raise JobError(
                "training.loss", f"`{self._name}`: `{member}` must be a tuple of names, not {names}"
            )
        return tuple(names)

    def _require_rows(self, what: str, values: Any, terms: Terms) -> None:
        shape = tuple(values.shape) if isinstance(values, Tensor) else _kind(values)
        self._require(
            shape == (len(terms),),
            "evaluate",
            f"returned {what} of shape {shape}, not one value per row ({len(terms)},)",
        )

    def _require(self, fine: bool, method: str, problem: str) -> None:
        if not fine:
            raise LossFailed(f"training.loss: `{self._name}`: {method}() {problem}")

    @contextmanager
    def _named(self, method: str) -> Iterator[None]:
        try:
            yield
        except (SpotlightError, torch.OutOfMemoryError):
            raise
        except Exception as error:
            raise LossFailed(
                f"training.loss: `{self._name}`: {method}() raised {error_text(error)}"
            ) from error


def own_options(name: str, kind: Any) -> type[msgspec.Struct]:
    """The class of the options of a loss of the user's own; raises `JobError`.

    One that names none has those of `Noised`, and none where it replays the sampler's steps.
    """
    found = getattr(kind, "Options", None)
    if found is None:
        samplers = getattr(kind, "samplers", ())
        is_known = isinstance(samplers, Collection)
        return LossOptions if is_known and samplers and replays(samplers) else NoisedOptions
    if not (isinstance(found, type) and issubclass(found, msgspec.Struct)):
        raise JobError(
            "training.loss",
            f"`{name}`: `Options` must be a class derived from `LossOptions`, not {found!r}",
        )
    try:
        msgspec.inspect.type_info(found)
    except Exception as error:  # whatever annotations it has
        raise JobError(
            "training.loss", f"`{name}`: its `Options` cannot be read: {error_text(error)}"
        ) from error
    return found


def own_class(name: str, target: str) -> Any:
    """The class of a loss of the user's own, imported; raises `JobError`.

    Args:
        name: what the job calls it.
        target: its `module:Class`.
    """
    module, _, attribute = target.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute, None)
    except (Exception, SystemExit) as error:  # whatever a module raises while it is imported
        raise JobError(
            "training.loss",
            f"`{name}` cannot be imported where the trainer runs: {error_text(error)}; install its"
            " package there, or start Spotlight in the folder of its module",
        ) from error
    if not callable(found):
        raise JobError("training.loss", f"`{name}`: {module} has no class `{attribute}`")
    return found


def _kind(value: object) -> str:
    return type(value).__name__
