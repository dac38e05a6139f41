"""The page of a comparison: the curves of reward and validation of all variants, and their figures.
It needs nothing but itself, as the report of a run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from html import escape

from spotlight import __version__
from spotlight.report import charts, figures, formatting
from spotlight.report.charts import Series
from spotlight.report.comparison import Estimate, Point, Variant
from spotlight.report.page import page

_COLOURS = ("rollout", "train", "evaluate", "score", "explore", "starting", "lost")
HEADINGS = ("variant", "seeds", "iterations", "time", "reward", "validation", "best")


def comparison_page(variants: Sequence[Variant]) -> str:
    """The whole page. The curves are of as many variants as there are colours, the best ones."""
    drawn = by_score(variants)[: len(_COLOURS)]
    left = len(variants) - len(drawn)
    some = f" Drawn are the best {len(drawn)}; the table has {left} more." if left else ""
    runs = formatting.count(sum(len(one.runs) for one in variants), "run")
    note = (
        f"{formatting.count(len(variants), 'variant')}, {runs}. Where runs differ in their seed"
        f" alone, a curve is their mean, and the band its 95 % confidence interval.{some}"
    )
    legend = figures.legend(
        [(colour, one.label) for colour, one in zip(_COLOURS, drawn, strict=False)], "line"
    )
    curves = "".join(
        (
            *_chart("Reward of the samples", "mean reward", drawn, lambda one: one.reward),
            *_chart("Validation score", "score", drawn, lambda one: one.validation),
        )
    )
    nothing = '<p class="soft">Nothing was measured yet.</p>'
    return page(
        "Comparison - Spotlight",
        (
            '<header><p class="over">Spotlight</p><div class="title"><h1>Comparison</h1></div>'
            f'<p class="about">{escape(note)}</p>{legend}</header>',
            f'<section><h2>Curves</h2><div class="charts">{curves or nothing}</div></section>',
            _table(by_score(variants)),
            f"<footer><p>Written by Spotlight {escape(__version__)}.</p></footer>",
        ),
    )


def cells(variant: Variant) -> tuple[str, ...]:
    """The figures of a variant in words, in the order of `HEADINGS`."""
    return (
        variant.label,
        ", ".join(map(str, variant.seeds)),
        str(variant.iterations),
        formatting.duration(variant.seconds.mean) if variant.seconds else formatting.NONE,
        in_words(variant.reward[-1].value if variant.reward else None),
        in_words(variant.validation[-1].value if variant.validation else None),
        in_words(variant.best),
    )


def in_words(value: Estimate | None) -> str:
    """`0.412`, or `0.412 ± 0.020` of several runs."""
    if value is None:
        return formatting.NONE
    margin = "" if value.margin is None else f" ± {value.margin:.3f}"
    return f"{value.mean:.3f}{margin}"


def by_score(variants: Iterable[Variant]) -> list[Variant]:
    """The variants, that with the best validation first."""
    return sorted(variants, key=_best, reverse=True)


def _best(variant: Variant) -> float:
    found = variant.best or (variant.reward[-1].value if variant.reward else None)
    return float("-inf") if found is None else found.mean


def _chart(
    title: str,
    what: str,
    variants: Sequence[Variant],
    curve: Callable[[Variant], Sequence[Point]],
) -> Iterable[str]:
    series = [
        _series(colour, what, one.label, curve(one))
        for colour, one in zip(_COLOURS, variants, strict=False)
        if curve(one)
    ]
    if not series:
        return
    edges = [edge for one in series for ends in one.band for edge in ends]
    values = edges + [value for one in series for _, value in one.points]
    iterations = [at for one in series for at, _ in one.points]
    x = charts.nice_axis(
        min(iterations), max(iterations), lambda value: f"{value:.0f}", count=6, widen=False
    )
    drawn = charts.line_chart(
        series,
        figures.whole(x),
        charts.nice_axis(min(values), max(values), figures.short),
        description=f"{title} by iteration, of {formatting.count(len(series), 'variant')}",
    )
    yield figures.figure(title, "By iteration; with a band over seeds, where there are some", drawn)


def _series(colour: str, what: str, label: str, points: Sequence[Point]) -> Series:
    return Series(
        colour,
        tuple((float(one.iteration), one.value.mean) for one in points),
        tuple(
            f"{label}\niteration {one.iteration}\n{what} {in_words(one.value)}" for one in points
        ),
        tuple(_band(one.value) for one in points) if points[0].value.margin is not None else (),
    )


def _band(value: Estimate) -> tuple[float, float]:
    margin = value.margin or 0.0
    return value.mean - margin, value.mean + margin


def _table(variants: Sequence[Variant]) -> str:
    head = "".join(f'<th scope="col">{escape(name.capitalize())}</th>' for name in HEADINGS)
    rows = "".join(
        f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in cells(one))}</tr>" for one in variants
    )
    return (
        "<section><h2>Figures</h2><p>Reward and validation are those after the last iteration that"
        ' all runs of a variant have; best is the highest validation.</p><div class="scroll"'
        f' tabindex="0"><table class="plain"><thead><tr>{head}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div></section>"
    )
