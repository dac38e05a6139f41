"""The curves of a view, in bounded memory however long the run is: a row for each weights version,
and when there are too many rows one for each 2, 4, 8, ... versions, with the means of these.

What stands in one row was measured of the same weights: the samples of an iteration and the
validation of the version that made them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence

from spotlight.record.run_metrics import IterationMetrics, ValidationMetrics
from spotlight.report.run_view import CURVES, MOST_ROWS

_DIGITS = 6


def between(xs: Sequence[float], ys: Sequence[float], x: float) -> float:
    """On the line through points whose `xs` rise; at the ends and beyond what the ends have."""
    place = bisect_left(xs, x)
    if place == 0:
        return ys[0]
    if place == len(xs):
        return ys[-1]
    share = (x - xs[place - 1]) / (xs[place] - xs[place - 1])
    return ys[place - 1] + share * (ys[place] - ys[place - 1])


class _Row:
    """The sums of neighbours."""

    def __init__(self) -> None:
        self.sums = dict.fromkeys(CURVES, 0.0)
        self.counts = dict.fromkeys(CURVES, 0)

    def add(self, name: str, value: float | None) -> None:
        if value is not None:
            self.sums[name] += value
            self.counts[name] += 1

    def put(self, name: str, value: float | None) -> None:
        """Instead of what was there."""
        self.sums[name], self.counts[name] = (0.0, 0) if value is None else (value, 1)

    def merge(self, other: _Row) -> None:
        for name in CURVES:
            self.sums[name] += other.sums[name]
            self.counts[name] += other.counts[name]

    def mean(self, name: str) -> float | None:
        count = self.counts[name]
        return self.sums[name] / count if count else None


class Curves:
    """See the module's docstring."""

    def __init__(self, most: int = MOST_ROWS) -> None:
        self._most = most
        self._each = 1
        """How many versions a row stands for."""
        self._rows: dict[int, _Row] = {}
        """The rows by the number of their version, divided by that."""
        self._last = -1
        """The latest iteration."""

    def iteration(self, metrics: IterationMetrics, loss: Mapping[str, float]) -> None:
        """The next iteration; one that is made again takes the place of what came from it on."""
        if metrics.iteration <= self._last:
            self.rewind(metrics.iteration)
        self._last = metrics.iteration
        values = {
            "reward": metrics.reward_mean,
            "loss": metrics.loss,
            "grad_norm": metrics.grad_norm,
            "learning_rate": metrics.learning_rate,
            "kl": loss.get("kl"),
            "contrast": metrics.contrast,
            "contrast_at_random": metrics.contrast_at_random,
            "fidelity": metrics.probe_tau,
        }
        self._put(metrics.iteration, metrics.time_s, values)

    def validation(self, metrics: ValidationMetrics) -> None:
        """The validation of a version, before or after the iteration in which it made samples."""
        later = metrics.weights_version < self._last  # the row has its time already
        self._put(
            metrics.weights_version,
            None if later else metrics.time_s,
            {"validation": metrics.score},
        )

    def rewind(self, iteration: int) -> None:
        """What came from an iteration on does not count, as far as rows are of it alone."""
        self._last = min(self._last, iteration - 1)
        for number in [one for one in self._rows if one * self._each >= iteration]:
            if self._rows[number].counts["reward"] or number * self._each > iteration:
                del self._rows[number]

    def rows(self, usd_at: Callable[[float], float | None]) -> tuple[tuple[float | None, ...], ...]:
        """All rows in order, with what had been spent by then."""
        return tuple(
            tuple(
                _short(usd_at(row.mean("time_s") or 0.0) if name == "usd" else row.mean(name))
                for name in CURVES
            )
            for _, row in sorted(self._rows.items())
        )

    def _put(self, version: int, time_s: float | None, values: Mapping[str, float | None]) -> None:
        row = self._rows.setdefault(version // self._each, _Row())
        add = row.put if self._each == 1 else row.add
        if time_s is not None or not row.counts["time_s"]:
            add("iteration", float(version))
            add("time_s", time_s)
        for name, value in values.items():
            add(name, value)
        if len(self._rows) > self._most:
            self._fold()

    def _fold(self) -> None:
        rows, self._rows = self._rows, {}
        self._each *= 2
        for number, row in sorted(rows.items()):
            kept = self._rows.setdefault(number // 2, row)
            if kept is not row:
                kept.merge(row)


def iteration_at(rows: Iterable[Sequence[float | None]], times: Iterable[float]) -> list[float]:
    """Where on the axis of iterations these times are."""
    known = [(row[1], row[0]) for row in rows if row[0] is not None and row[1] is not None]
    xs, ys = [float(x or 0) for x, _ in known], [float(y or 0) for _, y in known]
    return [round(between(xs, ys, time_s), 3) if xs else 0.0 for time_s in times]


def _short(value: float | None) -> float | None:
    """With as many digits as anybody reads."""
    return None if value is None else float(f"{value:.{_DIGITS}g}")
