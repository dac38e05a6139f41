"""Charts as inline SVG, drawn by hand: no library, no JavaScript, no external resource.

Widths are percentages and heights are pixels, so that a chart fills its column on any screen while
text, dots and strokes keep their size. Colours are CSS classes (`c-NAME`), which the page defines
for light and dark. What to read off a mark is in its <title>. All text is escaped here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from html import escape

import msgspec

Point = tuple[float, float]

_UNITS = 10_000  # horizontal units of the stretched inner drawing
_HOVER_POINTS = 300


class Axis(msgspec.Struct, frozen=True):
    """A linear axis from `low` to `high` with labelled ticks."""

    low: float
    high: float
    ticks: tuple[float, ...]
    label: Callable[[float], str]

    def fraction(self, value: float) -> float:
        """Where `value` lies between `low` (0) and `high` (1)."""
        return (value - self.low) / (self.high - self.low)


class Series(msgspec.Struct, frozen=True):
    """A line in the colour `c-COLOUR`, with a title per point."""

    colour: str
    points: tuple[Point, ...]
    titles: tuple[str, ...]
    band: tuple[tuple[float, float], ...] = ()
    """A (low, high) range per point, or none."""
    dots: bool = False


def nice_axis(
    low: float, high: float, label: Callable[[float], str], *, count: int = 4, widen: bool = True
) -> Axis:
    """An axis over [low, high] with about `count` round ticks; `widen` extends it to ticks."""
    if high - low < 1e-9 * max(1.0, abs(low), abs(high)):
        low, high = low - 0.5, low + 0.5
    step = _round_step((high - low) / count)
    if widen:
        low, high = math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return Axis(low, high, tuple(i * step for i in range(first, last + 1)), label)


def clock(seconds: float) -> str:
    """Run time as m:ss or h:mm:ss."""
    whole = round(seconds)
    hours, minutes, rest = whole // 3600, whole // 60 % 60, whole % 60
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def _round_step(rough: float) -> float:
    power = 10.0 ** _exponent(rough)
    return next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= rough * (1 - 1e-9))


def _exponent(value: float) -> int:
    return math.floor(math.log10(value) + 1e-9)


def line_chart(
    series: Sequence[Series], x: Axis, y: Axis, *, description: str, height: int = 200
) -> str:
    """Lines over a grid, with bands behind and marks to hover over."""
    body = [_grid(x, y, height)]
    stretched = [_band(one, x, y, height) for one in series if one.band]
    stretched += [_line(one, x, y, height) for one in series]
    body.append(_stretched(stretched, height))
    body += [_marks(one, x, y, height) for one in series]
    return _plot(body, height, description)


def colour_class(name: str) -> str:
    """The CSS class of a colour name."""
    return f"c-{escape(name)}"


def _down(y: Axis, value: float, height: int) -> float:
    return height * (1 - y.fraction(value))


def _grid(x: Axis, y: Axis, height: int) -> str:
    parts = []
    for tick in y.ticks:
        at = _down(y, tick, height)
        kind = "base" if tick == y.low else "grid"
        parts.append(f'<line class="{kind}" x1="0" x2="100%" y1="{at:.1f}" y2="{at:.1f}"/>')
        parts.append(f'<text class="y" x="-8" y="{at + 4:.1f}">{escape(y.label(tick))}</text>')
    parts += [_x_label(x, tick, height + 18) for tick in x.ticks]
    return "".join(parts)


def _x_label(x: Axis, tick: float, y: int) -> str:
    at = 100 * x.fraction(tick)
    anchor = " start" if at < 1 else " end" if at > 99 else ""
    return f'<text class="x{anchor}" x="{at:.3f}%" y="{y}">{escape(x.label(tick))}</text>'


def _line(series: Series, x: Axis, y: Axis, height: int) -> str:
    return (
        f'<path class="l {colour_class(series.colour)}" d="{_track(series.points, x, y, height)}"/>'
    )


def _band(series: Series, x: Axis, y: Axis, height: int) -> str:
    at = [point[0] for point in series.points]
    upper = [(one, high) for one, (_, high) in zip(at, series.band, strict=True)]
    lower = [(one, low) for one, (low, _) in zip(at, series.band, strict=True)]
    track = _track((*upper, *reversed(lower)), x, y, height)
    return f'<path class="b {colour_class(series.colour)}" d="{track}Z"/>'


def _track(points: Iterable[Point], x: Axis, y: Axis, height: int) -> str:
    places = (
        f"{_UNITS * x.fraction(across):.1f} {_down(y, min(max(up, y.low), y.high), height):.2f}"
        for across, up in points
    )
    return "M" + "L".join(places)


def _marks(series: Series, x: Axis, y: Axis, height: int) -> str:
    every = max(1, len(series.points) // _HOVER_POINTS)
    dots = series.dots or len(series.points) == 1  # a line of one point would not be seen
    kind = f"dot f {colour_class(series.colour)}" if dots else "hidden"
    marks = []
    for (across, up), title in list(zip(series.points, series.titles, strict=True))[::every]:
        place = f'cx="{100 * x.fraction(across):.3f}%" cy="{_down(y, up, height):.1f}"'
        marks.append(
            f'<g class="mark"><circle class="{kind}" {place} r="3.5"/>'
            f'<circle class="hit" {place} r="9"/><title>{escape(title)}</title></g>'
        )
    return "".join(marks)


def _stretched(parts: Iterable[str], height: int) -> str:
    return (
        f'<svg width="100%" height="{height}" viewBox="0 0 {_UNITS} {height}" '
        f'preserveAspectRatio="none" overflow="visible">{"".join(parts)}</svg>'
    )


def _plot(body: Iterable[str], height: int, description: str) -> str:
    return f'<div class="plot">{_svg(body, height + 24, description, "")}</div>'


def _svg(body: Iterable[str], height: int, description: str, kind: str) -> str:
    return (
        f'<svg class="{kind}" role="img" aria-label="{escape(description)}" width="100%" '
        f'height="{height}" overflow="visible">{"".join(body)}</svg>'
    )
