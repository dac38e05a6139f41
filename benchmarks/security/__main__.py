"""What is tried against real daemons, by whoever reaches their ports, sniffs, or has a key that is
not the right one: `python -m benchmarks.security --json`.

The coordinator, a reserved node, a spot node behind NAT and the attacker have a machine each
(network namespaces; without them all is on loopback, and what cannot be tried there is named on
stderr). Every module of this package whose name says so is a kind of attack; `--only KIND` tries
one kind. An attack is refused if it has no effect, the service to others is unchanged, and, where
there is an answer, that is an error which says why. Unchanged: the operator is answered, the
honest nodes are there, and the jobs that an honest user runs meanwhile all come to the same, bit by
bit, as one that ran before the attacks.

- `attacks`: how many were tried.
- `refused_fraction`: the share of them that were refused; the others are printed on stderr.
- `nat_joins`: 1 if a spot node behind NAT joins and works.
- `open_ports`, `open_ports_spot`: TCP ports of the coordinator and of a spot node that another
  machine can connect to.
- `clear_text`: secrets, tokens, prompts, fields of the job, names of messages and headers that a
  sniffer sees during a run.
- `revoke_ms`: from the operator's message to the end of a live connection, as the revoked node sees
  it, while the honest user's job runs; the middle one of nine times.
- `honest_jobs`: jobs of the honest user that ran beside the attacks and came to the same.

A figure that cannot be had on this machine says why instead.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import sys
import tempfile
from pathlib import Path

from benchmarks.live.network import namespace_command
from benchmarks.report import Report
from benchmarks.security.attack import ATTACKS, STAGES, Attack, NotPossible, Succeeded
from benchmarks.security.network import Loopback, Namespaces, Network
from benchmarks.security.trial import Trial
from spotlight.transport import descriptors

KINDS = (
    "without_a_key",
    "with_another_role",
    "as_somebody_else",
    "with_tokens",
    "after_revocation",
    "too_much",
    "on_the_wire",
    "finding_secrets",
    "hostile_bytes",
    "running_code",
    "foreign_text",
    "second_coordinators",
    "spending_secrets",
)
_QUICK_PAUSE_S = 5.0
_INSIDE = "SPOTLIGHT_BENCHMARK_NETWORK"
"""Set for this program's second life, in a network of its own: why there is none, or empty."""


def main() -> None:
    """Read the options, then go on in a network of its own."""
    report = Report("security", __doc__, minutes=7)
    report.options.add_argument("--only", metavar="KIND", help="try the attacks of this kind only")
    report.options.add_argument(
        "--loopback", action="store_true", help="use no namespaces, though there are some"
    )
    if _INSIDE not in os.environ:
        given = report.options.parse_args()
        prefix, problem = ([], "asked for") if given.loopback else namespace_command()
        os.environ[_INSIDE] = problem
        command = [*prefix, sys.executable, "-m", "benchmarks.security", *sys.argv[1:]]
        os.execvp(command[0], command)
    chosen = report.begin()
    descriptors.raise_limit()
    stages = STAGES[:-1] if chosen.quick else STAGES
    attacks = [
        each for each in load_attacks() if each.stage in stages and chosen.only in (None, each.kind)
    ]
    if not attacks:
        report.options.error(f"there are no attacks of kind `{chosen.only}`")
    problem = os.environ[_INSIDE]
    network: Network = Loopback(problem) if problem else Namespaces()
    report.note(f"the network: {network.kind}")
    if network.nat:
        report.note(f"the spot node is not behind NAT: {network.nat}")
    try:
        with tempfile.TemporaryDirectory(prefix="spotlight-security-") as folder:
            pause_s = _QUICK_PAUSE_S if chosen.quick else 0.0
            asyncio.run(_try(attacks, Trial(Path(folder), network, pause_s), report))
    finally:
        network.close()
    report.finish()


def load_attacks() -> list[Attack]:
    """All that there are."""
    for kind in KINDS:
        importlib.import_module(f"benchmarks.security.{kind}")
    return ATTACKS


async def _try(attacks: list[Attack], trial: Trial, report: Report) -> None:
    try:
        await trial.open()
        refused = tried = 0
        for stage in STAGES:
            of_stage = [each for each in attacks if each.stage == stage]
            if not of_stage:
                continue
            await trial.begin(stage)
            for each in of_stage:
                if report.is_time_up():
                    break
                outcome = await _is_refused(each, trial, report)
                tried += outcome is not None
                refused += outcome is True
            for problem in await trial.end(stage):
                report.note(f"not unchanged: {problem}")
                refused = min(refused, tried - 1)
        report.add({"attacks": tried, "refused_fraction": refused / max(tried, 1)})
        report.add(trial.figures)
    finally:
        await trial.close()


async def _is_refused(attack: Attack, trial: Trial, report: Report) -> bool | None:
    """None if it cannot be tried here."""
    what = f"{attack.kind}: {attack.name}"
    try:
        await attack.attempt(trial.site)
        await trial.check_others()
    except NotPossible as error:
        report.note(f"not tried: {what}: {error}")
        return None
    except Exception as error:  # whatever is seen instead of a refusal
        seen = error if isinstance(error, Succeeded) else repr(error)
        report.note(f"not refused: {what}: {seen}")
        await _clear(attack, trial, report)
        return False
    report.note(f"refused: {what}")
    return True


async def _clear(attack: Attack, trial: Trial, report: Report) -> None:
    """The next attack finds no job of this one."""
    if attack.stage == "beside":
        return
    try:
        await trial.site.cancel(trial.site.operator)
    except Exception as error:  # it may be the coordinator that the attack has ended
        report.note(f"the job could not be ended: {error!r}")


if __name__ == "__main__":
    main()
