"""The sections of a run report, each an HTML string from the history of the run and its metrics.

Text from the run (names, prompts, reasons) is escaped here, in `timeline` or in `charts`.
"""

from __future__ import annotations

import base64
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from spotlight import __version__
from spotlight.record.run_events import RunEvent, RunStarted
from spotlight.record.run_metrics import IterationMetrics
from spotlight.report import charts, figures, formatting, reward_charts
from spotlight.report.charts import Series
from spotlight.report.run_reading import Gallery, Picture, RunHistory

_SHOWN_PROMPTS = 24
_SHOWN_EVENTS = 300
_CRISP_BELOW = 256  # pixels; larger pictures are photographs rather than sprites
_PNG = b"\x89PNG\r\n\x1a\n"


def header(run: RunHistory, summary: dict[str, Any]) -> str:
    """Name, outcome, what was asked for, and the main metrics."""
    outcome, reason = summary["outcome"], summary["reason"]
    why = f'<p class="about {escape(outcome)}">{escape(reason)}</p>' if reason else ""
    workers = Counter(worker["pool"] for worker in summary["workers"].values())
    return f"""<header>
<p class="over">Spotlight run report</p>
<div class="title"><h1>{escape(run.job.name)}</h1>
<span class="pill {escape(outcome)}">{escape(outcome)}</span></div>
<p class="about">{escape(formatting.about(run.job, workers))}</p>{why}
<p class="about">{escape(summary["exploration"]["sentence"])}</p>
<dl class="tiles">{"".join(_tiles(run, summary))}</dl>
</header>
"""


def _tiles(run: RunHistory, summary: dict[str, Any]) -> Iterable[str]:
    start, end = summary["validation_start"], summary["validation_end"]
    gain = (
        f"best {formatting.score(summary['validation_best'])}" if start is not None else "not yet"
    )
    if start is not None:
        gain = f"{end - start:+.3f}, {gain}"
    yield _tile("Validation score", _from_to(start, end), gain)
    yield _tile(
        "Reward in training",
        _from_to(summary["reward_start"], summary["reward_end"]),
        "mean of samples",
    )
    done = f"{summary['iterations']} of {formatting.count(run.job.iterations, 'iteration')}"
    yield _tile("Run time", formatting.duration(summary["run_seconds"]), done)
    pace, reused = summary["images_per_s"], summary["samples_reused"]
    made = f"{pace:.1f} images/s in rollouts" if pace else "none yet"
    if reused:
        made = f"{formatting.number(reused)} of them previews, one iteration old"
    yield _tile("Samples", formatting.number(summary["samples"]), made)
    note = f"{formatting.number(summary['previews_late'])} came too late"
    yield _tile("Previews", formatting.number(summary["previews"]), note)
    for pool, times in summary["pools"].items():
        share = times["share"]
        busy = sum(share[state] for state in ("rollout", "explore", "train", "score", "evaluate"))
        state = "train" if pool == "reserved" else "explore"
        verb = "training" if pool == "reserved" else "exploring"
        yield _tile(
            f"{pool.capitalize()} time used",
            formatting.percent(busy),
            f"{formatting.percent(share[state])} {verb}",
        )
    yield _tile(
        "Nodes lost",
        formatting.number(summary["nodes_lost"]),
        formatting.handed_on(summary["requests_handed_on"]),
    )


def _from_to(start: float | None, end: float | None) -> str:
    return f"{formatting.score(start)} <i>→</i> {formatting.score(end)}"


def _tile(name: str, value: str, note: str) -> str:
    return (
        f'<div class="tile"><dt>{escape(name)}</dt><dd class="value">{value}</dd>'
        f'<dd class="note">{escape(note)}</dd></div>'
    )


