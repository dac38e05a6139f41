"""One run folder, followed: what is shown of it as its files grow, and when they do not hold."""

from __future__ import annotations

from pathlib import Path

import pytest

from spotlight.errors import RunFolderError
from spotlight.record.ledger import Ledger, NodeBill, Price, RollupLine
from spotlight.store.ledger_file import write_ledger
from spotlight.store.rollups import FOLDER, Rollups
from spotlight.web.run_summaries import Summaries
from spotlight.web.shown_runs import ShownRuns
from spotlight.web.watched_run import WatchedRun
from tests.web.page_kit import WrittenRun

HOUR_MS = 3_600_000


class Accounts:
    """Writes the ledger and the roll-ups of a run, as a coordinator does."""

    def __init__(self, run: WrittenRun) -> None:
        self._run = run.folder
        (run.folder / FOLDER).mkdir()
        self.rollups = Rollups(run.folder / FOLDER)
        self.number = 0

    def roll_out(self, hours: int = 1, *, is_written: bool = True) -> None:
        """A spot worker has rolled out for so long, as its ledger says unless it was killed."""
        self.number += 1
        end_s = 10.0 * self.number
        line = RollupLine(
            number=self.number,
            start_s=end_s - 10,
            end_s=end_s,
            at=1e9 + end_s,
            times={"spot-0/0": {"rollout": hours * HOUR_MS}},
            spent={"spot": 2.0 * hours},
        )
        self.rollups.append(line)
        if is_written:
            self.write(2.0, self.number * hours)

    def write(self, price: float, hours: int) -> None:
        bill = NodeBill(
            node="spot-0",
            pool="spot",
            process="p",
            workers=1,
            from_at=1e9,
            to_at=1e9 + 10 * self.number,
            price=Price(price),
            times={"spot-0/0": {"rollout": hours * HOUR_MS}},
        )
        time_s = 10.0 * self.number
        ledger = Ledger(number=self.number, at=1e9 + time_s, time_s=time_s, bills=(bill,))
        write_ledger(self._run, ledger)

    def crash(self, to: int) -> None:
        """Lines beyond that number are dropped by the next one who writes."""
        self.rollups.drop_after(to)
        self.number = to


@pytest.fixture
def run(tmp_path: Path) -> WrittenRun:
    return WrittenRun(tmp_path / "runs" / "a")


@pytest.fixture
def accounts(run: WrittenRun) -> Accounts:
    return Accounts(run)


def shown(watched: WatchedRun) -> tuple[float | None, float]:
    """What was spent, and where the areas end."""
    watched.catch_up(10)
    view = watched.view()
    return view.money.spent, view.areas.edges[-1] if view.areas.edges else 0.0


def test_money_and_areas_grow_with_the_ledger(run: WrittenRun, accounts: Accounts) -> None:
    watched = WatchedRun(run.folder)
    assert shown(watched) == (None, 0.0)
    accounts.roll_out()
    assert shown(watched) == (2.0, 10.0)
    accounts.roll_out()
    accounts.roll_out()
    assert shown(watched) == (6.0, 30.0)
    assert not watched.catch_up(10)
    watched.close()
    accounts.rollups.close()


def test_what_a_crash_has_taken_back_is_not_shown_any_more(
    run: WrittenRun, accounts: Accounts
) -> None:
    accounts.roll_out()
    accounts.roll_out()
    watched = WatchedRun(run.folder)
    shown(watched)
    accounts.roll_out(is_written=False)
    accounts.write(2.0, 2)  # the reader has seen the third line by now
    shown(watched)
    accounts.crash(2)
    accounts.roll_out(hours=5)
    watched.catch_up(10)
    watched.catch_up(10)
    seconds = sum(
        column[bucket] * (right - left)
        for column in watched.view().areas.pools["spot"].values()
        for bucket, (left, right) in enumerate(
            zip(watched.view().areas.edges, watched.view().areas.edges[1:], strict=False)
        )
    )
    assert seconds == pytest.approx((1 + 1 + 5) * 3600, rel=1e-3)
    watched.close()
    accounts.rollups.close()


def test_a_ledger_that_cannot_be_read_is_a_note_and_no_end(
    run: WrittenRun, accounts: Accounts
) -> None:
    (run.folder / "ledger.json").write_text('{"format": 99}')
    run.iterate()
    watched = WatchedRun(run.folder)
    watched.catch_up(10)
    view = watched.view()
    assert view.job.iteration == 1
    assert "of a later Spotlight" in view.notes[0]
    accounts.rollups.close()


def test_a_folder_without_a_job_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match=r"no config\.yaml"):
        WatchedRun(tmp_path)


@pytest.mark.parametrize("jump_s", [3600.0, -3600.0])
def test_a_clock_that_jumps_changes_whether_somebody_works_on_a_run_and_nothing_else(
    run: WrittenRun, jump_s: float
) -> None:
    run.iterate(3)
    now = (run.folder / "metrics.jsonl").stat().st_mtime
    clock = [now]
    watched = WatchedRun(run.folder, lambda: clock[0])
    summaries = Summaries(ShownRuns(run.folder.parent), lambda: clock[0])
    watched.catch_up(10)
    before = watched.view().job
    clock[0] += jump_s
    after = watched.view().job
    outcome = "unfinished" if jump_s > 0 else "running"
    assert (after.outcome, after.iteration) == (outcome, before.iteration)
    assert summaries.summaries()[0].outcome == outcome
    clock[0] = now
    assert watched.view().job == before
