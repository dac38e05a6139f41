"""SIGTERM as a notice: all that Kubernetes, Slurm, systemd and `docker stop` say before they kill;
and SIGHUP, when a node's terminal is closed.

How long they wait is not in the signal; the environment says it (`GRACE_VARIABLE`).
"""

from __future__ import annotations

import asyncio
import math
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from spotlight.cloud.notices import Announcement
from spotlight.errors import UserError

GRACE_VARIABLE = "SPOTLIGHT_GRACE_S"
"""Environment variable: seconds between SIGTERM and SIGKILL on this machine, such as a pod's
`terminationGracePeriodSeconds` or a Slurm partition's `GraceTime`. Unset or empty: 30."""
_DEFAULT_GRACE_S = 30.0


def grace_s(environ: Mapping[str, str]) -> float:
    """Seconds between SIGTERM and SIGKILL. Raises `UserError` for what is not a number of them."""
    text = environ.get(GRACE_VARIABLE, "")
    if not text:
        return _DEFAULT_GRACE_S
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise UserError(f"{GRACE_VARIABLE}={text}: must be a number of seconds, 0 or more")
    return seconds


class EndingSignal:
    """The first signal is a notice of `lead_s` seconds; each later one calls `again`."""

    name = "signal"
    poll_s = 1.0

    def __init__(self, lead_s: float, again: Callable[[], None]) -> None:
        self._lead_s = lead_s
        self._again = again
        self._received = asyncio.Event()
        self._deadline = 0.0

    async def read(self) -> tuple[Announcement, ...]:
        """The notice; waits for it."""
        await self._received.wait()
        left_s = self._deadline - asyncio.get_running_loop().time()
        return (Announcement("sigterm", "preempt", max(0.0, left_s)),)

    def receive(self) -> None:
        """Take in one signal."""
        if self._received.is_set():
            self._again()
            return
        self._deadline = asyncio.get_running_loop().time() + self._lead_s
        self._received.set()


@contextmanager
def signals_as_notice(
    numbers: Sequence[signal.Signals], lead_s: float, again: Callable[[], None]
) -> Iterator[EndingSignal]:
    """Handle these signals of this process on the running loop; afterwards they kill again.

    `lead_s` is the time that the first leaves; the second calls `again`, which should end the
    process at once.
    """
    loop = asyncio.get_running_loop()
    source = EndingSignal(lead_s, again)
    for number in numbers:
        loop.add_signal_handler(number, source.receive)
    try:
        yield source
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)
