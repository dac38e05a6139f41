"""Trackers of a job, in the coordinator of real processes."""

from __future__ import annotations

import pytest

from tests.integration.conftest import Workplace, events, metrics

pytestmark = pytest.mark.timeout(180)

TRACKER = """\
from spotlight import StopJob


class Picky:
    '''Cannot stand validations, and has seen enough after two iterations.'''

    def __init__(self, run):
        self.file = run.folder / f"seen-by-{run.tracker.project}"

    def on_iteration(self, metrics, loss):
        self.file.write_text(str(metrics.iteration))
        if metrics.iteration == 1:
            raise StopJob("two are enough")

    def on_validation(self, metrics):
        raise ValueError("no validations, please")

    def on_event(self, event):
        pass
"""


@pytest.mark.slow
def test_trackers_of_a_job_are_told_of_it_and_end_it_only_when_they_say_so(
    workplace: Workplace,
) -> None:
    (workplace.folder / "mine.py").write_text(TRACKER)
    trackers = [{"kind": "tensorboard"}, {"kind": "mine:Picky", "project": "me"}]
    job = workplace.job(iterations=50, trackers=trackers)
    run = workplace.folder / "run"

    done = workplace.spotlight("run", job, "--run-folder", run)

    assert done.code == 130, done.errors + done.output
    assert "stopped by the callback `mine:Picky`: two are enough" in done.output
    assert "tracker mine:Picky failed: ValueError: no validations, please" in done.output
    assert (run / "seen-by-me").read_text() == "1"
    first, trouble = events(run, "callback_trouble")  # at once, and how often at the end
    assert first["failures"] == 1 and first["time_s"] < trouble["time_s"]
    assert trouble["callback"] == "mine:Picky"
    assert trouble["failures"] == len(metrics(run, "validation"))
    assert trouble["error"] == "ValueError: no validations, please"
    assert list((run / "tensorboard").iterdir())
    log = (run / "logs" / "coordinator.log").read_text()
    assert '"event": "callback_failed"' in log


def test_a_tracker_that_cannot_be_used_is_one_line_before_anything_starts(
    workplace: Workplace,
) -> None:
    job = workplace.job(trackers=[{"kind": "mine:Absent"}])
    done = workplace.spotlight("run", job, "--run-folder", "run")
    assert done.code == 2
    (line,) = done.errors.splitlines()
    assert "trackers[0].kind: `mine:Absent`: there is no module `mine`" in line
    assert not (workplace.folder / "run").exists()
