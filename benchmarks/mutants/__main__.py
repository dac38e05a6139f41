"""Who notices when a promise is broken: `python -m benchmarks.mutants --json`.

Every file of the folder `broken` says how one line of the package is written otherwise. For each, a
copy of the repository is changed so; the tests that are likeliest to notice are run up to the first
that fails, and if none does, all fast tests of the same room. A test that fails without the change
as well does not count.

`--only PATTERN` tries those whose name or file is like it, such as `an_old_*` or
`spotlight/policies/*`. `--chaos N` also runs the seeds of `spotlight chaos` up to the first that a
check does not pass, at most N. With `--rows FILE` each row is appended to that file, and mutants
that have one there are not tried again, so that a run that was broken off goes on; `--minutes`
begins no mutant after so many.

- `mutants`: how many were tried.
- `mutants_found`: how many of them a test noticed.
- `survivors`: those that none did, by name.
- `cpu_seconds`: the processor time of all tests that were run for them.
- `chaos_mutants_found`, `chaos_seeds_to_find`, with `--chaos`: how many of them chaos found, and
  the median of the seeds that it took for these.
- `by_mutant`, in the line of JSON alone: what each was found by, and in how many seconds.
"""

from __future__ import annotations

import signal
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.mutants.mutant import Mutant, copied, mutants
from benchmarks.mutants.trials import Row, tried
from benchmarks.report import Report, at_least_one

_QUICK = ("commits_are_not_kept", "the_sign_of_the_advantage", "used_up_tokens_enroll")


def main() -> None:
    """Try them and print who found what."""
    report = Report("mutants", __doc__, minutes=20)
    options = report.options
    options.add_argument("--only", metavar="PATTERN", nargs="+", help="try these alone")
    options.add_argument("--chaos", metavar="N", type=at_least_one, help="run seeds as well")
    options.add_argument("--rows", metavar="FILE", type=Path, help="where rows are kept")
    chosen = report.begin()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that nothing is left behind
    patterns = _QUICK if chosen.quick else chosen.only or ("*",)
    wanted = [each for each in mutants() if any(map(each.matches, patterns))]
    if not wanted:
        options.error(f"there is no mutant like {' or '.join(patterns)}")
    known = _kept(chosen.rows, {mutant.name for mutant in wanted})
    left = [mutant for mutant in wanted if mutant.name not in known]
    rows = list(known.values())
    for row in _tried(left, chosen.chaos or 0, report):
        rows.append(row)
        report.note(_words(row))
        if chosen.rows is not None:
            with open(chosen.rows, "ab") as file:
                file.write(msgspec.json.encode(row) + b"\n")
    report.add(_figures(rows))
    report.figures["by_mutant"] = {row.mutant: msgspec.to_builtins(row) for row in rows}
    report.finish()


def _kept(path: Path | None, names: set[str]) -> dict[str, Row]:
    lines = path.read_bytes().splitlines() if path is not None and path.exists() else []
    rows = [msgspec.json.decode(line, type=Row) for line in lines]
    return {row.mutant: row for row in rows if row.mutant in names}


def _tried(wanted: Sequence[Mutant], seeds: int, report: Report) -> Iterator[Row]:
    with (
        tempfile.TemporaryDirectory(prefix="spotlight-mutants-") as scratch,
        copied(Path(scratch)) as root,
    ):
        for mutant in wanted:
            mutant.changed(root)  # before hours are spent on others
        for mutant in wanted:
            if report.is_time_up():
                return
            yield tried(mutant, root, seeds)


def _words(row: Row) -> str:
    chaos = f"; seed {row.seed}: {row.violation}" if row.seed is not None else ""
    by = row.found_by or "SURVIVES"
    return f"{row.mutant}: {by} ({row.seconds:.0f} s, {row.cpu_seconds:.0f} s of processor){chaos}"


def _figures(rows: Sequence[Row]) -> dict[str, Any]:
    figures: dict[str, Any] = {
        "mutants": len(rows),
        "mutants_found": sum(bool(row.found_by) for row in rows),
        "survivors": [row.mutant for row in rows if not row.found_by],
        "cpu_seconds": round(sum(row.cpu_seconds for row in rows), 1),
    }
    if any(row.seeds for row in rows):
        by_chaos = [row.seeds for row in rows if row.seed is not None]
        figures["chaos_mutants_found"] = len(by_chaos)
        figures["chaos_seeds_to_find"] = statistics.median(by_chaos) if by_chaos else 0
    return figures


if __name__ == "__main__":
    main()
