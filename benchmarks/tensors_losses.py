"""Copies of bundles whose sender or receiver is killed, or stopped, after a random number of bytes.

Two processes hold a version, and a third one copies it from the first. One of these two is struck
on the way. Then the copy is completed from the other holder or, in every second case, replaced: the
other holder has the next version by now, and that one is copied.

- A sender that is killed or stopped: the receiver goes on behind the bytes that it has.
- A receiver that is stopped for longer than its sender waits: when it runs again, it does the same.
- A receiver that is killed: what it had is lost with it, and another process copies the bundle from
  its first byte on. What was lost is `bytes_lost_with_receivers_share`, and no part of
  `bytes_repeated_share`.

Receivers count all bytes that come, also those of copies that fail. All of it is done over HTTP,
and by UCX.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import signal
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from benchmarks.report import Figure
from benchmarks.tensors_peers import IDLE_LIMIT_S, KEY, Copied, Peer, bundle, start_peer
from spotlight.store.memory_folder import SHARED_MEMORY, remove_leftovers
from spotlight.transport.tensors import content_key

_SEED = 0
_SETTLED_S = 2 * IDLE_LIMIT_S
"""Connections that were given up are closed by then."""
_NAMES = ("sender", "receiver", "other")


@dataclass(frozen=True)
class Case:
    """What happens in the middle of a copy."""

    struck: str
    how: signal.Signals
    is_replaced: bool

    @property
    def loses_receiver(self) -> bool:
        """Whether what has come is lost."""
        return (self.struck, self.how) == ("receiver", signal.SIGKILL)


CASES = tuple(
    Case(struck, how, is_replaced)
    for struck, how, is_replaced in itertools.product(
        ("sender", "receiver"), (signal.SIGKILL, signal.SIGSTOP), (False, True)
    )
)


@dataclass(frozen=True)
class Outcome:
    """Bytes, and whether the copy is the version that was asked for last."""

    is_struck_before_its_end: bool
    repeated: int
    lost: int
    is_exact: bool


@dataclass
class Site:
    """The processes that live, the descriptors with which they began, and all that there were."""

    living: dict[str, Peer] = field(default_factory=dict)
    descriptors: dict[str, int] = field(default_factory=dict)
    started: list[psutil.Process] = field(default_factory=list)

    async def renew(self) -> list[Peer]:
        """All three, new where one has ended."""
        for name in _NAMES:
            if name not in self.living or self.living[name].process.returncode is not None:
                self.living[name] = peer = await start_peer()
                self.started.append(psutil.Process(peer.process.pid))
                self.descriptors[name] = _descriptors(peer)
        return [self.living[name] for name in _NAMES]

    async def leaks(self) -> int:
        """End all; descriptors, processes and folders that they left."""
        opened = 0
        await asyncio.sleep(_SETTLED_S)
        for name, peer in self.living.items():
            opened += max(_descriptors(peer) - self.descriptors[name], 0)
        await self.end()
        remove_leftovers()  # as the next process of a machine does
        folders = [f"spotlight-{process.pid}-*" for process in self.started]
        left = [path for pattern in folders for path in SHARED_MEMORY.glob(pattern)]
        return opened + len(left) + sum(process.is_running() for process in self.started)

    async def end(self) -> None:
        """End all."""
        while self.living:
            await self.living.popitem()[1].end()


async def _strike(
    site: Site, case: Case, version: int, nbytes: int, point: int, *, ucx: bool
) -> Outcome:
    sender, receiver, other = await site.renew()
    victim = site.living[case.struck]
    before = _begun(receiver.folder)
    copying = asyncio.create_task(receiver.copy(await sender.put(version, nbytes), ucx=ucx))
    reached = asyncio.create_task(_until(before + point, receiver.folder))
    await asyncio.wait((copying, reached), return_when=asyncio.FIRST_COMPLETED)
    reached.cancel()
    had = _begun(receiver.folder)  # whoever starts on this machine clears up behind the dead
    victim.signal(case.how)
    if case.is_replaced:
        version += 1
    offer = await other.put(version, nbytes)

    lost = 0
    if case.loses_receiver:
        first = Copied(lost := had - before, is_whole=False)
        await asyncio.gather(copying, return_exceptions=True)  # its output has ended
        await victim.process.wait()
        _, receiver, _ = await site.renew()
    else:
        if case.struck == "receiver":
            await asyncio.sleep(2 * IDLE_LIMIT_S)
            victim.signal(signal.SIGCONT)
        first = await copying
    attempts = [first]
    if case.is_replaced or not first.is_whole:
        attempts.append(await receiver.copy(offer, ucx=ucx))
    victim.signal(signal.SIGCONT)

    of_this = attempts[-1:] if case.is_replaced or case.loses_receiver else attempts
    copy = receiver.folder / content_key(KEY, offer.checksum)
    is_exact = attempts[-1].is_whole and copy.read_bytes() == bundle(version, nbytes)
    for left in copy.parent.iterdir():
        left.unlink(missing_ok=True)
    return Outcome(
        not first.is_whole, sum(each.received for each in of_this) - nbytes, lost, is_exact
    )


async def _until(nbytes: int, folder: Path) -> None:
    while _begun(folder) < nbytes:  # noqa: ASYNC110
        await asyncio.sleep(1e-4)


def _begun(folder: Path) -> int:
    """Bytes of the copies there that are not whole."""
    return sum(_sizes(folder / ".unfinished"))


def _sizes(folder: Path) -> Iterator[int]:
    for file in folder.iterdir():
        try:
            yield file.stat().st_size
        except FileNotFoundError:  # whole meanwhile
            continue


def _descriptors(peer: Peer) -> int:
    """That it has open, but for those of copies with which it may go on."""
    folder, found = Path(f"/proc/{peer.process.pid}/fd"), 0
    for entry in folder.iterdir():
        try:
            found += ".unfinished" not in os.readlink(entry)
        except FileNotFoundError:  # closed meanwhile
            continue
    return found


async def measure_losses(nbytes: int, kills: int, *, ucx: bool) -> dict[str, Figure]:
    """Strike so many copies of so many bytes, cases in turn; the figures, by UCX with `ucx_` before
    their names."""
    rng, site = random.Random(_SEED), Site()
    try:
        outcomes = []
        for number, case in zip(range(kills), itertools.cycle(CASES), strict=False):
            point = rng.randrange(nbytes)
            outcomes.append(await _strike(site, case, 2 * number, nbytes, point, ucx=ucx))
        leaks = await site.leaks()
    finally:
        await site.end()
    figures: dict[str, Figure] = {
        "kills": kills,
        "kills_before_the_end": sum(each.is_struck_before_its_end for each in outcomes),
        "bytes_repeated_share": sum(each.repeated for each in outcomes) / (nbytes * kills),
        "bytes_lost_with_receivers_share": sum(each.lost for each in outcomes) / (nbytes * kills),
        "mixed_versions": sum(not each.is_exact for each in outcomes),
        "leaks": leaks,
    }
    return {f"{'ucx_' * ucx}{name}": figure for name, figure in figures.items()}
