"""Who notices when a promise is broken: `python -m benchmarks.mutants --json`.

Every file of the folder `broken` says how one line of the package is written otherwise. For each,
the tests nearest to it are run up to the first that fails, and the seeds of `spotlight chaos` up to
the first that a check does not pass, at most 200. `--only NAME` tries one mutant. With `--rows
FILE` each row is appended to that file, and mutants that have one there are not tried again, so
that a run that was broken off goes on; `--minutes` begins no mutant after so many.

- `mutants`: how many were tried.
- `tests_mutants_found`, `chaos_mutants_found`: how many of them tests and chaos found.
- `chaos_seeds_to_find`: the median of the seeds that chaos took for those that it found.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from benchmarks.mutants.mutant import Mutant, applied, copied, mutants
from benchmarks.mutants.trials import Row, tried
from benchmarks.report import Figure, Report

SEEDS = 200
_QUICK = "every_fourth_row"
_QUICK_SEEDS = 10


def main() -> None:
    """Try them and print who found what."""
    report = Report("mutants", __doc__, minutes=60)
    report.options.add_argument("--only", metavar="NAME", help="try this mutant only")
    report.options.add_argument("--rows", metavar="FILE", type=Path, help="where rows are kept")
    chosen = report.begin()
    only = _QUICK if chosen.quick else chosen.only
    wanted = [mutant for mutant in mutants() if only in (None, mutant.name)]
    if not wanted:
        report.options.error(f"there is no mutant `{only}`")
    known = _kept(chosen.rows, {mutant.name for mutant in wanted})
    left = [mutant for mutant in wanted if mutant.name not in known]
    rows = list(known.values())
    for row in _tried(left, _QUICK_SEEDS if chosen.quick else SEEDS, report):
        rows.append(row)
        report.note(_words(row))
        if chosen.rows is not None:
            with open(chosen.rows, "ab") as file:
                file.write(msgspec.json.encode(row) + b"\n")
    report.add(_figures(rows))
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
            if report.is_time_up():
                return
            with applied(mutant, root):
                row = tried(mutant, root, seeds)
            yield row


def _words(row: Row) -> str:
    test = row.test.partition("[")[0].rpartition("/")[2] or "no test"
    chaos = f"seed {row.seed}: {row.violation}" if row.seed is not None else "no seed"
    return f"{row.mutant}: {test}; {chaos} (of {row.seeds}, {row.chaos_s:.0f} s)"


def _figures(rows: Sequence[Row]) -> dict[str, Figure]:
    by_chaos = [row.seeds for row in rows if row.seed is not None]
    return {
        "mutants": len(rows),
        "tests_mutants_found": sum(bool(row.test) for row in rows),
        "chaos_mutants_found": len(by_chaos),
        "chaos_seeds_to_find": statistics.median(by_chaos) if by_chaos else 0,
    }


if __name__ == "__main__":
    main()
