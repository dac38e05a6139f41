"""The course of the benchmark: what is there at each stage, and whether others are served as if
nobody attacked.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks.live.run_comparison import differences
from benchmarks.security.after_revocation import revoke_ms
from benchmarks.security.attack import Stage, require
from benchmarks.security.network import COORDINATOR, RESERVED, SPOT, Namespaces, Network
from benchmarks.security.on_the_wire import PLANTED, clear_text
from benchmarks.security.site import Site
from benchmarks.security.sniffer import Sniffer
from spotlight.record.run_events import WorkerStateBegan, decode_event
from spotlight.store.record_files import whole_state_lines


class Trial:
    """A site, its honest user, and the figures that were measured there."""

    def __init__(self, folder: Path, network: Network, pause_s: float) -> None:
        """The honest user rests for so long between two jobs."""
        self.site = Site(folder, network)
        self._pause_s = pause_s
        self.figures: dict[str, Any] = {}
        self._network = network
        self._sniffer: Sniffer | None = None
        self._calm: Path | None = None
        """The run folder of the job that nobody attacked."""
        self._user: asyncio.Task[None] | None = None
        self._is_last = asyncio.Event()
        """The honest user's next job is not started."""
        self._ran = 0
        self._problems: list[str] = []

    async def open(self) -> None:
        """Start the coordinator."""
        await self.site.open()

    async def begin(self, stage: Stage) -> None:
        """Start what is there at this stage."""
        if stage == "alone":
            return
        if self._network.is_real and self._sniffer is None:
            self._sniffer = Sniffer()  # nodes are seen from their first word
        if not self.site.nodes:
            await self.site.start_nodes()
        if stage == "beside":
            await self._run_calmly()
            self._user = asyncio.create_task(self._keep_running())

    async def end(self, stage: Stage) -> list[str]:
        """What was not as if nobody had attacked."""
        if stage == "beside" and self._user is not None:
            self.figures["revoke_ms"] = round(await revoke_ms(self.site), 2)
            self._is_last.set()
            try:
                await self._user  # the job that runs must come to the same, too
            except Exception as error:  # whatever became of it, it is the attacks' doing
                self._problems.append(f"the honest user's jobs: {error!r}")
            self._user = None
            self.figures["honest_jobs"] = self._ran
        problems, self._problems = self._problems, []
        return problems

    async def close(self) -> None:
        """End everything. Idempotent."""
        if self._user is not None:
            self._user.cancel()
            await asyncio.wait((self._user,))
        if self._sniffer is not None:
            self._sniffer.close()
        self.site.close()

    async def check_others(self) -> None:
        """Require that the operator is answered, and that those are there who were."""
        site = self.site
        await site.status()
        if not site.nodes:
            return
        there = await site.nodes_there()
        require(there >= {RESERVED, SPOT}, f"of the nodes there are {there}")
        ended = [name for name, node in site.nodes.items() if node.poll() is not None]
        require(not ended, f"nodes have ended: {ended}")
        problems, self._problems = self._problems, []
        require(not problems, problems)
        if self._user is not None and self._user.done():
            require(False, f"the honest user's jobs: {self._user.exception()!r}")

    # --- the honest user ------------------------------------------------------------------

    async def _run_calmly(self) -> None:
        """Once without attacks, but for the sniffer, to which a text is said in clear."""
        self._plant()
        self._calm = await self._run()
        self._measure(self._calm)

    async def _run(self) -> Path:
        status = await self.site.run(self.site.honest_job(), self.site.honest)
        if status.outcome != "finished":
            raise RuntimeError(f"the honest user's job {status.outcome}: {status.reason}")
        return Path(status.run_folder)

    async def _keep_running(self) -> None:
        """One job after another, each of which must come to the same."""
        assert self._calm is not None
        iterations = self.site.honest_job().iterations
        while not self._is_last.is_set():
            folder = await self._run()
            self._problems += differences(self._calm, folder, iterations)
            self._ran += 1
            with suppress(TimeoutError):
                async with asyncio.timeout(self._pause_s):
                    await self._is_last.wait()

    # --- figures --------------------------------------------------------------------------

    def _plant(self) -> None:
        network, port = self._network, self.site.ports[0]
        if isinstance(network, Namespaces):
            where = (network.host(COORDINATOR), port)

            def say() -> None:
                with socket.create_connection(where, 10) as connection:
                    connection.sendall(PLANTED.encode())

            network.inside(RESERVED, say)

    def _measure(self, run: Path) -> None:
        site, network = self.site, self._network
        works = _worked(run, SPOT)
        self.figures |= {
            "nat_joins": f"not tried: {network.nat}" if network.nat else int(works),
        }
        if self._sniffer is None:
            why = f"not measured: {network.kind}"
            self.figures |= {"open_ports": why, "open_ports_spot": why, "clear_text": why}
            return
        self._sniffer.close()
        site.capture = self._sniffer.capture
        self.figures |= {
            "open_ports": len(network.open_ports(COORDINATOR)),
            "open_ports_spot": len(network.open_ports(SPOT)),
            "clear_text": len(clear_text(site, site.capture)),
            "sniffed_mb": round(site.capture.bytes / 1e6, 1),
        }


def _worked(run: Path, node: str) -> bool:
    """Whether a worker of the node denoised anything in that run."""
    states: Mapping[str, set[str]] = {}
    events = [
        event
        for event in map(decode_event, whole_state_lines(run))
        if isinstance(event, WorkerStateBegan)
    ]
    states = {event.worker: set() for event in events}
    for event in events:
        states[event.worker].add(event.state)
    return "rollout" in states.get(f"{node}/0", set())
