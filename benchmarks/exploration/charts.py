"""Two plots, each an SVG file that needs nothing else: scores over time with a band, and ratios
with their intervals."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from html import escape

import msgspec

from spotlight.report.charts import Axis, nice_axis

_WIDTH = 880
_LEFT, _RIGHT, _TOP = 64, 570, 74
_HEIGHT_OF_CURVES = 340
_ROW = 26
_STYLE = (
    "text{font:13px system-ui,sans-serif;fill:#3c4048}.title{font-weight:600;font-size:15px}"
    ".note{font-size:12px;fill:#6a6f78;paint-order:stroke;stroke:#fff;stroke-width:4px}.grid{stroke:#e6e6e1}.mark{stroke:#6a6f78;"
    "stroke-dasharray:5 4}.end{text-anchor:end}.middle{text-anchor:middle}"
    "polyline{fill:none;stroke-width:2;stroke-linejoin:round}"
)


class Line(msgspec.Struct, frozen=True):
    """The mean of a rival's runs over time."""

    name: str
    colour: str
    points: Sequence[tuple[float, float]]
    band: Sequence[tuple[float, float]]
    """(low, high) of each point; empty: none."""


class Interval(msgspec.Struct, frozen=True):
    """A ratio, and perhaps its interval."""

    name: str
    colour: str
    value: float
    low: float | None
    high: float | None


def curves(lines: Sequence[Line], *, title: str, note: str, x: str, y: str, target: float) -> str:
    """Lines with bands, and a dashed one at the target."""
    bottom = _TOP + _HEIGHT_OF_CURVES
    times = nice_axis(
        0, max(time for one in lines for time, _ in one.points), "{:g}".format, widen=False
    )
    scores = [score for one in lines for _, score in one.points] + [target]
    edges = [edge for one in lines for pair in one.band for edge in pair]
    height = nice_axis(min(scores + edges), max(scores + edges), "{:g}".format)

    def place(time: float, score: float) -> str:
        across = _LEFT + (_RIGHT - _LEFT) * times.fraction(time)
        return f"{across:.1f},{bottom - _HEIGHT_OF_CURVES * height.fraction(score):.1f}"

    body = [*_across(height, bottom), *_ticks_below(times, bottom)]
    level = bottom - _HEIGHT_OF_CURVES * height.fraction(target)
    body.append(
        f'<line class="mark" x1="{_LEFT}" x2="{_RIGHT}" y1="{level:.1f}" y2="{level:.1f}"/>'
        f'<text class="note" x="{_LEFT + 6}" y="{level - 6:.1f}">target</text>'
    )
    for one in lines:
        if one.band:
            upper = [
                place(at, high) for (at, _), (_, high) in zip(one.points, one.band, strict=True)
            ]
            lower = [place(at, low) for (at, _), (low, _) in zip(one.points, one.band, strict=True)]
            around = " ".join([*upper, *reversed(lower)])
            body.append(f'<polygon fill="{one.colour}" opacity="0.15" points="{around}"/>')
    for one in lines:
        track = " ".join(place(*point) for point in one.points)
        body.append(
            f'<polyline stroke="{one.colour}" points="{track}">'
            f"<title>{escape(one.name)}</title></polyline>"
        )
    body += _legend((one.name, one.colour) for one in lines)
    body.append(
        f'<text class="middle" x="{(_LEFT + _RIGHT) / 2}" y="{bottom + 42}">{escape(x)}</text>'
    )
    body.append(_title(title, note))
    body.append(f'<text x="{_LEFT - 44}" y="{_TOP - 10}" class="note">{escape(y)}</text>')
    return _svg(body, bottom + 58, title)


