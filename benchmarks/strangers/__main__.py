"""What a stranger without any key tries against real daemons, or has a job file try:
`python -m benchmarks.strangers --json` (about three minutes).

Every module of this package is a kind of attack. `--only KIND` tries one kind. An attack is refused
if it has no effect (nothing ran, nothing was written outside, no secret was sent, memory stayed
bounded, the daemon still serves) and, where there is an answer, that is an error which says why.

- `attacks`: how many were tried.
- `refused_fraction`: the share of them that were refused; the others are printed on stderr.
"""

from __future__ import annotations

import asyncio
import importlib
import sys
import tempfile
from pathlib import Path

from benchmarks.report import finish, parser, warnings_on_stderr
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
    warnings_on_stderr()
    options = parser(__doc__)
    options.add_argument("--only", metavar="KIND", help="try the attacks of this kind only")
    chosen = options.parse_args()
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
        options.error(f"there are no attacks of kind `{chosen.only}`")
    refused = 0
    with tempfile.TemporaryDirectory(prefix="spotlight-strangers-") as folder:
        site = Site(Path(folder))
        try:
            site.open()
            for each in attacks:
                refused += await _is_refused(each, site, quiet=chosen.json)
        finally:
            site.close()
    figures = {"attacks": len(attacks), "refused_fraction": refused / len(attacks)}
    finish("strangers", figures, chosen.json)


async def _is_refused(attack: Attack, site: Site, *, quiet: bool) -> bool:
    try:
        await attack.attempt(site)
        await site.status()  # it still serves
    except Exception as error:  # whatever is seen instead of a refusal
        what = error if isinstance(error, Succeeded) else repr(error)
        print(f"not refused: {attack.kind}: {attack.name}: {what}", file=sys.stderr, flush=True)
        await _clear(site)
        return False
    if not quiet:
        print(f"refused: {attack.kind}: {attack.name}", flush=True)
    return True


async def _clear(site: Site) -> None:
    """The next attack finds no job."""
    try:
        await site.cancel()
    except Exception as error:  # it may be the coordinator that the attack has ended
        print(f"the job could not be ended: {error!r}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    asyncio.run(main())
