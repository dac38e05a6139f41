"""Logs. Daemons and workers write one JSON object per line to standard error; a program that uses
Spotlight as a library configures logging itself.
"""

from __future__ import annotations

import logging
import sys
from typing import Any

import structlog


class _BestEffortLogger:
    """Writes lines, and drops them where they cannot be written: a full disk must not stop the very
    process that has to say so.
    """

    def msg(self, message: str) -> None:
        try:
            sys.stderr.write(f"{message}\n")
            sys.stderr.flush()
        except OSError:
            return

    debug = info = warning = error = critical = exception = msg


def log_as_json_lines(level: int = logging.INFO) -> None:
    """Set up this process's logs."""
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=_make_logger,
    )


def _make_logger(*_: Any) -> _BestEffortLogger:
    return _BestEffortLogger()


def log_to_the_program() -> None:
    """Hand what this process logs to the program's own `logging`, where nobody has set up structlog
    otherwise: as a library Spotlight prints nothing by itself.
    """
    logging.getLogger("spotlight").addHandler(logging.NullHandler())
    if structlog.is_configured():
        return
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            structlog.processors.format_exc_info,
            structlog.processors.KeyValueRenderer(key_order=["event"]),  # names are free there
        ],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
    )
