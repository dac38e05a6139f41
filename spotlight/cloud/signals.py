"""Signals as notices: SIGTERM is all that Kubernetes, Slurm, systemd and `docker stop` say before
they kill; SIGHUP comes when a node's terminal is closed, and SIGUSR1 or SIGUSR2 from Slurm's
`--signal`.

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
"""Environment variable: seconds between the signal and SIGKILL on this machine, such as a pod's
`terminationGracePeriodSeconds` or a Slurm partition's `GraceTime`. Unset or empty: 30."""
_DEFAULT_GRACE_S = 30.0


def grace_s(environ: Mapping[str, str]) -> float:
    """Seconds between a signal and SIGKILL. Raises `UserError` for what is not a number of them."""
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


class SignalNotice:
    """The first signal is a notice of `lead_s` seconds. The second one of those that end a process
    calls `again`, which should end it at once.
    """

    name = "signal"
    poll_s = 1.0

    def __init__(self, lead_s: float, again: Callable[[], None]) -> None:
        self._lead_s = lead_s
        self._again = again
        self._received = asyncio.Event()
        self._told_to_end = False
        self._deadline = 0.0

    async def read(self) -> tuple[Announcement, ...]:
        """The notice; waits for it."""
        await self._received.wait()
        left_s = self._deadline - asyncio.get_running_loop().time()
        return (Announcement("signal", "preempt", max(0.0, left_s)),)

    def told_to_end(self) -> None:
        """Take in a signal that ends processes."""
        if self._told_to_end:
            self._again()
        self._told_to_end = True
        self.noticed()

    def noticed(self) -> None:
        """Take in a signal that says that such a one will come. Slurm may repeat it."""
        if not self._received.is_set():
            self._deadline = asyncio.get_running_loop().time() + self._lead_s
            self._received.set()


@contextmanager
def signals_as_notice(
    ending: Sequence[signal.Signals],
    notices: Sequence[signal.Signals],
    lead_s: float,
    *,
    again: Callable[[], None],
) -> Iterator[SignalNotice]:
    """Handle these signals of this process on the running loop; afterwards they kill again.

    See `SignalNotice` for what signals that end a process do, and those that are mere notices.
    """
    loop = asyncio.get_running_loop()
    source = SignalNotice(lead_s, again)
    for number in ending:
        loop.add_signal_handler(number, source.told_to_end)
    for number in notices:
        loop.add_signal_handler(number, source.noticed)
    try:
        yield source
    finally:
        for number in (*ending, *notices):
            loop.remove_signal_handler(number)
