"""Real daemons on the machines of the site, as an operator starts them, and the keys and tokens of
everybody who uses them, the attackers among them.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, cast

from benchmarks.security.clients import LIMIT_S, Line, Person, Sayer, line, person
from benchmarks.security.network import ATTACKER, COORDINATOR, RESERVED, SPOT, Network
from benchmarks.security.sniffer import Capture
from spotlight.actors.protocol.door import (
    Enroll,
    Enrolled,
    GetGuests,
    GuestList,
    NewToken,
    NotEnrolled,
    Pool,
    RevokeAccess,
    TokenMade,
    TokenRole,
)
from spotlight.actors.protocol.down import Membership, NodePlan
from spotlight.actors.protocol.up import NodeReport, WorkerRefs
from spotlight.actors.protocol.users import (
    CancelJob,
    GetStatus,
    JobAccepted,
    JobRefused,
    JobStatus,
    SubmitJob,
)
from spotlight.actors.runtime import ActorRef, handles
from spotlight.errors import ActorError
from spotlight.jobs import JobSpec, job_from_data
from spotlight.join_token import JoinToken
from spotlight.transport.control import KeyPair
from spotlight.types import StoreEndpoint
from spotlight_simulation.ports import unused_port

ROOT = Path(__file__).parents[2]
START_S = 120.0
IMPOSTOR = "impostor"
"""The node that attackers have a key for, of pool `spot`."""
HONEST = "honest-users-job"
"""The job that attackers are to leave alone."""
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
_PROMPTS = [f'the number "{number * 617 % 10000:04d}"' for number in range(20)]


class Site:
    """A coordinator, and when it is asked for them a reserved and a spot node, of one worker each.

    Args:
        folder: of everything that the daemons keep.
        network: the machines.
    """

    def __init__(self, folder: Path, network: Network) -> None:
        self.folder = folder
        self.network = network
        self.runs = folder / "runs"
        self.canary = folder / "canary"
        """Is there when code ran that should not have."""
        self.secret = folder / "secret"
        """What the reserved node's operator lets a reward server have, at one place."""
        self.secret_port = unused_port()
        self.ports = (7070, 7071) if network.is_real else (unused_port(), unused_port())
        """Control and data port of the coordinator."""
        self.here = network.host(ATTACKER)
        """The address by which the site's machines reach this one."""
        self.capture: Capture | None = None
        """What the attacker saw on the wire."""
        self.coordinator: subprocess.Popen[bytes]
        self.nodes: dict[str, subprocess.Popen[bytes]] = {}
        self.secrets: dict[str, str] = {}
        """What must be seen nowhere, by what it is."""
        self._processes: list[subprocess.Popen[bytes]] = []
        self._logs: dict[int, Path] = {}

    # --- daemons ------------------------------------------------------------------------

    async def open(self) -> None:
        """Start the coordinator, and make tokens for everybody."""
        self.secret.write_text("Bearer of-the-operator")
        self.secrets["the reward server's secret"] = "of-the-operator"
        code = CODE.format(canary=str(self.canary))
        for name in ("planted", "half_allowed"):
            (self.folder / f"{name}.py").write_text(code)
        for kind, first, count in (("train", 0, 16), ("validation", 16, 4)):
            lines = "".join(f"{prompt}\n" for prompt in _PROMPTS[first : first + count])
            (self.folder / f"{kind}.txt").write_text(lines)
        self.start_coordinator()
        file = self.runs / "operator.token"
        token = await self._until(lambda: file.exists() and file.read_text(), "the coordinator")
        self.operator_token = self._known("the operator's", JoinToken.parse("--join", str(token)))
        self.operator = self.operator_token.keys
        key = (self.runs / ".coordinator.key").read_text().strip()
        self.secrets["the coordinator's key"] = key
        self.address = self.operator_token.coordinator
        await self._until_it_serves()
        self.honest_token = await self.new_token("submitter")
        self.submitter_token = await self.new_token("submitter")
        self.observer_token = await self.new_token("observer")
        self.spot_token = await self.new_token("node", "spot", uses=1000)
        self.reserved_token = await self.new_token("node", "reserved", uses=1)
        self.honest, self.submitter = self.honest_token.keys, self.submitter_token.keys
        self.observer, self.joiner = self.observer_token.keys, self.spot_token.keys
        self.impostor = await self.enrolled(IMPOSTOR)

    def start_coordinator(self) -> None:
        """One whose operator allows one package, `half_allowed`."""
        host = self.network.host(COORDINATOR)
        self.coordinator = self.daemon(
            COORDINATOR, "spotlight-coordinator", "--runs", str(self.runs),
            "--listen", f"{host}:{self.ports[0]}", "--data-listen", f"{host}:{self.ports[1]}",
            "--allow-code", "half_allowed",
        )  # fmt: skip

    async def start_nodes(self) -> None:
        """Start both; the reserved one is allowed one secret for one server alone. They have
        joined when this returns."""
        for name, token, options in (
            (RESERVED, self.reserved_token, ["--host", self.network.host(RESERVED)]),
            (SPOT, self.spot_token, []),
        ):
            self.nodes[name] = self.daemon(
                name, "spotlight-node", "--join", f"@{self.token_file(token)}", "--name", name,
                "--pool", name, "--logs", str(self.folder / "logs" / name), *options,
                "--reward-secret", f"operators={self.secret}@{self.here}:{self.secret_port}",
            )  # fmt: skip

        await self._until(self._have_nodes_joined, "the nodes")

    async def _have_nodes_joined(self) -> bool:
        workers = (await self.status()).workers
        return {worker.node for worker in workers} >= set(self.nodes)

    async def nodes_there(self) -> set[str]:
        """Honest nodes that are connected, as the door tells the operator."""
        there = {node.name for node in (await self.guests()).nodes if node.is_connected}
        return there & {RESERVED, SPOT}

    def daemon(self, machine: str, program: str, *arguments: str) -> subprocess.Popen[bytes]:
        """Start one; it finds the modules of the folder, as one that is started there does."""
        return self.python(machine, str(ROOT / "bin" / program), *arguments)

    def python(self, machine: str, *arguments: str) -> subprocess.Popen[bytes]:
        """Start a program there, which ends with the site."""
        log = self.folder / f"process-{len(self._processes)}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                self.network.command(machine, [sys.executable, *arguments]),
                cwd=self.folder,
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        self._processes.append(process)
        self._logs[process.pid] = log
        return process

    def command(self, machine: str, *arguments: str) -> tuple[int, str]:
        """Exit code and all output of `spotlight` with these arguments on a machine."""
        process = self.python(machine, "-m", "spotlight.cli", *arguments)
        try:
            code = process.wait(START_S)
        except subprocess.TimeoutExpired:
            process.kill()
            code = process.wait()
        return code, self.log(process)

    def _environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if name != "SPOTLIGHT_JOIN"}
        path = f"{ROOT}{os.pathsep}{self.folder}"
        secret = {"SPOTLIGHT_CANARY_SECRET": "Bearer of-the-environment"}
        return {**kept, **secret, "PYTHONPATH": path}

    def close(self) -> None:
        """End all processes of the site."""
        for process in self._processes:
            if process.poll() is None:
                process.terminate()
        for process in self._processes:
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def log(self, process: subprocess.Popen[bytes]) -> str:
        """What a daemon has printed."""
        return self._logs[process.pid].read_text(errors="replace")

    def resident_mb(self) -> float:
        """The most memory that the coordinator ever held. [MB]"""
        status = Path(f"/proc/{self.coordinator.pid}/status").read_text()
        return int(status.partition("VmHWM:")[2].split()[0]) / 1000

    async def _until_it_serves(self) -> None:
        async def serves() -> bool:
            try:
                await self.status()
            except ActorError:
                return False
            return True

        await self._until(serves, "the coordinator")

    async def _until(self, look: Callable[[], Any], what: str) -> Any:
        end = time.monotonic() + START_S
        while time.monotonic() < end:
            found = look()
            if asyncio.iscoroutine(found):
                found = await found
            if found:
                return found
            for process in (self.coordinator, *self.nodes.values()):
                if process.poll() is not None:
                    raise RuntimeError(f"{what} ended: {self.log(process)[-2000:]}")
            await asyncio.sleep(0.1)
        logs = "".join(self.log(each)[-2000:] for each in (self.coordinator, *self.nodes.values()))
        raise RuntimeError(f"{what} did not come up: {logs}")

    # --- keys and tokens ----------------------------------------------------------------

    def person(
        self, keys: KeyPair | None, *, knows: Mapping[str, str] | None = None
    ) -> AbstractAsyncContextManager[Person]:
        """A process of the holder of these keys."""
        return person(self.address, keys, knows=knows)

    def line(self, keys: KeyPair | None) -> AbstractAsyncContextManager[Line]:
        """A connection of the holder of these keys."""
        return line(self.address, keys)

    async def new_token(
        self, role: TokenRole, pool: Pool | None = None, *, uses: int = 1, ttl_s: float = 3600.0
    ) -> JoinToken:
        """One that the operator makes."""
        async with self.person(self.operator) as operator:
            answer = await operator.ask(NewToken(role, pool, uses, ttl_s), operator.door)
        assert isinstance(answer, TokenMade), answer
        return self._known(f"a {role}'s", JoinToken.parse("token", answer.token))

    def _known(self, whose: str, token: JoinToken) -> JoinToken:
        self.secrets[f"{whose} token {token.id}"] = str(token).rpartition(".")[2]
        self.secrets[f"the key of {whose} token {token.id}"] = token.keys.secret
        return token

    def token_file(self, token: JoinToken) -> Path:
        """One that holds it, for a command."""
        file = self.folder / f"{token.id}-{token.place.rpartition(':')[2]}.token"
        file.touch(0o600)
        file.write_text(str(token))
        return file

    async def enroll(
        self, token: JoinToken, node: str, keys: KeyPair, pool: Pool | None = None
    ) -> Enrolled | NotEnrolled:
        """What the door answers to a joiner. Raises `ActorError` if it does not get so far."""
        async with self.person(token.keys) as joiner:
            answer = await joiner.ask(Enroll(node, keys.public, pool), joiner.door)
        return cast(Enrolled | NotEnrolled, answer)

    async def enrolled(self, node: str) -> KeyPair:
        """The keys of a spot node that has enrolled and is nothing but keys."""
        keys = KeyPair.new()
        answer = await self.enroll(self.spot_token, node, keys)
        assert isinstance(answer, Enrolled), answer
        self.secrets[f"the key of node {node}"] = keys.secret
        return keys

    async def guests(self) -> GuestList:
        """Whom the door knows."""
        async with self.person(self.operator) as operator:
            answer = await operator.ask(GetGuests(), operator.door)
        assert isinstance(answer, GuestList), answer
        return answer

    def keys_of(self, node: str) -> list[str]:
        """Public keys of a node and its workers, as the coordinator has noted them."""
        nodes = json.loads((self.runs / ".door.json").read_text())["book"]["nodes"]
        return [key for each in nodes if each["name"] == node for key in _keys_of(each)]

    async def revoke(self, name: str) -> None:
        """By the operator."""
        async with self.person(self.operator) as operator:
            await operator.ask(RevokeAccess(name), operator.door)

    # --- jobs -----------------------------------------------------------------------------

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

    def honest_job(self) -> JobSpec:
        """What an honest user runs: long enough that both nodes have their share."""
        return self.job(
            name=HONEST,
            prompts={"train": "train.txt", "validation": "validation.txt", "per_iteration": 4},
            sampler={"height": 16, "width": 48, "kind": "ode", "steps": 12, "micro_batch": 4},
            group_size=8,
            iterations=3,
            checkpoint_every=1,
        )

    @property
    def words_of_the_job(self) -> list[str]:
        """What a sniffer must not see of it: its name, its fields, and its prompts."""
        return [HONEST, "per_iteration", "micro_batch", "checkpoint_every", *_PROMPTS]

    async def submit(
        self,
        job: JobSpec,
        run_folder: str = "",
        *,
        resume: bool = False,
        keys: KeyPair | None = None,
    ) -> str:
        """The coordinator's refusal; empty if it took the job of the attackers' submitter."""
        async with self.person(keys or self.submitter) as user:
            answer = await user.ask(SubmitJob(job, run_folder, resume), timeout_s=60.0)
        return answer.reason if isinstance(answer, JobRefused) else ""

    async def run(self, job: JobSpec, keys: KeyPair) -> JobStatus:
        """Run one to its end. Raises `RuntimeError` if it is refused."""
        async with self.person(keys) as user:
            answer = await user.ask(SubmitJob(job, "", False), timeout_s=60.0)
            if not isinstance(answer, JobAccepted):
                raise RuntimeError(f"the coordinator did not take the job: {answer}")
            async with asyncio.timeout(START_S):
                while not (status := await _status_of(user)).outcome:  # noqa: ASYNC110
                    await asyncio.sleep(0.1)
        return status

    async def until_it_runs(self) -> None:
        """Wait until the honest user's job is there to be disturbed."""

        async def runs() -> bool:
            status = await self.status()
            return status.job == HONEST and not status.outcome and status.phase != "preparing"

        await self._until(runs, "the honest user's job")

    async def status(self) -> JobStatus:
        """The coordinator's, by which it says that it still serves."""
        async with self.person(self.operator) as operator:
            return await _status_of(operator)

    async def outcome(self, job: JobSpec) -> JobStatus:
        """Run a job of the attackers' submitter to its end; it is one that the coordinator
        takes."""
        return await self.run(job, self.submitter)

    async def cancel(self, keys: KeyPair | None = None) -> None:
        """End what runs; by the attackers' submitter, unless by another."""
        async with self.person(keys or self.submitter) as user, asyncio.timeout(START_S):
            await user.ask(CancelJob())
            status = await _status_of(user)
            while status.job and not status.outcome:
                await asyncio.sleep(0.05)
                status = await _status_of(user)

    @asynccontextmanager
    async def employed(
        self, *, name: str = IMPOSTOR, keys: KeyPair | None = None, **said: Any
    ) -> AsyncIterator[Membership]:
        """Be the node that attackers have a key for (or another) while a job runs, and report
        `said`: it learns whom its workers are to speak to."""
        async with self.person(keys or self.impostor) as node:
            actor = Impostor(node.coordinator, said, name)
            await node.system.spawn(lambda: actor, "node")
            async with asyncio.timeout(START_S):
                membership = await asyncio.shield(actor.membership)
            self.secrets[f"the store's token of {name}"] = membership.sink.token
            yield membership

    @asynccontextmanager
    async def joined(self, **said: Any) -> AsyncIterator[StoreEndpoint]:
        """The same, for the token that nodes get to leave what they made."""
        async with self.employed(**said) as membership:
            yield membership.sink


