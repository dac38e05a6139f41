"""Writes report.html: one page that says what a run did, and needs nothing but itself.

It is replaced as a whole, so that a reader never sees half of it.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import msgspec

from spotlight.errors import RunFolderError
from spotlight.report.frozen_page import frozen_page
from spotlight.report.metrics import summarise
from spotlight.report.run_reading import read_run
from spotlight.report.view_building import built_from, view_of


def report_data(folder: Path, now: float | None = None) -> dict[str, Any]:
    """The figures of a run for programs, and as `view` the record that its page and its report
    show; both say the same of what is in both.

    Args:
        now: seconds since 1970; this very moment by default.

    Raises `RunFolderError`.
    """
    run = read_run(folder)
    view = built_from(run).view(time.time() if now is None else now)
    told = {"outcome": view.job.outcome, "reason": view.job.reason}
    return {**summarise(run), **told, "view": msgspec.to_builtins(view)}


def write_report(folder: Path) -> Path:
    """Write `report.html` into a run folder and return its path.

    Raises `RunFolderError` when the folder is not one of a run, or cannot be written.
    """
    target = folder / "report.html"
    text = frozen_page(view_of(folder), folder)
    draft = target.with_suffix(".html.tmp")
    try:
        draft.write_text(text, encoding="utf-8")
        os.replace(draft, target)
    except OSError as error:
        raise RunFolderError(f"{target}: cannot be written ({error.strerror})") from error
    return target
