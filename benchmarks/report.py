"""What every benchmark shares: its options, and its figures as one JSON object on the last line."""

from __future__ import annotations

import argparse
import json
import logging
import os
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import structlog

Figure = float | int | str


def parser(description: str | None) -> argparse.ArgumentParser:
    """A parser with the options that every benchmark has: `--json` and `--quick`."""
    made = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("--json", action="store_true", help="print the JSON line and nothing else")
    made.add_argument("--quick", action="store_true", help="fewer repetitions, for a smoke test")
    return made


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


def arguments(description: str | None) -> argparse.Namespace:
    """The options that this benchmark was called with, when it has only those."""
    warnings_on_stderr()
    return parser(description).parse_args()


def quantile(values: Sequence[float], share: float) -> float:
    """The value that this share of all values do not exceed; the largest when there are few."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def finish(name: str, figures: Mapping[str, Any], json_only: bool) -> None:
    """Print the figures, as a table unless `json_only`, then as one JSON object with machine and
    commit."""
    if not json_only:
        width = max(map(len, figures), default=0)
        for figure, value in figures.items():
            print(f"{figure:<{width}}  {value}")
    result = {"name": name, "figures": dict(figures), "machine": machine(), "commit": commit()}
    print(json.dumps(result), flush=True)


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
