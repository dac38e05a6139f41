"""What every benchmark shares: its options, and its figures.

They are shown as they come, and the last line is one JSON object with all of them.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import os
import platform
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import structlog

Figure = float | int | str


class Report:
    """One run of a benchmark: what it was asked for, and the figures that it has so far."""

    def __init__(
        self, name: str, description: str | None, minutes: float, proviso: str = ""
    ) -> None:
        """Of a benchmark that takes about so many minutes on two cores, under a proviso if there is
        one. Options of its own are added to `options`, before `begin`.
        """
        self.options = argparse.ArgumentParser(
            prog=f"python -m benchmarks.{name}",
            description=description,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        self.options.add_argument(
            "--json", action="store_true", help="print the JSON line and nothing else"
        )
        self.options.add_argument(
            "--quick", action="store_true", help="as little as shows that it works"
        )
        self.options.add_argument(
            "--minutes",
            type=above_zero,
            metavar="N",
            help=f"take about N minutes, by doing less (all of it takes about {minutes:g})",
        )
        self.figures: dict[str, Any] = {}
        self._name = name
        self._minutes = minutes
        self._proviso = proviso
        self._begun = time.monotonic()
        self._given = argparse.Namespace()

    def begin(self) -> argparse.Namespace:
        """Read the options, say how long it takes, and log warnings on stderr: on stdout, programs
        expect the figures."""
        warnings_on_stderr()
        self._given = self.options.parse_args()
        minutes = self._given.minutes or self._minutes
        takes = "20 seconds" if self._given.quick else f"{minutes:g} min"
        self.note(f"takes about {takes} on two idle cores{self._proviso}")
        return self._given

    def times(self, all_of_them: int, quick: int) -> int:
        """How many repetitions there is time for: of all, as many as the asked-for minutes allow,
        but no fewer than with `--quick`."""
        if self._given.quick:
            return quick
        share: float = min(1.0, (self._given.minutes or self._minutes) / self._minutes)
        return max(quick, round(all_of_them * share))

    def is_time_up(self) -> bool:
        """Whether the minutes that were asked for are over; never if none were."""
        minutes = self._given.minutes
        return minutes is not None and time.monotonic() >= self._begun + 60 * minutes

    def note(self, text: str) -> None:
        """Say on stderr how far it is."""
        print(f"{self._name}: {text}", file=sys.stderr, flush=True)

    def add(self, figures: Mapping[str, Any]) -> None:
        """Show these figures; with `--json` on stderr."""
        self.figures |= figures
        shown_on = sys.stderr if self._given.json else sys.stdout
        width = max(map(len, figures), default=0)
        for name, value in figures.items():
            print(f"{name:<{width}}  {value}", file=shown_on, flush=True)

    def finish(self) -> None:
        """Print all figures as one JSON object, with machine and commit."""
        result = {
            "name": self._name,
            "figures": self.figures,
            "machine": machine(),
            "commit": commit(),
        }
        print(json.dumps(result), flush=True)


def above_zero(text: str) -> float:
    """The type of an option that is an amount of something, of which there must be some."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"must be a number above 0, not `{text}`")
    return value


def at_least_one(text: str) -> int:
    """The type of an option that is a number of things, of which there must be some."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of 1 at least, not `{text}`")
    return int(text)


def warnings_on_stderr() -> None:
    """Log warnings, there: on stdout, programs expect the figures."""
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
        logger_factory=structlog.PrintLoggerFactory(file=sys.stderr),
    )


def quantile(values: Sequence[float], share: float) -> float:
    """The value that this share of all values do not exceed; the largest when there are few."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def machine() -> dict[str, Figure]:
    """What the figures were measured on."""
    return {
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "platform": platform.platform(),
    }


def commit() -> str:
    """The commit that was measured, with `+` for uncommitted changes; `unknown` outside a
    repository."""
    here = Path(__file__).parent
    try:
        head = _git(here, "rev-parse", "--short=12", "HEAD")
        return head + ("+" if _git(here, "status", "--porcelain", "-uno") else "")
    except (OSError, subprocess.SubprocessError):
        return "unknown"


def _git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", *arguments], cwd=folder, capture_output=True, text=True, check=True, timeout=10
    )
    return done.stdout.strip()


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or "unknown"
    models = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(models, platform.processor() or "unknown")
