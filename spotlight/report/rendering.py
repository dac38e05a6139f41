"""Writes report.html: one page that says what a run did, and needs nothing but itself.

The page holds no link to anything outside it, is readable without JavaScript, and is replaced as a
whole, so that a reader never sees half of it.
"""

from __future__ import annotations

import os
from pathlib import Path

from spotlight.errors import RunFolderError
from spotlight.report import page_sections
from spotlight.report.lanes import lanes
from spotlight.report.metrics import summarise, typical_iteration
from spotlight.report.page import page
from spotlight.report.run_reading import RunHistory, read_run
from spotlight.report.timeline import time_section


def write_report(folder: Path) -> Path:
    """Write `report.html` into a run folder and return its path.

    Raises `RunFolderError` when the folder is not one of a run, or cannot be written.
    """
    target = folder / "report.html"
    text = render_report(read_run(folder))
    draft = target.with_suffix(".html.tmp")
    try:
        draft.write_text(text, encoding="utf-8")
        os.replace(draft, target)
    except OSError as error:
        raise RunFolderError(f"{target}: cannot be written ({error.strerror})") from error
    return target


def render_report(run: RunHistory) -> str:
    """The whole page."""
    span = typical_iteration(run)
    workers = lanes(run, close_up=None if span is None else (span.start, span.end))
    summary = summarise(run, workers)
    return page(
        f"{run.job.name} - Spotlight",
        (
            page_sections.header(run, summary),
            page_sections.progress(run),
            page_sections.pictures(run),
            time_section(run, summary, workers),
            page_sections.events(run),
            page_sections.job_text(run),
            page_sections.footer(run),
        ),
    )
