"""The commands that read runs: the report of one, and several side by side."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from spotlight.cli.completing import run_names
from spotlight.cli.options import JoinOption, JsonOption, RunArgument
from spotlight.errors import RunFolderError, UserError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

    from spotlight.report.comparison import Point, Variant

_FEWEST = 2
_DRAWN = 4
"""This many curves fit side by side into 80 columns."""
_SHOWN_POINTS = 10


def report(
    run: RunArgument = "last",
    join: JoinOption = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
) -> None:
    """Write report.html of a run, or print its figures."""
    from spotlight.cli.run_choice import choose_run
    from spotlight.report.rendering import report_data, write_report

    folder = choose_run(run, join)
    if as_json:
        typer.echo(json.dumps(report_data(folder)))
    else:
        typer.echo(str(write_report(folder)))


def compare(
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN",
            help="Run folders, or names of runs or of jobs; two or more.",
            autocompletion=run_names,
        ),
    ],
    html: Annotated[
        Path | None, typer.Option("--html", help="Write a page with the curves to this file.")
    ] = None,
    join: JoinOption = "",
    as_json: JsonOption = False,
) -> None:
    """Compare runs: their rewards and validation, with intervals where only their seeds differ."""
    import msgspec
    from rich.console import Console

    from spotlight.cli.run_choice import choose_run
    from spotlight.report.comparison import compare as compared
    from spotlight.report.metrics import read_run

    folders = list(dict.fromkeys(choose_run(run, join).resolve() for run in runs))
    if len(folders) < _FEWEST:
        raise UserError("compare: name two runs or more; `spotlight report RUN` is about one")
    variants = compared([read_run(folder) for folder in folders])
    if as_json:
        typer.echo(msgspec.json.encode(variants).decode())
    else:
        Console().print(comparison_table(variants))
    if html is not None:
        _write_page(html, variants)
        typer.echo(f"the curves: {html}", err=as_json)


def comparison_table(variants: Sequence[Variant]) -> RenderableType:
    """The figures of all variants, the best one first, and the curves of the best ones."""
    from rich.console import Group
    from rich.text import Text

    from spotlight.cli.tables import plain_table
    from spotlight.report.comparison_page import HEADINGS, by_score, cells

    ordered = by_score(variants)
    labels, figures = [], []
    for number, one in enumerate(ordered, start=1):
        label, seeds, *rest = cells(one)
        labels.append(Text(f"{number}  {label} (seed{'s' * (len(one.seeds) > 1)} {seeds})"))
        figures.append([str(number), *rest])
    note = "Reward and validation are after the last iteration that all runs of a row have"
    if any(len(one.runs) > 1 for one in ordered):
        note += "; ± is the 95 % interval of the mean over seeds"
    best = ordered[:_DRAWN]
    return Group(
        *labels,
        Text(),
        plain_table(("", *HEADINGS[2:]), figures, folded=()),
        Text(f"\n{note}", style="dim"),
        *_curve_table("validation", [one.validation for one in best]),
        *_curve_table("reward", [one.reward for one in best]),
    )


def _curve_table(what: str, curves: Sequence[Sequence[Point]]) -> list[RenderableType]:
    """Curves side by side, at iterations that are evenly apart; nothing if there is no point."""
    from rich.text import Text

    from spotlight.cli.tables import plain_table
    from spotlight.report.comparison import spaced
    from spotlight.report.comparison_page import in_words

    values = [{one.iteration: one.value for one in curve} for curve in curves]
    iterations = spaced(sorted({at for curve in values for at in curve}), _SHOWN_POINTS)
    if not iterations:
        return []
    headings = ["iteration", *(str(number) for number in range(1, len(curves) + 1))]
    rows = [[str(at), *(in_words(curve.get(at)) for curve in values)] for at in iterations]
    return [Text(f"\n{what}"), plain_table(headings, rows, folded=())]


def _write_page(path: Path, variants: Sequence[Variant]) -> None:
    from spotlight.report.comparison_page import comparison_page

    try:
        path.write_text(comparison_page(variants), encoding="utf-8")
    except OSError as error:
        raise RunFolderError(f"--html {path}: cannot be written ({error.strerror})") from error
