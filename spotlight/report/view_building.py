"""Makes the one record of what is shown of a run (`run_view`), as it grows or from its folder.

A `ViewBuilder` is fed what a run writes down, in order of time as far as the files tell, and can be
asked for the view at any moment. Its memory is bounded, however long the run is: curves and areas
become coarser, of what happened the latest is kept, and neighbouring marks become one.
"""

from __future__ import annotations

import heapq
import math
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import msgspec

from spotlight.errors import RunFolderError
from spotlight.jobs import JobSpec
from spotlight.record.ledger import Ledger, RollupLine
from spotlight.record.run_events import (
    NodeLost,
    PhaseBegan,
    RunEvent,
    RunFinished,
    RunStarted,
    WorkerLost,
    WorkerStateBegan,
)
from spotlight.record.run_metrics import (
    IterationMetrics,
    ValidationMetrics,
    decode_metrics,
    further_metrics,
)
from spotlight.report import formatting
from spotlight.report.run_reading import RunHistory, read_run
from spotlight.report.run_view import (
    MOST_BUCKETS,
    MOST_LANES,
    Happened,
    JobPart,
    Mark,
    MoneyPart,
    PicturesPart,
    PoolPart,
    RunView,
    ValidationPart,
)
from spotlight.report.trend import seconds_to
from spotlight.report.view_alerts import Alerts
from spotlight.report.view_curves import Curves, iteration_at
from spotlight.report.view_exploration import ViewExploration
from spotlight.report.view_fleet import ViewFleet, node_of
from spotlight.report.view_happened import happened_of, mark_of
from spotlight.report.view_marks import KeptMarks
from spotlight.report.view_money import ViewMoney
from spotlight.report.view_pictures import ViewPictures
from spotlight.report.view_times import TimeShares
from spotlight.store.record_files import metrics_lines
from spotlight.store.rollups import FOLDER, each_rollup

MOST_HAPPENED = 200
SILENT_S = 60.0
"""Nobody works on a run that wrote nothing for so long."""
_LATEST_SCORES = 32
_WHOLE_S = 60.0
"""States that begin so early in a run are those of the whole run."""

_Record = RunEvent | IterationMetrics | ValidationMetrics