def intervals(
    groups: Sequence[tuple[str, Sequence[Interval]]], *, title: str, note: str, x: str
) -> str:
    """A row for each ratio; groups of rows share a label. The dashed line is at 1."""
    rows = [one for _, each in groups for one in each]
    edges = [edge for one in rows for edge in (one.value, one.low, one.high) if edge is not None]
    bottom = _TOP + sum(_ROW * len(each) + 14 for _, each in groups)
    left = 330
    axis = nice_axis(0, max([*edges, 1.0]), "{:g}".format)

    def at(value: float) -> float:
        return left + (_WIDTH - 40 - left) * axis.fraction(value)

    body = [
        f'<line class="grid" x1="{at(tick):.1f}" x2="{at(tick):.1f}" y1="{_TOP}" y2="{bottom}"/>'
        f'<text class="middle" x="{at(tick):.1f}" y="{bottom + 20}">{axis.label(tick)}</text>'
        for tick in axis.ticks
    ]
    body.append(f'<line class="mark" x1="{at(1):.1f}" x2="{at(1):.1f}" y1="{_TOP}" y2="{bottom}"/>')
    y = float(_TOP)
    for label, each in groups:
        middle = y + _ROW * len(each) / 2 + 4
        body.append(f'<text class="end" x="{left - 12}" y="{middle:.0f}">{escape(label)}</text>')
        for one in each:
            y += _ROW
            body.append(_whisker(one, at, y - _ROW / 2))
        y += 14
    names = dict.fromkeys((one.name, one.colour) for one in rows)
    spans = [
        f'<tspan dx="22" style="fill:{colour};font-weight:600">{escape(name)}</tspan>'
        for name, colour in names
    ]
    body.append(f'<text class="end" x="{_WIDTH - 40}" y="{_TOP - 8}">{"".join(spans)}</text>')
    body.append(f'<text class="middle" x="{(left + _WIDTH - 40) / 2}" y="{bottom + 44}">{x}</text>')
    body.append(_title(title, note))
    return _svg(body, bottom + 58, title)


def _whisker(one: Interval, at: Callable[[float], float], y: float) -> str:
    told = f"{one.value:.2f}"
    end, line = one.value, ""
    if one.low is not None and one.high is not None:
        told += f" ({one.low:.2f} to {one.high:.2f})"
        end = one.high
        line = (
            f'<line stroke="{one.colour}" stroke-width="2" x1="{at(one.low):.1f}"'
            f' x2="{at(one.high):.1f}" y1="{y}" y2="{y}"/>'
        )
    return (
        f'{line}<circle fill="{one.colour}" r="5" cx="{at(one.value):.1f}" cy="{y}"/>'
        f'<text class="note" x="{at(end) + 10:.1f}" y="{y + 4}">{one.value:.1f}</text>'
        f"<title>{escape(one.name)}: {told}</title>"
    )


def _across(height: Axis, bottom: float) -> Iterable[str]:
    for tick in height.ticks:
        y = bottom - _HEIGHT_OF_CURVES * height.fraction(tick)
        yield (
            f'<line class="grid" x1="{_LEFT}" x2="{_RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
            f'<text class="end" x="{_LEFT - 8}" y="{y + 4:.1f}">{height.label(tick)}</text>'
        )


def _ticks_below(times: Axis, bottom: float) -> Iterable[str]:
    for tick in times.ticks:
        x = _LEFT + (_RIGHT - _LEFT) * times.fraction(tick)
        yield f'<text class="middle" x="{x:.1f}" y="{bottom + 20}">{times.label(tick)}</text>'


def _legend(names: Iterable[tuple[str, str]]) -> Iterable[str]:
    for row, (name, colour) in enumerate(names):
        y = _TOP + 12 + 22 * row
        yield (
            f'<rect x="{_RIGHT + 18}" y="{y - 9}" width="12" height="4" fill="{colour}"/>'
            f'<text x="{_RIGHT + 36}" y="{y - 2}">{escape(name)}</text>'
        )


def _title(title: str, note: str) -> str:
    return (
        f'<text class="title" x="20" y="22">{escape(title)}</text>'
        f'<text class="note" x="20" y="40">{escape(note)}</text>'
    )


def _svg(body: Iterable[str], height: float, title: str) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height:.0f}" role="img"'
        f' aria-label="{escape(title)}"><style>{_STYLE}</style>'
        f'<rect width="100%" height="100%" fill="#fff"/>{"".join(body)}</svg>\n'
    )
