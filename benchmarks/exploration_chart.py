"""Validation over time for several methods and seeds: one SVG file, which needs nothing else."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from html import escape

from benchmarks.time_to_target import Curve, smoothed
from spotlight.report.charts import Axis, nice_axis

_WIDTH, _HEIGHT = 640, 380
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 500, 24, 330
_COLOURS = {
    "reserved": "#9a9da3",
    "rollouts": "#1c1e23",
    "inline": "#8a5cc2",
    "uniform": "#3a6fd0",
    "spotlight": "#c8502f",
}
_STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#5d626c}.grid{stroke:#e6e6e1}"
    "polyline{fill:none;stroke-width:1.6;stroke-linejoin:round}"
)


def draw_curves(curves: Mapping[tuple[str, int], Curve], unit: str) -> str:
    """Smoothed as they count, a line for each (method, seed)."""
    lines = {key: smoothed(curve) for key, curve in curves.items()}
    points = [point for line in lines.values() for point in line]
    times = nice_axis(0, max(time for time, _ in points), "{:g}".format, widen=False)
    scores = [score for _, score in points]
    height = nice_axis(min(scores), max(scores), "{:.2f}".format)

    def place(time: float, score: float) -> tuple[float, float]:
        x = _LEFT + (_RIGHT - _LEFT) * times.fraction(time)
        return x, _BOTTOM - (_BOTTOM - _TOP) * height.fraction(score)

    body = [*_grid(times, height, place)]
    for (method, seed), line in lines.items():
        track = " ".join("{:.1f},{:.1f}".format(*place(*point)) for point in line)
        body.append(
            f'<polyline stroke="{_COLOURS[method]}" points="{track}">'
            f"<title>{escape(method)}, seed {seed}</title></polyline>"
        )
    methods = [method for method in _COLOURS if any(key[0] == method for key in lines)]
    body += [
        f'<text x="{_RIGHT + 14}" y="{_TOP + 8 + 20 * row}" style="fill:{_COLOURS[method]}">'
        f"{escape(method)}</text>"
        for row, method in enumerate(methods)
    ]
    body.append(
        f'<text x="{(_LEFT + _RIGHT) / 2}" y="{_HEIGHT - 12}" text-anchor="middle">'
        f"{escape(unit)}</text>"
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img"'
        f' aria-label="validation score over {escape(unit)}"><style>{_STYLE}</style>'
        f'<rect width="100%" height="100%" fill="#fff"/>{"".join(body)}</svg>\n'
    )


def _grid(
    times: Axis, height: Axis, place: Callable[[float, float], tuple[float, float]]
) -> Sequence[str]:
    parts = []
    for tick in height.ticks:
        _, y = place(0.0, tick)
        parts.append(
            f'<line class="grid" x1="{_LEFT}" x2="{_RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
            f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{height.label(tick)}</text>'
        )
    for tick in times.ticks:
        x, _ = place(tick, height.low)
        parts.append(
            f'<text x="{x:.1f}" y="{_BOTTOM + 18}" text-anchor="middle">{times.label(tick)}</text>'
        )
    return parts
