"""Real daemons on this machine, as an operator starts them, and what strangers do to reach them."""

from __future__ import annotations

import asyncio
import os
import random
import secrets
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from spotlight.actors.protocol import JobStatus, NodePlan, NodeReport, WorkerRefs
from spotlight.actors.runtime import Actor, ActorRef, ActorSystem, handles
from spotlight.errors import ActorError, RequestRefused
from spotlight.jobs import JobSpec, job_from_data
from spotlight.running.client import connect
from spotlight.testing.ports import unused_port
from spotlight.transport.control import ZeroMQTransport
from spotlight.types import StoreEndpoint

ROOT = Path(__file__).parents[2]
_LIMIT_S = 120.0
CODE = """
import pathlib
pathlib.Path({canary!r}).write_text("it ran")

class Evil:
    samplers = ("ode",)
    metrics = ()
    uses_old_policy = False
    def __init__(self, *_, **__): pass
    def on_iteration(self, *_): pass
    def on_validation(self, *_): pass
    def on_event(self, *_): pass
    def score(self, images, prompts): return [0.5] * len(prompts)
    def terms(self, *_): pass
    def evaluate(self, *_): pass
"""


class Site:
    """A coordinator, and when it is asked for a node with one worker, in a folder of their own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.runs = folder / "runs"
        self.canary = folder / "canary"
        """Is there when code ran that should not have."""
        self.secret = folder / "secret"
        """What the node's operator lets a reward server have, at one place."""
        self.secret_port = unused_port()
        self.address = ""
        self.coordinator: subprocess.Popen[bytes]
        self._processes: list[subprocess.Popen[bytes]] = []
        self._node: subprocess.Popen[bytes] | None = None

    def open(self) -> None:
        """Start the coordinator."""
        self.secret.write_text("Bearer of-the-operator")
        code = CODE.format(canary=str(self.canary))
        for name in ("planted", "half_allowed"):
            (self.folder / f"{name}.py").write_text(code)
        self.coordinator = self.start_coordinator(self.runs)
        self.address = self._until((self.folder / "address").read_text, "the coordinator")

    def start_coordinator(self, runs: Path, listen: str = "127.0.0.1:0") -> subprocess.Popen[bytes]:
        """A coordinator whose operator allows one package, `half_allowed`."""
        address = self.folder / "address"
        return self.daemon(
            "coordinator", "--listen", listen, "--runs", str(runs), "--address-file", str(address),
            "--allow-code", "half_allowed",
        )  # fmt: skip

    def daemon(self, kind: str, *arguments: str) -> subprocess.Popen[bytes]:
        """Start one; it finds the modules of the folder, as one that is started there does."""
        call = f"from spotlight.cli.daemons import {kind}; {kind}()"
        return self.python(kind, "-c", call, *arguments)

    def python(self, kind: str, *arguments: str) -> subprocess.Popen[bytes]:
        """Start a program there, which ends with the site."""
        log = (self.folder / f"{kind}-{len(self._processes)}.log").open("wb")
        with log:
            process = subprocess.Popen(
                [sys.executable, *arguments],
                cwd=self.folder,
                env={
                    **os.environ,
                    "PYTHONPATH": f"{ROOT}{os.pathsep}{self.folder}",
                    "SPOTLIGHT_CANARY_SECRET": "Bearer of-the-environment",
                },
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        self._processes.append(process)
        return process

    def require_node(self) -> None:
        """Start a node that is allowed one secret for one server alone, unless it is there."""
        if self._node is None:
            self._node = self.daemon(
                "node", "--coordinator", self.address, "--name", "honest", "--pool", "reserved",
                "--logs", str(self.folder / "logs"),
                "--reward-secret", f"operators={self.secret}@127.0.0.1:{self.secret_port}",
            )  # fmt: skip

    def close(self) -> None:
        """End all processes of the site."""
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def log(self, process: subprocess.Popen[bytes]) -> str:
        """What a daemon has printed."""
        number = self._processes.index(process)
        (found,) = self.folder.glob(f"*-{number}.log")
        return found.read_text(errors="replace")

    @property
    def port(self) -> int:
        """The coordinator's control port."""
        return int(self.address.rpartition(":")[2])

    def resident_mb(self) -> float:
        """The most memory that the coordinator ever held. [MB]"""
        status = Path(f"/proc/{self.coordinator.pid}/status").read_text()
        return int(status.partition("VmHWM:")[2].split()[0]) / 1000

    @staticmethod
    def _until(read: Callable[[], str], what: str) -> str:
        end = time.monotonic() + _LIMIT_S
        while time.monotonic() < end:
            try:
                if text := read():
                    return text
            except OSError:
                pass
            time.sleep(0.05)
        raise RuntimeError(f"{what} did not come up")

    # --- what a stranger says ---

    def job(self, **changes: Any) -> JobSpec:
        """A job that is fine, but for the changes: a tiny one, with few images."""
        data: dict[str, Any] = {
            "name": "stranger",
            "model": {"checkpoint": "builtin:ocr-tiny"},
            "prompts": {
                "train": "builtin:ocr-tiny/train",
                "validation": "builtin:ocr-tiny/validation",
                "per_iteration": 2,
            },
            "sampler": {"height": 16, "width": 48, "kind": "ode", "steps": 2, "micro_batch": 4},
            "group_size": 2,
            "iterations": 1,
            "exploration": {"mode": "none"},
            "validation": {"prompts": 4, "seeds": 1},
            "scoring": {"attempts": 1},
        }
        return job_from_data({**data, **changes}, base=self.folder)

    async def submit(self, job: JobSpec, run_folder: str = "", *, resume: bool = False) -> str:
        """The coordinator's refusal; empty if it took the job."""
        async with connect(self.address) as client:
            try:
                await client.submit(job, run_folder, resume=resume)
            except RequestRefused as error:
                return str(error)
        return ""

    async def status(self) -> JobStatus:
        """The coordinator's, which so says that it still serves."""
        async with connect(self.address) as client:
            return await client.status()

    async def outcome(self, job: JobSpec) -> JobStatus:
        """Run a job to its end on the node; it is one that the coordinator takes."""
        self.require_node()
        refused = await self.submit(job)
        if refused:
            raise RuntimeError(f"the coordinator did not take the job: {refused}")
        async with connect(self.address) as client, asyncio.timeout(_LIMIT_S):
            while not (status := await client.status()).outcome:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        return status

    async def cancel(self) -> None:
        """End what runs."""
        async with connect(self.address) as client, asyncio.timeout(_LIMIT_S):
            await client.cancel()
            status = await client.status()
            while status.job and not status.outcome:
                await asyncio.sleep(0.05)
                status = await client.status()

    @asynccontextmanager
    async def joined(self, **said: Any) -> AsyncIterator[StoreEndpoint]:
        """Join as a node while a job runs, which reports `said`: it gets the token that nodes get
        to leave what they made."""
        async with stranger() as system:
            coordinator = system.well_known(self.address, "coordinator")
            impostor = Impostor(coordinator, said)
            await system.spawn(lambda: impostor, "node")
            async with asyncio.timeout(_LIMIT_S):
                yield await asyncio.shield(impostor.sink)


@asynccontextmanager
async def stranger() -> AsyncIterator[ActorSystem]:
    """A process that speaks the protocol, and has no key."""
    rng = random.Random(secrets.randbits(64))
    system = ActorSystem(ZeroMQTransport("tcp://127.0.0.1:0"), rng=rng)
    await system.start()
    try:
        yield system
    finally:
        await system.aclose()


class Impostor(Actor):
    """Says that it is a node with one worker."""

    def __init__(self, coordinator: ActorRef, said: Mapping[str, Any]) -> None:
        self._coordinator = coordinator
        self._said = said
        self.sink: asyncio.Future[StoreEndpoint] = asyncio.get_running_loop().create_future()

    async def started(self) -> None:
        """Join."""
        self.run_task(self._join())

    async def _join(self) -> None:
        worker = WorkerRefs("impostor/0", 1, self.ref, self.ref, self.ref)
        store = StoreEndpoint("127.0.0.1", 1, "token", "nowhere", "/nowhere")
        for number in range(1, 600):
            report = NodeReport(
                number, "impostor", "spot", self.ref, (worker,), store, **self._said
            )
            try:
                answer = await self.ask(self._coordinator, report, timeout_s=10.0)
            except ActorError:
                continue
            if isinstance(answer, NodePlan):
                await self.on_plan(answer)
            await asyncio.sleep(0.2)

    @handles(NodePlan)
    async def on_plan(self, message: NodePlan) -> None:
        """The plan names the place for what a node makes."""
        if message.job is not None and not self.sink.done():
            self.sink.set_result(message.job.membership.sink)
