"""A view that grows with its run is the same as one that is made of the run folder then."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from sample_run import sample_job, write_sample_run

from spotlight.jobs import job_to_yaml
from spotlight.record.ledger import Ledger, Milliseconds, NodeBill, Price, RollupLine
from spotlight.report.run_view import RunView
from spotlight.report.view_building import ViewBuilder, view_of
from spotlight.running.record_follower import RecordFollower
from spotlight.store.ledger_file import read_ledger, write_ledger
from spotlight.store.rollups import FOLDER, RollupReader, Rollups
from spotlight.trackers.callback import deliver

PRICE = Price(usd_per_gpu_hour=3600.0, on_demand=7200.0, source="job")


class _Run:
    """A run folder that is written line by line, and a view that follows it."""

    def __init__(self, folder: Path, target: float | None = None) -> None:
        self.folder = folder
        folder.mkdir()
        job = sample_job(iterations=6, validation={"target": target} if target else {})
        (folder / "config.yaml").write_text(job_to_yaml(job), encoding="utf-8")
        self.builder = ViewBuilder(job, folder)
        self._follower = RecordFollower(
            folder, lambda record: deliver(record, self.builder), from_start=True
        )

    def write(self, file: str, line: str) -> None:
        with (self.folder / file).open("a", encoding="utf-8") as stream:
            stream.write(line)
        while self._follower.poll():
            pass

    def require_same(self) -> None:
        live, made = (_comparable(one) for one in (self.builder.view(0.0), view_of(self.folder, 0)))
        for field in live.__struct_fields__:
            assert getattr(live, field) == getattr(made, field), field


def _comparable(view: RunView) -> RunView:
    """Without when files were written."""
    return msgspec.structs.replace(view, job=msgspec.structs.replace(view.job, updated_at=None))


def _lines(folder: Path) -> list[tuple[str, str]]:
    """All lines of events and metrics, in order of time."""
    lines = [
        (json.loads(line)["time_s"], file, line)
        for file in ("events.jsonl", "metrics.jsonl")
        for line in (folder / file).read_text(encoding="utf-8").splitlines(keepends=True)
    ]
    return [(file, line) for _, file, line in sorted(lines, key=lambda each: each[0])]


@pytest.mark.parametrize("target", [None, 0.9], ids=["no target", "target"])
def test_the_live_view_and_the_folder_s_are_the_same_after_every_line(
    tmp_path: Path, target: float | None
) -> None:
    written = write_sample_run(tmp_path / "written", iterations=6)
    run = _Run(tmp_path / "run", target)
    for number, (file, line) in enumerate(_lines(written)):
        run.write(file, line)
        if number % 5 == 0 or file == "metrics.jsonl":
            run.require_same()
    run.require_same()
    assert run.builder.view(0.0).job.outcome == "finished"


def test_the_same_with_a_ledger_and_roll_ups(tmp_path: Path) -> None:
    run = _Run(tmp_path / "run", 0.9)
    rollups = Rollups(run.folder / FOLDER)
    reader = RollupReader(run.folder / FOLDER)
    for number in range(1, 30):
        end_s = 10.0 * number
        times: dict[str, Milliseconds] = {
            "reserved-0/0": {"train": 6_000 * number, "idle": 4_000 * number}
        }
        each: dict[str, Milliseconds] = {"reserved-0/0": {"train": 6_000, "idle": 4_000}}
        rollups.append(
            RollupLine(
                number=number,
                start_s=end_s - 10.0,
                end_s=end_s,
                at=1000.0 + end_s,
                times=each,
                spent={"reserved": end_s},
            )
        )
        bill = NodeBill(node="reserved-0", pool="reserved", process="a", workers=1, price=PRICE,
                        from_at=1000.0, to_at=1000.0 + end_s, times=times)  # fmt: skip
        write_ledger(run.folder, Ledger(number=number, at=1000.0 + end_s, time_s=end_s,
                                        bills=(bill,)))  # fmt: skip
        run.builder.ledger(read_ledger(run.folder))
        for line in reader.read() or ():
            run.builder.rollup(line)
        metrics = {"kind": "iteration", "time_s": end_s - 1.0, "iteration": number, "samples": 8}
        run.write("metrics.jsonl", json.dumps(metrics) + "\n")
        score = {"kind": "validation", "time_s": end_s - 0.5, "weights_version": number,
                 "score": 0.02 * number}  # fmt: skip
        run.write("metrics.jsonl", json.dumps(score) + "\n")
        run.require_same()
    view = run.builder.view(0.0)
    assert view.money.spent == pytest.approx(290.0)
    assert view.validation.seconds_left == pytest.approx(160.0, rel=0.05)
    assert view.validation.usd_left == pytest.approx(160.0, rel=0.05)
    reader.close()
    rollups.close()
