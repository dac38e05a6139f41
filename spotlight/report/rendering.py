"""Writes report.html: one page that says what a run did, and needs nothing but itself.

It is replaced as a whole, so that a reader never sees half of it.
"""

from __future__ import annotations

import os
from pathlib import Path

from spotlight.errors import RunFolderError
from spotlight.report.frozen_page import frozen_page
from spotlight.report.view_building import view_of


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
