"""Carries out a schedule of faults on a cluster, and says which of them changed something."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from spotlight.types import Request
from spotlight_simulation.faults import Fault
from spotlight_simulation.memory_cluster import COORDINATOR, PROGRAM, Cluster, Killed
from spotlight_simulation.simulated_user import cancel
from spotlight_simulation.wiretap import RECEIPT_ARRIVED

_OPERATOR_S = 0.5
_PATIENCE_S = 90.0
ARMED_S = 30.0
"""How long a fault at a failpoint, or at a message, waits for it."""
_OF_ONE_MESSAGE = ("lose_message", "hold_message")


@asynccontextmanager
async def disturbed(cluster: Cluster, faults: Sequence[Fault]) -> AsyncIterator[None]:
    """Coordinator and nodes run, and are disturbed."""
    disturbing = asyncio.create_task(FaultInjector(cluster, faults).run())
    try:
        yield
    finally:
        disturbing.cancel()
        await asyncio.wait((disturbing,))
        if not disturbing.cancelled() and disturbing.exception() is not None:
            raise disturbing.exception() or RuntimeError


class FaultInjector:
    """The faults of one run. A node that was killed is started again, as its provider would; so is
    the coordinator."""

    def __init__(self, cluster: Cluster, faults: Sequence[Fault]) -> None:
        self._cluster = cluster
        self._faults = faults
        self._network = cluster.network
        self._back_at: dict[str, float] = {}
        self._armed: list[Fault] = []
        self._full_until = 0.0
        """The disk of the coordinator is full until then."""
        self._frozen: dict[str, int] = {}
        self._crippled_since: dict[str, float] = {}
        cluster.on_failpoint = self._on_failpoint
        cluster.hardware.scorer_fails = self._scorer_fails
        self._scorer_fails_with = 0.0

    async def run(self) -> None:
        """Let everything happen at its time."""
        operator = asyncio.create_task(self._operate())
        try:
            async with asyncio.TaskGroup() as group:
                for fault in self._faults:
                    group.create_task(self._happen(fault))
            await asyncio.wait((operator,))
        finally:
            operator.cancel()

    async def _happen(self, fault: Fault) -> None:
        await asyncio.sleep(fault.at_s)
        if fault.message and fault.kind not in _OF_ONE_MESSAGE:
            try:
                async with asyncio.timeout(ARMED_S):
                    await self._cluster.tap.pass_of(fault.message)
            except TimeoutError:
                return
        self._cluster.history.add("fault", fault=fault.kind, node=fault.node, s=fault.lasts_s)
        match fault.kind:
            case "kill_node":
                self._kill_node(fault, fault.node, fault.lasts_s)
            case "kill_worker":
                await self._kill_worker(fault)
            case "notice_then_kill":
                await self._notice_then_kill(fault)
            case "notice_no_kill":
                await self._notice_no_kill(fault)
            case "partition" | "one_way_partition":
                await self._partition(fault)
            case "loss" | "duplication" | "reordering" | "delay":
                await self._trouble_frames(fault)
            case "pause_node":
                await self._pause(fault, self._cluster_processes(fault.node))
            case "pause_worker":
                await self._pause(fault, (self._worker(fault),))
            case "pause_coordinator":
                await self._pause(fault, (COORDINATOR,))
            case "slow_node":
                await self._slow(fault)
            case "flapping_node":
                await self._flap(fault)
            case "sick_accelerator":
                await self._sicken(fault)
            case "poison":
                await self._poison(fault)
            case "scorer_error":
                self._scorer_fails_with = fault.amount
                await asyncio.sleep(fault.lasts_s)
                self._scorer_fails_with = 0.0
            case "coordinator_kill" if not fault.failpoint:
                self._kill_coordinator(fault)
            case "coordinator_kill" | "disk_error":
                self._armed.append(fault)
                await asyncio.sleep(ARMED_S)
                if fault in self._armed:
                    self._armed.remove(fault)
            case "pool_loss":
                spot = [node.name for node in self._cluster.nodes if node.pool == "spot"]
                lost = [self._kill_node(None, node, fault.lasts_s) for node in spot]
                if any(lost):
                    self._effect(fault)
            case "kill_program":
                if self._cluster.kill_process(PROGRAM):
                    self._effect(fault)
            case "pause_program":
                await self._pause(fault, (PROGRAM,))
            case "cut_program":
                await self._partition(fault)
            case "cancel_session":
                await self._cancel(fault)
            case "lose_coordinator":
                self._kill_coordinator(fault)
            case "lose_message" | "hold_message":
                await self._trouble_message(fault)
            case "lose_trainers":
                self._lose_trainers(fault)

    # --- machines and processes ---

    def _kill_node(self, fault: Fault | None, node: str, away_s: float) -> bool:
        back_at = self._now() + away_s
        self._back_at[node] = max(back_at, self._back_at.get(node, 0.0))
        killed = self._cluster.kill_process(node)
        if killed and fault is not None:
            self._effect(fault)
        return killed

    async def _kill_worker(self, fault: Fault) -> None:
        if self._cluster.kill_process(self._worker(fault)):
            self._effect(fault)

    def _lose_trainers(self, fault: Fault) -> None:
        """All that train now, at once; perhaps with their nodes, and what is in their stores."""
        lost = []
        for worker in sorted({each.worker for each in self._cluster.hardware.trainers}):
            if fault.amount:
                lost.append(self._kill_node(None, worker.partition("/")[0], fault.lasts_s))
            else:
                lost.append(self._cluster.kill_process(worker))
        if any(lost):
            self._effect(fault)

    def _worker(self, fault: Fault) -> str:
        workers = self._cluster_processes(fault.node)[1:]
        return workers[int(fault.amount) % len(workers)]

    async def _flap(self, fault: Fault) -> None:
        kills = 0
        for _ in range(int(fault.amount)):
            kills += self._kill_node(None, fault.node, 0.0)
            await asyncio.sleep(fault.lasts_s)
        if kills > 1:
            self._effect(fault)

    async def _pause(self, fault: Fault, names: Sequence[str]) -> None:
        cluster = self._cluster
        running = [name for name in names if cluster.is_up(name)]
        for name in running:
            self._frozen[name] = self._frozen.get(name, 0) + 1
        processes = [cluster.processes[name] for name in running]
        cluster.freeze(running)
        await asyncio.sleep(fault.lasts_s)
        for name in running:
            self._frozen[name] -= 1
        due = cluster.thaw([name for name in running if not self._frozen[name]])
        hung = fault.kind == "pause_worker" and any(each.ended.done() for each in processes)
        if due or hung:  # a worker that hangs is ended by its node
            self._effect(fault)

    async def _slow(self, fault: Fault) -> None:
        hardware, before = self._cluster.hardware, self._cluster.hardware.slow_steps
        hardware.slow[fault.node] = fault.amount
        await asyncio.sleep(fault.lasts_s)
        hardware.slow.pop(fault.node, None)
        if hardware.slow_steps > before:
            self._effect(fault)

    async def _sicken(self, fault: Fault) -> None:
        """One worker fails every batch for a while, whichever of its processes begins it; every
        second time with errors that do not say that its accelerator is lost."""
        hardware, worker = self._cluster.hardware, self._worker(fault)
        before = hardware.sick_batches[worker]
        hardware.sick[worker] = "" if fault.amount >= 4 else "accelerator"
        await asyncio.sleep(fault.lasts_s)
        hardware.sick.pop(worker, None)
        if hardware.sick_batches[worker] > before:
            self._effect(fault)

    def _cluster_processes(self, node: str) -> tuple[str, ...]:
        return next(spec.processes for spec in self._cluster.nodes if spec.name == node)

    # --- notices ---

    async def _notice_then_kill(self, fault: Fault) -> None:
        drains = self._drains(fault.node)
        self._cluster.cloud.give_notice(fault.node, fault.amount)
        await asyncio.sleep(fault.amount)
        if self._kill_node(None, fault.node, fault.lasts_s) and self._drains(fault.node) > drains:
            self._effect(fault)

    async def _notice_no_kill(self, fault: Fault) -> None:
        drains = self._drains(fault.node)
        self._cluster.cloud.give_notice(fault.node, fault.amount)
        await asyncio.sleep(fault.lasts_s)
        self._cluster.cloud.withdraw_notice(fault.node)
        if self._drains(fault.node) > drains:
            self._effect(fault)

    def _drains(self, node: str) -> int:
        return self._cluster.logs.drains[node]

    # --- the network ---

    async def _partition(self, fault: Fault) -> None:
        network, before = self._network, self._network.frames_stopped
        other = PROGRAM if fault.kind == "cut_program" else fault.node
        ends = (COORDINATOR, other) if fault.inwards else (other, COORDINATOR)
        one_way = fault.kind == "one_way_partition" or bool(fault.amount)
        cuts = self._cluster.cut(*ends, one_way=one_way)
        await asyncio.sleep(fault.lasts_s)
        network.heal(cuts)
        if network.frames_stopped > before:
            self._effect(fault)

    async def _trouble_frames(self, fault: Fault) -> None:
        faults, count = self._network.faults, self._counter(fault)
        before = count()
        match fault.kind:
            case "loss":
                faults.loss = fault.amount
            case "duplication":
                faults.duplication = fault.amount
            case "reordering":
                faults.reordering = fault.amount
            case _:
                faults.delay_s = (0.0002, fault.amount)
        await asyncio.sleep(fault.lasts_s)
        match fault.kind:
            case "loss":
                faults.loss = 0.0
            case "duplication":
                faults.duplication = 0.0
            case "reordering":
                faults.reordering = 0.0
            case _:
                faults.delay_s = (0.0002, 0.0008)
        if count() > before:
            self._effect(fault)

    async def _trouble_message(self, fault: Fault) -> None:
        """The next one of a type is lost; or for a while, all answers of a type come late."""
        tap, strike = self._cluster.tap, (fault.message, fault.amount)
        loses, held = fault.kind == "lose_message", tap.held
        waiting = tap.to_lose if loses else tap.to_hold
        waiting.append(strike)
        await asyncio.sleep(fault.lasts_s)
        struck = strike not in waiting if loses else tap.held > held
        if strike in waiting:
            waiting.remove(strike)
        if struck:
            self._effect(fault)

    def _counter(self, fault: Fault) -> Callable[[], int]:
        network = self._network
        return {
            "loss": lambda: network.frames_lost,
            "duplication": lambda: network.frames_duplicated,
            "reordering": lambda: network.frames_overtaken,
            "delay": lambda: network.frames_sent,
        }[fault.kind]

    # --- requests and rewards ---

    async def _poison(self, fault: Fault) -> None:
        hardware, before = self._cluster.hardware, self._cluster.hardware.poisoned
        hardware.poison_next += 1
        await asyncio.sleep(60.0)
        if hardware.poisoned > before:
            self._effect(fault)

    def _scorer_fails(self, request: Request) -> bool:
        return self._cluster.hardware.rng.random() < self._scorer_fails_with

    # --- the coordinator ---

    def _kill_coordinator(self, fault: Fault) -> bool:
        self._back_at[COORDINATOR] = self._now() + fault.lasts_s
        killed = self._cluster.kill_process(COORDINATOR)
        if killed:
            self._effect(fault)
        return killed

    def _on_failpoint(self, name: str) -> None:
        if name == "journal.commit":
            self._write()
        for fault in self._armed:
            if fault.failpoint == name:
                self._armed.remove(fault)
                self._kill_coordinator(fault)
                if name != RECEIPT_ARRIVED:  # which is in a worker
                    raise Killed

    def _write(self) -> None:
        """The disk is full from the first write on that meets the fault, while that lasts."""
        for fault in self._armed:
            if fault.kind == "disk_error":
                self._armed.remove(fault)
                self._effect(fault)
                self._full_until = max(self._full_until, self._now() + fault.lasts_s)
                break
        if self._now() < self._full_until:
            raise OSError(errno.ENOSPC, "No space left on device (simulated)")

    async def _cancel(self, fault: Fault) -> None:
        before = await cancel(self._cluster)
        if before is not None and before.job and not before.outcome:
            self._effect(fault)

    # --- whoever starts things again ---

    async def _operate(self) -> None:
        cluster = self._cluster
        names = (COORDINATOR, *(node.name for node in cluster.nodes))
        while True:
            for name in names:
                if not cluster.is_up(name) and self._now() >= self._back_at.get(name, 0.0):
                    await self._start(name)
            for node in cluster.nodes:
                self._restart_if_crippled(node.name)
            await asyncio.sleep(_OPERATOR_S)

    async def _start(self, name: str) -> None:
        await self._cluster.buried()
        if name == COORDINATOR:
            await self._cluster.start_coordinator()
        else:
            await self._cluster.start_node(name)

    def _restart_if_crippled(self, node: str) -> None:
        """A node that has given up a worker may be waited for: its operator starts it anew."""
        node_process, *workers = self._cluster_processes(node)
        if not self._cluster.is_up(node_process) or all(map(self._cluster.is_up, workers)):
            self._crippled_since.pop(node, None)
        elif self._now() - self._crippled_since.setdefault(node, self._now()) > _PATIENCE_S:
            self._cluster.kill_process(node)

    def _effect(self, fault: Fault) -> None:
        self._cluster.history.took_effect(fault.kind, node=fault.node)

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()
