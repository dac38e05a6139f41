"""A job as whoever looks on sees it: redrawn in a terminal, a line for each change elsewhere, JSON
for programs.
"""

from __future__ import annotations

import msgspec
from rich.console import Console
from rich.live import Live

from spotlight.actors.protocol.users import JobStatus
from spotlight.cli.live import plain_line, render
from spotlight.cli.time_left import TimeLeft


class TerminalView:
    """See `Observer`. The job is redrawn in place where the console is a terminal."""

    def __init__(self, console: Console, live: Live) -> None:
        self._console = console
        self._live = live
        self._time_left = TimeLeft()
        self._line = ""
        self._told: set[str] = set()

    async def progress(self, status: JobStatus) -> None:
        """See `Observer`."""
        left_s = self._time_left.seen(status)
        if self._console.is_terminal:
            self._keep_troubles(status)
            self._live.update(render(status, left_s), refresh=True)
        elif (line := plain_line(status)) != self._line:
            self._line = line
            self._console.print(line, highlight=False, markup=False, soft_wrap=True)

    def tell(self, line: str) -> None:
        """See `Observer`."""
        self._console.print(line, soft_wrap=True, highlight=False, markup=False)

    def _keep_troubles(self, status: JobStatus) -> None:
        """Lines that stay when the view is gone: nobody may have looked at it."""
        for trouble in status.troubles:
            if trouble.startswith("tracker ") and trouble not in self._told:
                self._told.add(trouble)
                self.tell(f"warning: {trouble}")


class QuietView:
    """See `Observer`. Nothing is shown but what is the matter, on standard error."""

    def __init__(self) -> None:
        self._console = Console(stderr=True)

    async def progress(self, status: JobStatus) -> None:
        """See `Observer`."""

    def tell(self, line: str) -> None:
        """See `Observer`."""
        self._console.print(line, soft_wrap=True, highlight=False, markup=False)


class JsonView(QuietView):
    """See `Observer`. A `JobStatus` in JSON, in a line of its own, for each change that people
    would be told of."""

    def __init__(self) -> None:
        super().__init__()
        self._line = ""
        self._out = Console()

    async def progress(self, status: JobStatus) -> None:
        """See `Observer`."""
        if (line := plain_line(status)) != self._line:
            self._line = line
            text = msgspec.json.encode(status).decode()
            self._out.print(text, soft_wrap=True, highlight=False, markup=False)
