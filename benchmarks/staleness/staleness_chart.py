"""The chart of a study of staleness: one SVG file that needs nothing but itself."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

from benchmarks.staleness.rank_fidelity import Estimate
from benchmarks.staleness.staleness_record import Comparison, StalenessRecord, write_result

CHART = Path("studies") / "staleness.svg"
"""The chart's path inside the run folder."""

_WIDTH, _HEIGHT = 640, 380
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 616, 80, 320
_RANKS, _KEPT = "#3a6fd0", "#c8502f"
_STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#5d626c}.title{font-size:15px;fill:#1c1e23}"
    ".grid{stroke:#e6e6e1}.l{fill:none;stroke-width:2}.dash{stroke-dasharray:5 4}"
)


def write_chart(run: Path, record: StalenessRecord) -> None:
    """Write `CHART` into a run folder at once; raises `RunFolderError`."""
    write_result(run / CHART, draw_chart(record).encode())


def draw_chart(record: StalenessRecord) -> str:
    """Both figures over the lag; at lag 0 those of the repetition. Dashed: what chance gives."""
    by_lag = {one.lag: one for one in record.comparisons if one.treatment == "rollout"}
    newest, shuffled = by_lag[0], _find(record, "shuffled")
    by_lag[0] = _find(record, "repeat")
    points = sorted(by_lag.items())
    ranks = [(lag, one.fidelity.spearman_median) for lag, one in points]
    kept = [(lag, one.fidelity.realised_over_oracle) for lag, one in points]
    bounds = [edge for _, one in (*ranks, *kept) for edge in one.interval or ()]
    scale = _Scale(max(by_lag), min((0.0, *bounds)))
    at_random = newest.fidelity.random_over_oracle
    control = shuffled.fidelity.spearman_median.value
    body = [
        f'<text class="title" x="{_LEFT}" y="22">{escape(record.job)}: how well rewards of older'
        " weights choose seeds</text>",
        _legend(41, _RANKS, "median Spearman with the newest weights", "shuffled", control),
        _legend(58, _KEPT, "contrast of the kept over the best possible", "at random", at_random),
        *scale.axes(list(by_lag)),
        scale.level(control, _RANKS),
        scale.level(at_random, _KEPT),
        *scale.line(ranks, _RANKS, -3),
        *scale.line(kept, _KEPT, 3),
        f'<text x="{(_LEFT + _RIGHT) / 2}" y="{_HEIGHT - 22}" text-anchor="middle">lag: iterations'
        " between the weights (bars: 95 % intervals over prompts)</text>",
    ]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img"'
        f' aria-label="rank correlation and kept contrast by lag"><style>{_STYLE}</style>'
        f'<rect width="100%" height="100%" fill="#fff"/>{"".join(body)}</svg>\n'
    )


def _find(record: StalenessRecord, treatment: str) -> Comparison:
    return next(one for one in record.comparisons if one.treatment == treatment)


def _legend(y: int, colour: str, solid: str, dashed: str, value: float | None) -> str:
    chance = "" if value is None else f"; dashed: {dashed}, {value:.2f}"
    return f'<text x="{_LEFT}" y="{y}" style="fill:{colour}">{solid}{chance}</text>'


class _Scale:
    """Lags from 0 to `longest` across, figures from `low` to 1 upwards."""

    def __init__(self, longest: int, low: float) -> None:
        self._longest = longest
        self._low = low

    def axes(self, lags: Sequence[int]) -> list[str]:
        """Grid and labels."""
        ticks = [tick / 4 for tick in range(-4, 5) if tick / 4 >= self._low]
        parts = [
            f'<line class="grid" x1="{_LEFT}" x2="{_RIGHT}" y1="{self._y(tick):.1f}"'
            f' y2="{self._y(tick):.1f}"/><text x="{_LEFT - 8}" y="{self._y(tick) + 4:.1f}"'
            f' text-anchor="end">{tick:g}</text>'
            for tick in ticks
        ]
        parts += [
            f'<text x="{self._x(lag):.1f}" y="{_BOTTOM + 18}" text-anchor="middle">{lag}</text>'
            for lag in lags
        ]
        return parts

    def line(self, points: Sequence[tuple[int, Estimate]], colour: str, shift: int) -> list[str]:
        """A line with dots and intervals, `shift` units to the side so that none is hidden."""
        known = [
            (self._x(lag) + shift, one.value, one.interval)
            for lag, one in points
            if one.value is not None
        ]
        track = " ".join(f"{x:.1f},{self._y(value):.1f}" for x, value, _ in known)
        parts = [f'<polyline class="l" stroke="{colour}" points="{track}"/>']
        for x, value, interval in known:
            if interval is not None:
                low, high = (self._y(edge) for edge in interval)
                parts.append(
                    f'<line stroke="{colour}" x1="{x:.1f}" x2="{x:.1f}" y1="{low:.1f}"'
                    f' y2="{high:.1f}"/>'
                )
            parts.append(
                f'<circle fill="{colour}" cx="{x:.1f}" cy="{self._y(value):.1f}" r="3.5">'
                f"<title>{value:.3f}</title></circle>"
            )
        return parts

    def level(self, value: float | None, colour: str) -> str:
        """A dashed line across."""
        if value is None:
            return ""
        y = self._y(value)
        return (
            f'<line class="dash" stroke="{colour}" x1="{_LEFT}" x2="{_RIGHT}" y1="{y:.1f}"'
            f' y2="{y:.1f}"/>'
        )

    def _x(self, lag: int) -> float:
        return _LEFT + 16 + (_RIGHT - _LEFT - 32) * lag / self._longest

    def _y(self, value: float) -> float:
        return _BOTTOM - (_BOTTOM - _TOP) * (value - self._low) / (1 - self._low)
