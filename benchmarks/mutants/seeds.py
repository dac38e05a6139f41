"""The seeds of `spotlight chaos`, one after the other, up to the first that a check does not pass.

    python -m benchmarks.mutants.seeds COUNT

A line of JSON each: the seed, and what was wrong with it. A seed that raises, or that does not end
in a minute of processor time, is wrong too.
"""

from __future__ import annotations

import signal
import sys
import time

import msgspec

from spotlight_simulation.chaos import run_seed

_LIMIT_S = 60.0


class SeedRun(msgspec.Struct, frozen=True):
    """A line."""

    seed: int
    wrong: str
    """Empty if nothing was."""
    used_s: float
    """Processor time up to then, all seeds together."""


class _Endless(BaseException):
    """The seed has used up its time; nothing in the simulation catches it."""


def _give_up(*_: object) -> None:
    raise _Endless


def wrong_with(seed: int) -> str:
    """What the checks say; empty if they say nothing."""
    signal.setitimer(signal.ITIMER_PROF, _LIMIT_S)
    try:
        violations = run_seed(seed)[0].violations
    except _Endless:
        return f"does not end in {_LIMIT_S:g} s of processor time"
    except Exception as error:  # whatever a mutant raises
        return f"raises {error!r}"
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    return violations[0] if violations else ""


def main() -> None:
    """Run them."""
    signal.signal(signal.SIGPROF, _give_up)
    for seed in range(int(sys.argv[1])):
        wrong = wrong_with(seed)
        run = SeedRun(seed, wrong, round(time.process_time(), 1))
        print(msgspec.json.encode(run).decode(), flush=True)
        if wrong:
            return


if __name__ == "__main__":
    main()