def progress(run: RunHistory) -> str:
    """Reward and validation, in-group spread and previews."""
    drawn = [*reward_charts.samples(run), *reward_charts.validation(run)]
    drawn += reward_charts.each_reward(run)
    drawn += [*_spread_chart(run), *_preview_chart(run)]
    body = "".join(drawn) or '<p class="soft">Nothing was measured yet.</p>'
    return f'<section><h2>Progress</h2><div class="charts">{body}</div></section>'


def _spread_chart(run: RunHistory) -> Iterable[str]:
    fresh = [one for one in run.iterations if one.group_std_mean is not None]
    promised = [one for one in run.iterations if one.preview_group_std_mean is not None]
    if not fresh:
        return
    series = [_spread_series("rollout", "samples", fresh, [one.group_std_mean for one in fresh])]
    legend = [("rollout", "trained samples")]
    if promised:
        values = [one.preview_group_std_mean for one in promised]
        series.append(_spread_series("explore", "previews", promised, values))
        legend.append(("explore", "previews of the same seeds"))
    note = "Mean standard deviation of rewards in a group: what there is to learn from"
    realised = [
        one.realised_share
        for one in promised
        if one.realised_share is not None and not one.samples_reused
    ]
    if realised:
        note += (
            f"; of the gain over any seeds that previews promised, samples have"
            f" {statistics.median(realised):.0%} (median)"
        )
    top = max(value for one in series for _, value in one.points)
    drawn = charts.line_chart(
        series,
        figures.iteration_axis(fresh),
        charts.nice_axis(0, max(0.05, top), figures.short),
        description="mean standard deviation of rewards within prompt groups, by iteration",
    )
    yield figures.figure(
        "Spread within prompt groups",
        note,
        drawn,
        figures.legend(legend, "line"),
    )


def _spread_series(
    colour: str, name: str, ones: Sequence[IterationMetrics], values: Sequence[float | None]
) -> Series:
    points = tuple(
        (float(one.iteration), value or 0.0) for one, value in zip(ones, values, strict=True)
    )
    titles = tuple(f"iteration {at:.0f}\n{name} {formatting.score(value)}" for at, value in points)
    return Series(colour, points, titles)


def _preview_chart(run: RunHistory) -> Iterable[str]:
    if not any(one.previews or one.previews_late for one in run.iterations):
        return
    bars = [
        (
            float(one.iteration),
            (("explore", float(one.previews)), ("idle", float(one.previews_late))),
            f"iteration {one.iteration}\n{formatting.count(one.previews, 'preview')}, "
            f"{one.previews_late} too late",
        )
        for one in run.iterations
    ]
    top = max(one.previews + one.previews_late for one in run.iterations)
    drawn = charts.bar_chart(
        bars,
        figures.iteration_axis(run.iterations, margin=0.5),
        figures.whole(charts.nice_axis(0, top, formatting.number)),
        description="previews by iteration",
    )
    note = "Candidates that exploration scored before each iteration"
    if unexplored := _unexplored(run):
        note += (
            f"; none before {formatting.count(unexplored, 'iteration')}, as validation needed all"
            " the time that training left"
        )
    taus = [one.probe_tau for one in run.iterations if one.probe_tau is not None]
    if taus:
        probes = formatting.count(sum(one.probes for one in run.iterations), "probe")
        note += (
            f"; of {probes}, rewards were ordered as their previews by {taus[-1]:.2f} (Kendall's"
            f" tau: 1 the same, 0 by chance)"
        )
    yield figures.figure(
        "Previews",
        note,
        drawn,
        figures.legend([("explore", "in time"), ("idle", "too late to count")]),
    )


def _unexplored(run: RunHistory) -> int:
    """Iterations without previews because of a validation."""
    pressed = {one.iteration + 1 for one in run.iterations if one.window_s == 0}
    return sum(not one.previews and one.iteration in pressed for one in run.iterations)


