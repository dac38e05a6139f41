"""What becomes of a process that sends what no process of ours does: it is counted, told why, and
not heard any more.

Both transports and the actor system share these rules, so that they mean the same everywhere.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Literal

from spotlight.errors import FrameRejected

Rejection = Literal[
    "malformed",
    "oversized",
    "unknown_type",
    "unknown_version",
    "wrong_type",
    "not_allowed",
    "not_admitted",
    "no_greeting",
    "no_room",
    "cut_off",
]
"""Why something that arrived was not taken:
- `malformed`: not MessagePack, cut short, nested too deeply, or announcing more than it holds;
- `oversized`: over the limit of a frame;
- `unknown_type`, `wrong_type`: not a message that is known here, or a field is missing, of another
  type, or out of its range;
- `unknown_version`: of another version of the protocol;
- `not_allowed`: well formed, but not this peer's to say; dropped, and the peer stays connected;
- `not_admitted`: from somebody who has proved no key, or one that is no guest's;
- `no_greeting`: a connection that ended, or went on, without saying whose it is;
- `no_room`: there were too many connections, and none had been silent for longer;
- `cut_off`: from a process or connection that was cut off before.
"""

DETAIL_LIMIT = 400
"""Characters of a reason, which may quote the peer."""


class BadInput(FrameRejected):
    """Something from a peer that is not taken, with the reason by which it is counted."""

    def __init__(self, reason: Rejection, detail: str) -> None:
        super().__init__(clipped(detail))
        self.reason: Rejection = reason


def clipped(text: str) -> str:
    """A text of a peer, short enough for a log line and an error, and without what steers a
    terminal."""
    if len(text) > DETAIL_LIMIT:
        text = f"{text[:DETAIL_LIMIT]}..."
    return text if text.isprintable() else "".join(c if c.isprintable() else "?" for c in text)


class CutOffs:
    """The processes that were cut off and why: the latest ones, so that strangers cannot fill the
    memory. A process that starts again is another one and welcome."""

    def __init__(self, kept: int = 1024) -> None:
        self._kept = kept
        self._reasons: OrderedDict[tuple[str, int], str] = OrderedDict()

    def __len__(self) -> int:
        return len(self._reasons)

    def add(self, address: str, incarnation: int, reason: str) -> None:
        """Remember a process; the oldest is forgotten when there are too many."""
        self._reasons[(address, incarnation)] = f"cut off: {clipped(reason)}"
        if len(self._reasons) > self._kept:
            self._reasons.popitem(last=False)

    def reason(self, address: str, incarnation: int) -> str | None:
        """Why a process was cut off; None if it was not."""
        return self._reasons.get((address, incarnation))