class ViewBuilder:
    """See the module's docstring. It has the methods of a callback, and may be one.

    Args:
        job: what is run.
        folder: of the run, where its pictures are; without it none are shown.
        job_id, owner: as far as they are known.
    """

    def __init__(
        self, job: JobSpec, folder: Path | None = None, *, job_id: str = "", owner: str = ""
    ) -> None:
        self._job = job
        self._job_id, self._owner = job_id, owner
        self._curves = Curves()
        self._money = ViewMoney(job)
        self._rolled = TimeShares()
        """What the roll-ups say."""
        self._seen = TimeShares()
        """What the states of workers say, where there are any."""
        self._doing: dict[str, WorkerStateBegan] = {}
        self._fleet = ViewFleet()
        self._marks = KeptMarks()
        self._happened: deque[Happened] = deque(maxlen=MOST_HAPPENED)
        self._alerts = Alerts()
        self._pictures = ViewPictures(folder) if folder is not None else None
        self._begun = False
        self._outcome, self._reason, self._phase = "running", "", ""
        self._completed = 0
        self._time_s = 0.0
        self._started_at: float | None = None
        self._updated_at: float | None = None
        self._first: float | None = None
        self._best: float | None = None
        self._scores: deque[tuple[float, float]] = deque(maxlen=_LATEST_SCORES)
        self._reached_s: float | None = None
        """When the target was reached."""
        self._exploration = ViewExploration(job)
        self._notes: list[str] = []

    # --- what it is fed ---

    def on_event(self, event: RunEvent) -> None:
        """Something happened, the states of workers included."""
        self._time(event)
        self._alerts.event(event)
        match event:
            case WorkerStateBegan():
                self._state(event)
                return
            case PhaseBegan(phase=phase, iteration=completed):
                self._phase, self._completed = phase, max(completed, self._completed)
                return
            case RunStarted(resumed_from_iteration=resumed):
                self._outcome, self._reason = "running", ""
                self._end_states(list(self._doing), event.time_s)
                self._fleet.restarted()
                if resumed is not None:
                    self._curves.rewind(resumed)
                    self._completed = resumed
            case RunFinished(outcome=outcome, reason=reason):
                self._outcome, self._reason = outcome, reason
            case WorkerLost(worker=worker):
                self._end_states([worker], event.time_s)
            case NodeLost(node=node):
                lost = [one for one in self._doing if node_of(one) == node]
                self._end_states(lost, event.time_s)
        if self._outcome == "running" or isinstance(event, RunFinished):
            self._fleet.event(event)
        if (mark := mark_of(event)) is not None and self._begun:
            self._marks.add(mark)
        if (told := happened_of(event, is_first=not self._begun)) is not None:
            self._happened.append(told)
        self._begun = self._begun or isinstance(event, RunStarted)

    def on_iteration(self, metrics: IterationMetrics, loss: Mapping[str, float]) -> None:
        """An iteration is over; `loss` has the further metrics of its update."""
        self._time(metrics)
        self._completed = metrics.iteration + 1
        self._curves.iteration(metrics, loss)
        self._money.iteration(metrics)
        self._exploration.iteration(metrics)

    def on_validation(self, metrics: ValidationMetrics) -> None:
        """A weights version is validated."""
        self._time(metrics)
        self._curves.validation(metrics)
        score = metrics.score
        self._first = score if self._first is None else self._first
        self._best = score if self._best is None else max(self._best, score)
        self._scores.append((metrics.time_s, score))
        target = self._job.validation.target
        if target is not None and self._reached_s is None and score >= target:
            self._reached_s = metrics.time_s

    def ledger(self, ledger: Ledger) -> None:
        """The account as it stands; before the roll-ups that it accounts for."""
        self._money.ledger(ledger)
        self._time_s = max(self._time_s, ledger.time_s)
        self._rolled.expect(ledger.time_s)
        if ledger.at:
            self.written_at(ledger.at)
        self._fleet.ledger(ledger)

    def rollup(self, line: RollupLine) -> None:
        """The next line of the roll-ups: in order of time, and no time twice."""
        self._time_s = max(self._time_s, line.end_s)
        self._money.rollup(line)
        self._rolled.line(line, self._fleet.pool_of)

    def written_at(self, at: float) -> None:
        """Something of the run was written then, in seconds since 1970."""
        self._updated_at = max(self._updated_at or at, at)

    def note(self, note: str) -> None:
        """Something could not be read."""
        if note not in self._notes:
            self._notes.append(note)

    # --- what it shows ---

    def view(self, now: float | None = None) -> RunView:
        """What is to be shown.

        Args:
            now: seconds since 1970, by which it is known whether anybody still works on the run.
        """
        outcome = self._outcome
        if outcome == "running" and now is not None and self._updated_at is not None:
            outcome = "unfinished" if now - self._updated_at > SILENT_S else outcome
        has_ended = outcome != "running"
        for worker, event in list(self._doing.items()):
            if not has_ended:
                self._interval(event, self._time_s)
                self._doing[worker] = msgspec.structs.replace(event, time_s=self._time_s)
        rows = self._curves.rows(self._money.usd_at)
        workers = self._fleet.workers(has_ended=has_ended)
        shares = self._rolled if self._rolled.first_s is not None else self._seen
        seconds = self._money.seconds() if self._money.is_known else shares.seconds()
        exploration = self._exploration.part(
            {str(state): each for state, each in seconds.get("spot", {}).items()},
            self._money.of_exploration(),
        )
        money = self._money.part(self._time_s, self._reached_s, exploration)
        return RunView(
            job=self._job_part(outcome, workers),
            validation=self._validation(money),
            money=money,
            pools={
                pool: PoolPart(workers=workers.get(pool, 0), seconds=each)
                for pool, each in seconds.items()
            },
            exploration=exploration,
            rows=rows,
            marks=self._placed_marks(rows),
            areas=shares.areas(),
            lanes=(self._seen if self._states_are_whole() else shares).lanes(),
            pictures=self._pictures.part() if self._pictures is not None else PicturesPart(),
            nodes=self._fleet.nodes(self._time_s, has_ended=has_ended),
            happened=tuple(self._happened),
            alerts=self._alerts.lines(),
            notes=self._all_notes(),
        )

    # --- parts ---

    def _job_part(self, outcome: str, workers: dict[str, int]) -> JobPart:
        job = self._job
        return JobPart(
            name=job.name,
            id=self._job_id,
            owner=self._owner,
            outcome=outcome,
            reason=self._reason,
            about=formatting.about(job, workers),
            phase=self._phase if outcome == "running" else "",
            iteration=self._completed,
            iterations=job.iterations,
            time_s=round(self._time_s, 3),
            started_at=self._started_at,
            updated_at=self._updated_at,
            workers=workers,
        )

    def _validation(self, money: MoneyPart) -> ValidationPart:
        target = self._job.validation.target
        seconds = self._seconds_left(target)
        return ValidationPart(
            first=self._first,
            latest=self._scores[-1][1] if self._scores else None,
            best=self._best,
            target=target,
            seconds_left=None if seconds is None else round(seconds, 1),
            usd_left=self._usd_left(seconds, money),
        )

    def _seconds_left(self, target: float | None) -> float | None:
        if self._outcome != "running":
            return None
        if target is not None:
            left = seconds_to(target, self._scores)
            if left is None:
                return None
            return max(0.0, left - (self._time_s - self._scores[-1][0])) if left else 0.0
        if not self._completed:
            return None
        each = self._time_s / self._completed
        return max(0.0, each * (self._job.iterations - self._completed))

    def _usd_left(self, seconds: float | None, money: MoneyPart) -> float | None:
        """At what the run has cost so far by time."""
        if seconds is None or money.spent is None or self._time_s <= 0:
            return None
        return round(money.spent / self._time_s * seconds, 4)

    def _placed_marks(self, rows: tuple[tuple[float | None, ...], ...]) -> tuple[Mark, ...]:
        kept = self._marks.all()
        places = iteration_at(rows, (mark.time_s for mark in kept))
        return tuple(
            msgspec.structs.replace(mark, usd=self._money.usd_at(mark.time_s), iteration=place)
            for mark, place in zip(kept, places, strict=True)
        )

    def _all_notes(self) -> tuple[str, ...]:
        left = self._fleet.not_shown()
        more = [f"{formatting.count(left, 'node')} more are not shown"] if left else []
        pictures = self._pictures.notes if self._pictures is not None else ()
        return (*self._notes, *pictures, *more)

    # --- times ---

    def _time(self, record: RunEvent | IterationMetrics | ValidationMetrics) -> None:
        self._time_s = max(self._time_s, record.time_s)
        if record.at is not None:
            self._seen_at(record.at)

    def _seen_at(self, at: float) -> None:
        self._started_at = at if self._started_at is None else self._started_at
        self.written_at(at)

    def _state(self, event: WorkerStateBegan) -> None:
        before = self._doing.pop(event.worker, None)
        if before is not None:
            if event.time_s < before.time_s:  # too late to be put in order
                event = msgspec.structs.replace(event, time_s=before.time_s)
            self._interval(before, event.time_s)
        if self._fleet.is_gone(event.node or node_of(event.worker)):
            return  # written after the loss of its node
        self._fleet.event(event)
        if event.state != "gone":
            self._doing[event.worker] = event

    def _end_states(self, workers: Iterable[str], time_s: float) -> None:
        for worker in workers:
            before = self._doing.pop(worker, None)
            if before is not None:
                self._interval(before, time_s)

    def _interval(self, event: WorkerStateBegan, end_s: float) -> None:
        node = event.node or node_of(event.worker)
        pool = event.pool or self._fleet.pool_of(event.worker, node)
        if event.state != "gone":
            self._seen.interval(event.worker, node, pool, event.state, event.time_s, end_s)

    def _states_are_whole(self) -> bool:
        """Whether states of workers are known from the beginning of the run on."""
        seen, rolled = self._seen, self._rolled
        if seen.first_s is None or rolled.first_s is None:
            return seen.first_s is not None
        return seen.first_s <= rolled.first_s + _WHOLE_S and seen.end_s >= rolled.end_s - 10.0