def pictures(run: RunHistory) -> str:
    """The same validation prompts drawn with the first and with the latest validated weights."""
    if not run.galleries:
        return ""
    before, after = run.galleries[0], run.galleries[-1]
    versions = [before] if before is after else [before, after]
    shown = before.pictures[:_SHOWN_PROMPTS]
    crisp = max(run.job.sampler.height, run.job.sampler.width) < _CRISP_BELOW
    items = "".join(_pair(picture.prompt, versions, crisp) for picture in shown)
    some = (
        f" The first {len(shown)} of {formatting.count(len(before.pictures), 'prompt')}."
        if len(before.pictures) > len(shown)
        else ""
    )
    if before is after:
        title, note = "Validation images", "Drawn with the only weights that were validated."
    else:
        title = "Before and after"
        note = (
            f"The same validation prompts and seeds, with weights version {before.weights_version} "
            f"and {after.weights_version}, and the reward of each image.{some}"
        )
    return f'<section><h2>{title}</h2><p>{escape(note)}</p><ul class="pairs">{items}</ul></section>'


def _pair(prompt: str, versions: Sequence[Gallery], crisp: bool) -> str:
    labels = ("before", "after") if len(versions) > 1 else ("",)
    cells = "".join(
        _picture(_find(gallery, prompt), label, crisp)
        for gallery, label in zip(versions, labels, strict=True)
    )
    text = escape(prompt)
    return f'<li><p class="prompt" title="{text}">{text}</p><div class="pair">{cells}</div></li>'


def _find(gallery: Gallery, prompt: str) -> Picture | None:
    return next((one for one in gallery.pictures if one.prompt == prompt), None)


def _picture(picture: Picture | None, label: str, crisp: bool) -> str:
    data = _png(picture)
    reward = formatting.score(picture.reward) if picture else formatting.NONE
    caption = f"<figcaption>{label}<b>{reward}</b></figcaption>"
    if data is None:
        return f'<figure><span class="none"></span>{caption}</figure>'
    encoded = base64.b64encode(data).decode()
    kind = ' class="crisp"' if crisp else ""
    return (
        f'<figure><img{kind} alt="{label} training, reward {reward}" '
        f'src="data:image/png;base64,{encoded}">{caption}</figure>'
    )


def _png(picture: Picture | None) -> bytes | None:
    """The file's bytes when it is there and is a PNG."""
    if picture is None or not picture.file.is_file():
        return None
    data = picture.file.read_bytes()
    return data if data.startswith(_PNG) else None


def events(run: RunHistory) -> str:
    """The events that matter, in order of time."""
    begun = run.events_of(RunStarted)[:1]
    told = [
        (event, said)
        for event in run.events
        if event not in begun and (said := formatting.event_words(event))
    ]
    if not told:
        return ""
    rows = "".join(_row(event, *said) for event, said in told[-_SHOWN_EVENTS:])
    left = len(told) - _SHOWN_EVENTS
    note = f"<p>The latest {_SHOWN_EVENTS}; {left} earlier ones are in events.jsonl.</p>"
    return (
        f"<section><h2>Events</h2>{note if left > 0 else ''}"
        '<div class="scroll" tabindex="0"><table><thead><tr><th scope="col">Time</th>'
        '<th scope="col">Event</th><th scope="col">Details</th></tr></thead>'
        f"<tbody>{rows}</tbody></table></div></section>"
    )


def _row(event: RunEvent, what: str, details: str, loss: bool) -> str:
    kind = ' class="bad"' if loss else ""
    return (
        f"<tr><td>{charts.clock(event.time_s)}</td><td{kind}>{escape(what)}</td>"
        f"<td>{escape(details)}</td></tr>"
    )


def job_text(run: RunHistory) -> str:
    """The whole job as YAML, folded."""
    return (
        "<details><summary>The job</summary>"
        f'<pre tabindex="0">{escape(run.job_yaml)}</pre></details>'
    )


def footer(run: RunHistory) -> str:
    """What was dropped while reading, and who wrote the page."""
    notes = "".join(f"<p>{escape(note)}.</p>" for note in run.notes)
    return f"<footer>{notes}<p>Written by Spotlight {escape(__version__)}.</p></footer>"