def _keys_of(node: Mapping[str, Any]) -> list[str]:
    return [node["key"], *node["workers"]]


async def _status_of(user: Person) -> JobStatus:
    return cast(JobStatus, await user.ask(GetStatus(), timeout_s=LIMIT_S))


class Impostor(Sayer):
    """Says that it is a node with one worker."""

    def __init__(
        self, coordinator: ActorRef, said: Mapping[str, Any], name: str = IMPOSTOR
    ) -> None:
        self._coordinator = coordinator
        worker = ActorRef(f"tcp://127.0.0.1:1/{KeyPair.new().public}", "worker", 1)
        workers = (WorkerRefs(f"{name}/0", 1, worker, worker, worker),)
        self._said = {"node": name, "pool": "spot", "workers": workers, **said}
        self.membership: asyncio.Future[Membership] = asyncio.get_running_loop().create_future()

    async def started(self) -> None:
        """Join."""
        self.run_task(self._join())

    def report_of(self, scheduler: ActorRef, number: int = 1, **changes: Any) -> NodeReport:
        """What it says of itself, in the name of this actor."""
        store = StoreEndpoint("127.0.0.1", 1, "token", "nowhere", "/nowhere")
        said = {**self._said, **changes}
        return NodeReport(number=number, scheduler=scheduler, store=store, **said)

    async def _join(self) -> None:
        for number in range(1, 600):
            try:
                answer = await self.ask(
                    self._coordinator, self.report_of(self.ref, number), timeout_s=10.0
                )
            except ActorError:
                continue
            if isinstance(answer, NodePlan):
                await self.on_plan(answer)
            await asyncio.sleep(0.2)

    @handles(NodePlan)
    async def on_plan(self, message: NodePlan) -> None:
        """The plan names the place for what a node makes."""
        if message.job is not None and not self.membership.done():
            self.membership.set_result(message.job.membership)