def view_of(folder: Path, now: float | None = None) -> RunView:
    """The view of a run folder; of a run that goes on, of what is there so far.

    Args:
        now: seconds since 1970; this very moment by default.

    Raises `RunFolderError` naming the file (and the line) that is missing or malformed.
    """
    return built_from(read_run(folder)).view(time.time() if now is None else now)


def built_from(run: RunHistory) -> ViewBuilder:
    """A builder that was fed all that a run folder has."""
    builder = ViewBuilder(run.job, run.folder)
    for note in run.notes:
        builder.note(note)
    for file in ("events.jsonl", "metrics.jsonl", "config.yaml"):
        path = run.folder / file
        if path.exists():
            builder.written_at(path.stat().st_mtime)
    further = _further(run.folder)
    states = run.worker_states() if _shows_states(run) else ()
    sources = run.events, run.phases, states, run.iterations, run.validations
    for record in _in_order(*sources):
        match record:
            case RunEvent():
                builder.on_event(record)
            case IterationMetrics():
                builder.on_iteration(record, further.get(record.iteration, {}))
            case ValidationMetrics():
                builder.on_validation(record)
    if run.ledger.bills:
        builder.ledger(run.ledger)
        for line in _rollups(run, builder):
            builder.rollup(line)
    return builder


def _shows_states(run: RunHistory) -> bool:
    """Whether lanes are drawn by states of workers: they are known of the whole run, and so few
    that each worker has a lane. Of a large run there are a million of them."""
    workers = {worker for bill in run.ledger.bills for worker in bill.times}
    return not workers or (run.states_from_s < _WHOLE_S and len(workers) <= MOST_LANES)


def _rollups(run: RunHistory, builder: ViewBuilder) -> Iterator[RollupLine]:
    """As finely as a view shows them."""
    folder, until = run.folder / FOLDER, run.ledger.number
    try:
        yield from each_rollup(folder, 0.0, math.inf, MOST_BUCKETS, until=until)
    except RunFolderError as error:
        builder.note(str(error))


def _in_order(*sources: Iterable[_Record]) -> Iterator[_Record]:
    yield from heapq.merge(*sources, key=_time_s)


def _time_s(record: _Record) -> float:
    return record.time_s


def _further(folder: Path) -> dict[int, dict[str, float]]:
    """The further metrics of the loss, by iteration."""
    found = {}
    for line in metrics_lines(folder):
        try:
            record = decode_metrics(line.text)
            if isinstance(record, IterationMetrics):
                found[record.iteration] = further_metrics(line.text)
        except msgspec.MsgspecError:  # torn, or with a number that is none
            continue
    return found
