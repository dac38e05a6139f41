"""What strangers and guests may send, made up by the million: `python -m benchmarks.fuzz --json`.

Input that is almost right goes to everything that reads what others send: frames and messages of
every type, what two transports say to each other, keys, addresses, join tokens, files of them, the
questions that libzmq asks the doorkeeper, handshakes of strangers at a real control port, and what
a guest says there who lies. Nothing of it may raise, or be believed, and the others are served
meanwhile. A kind is tried no more after twenty findings.

What is tried follows from a name and a number, so `--only NAME --first NUMBER` tries it again.

- `executions`, and `..._executions` of each kind.
- `one_sided`: of how many kinds all inputs came to the same: none was taken, or none refused.
- `findings`: how many of them did not hold. Each is printed.
- `messages_taken`, of `message_types`: so many types were once taken for right.
"""

from __future__ import annotations

import itertools
import math
import time
import traceback
from collections import Counter
from collections.abc import Iterator

from benchmarks.fuzz.inputs import message_types
from benchmarks.fuzz.properties import Property, properties
from benchmarks.report import Figure, Report

_SLICE_S = 1.0
"""It is another property's turn when so long is over."""
_ENOUGH = 20
"""Findings of a kind."""
_SHOWN = 2000
"""Characters of an input."""


class _Tally:
    """What came of a property so far."""

    def __init__(self, tried: Property, first: int) -> None:
        self._property = tried
        self._numbers = itertools.count(first)
        self.outcomes: Counter[str] = Counter()
        self.findings: list[str] = []

    def go_on(self, seconds: float) -> None:
        """Try one more, and then more for so long: the first of all may take long itself."""
        until = math.inf
        while time.monotonic() < until and len(self.findings) < _ENOUGH:
            number = next(self._numbers)
            given = self._property.input(number)
            try:
                self.outcomes[self._property.check(given)] += 1
            except Exception as error:  # whatever it is, it is a finding
                self.outcomes["a finding"] += 1
                where = "".join(traceback.format_exception(error, limit=-3))
                name = self._property.name
                self.findings.append(f"{name} {number}: {repr(given)[:_SHOWN]}\n{where}")
            until = min(until, time.monotonic() + seconds)


def main() -> None:
    """Try them in turns until the time is up, and print what came of it."""
    report = Report("fuzz", __doc__, minutes=60)
    names = report.options.add_argument("--only", metavar="NAME", help="try this kind only")
    report.options.add_argument(
        "--first", metavar="NUMBER", type=int, default=0, help="begin with the input of this number"
    )
    chosen = report.begin()
    with properties() as known:
        wanted = [each for each in known if chosen.only in (None, each.name)]
        if not wanted:
            report.options.error(f"{names.dest}: the kinds are {', '.join(p.name for p in known)}")
        tallies = {each.name: _Tally(each, chosen.first) for each in wanted}
        end = 0.0 if chosen.quick else time.monotonic() + 60.0 * (chosen.minutes or 60.0)
        _take_turns(list(tallies.values()), report, end)
    report.add(dict(_figures(tallies)))
    report.finish()


def _take_turns(tallies: list[_Tally], report: Report, end: float) -> None:
    """Until this time, and each of them once at least."""
    while True:
        for tally in tallies:
            before = len(tally.findings)
            tally.go_on(_SLICE_S)
            for finding in tally.findings[before:]:
                report.note(finding)
        if time.monotonic() >= end:
            return


def _figures(tallies: dict[str, _Tally]) -> Iterator[tuple[str, Figure]]:
    yield "executions", sum(tally.outcomes.total() for tally in tallies.values())
    yield "findings", sum(len(tally.findings) for tally in tallies.values())
    yield "one_sided", sum(len(tally.outcomes) < 2 for tally in tallies.values())
    for name, tally in tallies.items():
        yield f"{name}_executions", tally.outcomes.total()
    types = {kind.__name__ for kind in message_types()}
    if "frames" in tallies:
        yield "messages_taken", len(types & tallies["frames"].outcomes.keys())
        yield "message_types", len(types)


if __name__ == "__main__":
    main()
