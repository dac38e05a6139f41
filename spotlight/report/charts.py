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
_WIDEST_BAR = 8.0  # percent of the chart


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


class Segment(msgspec.Struct, frozen=True):
    """A coloured stretch of a lane."""

    start: float
    end: float
    colour: str
    label: str
    title: str


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


def time_axis(low: float, high: float, *, count: int = 6) -> Axis:
    """An axis of run time in seconds, with ticks at whole seconds, minutes or hours."""
    high = max(high, low + 1e-3)
    rough = (high - low) / count
    steps = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200, 86400)
    step = float(next((s for s in steps if s >= rough), 86400 * math.ceil(rough / 86400)))
    if rough < 0.6:
        step = _round_step(rough)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    digits = next(digits for digits in range(12) if abs(step - round(step, digits)) < 1e-6 * step)
    label = clock if high - low > 90 else (lambda seconds: f"{seconds:.{digits}f} s")
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


def bar_chart(
    bars: Sequence[tuple[float, Sequence[tuple[str, float]], str]],
    x: Axis,
    y: Axis,
    *,
    description: str,
    height: int = 200,
) -> str:
    """Stacked bars: (x, [(colour, amount) from the bottom up], title)."""
    width = min(_WIDEST_BAR, 72 / max(1.0, x.high - x.low))
    body = [_grid(x, y, height)]
    for position, parts, title in bars:
        left = 100 * x.fraction(position) - width / 2
        base = 0.0
        rects = []
        for colour, amount in parts:
            top, bottom = _down(y, base + amount, height), _down(y, base, height)
            base += amount
            rects.append(
                f'<rect class="f {colour_class(colour)}" x="{left:.3f}%" y="{top:.1f}" '
                f'width="{width:.3f}%" height="{bottom - top:.1f}"/>'
            )
        body.append(f"<g>{''.join(rects)}<title>{escape(title)}</title></g>")
    return _plot(body, height, description)


def lane_chart(segments: Sequence[Segment], x: Axis, *, description: str, height: int = 20) -> str:
    """One lane of coloured stretches; the stretches of a colour are one path, to stay small."""
    paths: dict[str, list[str]] = {}
    titles: dict[str, str] = {}
    for segment in segments:
        left, right = (_UNITS * x.fraction(edge) for edge in (segment.start, segment.end))
        paths.setdefault(segment.colour, []).append(
            f"M{left:.1f} 0H{right:.1f}V{height}H{left:.1f}Z"
        )
        titles.setdefault(segment.colour, segment.title)
    drawn = (
        f'<path class="f {colour_class(colour)}" d="{"".join(parts)}">'
        f"<title>{escape(titles[colour])}</title></path>"
        for colour, parts in paths.items()
    )
    return _svg([_stretched(drawn, height)], height, description, "lane")


def labelled_lane(
    segments: Sequence[Segment], x: Axis, *, description: str, height: int = 34
) -> str:
    """One lane whose wide stretches carry their label; for a few dozen stretches."""
    body = []
    for segment in segments:
        left, right = (100 * x.fraction(edge) for edge in (segment.start, segment.end))
        width = right - left
        text = ""
        if width > _LABEL_NEEDS:
            kind = colour_class(segment.colour) + (" wide" if width < _LABEL_NEEDS_ON_PHONE else "")
            text = (
                f'<text class="in {kind}" x="{left + width / 2:.3f}%" y="{height / 2 + 4:.0f}">'
                f"{escape(segment.label)}</text>"
            )
        body.append(
            f'<g><rect class="f {colour_class(segment.colour)}" x="{left:.3f}%" y="0" '
            f'width="{width:.3f}%" height="{height}" rx="2"/>{text}'
            f"<title>{escape(segment.title)}</title></g>"
        )
    return _svg(body, height, description, "lane")


_LABEL_NEEDS = 7.0  # percent of a lane on a wide screen
_LABEL_NEEDS_ON_PHONE = 20.0


def axis_row(x: Axis, *, height: int = 22) -> str:
    """Tick labels under lanes."""
    return _svg([_x_label(x, tick, 15) for tick in x.ticks], height, "run time", "axis")


def marks_row(x: Axis, marks: Iterable[tuple[float, str, str]], *, height: int = 12) -> str:
    """Diamonds above lanes: (position, colour, title)."""
    body = [
        f'<svg x="{100 * x.fraction(position):.3f}%" y="0" overflow="visible">'
        f'<path class="f {colour_class(colour)}" d="M0 1l5 5-5 5-5-5z">'
        f"<title>{escape(title)}</title></path></svg>"
        for position, colour, title in marks
    ]
    return _svg(body, height, "events", "axis")


def share_bar(parts: Sequence[tuple[str, float, str]], *, description: str) -> str:
    """A bar of 100%, from (colour, share, title) parts."""
    left = 0.0
    body = []
    for colour, share, title in parts:
        body.append(
            f'<rect class="f {colour_class(colour)}" x="{100 * left:.3f}%" y="0" '
            f'width="{100 * share:.3f}%" height="12"><title>{escape(title)}</title></rect>'
        )
        left += share
    return _svg(body, 12, description, "share")


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
