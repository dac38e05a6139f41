"""Another setting of structlog for a while, of which nothing is left: a process that had none has
none again, so that what it runs later prints as little as it would have."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from logging import CRITICAL, DEBUG
from typing import Literal

import structlog
from structlog.typing import Processor


@contextmanager
def logging_by(
    processors: Sequence[Processor], level: Literal["debug", "critical"] = "debug"
) -> Iterator[None]:
    """What is logged from this level on goes through these."""
    before, was_configured = structlog.get_config(), structlog.is_configured()
    least = DEBUG if level == "debug" else CRITICAL
    structlog.configure(
        processors=processors, wrapper_class=structlog.make_filtering_bound_logger(least)
    )
    try:
        yield
    finally:
        if was_configured:
            structlog.configure(**before)
        else:
            structlog.reset_defaults()
