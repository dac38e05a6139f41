"""All processes of a program that a test runs, those of whatever it starts among them."""

from __future__ import annotations

from contextlib import suppress

import psutil

MARK = "SPOTLIGHT_TEST_SCENE"
"""Environment variable by which they are known; they inherit it."""


def processes(mark: str, name: str = "") -> list[psutil.Process]:
    """Those that bear this mark, and have the name in their command line."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get(MARK) == mark and name in " ".join(process.cmdline()):
                found.append(process)
    return found
