"""What a stranger without any key tries against real daemons, or has a job file try:
`python -m benchmarks.strangers --json`.

Every module of this package is a kind of attack. `--only KIND` tries one kind. An attack is refused
if it has no effect (nothing ran, nothing was written outside, no secret was sent, memory stayed
bounded, the daemon still serves) and, where there is an answer, that is an error which says why.

- `attacks`: how many were tried.
- `refused_fraction`: the share of them that were refused; the others are printed on stderr.
"""

from __future__ import annotations

import asyncio
import importlib
import tempfile
from pathlib import Path

from benchmarks.report import Report
from benchmarks.strangers.attack import ATTACKS, Attack, Succeeded
from benchmarks.strangers.site import Site

_KINDS = (
    "hostile_bytes",
    "running_code",
    "foreign_text",
    "second_coordinators",
    "spending_secrets",
)


async def main() -> None:
    report = Report("strangers", __doc__, minutes=3)
    report.options.add_argument("--only", metavar="KIND", help="try the attacks of this kind only")
    chosen = report.begin()
    for kind in _KINDS:
        importlib.import_module(f"benchmarks.strangers.{kind}")
    # Those that need a node come last: without one, the others find the jobs waiting for workers.
    attacks = sorted(
        (
            each
            for each in ATTACKS
            if (each.quick or not chosen.quick) and chosen.only in (None, each.kind)
        ),
        key=lambda each: not each.quick,
    )
    if not attacks:
        report.options.error(f"there are no attacks of kind `{chosen.only}`")
    refused = tried = 0
    with tempfile.TemporaryDirectory(prefix="spotlight-strangers-") as folder:
        site = Site(Path(folder))
        try:
            site.open()
            for each in attacks:
                if report.is_time_up():
                    break
                tried += 1
                refused += await _is_refused(each, site, report)
        finally:
            site.close()
    report.add({"attacks": tried, "refused_fraction": refused / max(tried, 1)})
    report.finish()


async def _is_refused(attack: Attack, site: Site, report: Report) -> bool:
    try:
        await attack.attempt(site)
        await site.status()  # it still serves
    except Exception as error:  # whatever is seen instead of a refusal
        what = error if isinstance(error, Succeeded) else repr(error)
        report.note(f"not refused: {attack.kind}: {attack.name}: {what}")
        await _clear(site, report)
        return False
    report.note(f"refused: {attack.kind}: {attack.name}")
    return True


async def _clear(site: Site, report: Report) -> None:
    """The next attack finds no job."""
    try:
        await site.cancel()
    except Exception as error:  # it may be the coordinator that the attack has ended
        report.note(f"the job could not be ended: {error!r}")


if __name__ == "__main__":
    asyncio.run(main())
