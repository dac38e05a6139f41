"""What the charts of a report have in common: their axes, titles and legends."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from spotlight.report import charts


def whole(axis: charts.Axis) -> charts.Axis:
    """The same, with ticks at whole numbers only."""
    ticks = tuple(tick for tick in axis.ticks if tick == int(tick))
    return charts.Axis(axis.low, axis.high, ticks, axis.label)


def short(value: float) -> str:
    """A tick's number."""
    return f"{round(value, 6):g}"


def figure(title: str, note: str, drawn: str, legend: str = "") -> str:
    """A chart with its title and what it shows."""
    return (
        f"<figure><figcaption><h3>{escape(title)}</h3><p>{escape(note)}</p></figcaption>"
        f"{legend}{drawn}</figure>"
    )


def legend(entries: Iterable[tuple[str, str]], kind: str = "") -> str:
    """What the colours of a chart stand for."""
    items = "".join(
        f'<li class="{charts.colour_class(colour)} {kind}">{escape(text)}</li>'
        for colour, text in entries
    )
    return f'<ul class="legend">{items}</ul>'
