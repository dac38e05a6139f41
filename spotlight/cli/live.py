"""How a job's progress looks in a terminal: the live view, one line per change, the final figures.

Nothing here says anything by colour alone, and everything fits 80 columns. Pure functions of a
`JobStatus` or a summary; printing is the caller's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.padding import Padding
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from spotlight.cli.tables import pairs
from spotlight.policies.money.words import money
from spotlight.report.formatting import count, duration, natural_order, number, percent

if TYPE_CHECKING:
    from spotlight.actors.protocol.users import JobStatus, MirrorStatus, NodeStatus, WorkerStatus

_STATE_STYLES = {
    "rollout": "blue",
    "explore": "yellow",
    "train": "red",
    "score": "magenta",
    "evaluate": "cyan",
    "gone": "bold red",
}
_PHASE_WORDS = {
    "queued": "waits in the queue",
    "preparing": "starting workers and loading the model",
    "rollout": "rollout",
    "explore": "exploration",
    "train": "training",
    "publish": "publishing weights",
    "validation": "validation",
    "session": "serves the loop of another program",
    "finished": "finished",
}
_OUTCOME_STYLES = {"finished": "bold green", "cancelled": "bold yellow", "failed": "bold red"}
_SHOWN_WORKERS = 12
_SHOWN_TROUBLES = 4
_SPARKS = "▁▂▃▄▅▆▇█"


def render(status: JobStatus, left_s: float | None = None) -> RenderableType:
    """The whole view of a job, for `rich.live` or to print once.

    Args:
        left_s: seconds until it ends, as far as anybody can say.
    """
    if not status.job:
        said = f"no job is running: {status.reason}" if status.reason else "no job is running"
        return Group(Text(said), Padding(_workers(status.workers), (1, 0, 0, 0)))
    reason = [Text(status.reason, style="red")] if status.reason else []
    note = [Text(said, style="yellow") for said in _notes(status)]
    return Group(
        _headline(status, left_s),
        *reason,
        *note,
        *([_progress(status)] if status.iterations else []),  # a session has none
        Padding(_figures(status), (1, 0)),
        _workers(status.workers),
        Padding(_counters(status), (1, 0, 0, 0)),
    )


def plain_line(status: JobStatus) -> str:
    """One line that changes only when the phase, the reward, a score or the outcome did."""
    doing = f"{_doing(status)}: {status.reason}" if status.reason else _doing(status)
    parts = [status.job or "no job"]
    if status.iterations:
        parts.append(f"{status.iteration}/{status.iterations} iterations")
    parts.append(doing)
    if status.reward_mean is not None:
        parts.append(f"reward {status.reward_mean:.3f}")
    if status.validation:
        parts.append(f"validation {status.validation[-1][1]:.3f}")
    if status.handed_on:
        parts.append(f"{status.handed_on} handed on")
    if status.given_up:
        parts.append(f"{len(status.given_up)} given up")
    return "  ".join((*parts, *_notes(status)))


def _notes(status: JobStatus) -> list[str]:
    """What the job waits for, and what is wrong: only the first of many troubles."""
    more = len(status.troubles) - _SHOWN_TROUBLES
    rest = f"and {more} more have trouble" if more > 0 else ""
    troubles = status.troubles[:_SHOWN_TROUBLES]
    return [said for said in (status.note, mirror_trouble(status), *troubles, rest) if said]


def summary_table(summary: dict[str, Any], cost: Iterable[tuple[str, str]] = ()) -> RenderableType:
    """The figures of a finished run, as `spotlight.report.metrics.summarise` gives them, and what
    it has cost, as `money_rows` does."""
    table = pairs()
    table.add_row("outcome", _outcome(summary["outcome"], summary["reason"]))
    table.add_row("validation", _from_to(summary, "validation", best=True))
    table.add_row("reward", _from_to(summary, "reward"))
    if exported := summary["exported"]:
        score = "" if exported["score"] is None else f", validation {exported['score']:.3f}"
        table.add_row("exported", f"the average after {exported['iteration']} iterations{score}")
    for name, reward in summary["rewards"].items():
        use = "" if reward["is_trained"] else " (not trained on)"
        table.add_row(f"  {name}", _from_to(reward, "validation").append(use))
    table.add_row(
        "run time",
        f"{duration(summary['run_seconds'])} for {count(summary['iterations'], 'iteration')}",
    )
    pace = summary["images_per_s"]
    speed = f", {pace:.1f} images/s in rollouts" if pace else ""
    table.add_row("samples", f"{number(summary['samples'])}{speed}")
    table.add_row(
        "previews",
        f"{number(summary['previews'])}, and {number(summary['previews_late'])} more that came too"
        " late",
    )
    table.add_row("exploration", summary["exploration"]["sentence"])
    for pool, spent in summary["pools"].items():
        shares = sorted(spent["share"].items(), key=lambda item: -item[1])
        said = ", ".join(f"{state} {share:.0%}" for state, share in shares if share >= 0.005)
        table.add_row(f"{pool} time", said)
    if summary["scoring_s"] is not None:
        share = summary["scoring_s"] / sum(pool["seconds"] for pool in summary["pools"].values())
        said = f"{duration(summary['scoring_s'])} of worker time ({percent(share)})"
        table.add_row("scoring", f"{said}, also beside other states")
    for name, said in cost:
        table.add_row(name, said)
    table.add_row(
        "interruptions",
        f"{count(summary['nodes_lost'], 'node')} lost, "
        f"{count(summary['requests_handed_on'], 'request')} handed on, "
        f"{count(summary['groups_dropped'], 'prompt group')} dropped",
    )
    return table


def _from_to(summary: dict[str, Any], what: str, *, best: bool = False) -> Text:
    start, end = summary[f"{what}_start"], summary[f"{what}_end"]
    if start is None or end is None:
        return Text("not measured")
    text = Text(f"{start:.3f} to ").append(f"{end:.3f}", style="bold")
    return text.append(f", best {summary[f'{what}_best']:.3f}") if best else text


def _outcome(outcome: str, reason: str) -> Text:
    text = Text(outcome, style=_OUTCOME_STYLES.get(outcome, ""))
    return text.append(f": {reason}", style="default") if reason else text


def _doing(status: JobStatus) -> str:
    return status.outcome or _PHASE_WORDS.get(status.phase, status.phase)


def _headline(status: JobStatus, left_s: float | None) -> Table:
    line = Table.grid(expand=True, padding=(0, 2, 0, 0))
    line.add_column(no_wrap=True, ratio=1, overflow="crop")
    line.add_column(no_wrap=True, justify="right", overflow="crop")
    text = Text(status.job, style="bold")
    if status.iterations:
        text.append(
            f"  {status.iteration} of {count(status.iterations, 'iteration')}", style="not bold"
        )
    text.append(f"  {_doing(status)}", style=_OUTCOME_STYLES.get(status.outcome, "not bold"))
    left = "" if left_s is None else f", about {duration(left_s)} left"
    line.add_row(text, Text(f"{duration(status.elapsed_s)}{left}", style="dim"))
    return line


def _progress(status: JobStatus) -> Table:
    """Iterations done, the part of this rollout that is done included."""
    part = status.done / status.wanted / 2 if status.wanted else 0.0
    if status.phase in ("train", "publish"):
        part = 0.5
    done = status.iterations if status.outcome == "finished" else status.iteration + part
    line = Table.grid(expand=True, padding=(0, 2, 0, 0))
    line.add_column(ratio=1)
    line.add_column(no_wrap=True, justify="right", overflow="crop", min_width=4)
    bar = ProgressBar(total=status.iterations, completed=min(done, status.iterations))
    line.add_row(bar, f"{min(1.0, done / status.iterations):.0%}")
    return line


def _figures(status: JobStatus) -> Table:
    table = pairs()
    if status.validation:
        table.add_row("validation", _Scores([score for _, score in status.validation]))
    if status.reward_mean is not None:
        table.add_row("reward", f"{status.reward_mean:.3f}")
    pace = f"{status.images_per_s:.1f} images/s" if status.images_per_s else ""
    if status.wanted:
        amount = f"{status.done} of {count(status.wanted, 'sample')}"
        table.add_row("rollout", f"{amount}, {pace}" if pace else amount)
    elif pace:
        table.add_row("rollout", pace)
    if exploring := sum(worker.state == "explore" for worker in status.workers):
        previews = f", {count(status.previews, 'preview')} so far"
        table.add_row("exploration", f"{count(exploring, 'worker')}{previews}")
    if nodes := _nodes(status):
        table.add_row("nodes", nodes)
    if status.spent is not None:
        sources = f" (prices: {', '.join(status.price_sources)})" if status.price_sources else ""
        table.add_row("spent", f"{money(status.spent, status.currency)}{sources}")
    if loading := _loading(status.workers):
        table.add_row("loading", loading)
    table.add_row("weights", f"version {status.weights_version}")
    if status.mirror is not None:
        table.add_row("mirror", _mirrored(status.mirror))
    return table


def _nodes(status: JobStatus) -> str:
    """How many nodes work for the job, and which of them will not for long."""
    own = [node for node in status.nodes if node.job and node.job == status.id]
    going = [node for node in own if node.state != "there"]
    said = [_going(node) for node in going[:_SHOWN_TROUBLES]]
    more = len(going) - len(said)
    rest = [f"and {more} more that go"] if more else []
    return ", ".join([str(len(own)), *said, *rest]) if own else ""


def _going(node: NodeStatus) -> str:
    left = "" if node.notice_left_s is None else f" ({duration(node.notice_left_s)} left)"
    return f"{node.name} {node.state}{left}"


def _loading(workers: Sequence[WorkerStatus]) -> str:
    """How many workers still start or load, and what; empty if none does."""
    there = [worker for worker in workers if worker.state != "gone"]
    waiting = [worker for worker in there if worker.state in ("starting", "loading")]
    what = sorted({worker.detail for worker in waiting if worker.detail})
    said = f" ({', '.join(what)})" if what else ""
    ready = len(there) - len(waiting)
    return f"{ready} of {count(len(there), 'worker')} are ready{said}" if waiting else ""


def _mirrored(mirror: MirrorStatus) -> str:
    if mirror.completed is None:
        said = "nothing is copied yet"
    else:
        said = f"the run after {count(mirror.completed, 'iteration')}"
    if mirror.completed is not None and mirror.completed < mirror.committed:
        said += f", of {mirror.committed} that are committed"
    if not mirror.failures:
        return said
    return f"{said}; {count(mirror.failures, 'failed attempt')}"


def mirror_trouble(status: JobStatus) -> str:
    """Why the latest copy to object storage failed; empty if it did not."""
    if status.mirror is None or not status.mirror.problem:
        return ""
    return f"the run is not copied: {status.mirror.problem}"


class _Scores:
    """First and last score with a sparkline of all between; without it where it cannot be shown."""

    def __init__(self, scores: Sequence[float]) -> None:
        self._scores = scores

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        first, last = self._scores[0], self._scores[-1]
        if len(self._scores) == 1:
            yield Text(f"{first:.3f}")
        elif options.ascii_only or options.legacy_windows:
            yield Text(f"{first:.3f} to {last:.3f}")
        else:
            text = Text(f"{first:.3f} ")
            text.append(sparkline(self._scores[-30:]), style="cyan")
            yield text.append(f" {last:.3f}", style="bold")


def sparkline(values: Sequence[float]) -> str:
    """One block per value, from the lowest to the highest of them."""
    low, high = min(values), max(values)
    scale = (len(_SPARKS) - 1) / (high - low) if high > low else 0.0
    return "".join(_SPARKS[round((value - low) * scale)] for value in values)


def _workers(workers: Sequence[WorkerStatus]) -> RenderableType:
    if not workers:
        return Text("no worker has joined yet", style="dim")
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, expand=True)
    table.add_column("worker", no_wrap=True, overflow="crop", max_width=28)
    table.add_column("pool", no_wrap=True, overflow="crop")
    table.add_column("state", no_wrap=True, overflow="crop", min_width=8)
    table.add_column("does", no_wrap=True, overflow="crop", ratio=1)
    ordered = sorted(workers, key=lambda one: (one.pool != "reserved", natural_order(one.name)))
    for worker in ordered[:_SHOWN_WORKERS]:
        state = Text(worker.state, style=_STATE_STYLES.get(worker.state, "dim"))
        table.add_row(Text(worker.name), Text(worker.pool), state, Text(_does(worker)))
    rest = Counter(worker.state for worker in ordered[_SHOWN_WORKERS:])
    if not rest:
        return table
    said = ", ".join(f"{amount} {state}" for state, amount in rest.most_common())
    return Group(table, Text(f"and {count(rest.total(), 'worker')} more: {said}", style="dim"))


def _does(worker: WorkerStatus) -> str:
    if not worker.leader:
        return worker.detail
    led = f", led by {worker.leader}" if worker.leader != worker.name else ""
    group = f"group of {worker.members}{led}"
    return f"{group}: {worker.detail}" if worker.detail else group


def _counters(status: JobStatus) -> Text:
    late, given_up = status.previews_late, len(status.given_up)
    ignored, preemptions = status.results_ignored, status.preemptions
    said = (
        count(status.previews, "preview"),
        f"{number(late)} more that came too late" if late else "",
        f"{count(status.handed_on, 'request')} handed to other workers" if status.handed_on else "",
        f"{count(ignored, 'result')} that did not count" if ignored else "",
        f"{count(given_up, 'request')} given up" if given_up else "",
        f"{count(preemptions, 'node')} preempted" if preemptions else "",
    )
    text = Text(", ".join(filter(None, said)), style="dim")
    return text.append(f"\nrun folder {status.run_folder}") if status.run_folder else text
