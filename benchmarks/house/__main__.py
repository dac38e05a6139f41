"""How the package is built: `python -m benchmarks.house --json`.

Of the text of the package, without the examples and the simulator:

- `package_lines`: all lines.
- `callables_per_constructor`: parameters annotated with `Callable[...]` of every `__init__` that is
  written, over the number of these; `callable_parameters` and `constructors` are the two.
  `callable_fields` counts such fields of dataclasses and structs, which are in neither.
- `longest_function` in lines, and `longest_function_name`.
- `typed_share`: the share of the lines that mypy checks strictly.

Of simulated jobs and a session (`spotlight chaos`), and of one simulated job without faults; what
is called `..._by_...`, `files_entered` or `walked` is in the line of JSON alone:

- `files_most`: most files that the coordinator's process enters while one of its actors handles one
  message; `files_most_handler` says which, `files_entered` are its files, `files_by_handler` has
  all handlers. Tasks that a handler leaves behind do not count. `files_most_call` and
  `files_by_call` are the same of calls that actors make in a turn of their own, for other parts of
  their process; a start of a job is one.
- `seed_to_gradient`, `notice_to_commit`, `weights_to_member`: messages in a row from the grant of a
  request to the order to train on its sample, from a user's notice to the receipt of the commit
  that it causes, and from a trainer's report of weights to a member's that it has them; `walks` has
  the three, and `walked` the messages.

With `--mutants`, `benchmarks.mutants` is run: tests found `mutants_found` of `mutants`. With
`--suite-before COMMIT`, the fast tests are run here and in that commit, in turns: `suite_cpu_ratio`
is their processor time here over that there. Both take long, and are left out with `--quick`, which
also follows fewer jobs.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from argparse import Namespace
from collections.abc import Collection, Mapping
from typing import Any

from benchmarks.house import suite, walks
from benchmarks.house.source import ROOT, mypy_settings, package
from benchmarks.house.turns import QUICK_SEEDS, SEEDS, entered
from benchmarks.report import Report, at_least_one

_MUTANTS_LIMIT_S = 6 * 3600.0


def main() -> None:
    """Measure what was asked for and print it."""
    report = Report("house", __doc__, minutes=1, proviso="; mutants and tests take far longer")
    report.options.add_argument("--mutants", action="store_true", help="count mutants, too")
    report.options.add_argument(
        "--suite-before", metavar="COMMIT", help="compare the fast tests' time with this commit's"
    )
    report.options.add_argument(
        "--rounds", type=at_least_one, default=1, metavar="N", help="of the tests, in turns"
    )
    chosen = report.begin()
    report.add(_of_the_text())
    _add_turns(report, chosen.quick)
    _add_walks(report)
    if chosen.quick and (chosen.mutants or chosen.suite_before):
        report.note("mutants and the tests' time are left out with --quick")
    elif not chosen.quick:
        report.add(_of_long_runs(chosen))
    report.finish()


def _of_the_text() -> Mapping[str, Any]:
    source = package()
    constructors = sum(1 for _ in source.constructors())
    callables = sum(1 for _ in source.callable_parameters())
    longest, name = source.longest_function()
    return {
        "package_lines": source.lines,
        "callables_per_constructor": round(callables / constructors, 3),
        "callable_parameters": callables,
        "constructors": constructors,
        "callable_fields": sum(1 for _ in source.callable_fields()),
        "longest_function": longest,
        "longest_function_name": name,
        "typed_share": round(source.typed_share(mypy_settings()), 4),
    }


def _add_turns(report: Report, quick: bool) -> None:
    most = entered(QUICK_SEEDS if quick else SEEDS)
    by_handler, by_call = _counted(most.by_message), _counted(most.by_call)
    handler = next(iter(by_handler))
    report.add(
        {
            "files_most": by_handler[handler],
            "files_most_handler": handler,
            "files_most_call": next(iter(by_call.values())),
        }
    )
    report.figures["files_by_handler"] = by_handler
    report.figures["files_by_call"] = by_call
    report.figures["files_entered"] = sorted(most.by_message[handler])


def _counted(files: Mapping[str, Collection[str]]) -> dict[str, int]:
    """How many each has, those with most first."""
    return {name: len(files[name]) for name in sorted(files, key=lambda each: -len(files[each]))}


def _add_walks(report: Report) -> None:
    measured = walks.measured()
    lengths = {name: len(messages) for name, messages in measured.items()}
    report.add({**lengths, "walks": list(lengths.values())})
    report.figures["walked"] = measured


def _of_long_runs(chosen: Namespace) -> Mapping[str, Any]:
    figures: dict[str, Any] = {}
    if chosen.mutants:
        found = _mutants()
        figures |= {"mutants": found["mutants"], "mutants_found": found["mutants_found"]}
    if chosen.suite_before is not None:
        here, there = suite.cpu_seconds_in_turns(chosen.suite_before, chosen.rounds)
        figures |= {
            "suite_cpu_s": statistics.median(here),
            "suite_cpu_s_before": statistics.median(there),
            "suite_cpu_ratio": round(statistics.median(here) / statistics.median(there), 3),
        }
    return figures


def _mutants() -> Mapping[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.mutants", "--json"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        timeout=_MUTANTS_LIMIT_S,
        check=True,
    )
    figures: Mapping[str, Any] = json.loads(done.stdout.splitlines()[-1])["figures"]
    return figures


if __name__ == "__main__":
    main()
