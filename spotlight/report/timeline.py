"""The report's account of time: what every worker did, and what it adds up to."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from spotlight.record.run_events import NodeLost
from spotlight.report import charts, formatting
from spotlight.report.charts import Axis, Segment
from spotlight.report.lanes import STATES, Interval, Lane, resumptions
from spotlight.report.metrics import Span, iteration_spans, typical_iteration
from spotlight.report.run_reading import RunHistory

_LABELLED = 400
_DENSE_FROM = 24  # lanes


def time_section(run: RunHistory, summary: dict[str, Any], workers: Sequence[Lane]) -> str:
    """Shares of time by pool, every worker's timeline, and the typical iteration up close."""
    if not workers:
        return ""
    present = _present(workers)
    legend = "".join(
        f'<li class="{charts.colour_class(state)}">{escape(state)}</li>' for state in present
    )
    return (
        "<section><h2>Where the time went</h2>"
        "<p>Every second of every worker has one state; a gap means that the worker was not there."
        f'{_scoring(summary)}</p><ul class="legend">{legend}</ul>'
        f"{_shares(summary, workers)}{_overview(run, workers)}{_close_up(run, workers)}"
        "</section>"
    )


def _scoring(summary: dict[str, Any]) -> str:
    seconds = summary["scoring_s"]
    if seconds is None:
        return ""
    return (
        f" Scoring took {formatting.duration(seconds)} of worker time in all; a worker that does"
        " something else meanwhile is shown with that."
    )


def _present(workers: Sequence[Lane]) -> list[str]:
    return [state for state in STATES if any(lane.seconds[state] for lane in workers)]


def _shares(summary: dict[str, Any], workers: Sequence[Lane]) -> str:
    rows = []
    for pool, times in summary["pools"].items():
        size = sum(lane.pool == pool for lane in workers)
        parts = [(state, times["share"][state]) for state in STATES if times["share"][state] > 0]
        bar = charts.share_bar(
            [
                (state, share, f"{state}: {formatting.duration(times['states'][state])}")
                for state, share in parts
            ],
            description=f"time of the {pool} pool by state",
        )
        said = "  ·  ".join(f"{state} {formatting.percent(share)}" for state, share in parts)
        if times["scoring_s"]:
            said += f"; scoring, also beside these: {formatting.percent(times['scoring_share'])}"
        rows.append(
            f"<dt>{escape(pool)}<span>{formatting.count(size, 'worker')}, "
            f"{formatting.duration(times['seconds']).replace(' ', '&nbsp;')}</span></dt>"
            f'<dd>{bar}<p class="parts">{escape(said)}</p></dd>'
        )
    return f'<dl class="shares">{"".join(rows)}</dl>'


def _overview(run: RunHistory, workers: Sequence[Lane]) -> str:
    axis = charts.time_axis(0.0, run.run_seconds)
    rows = [
        (
            lane,
            charts.lane_chart(
                _segments(lane),
                axis,
                description=f"states of {lane.worker} over the run",
                height=9 if len(workers) >= _DENSE_FROM else 26,
            ),
        )
        for lane in workers
    ]
    lost = run.events_of(NodeLost)
    marks = [(event.time_s, "lost", _at(event.time_s, f"{event.node} lost")) for event in lost]
    marks += [
        (event.time_s, "starting", _at(event.time_s, "run resumed")) for event in resumptions(run)
    ]
    below = _axis_line(charts.marks_row(axis, marks)) if marks else ""
    said = ["a red diamond marks a lost node"] if lost else []
    said += ["a grey diamond marks the start of a resumed run"] if resumptions(run) else []
    note = "".join(f"; {one}" for one in said)
    return f'<h3 class="sub">The whole run</h3><p>Run time{note}</p>' + _grid(
        rows, "", below + _axis_line(charts.axis_row(axis))
    )


def _at(time_s: float, what: str) -> str:
    return f"{what} at {charts.clock(time_s)}"


def _close_up(run: RunHistory, workers: Sequence[Lane]) -> str:
    span = typical_iteration(run)
    if span is None:
        return ""
    axis = charts.time_axis(0.0, span.end - span.start)
    rows = [
        (lane, _close_lane(lane, inside, axis, span))
        for lane in workers
        if (inside := _clipped(lane.close, span))
    ]
    phases = charts.labelled_lane(
        _phases(run, span), axis, description="phases of the iteration", height=24
    )
    count = len(iteration_spans(run))
    return (
        f'<h3 class="sub">Iteration {span.iteration} up close</h3>'
        f"<p>{formatting.duration(span.end - span.start)}, the median of "
        f"{formatting.count(count, 'iteration')}</p>"
        + _grid(rows, f'<span class="name">phase</span>{phases}', _axis_line(charts.axis_row(axis)))
    )


def _close_lane(lane: Lane, inside: Sequence[Interval], axis: Axis, span: Span) -> str:
    draw = charts.labelled_lane if len(inside) <= _LABELLED else charts.lane_chart
    segments = [
        Segment(
            one.start - span.start,
            one.end - span.start,
            one.state,
            one.state,
            f"{one.state}: {one.end - one.start:.2f} s",
        )
        for one in inside
    ]
    return draw(
        segments, axis, description=f"states of {lane.worker} in iteration {span.iteration}"
    )


def _clipped(intervals: Iterable[Interval], span: Span) -> list[Interval]:
    return [
        Interval(one.state, max(one.start, span.start), min(one.end, span.end)) for one in intervals
    ]


def _phases(run: RunHistory, span: Span) -> list[Segment]:
    inside = [one for one in run.phases if span.start <= one.time_s < span.end]
    if not inside:
        return []
    ends = [*(one.time_s for one in inside[1:]), span.end]
    return [
        Segment(
            one.time_s - span.start,
            end - span.start,
            "phase",
            one.phase,
            f"{one.phase}: {end - one.time_s:.2f} s",
        )
        for one, end in zip(inside, ends, strict=True)
        if end > one.time_s
    ]


def _segments(lane: Lane) -> list[Segment]:
    total = sum(lane.seconds.values())
    titles = {
        state: f"{lane.worker}\n"
        f"{state} {formatting.duration(time)}, {formatting.percent(time / total)}"
        for state, time in lane.seconds.items()
        if time
    }
    return [
        Segment(one.start, one.end, one.state, one.state, titles[one.state])
        for one in lane.intervals
    ]


def _grid(rows: Sequence[tuple[Lane, str]], above: str, below: str) -> str:
    body = [above]
    pool = None
    for lane, drawn in rows:
        if lane.pool != pool:
            pool = lane.pool
            body.append(f'<div class="pool">{escape(pool)}</div>')
        name = escape(lane.worker)
        body.append(f'<span class="name" title="{name}">{name}</span>{drawn}')
    dense = " dense" if len(rows) >= _DENSE_FROM else ""
    return f'<div class="lanes{dense}">{"".join(body)}{below}</div>'


def _axis_line(drawn: str) -> str:
    return f"<span></span>{drawn}"
