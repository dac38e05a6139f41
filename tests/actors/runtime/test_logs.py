"""What Spotlight logs in a program that uses it as a library."""

from __future__ import annotations

import subprocess
import sys

_SCRIPT = """
import logging
{setup}
from spotlight.actors.runtime.logs import log_to_the_program
log_to_the_program()
import structlog
structlog.get_logger("spotlight.somewhere").warning("lost", message="whose", name="any", args=1)
"""


def said(setup: str) -> tuple[str, str]:
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT.format(setup=setup)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return done.stdout, done.stderr


def test_nothing_is_printed_where_nobody_listens() -> None:
    assert said("") == ("", "")


def test_a_program_that_listens_hears_every_field() -> None:
    out, err = said("logging.basicConfig(format='%(name)s %(levelname)s %(message)s')")
    assert out == ""
    line = "spotlight.somewhere WARNING event='lost' message='whose' name='any' args=1"
    assert err.strip() == line
