"""What users bring, and what they do: `python -m benchmarks.users --json`.

Every module of this package is a kind of case. `--only KIND` tries one kind.

- `cases`: how many inputs and situations were tried.
- `right_fraction`: the share of them that came out right; the wrong ones are printed on stderr.
- `adapter_max_difference`: the largest difference between a model with an exported adapter that a
  plain matrix product `W + B A` reads, and the trained model, over all families.
"""

from __future__ import annotations

import importlib
import pkgutil
import tempfile
from pathlib import Path

import benchmarks.users
from benchmarks.report import Report
from benchmarks.users.case import CASES, Case, Figures, Wrong


def main() -> None:
    report = Report("users", __doc__, minutes=15)
    report.options.add_argument("--only", metavar="KIND", help="try the cases of this kind only")
    chosen = report.begin()
    for module in pkgutil.iter_modules(benchmarks.users.__path__):
        importlib.import_module(f"benchmarks.users.{module.name}")
    cases = [
        case
        for case in CASES
        if (case.quick or not chosen.quick) and chosen.only in (None, case.kind)
    ]
    if not cases:
        report.options.error(f"there are no cases of kind `{chosen.only}`")
    figures: dict[str, float] = {}
    right = tried = 0
    for case in cases:
        if report.is_time_up():
            break
        tried += 1
        try:
            found = _tried(case)
        except Wrong as error:
            report.note(f"wrong: {case.kind}: {case.name}: {error}")
            continue
        right += 1
        report.note(f"right: {case.kind}: {case.name}")
        for name, value in found.items():
            figures[name] = max(value, figures.get(name, value))
    report.add({"cases": tried, "right_fraction": right / max(tried, 1), **figures})
    report.finish()


def _tried(case: Case) -> Figures:
    with tempfile.TemporaryDirectory(prefix="spotlight-users-") as folder:
        return case.check(Path(folder)) or {}


if __name__ == "__main__":
    main()
