"""`spotlight run`: a coordinator and local nodes as daemons of this machine, a submission, and a
view of it until it ends.

No special path: the daemons are those that a cluster runs. They end with this process, however it
ends. One that is killed is started again, a coordinator at the same address, and the job goes on.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.live import Live

from spotlight.actors.protocol import JobStatus
from spotlight.actors.runtime.launcher import LocalLauncher, ProcessHandle
from spotlight.actors.runtime.loop import ending_signals, run
from spotlight.cli.client import CoordinatorClient, connect
from spotlight.cli.live import plain_line, render, summary_table
from spotlight.cli.plan import plan_lines
from spotlight.errors import ActorError, RunFolderError, UserError
from spotlight.files import path_problem
from spotlight.jobs import JobSpec, load_job
from spotlight.preflight.checks import check
from spotlight.report.metrics import read_run, summarise
from spotlight.report.rendering import write_report
from spotlight.store.memory_folder import remove_leftovers
from spotlight.store.run_folder import next_run_folder, read_config

_START_LIMIT_S = 60.0
_STOP_LIMIT_S = 1.0
_POLL_S = 0.1
_RESTARTS = 5
"""Of each daemon that is killed."""
_SILENCE_S = 10.0
"""After so long without an answer of the coordinator the user is told."""
_SILENCE_LIMIT_S = 600.0
"""A coordinator that lives and does not answer is given up."""
_ANY_PORT = "127.0.0.1:0"
_EXIT_CODES = {"finished": 0, "cancelled": 130, "failed": 1}


def run_locally(job_path: Path | None, resume: Path | None, run_folder: Path | None) -> int:
    """Run or resume a job here; returns the exit code."""
    console = Console()
    if resume is not None:
        folder = resume.resolve()
        job = read_config(folder)
    else:
        assert job_path is not None
        job = load_job(job_path)
        folder = (run_folder or next_run_folder(Path("runs"), job.name)).resolve()
        problem = path_problem(str(folder))
        if problem is not None:
            raise RunFolderError(f"{folder} {problem}; give another --run-folder")
        if os.path.exists(folder / "config.yaml"):
            raise RunFolderError(
                f"{folder} holds a run already; go on with it by --resume, or give another"
                " --run-folder"
            )
    plan = plan_lines(job, check(job, run_folder=folder), folder)
    _make_log_folder(folder / "logs")
    console.print(plan)
    return run(_run(job, folder, resume is not None, console))


async def _run(job: JobSpec, folder: Path, resume: bool, console: Console) -> int:
    interrupted = asyncio.Event()
    for number in {signal.SIGINT, *ending_signals()}:  # shells let background commands ignore it
        asyncio.get_running_loop().add_signal_handler(number, interrupted.set)
    async with local_cluster(job, folder / "logs") as cluster, connect(cluster.address) as client:
        try:
            await client.submit(job, str(folder), resume=resume)
        except ActorError as error:
            log = folder / "logs" / "coordinator.log"
            raise UserError(f"the coordinator did not take the job ({error}); see {log}") from error
        last = await _follow(cluster, client, interrupted, console)
    if last is None:
        last = _broken_off(folder, console)
    _say_how_it_ended(last, folder, console)
    return _EXIT_CODES[last.outcome or "failed"]


@dataclass
class _Daemon:
    """One that runs, and how it is started again."""

    name: str
    kind: str
    arguments: list[str]
    process: ProcessHandle
    ended: str = ""
    """Why it is not started again."""


@dataclass
class LocalCluster:
    """The daemons of this machine."""

    launcher: LocalLauncher
    logs: Path
    address: str = ""
    """Of the coordinator, which is the first of the daemons."""
    daemons: list[_Daemon] = field(default_factory=list)

    @property
    def coordinator(self) -> _Daemon:
        """The one that runs now."""
        return self.daemons[0]

    async def start(self, name: str, kind: str, arguments: list[str]) -> _Daemon:
        """Start a daemon for the first time."""
        process = await _start(self.launcher, kind, arguments, self.logs, name)
        self.daemons.append(_Daemon(name, kind, arguments, process))
        return self.daemons[-1]

    async def keep(self, daemon: _Daemon) -> None:
        """Start a daemon again when a signal has ended it."""
        for _ in range(_RESTARTS):
            code = await daemon.process.wait()
            if code >= 0:
                daemon.ended = f"{daemon.name} ended by itself with {code}"
                return
            daemon.process = await _start(
                self.launcher, daemon.kind, daemon.arguments, self.logs, daemon.name
            )
        daemon.ended = f"{daemon.name} was killed {_RESTARTS} times"


@asynccontextmanager
async def local_cluster(job: JobSpec, logs: Path) -> AsyncIterator[LocalCluster]:
    """A coordinator and the nodes of the job's pools. Ends them all at the end."""
    cluster = LocalCluster(LocalLauncher(), logs)
    address_file = logs / "coordinator.address"
    address_file.unlink(missing_ok=True)
    (logs / ".running").unlink(missing_ok=True)
    keepers: list[asyncio.Task[None]] = []
    try:
        arguments = ["--runs", str(logs), "--address-file", str(address_file), "--listen"]
        first = await cluster.start("coordinator", "coordinator", [*arguments, _ANY_PORT])
        cluster.address = await _read_address(address_file, first.process, logs)
        first.arguments = [*arguments, cluster.address.removeprefix("tcp://")]
        keepers.append(asyncio.create_task(cluster.keep(first)))
        for pool, spec in (("reserved", job.pools.reserved), ("spot", job.pools.spot)):
            for index in range(spec.nodes):
                name = f"{pool}-{index}"
                arguments = ["--coordinator", cluster.address, "--name", name, "--pool", pool]
                arguments += ["--workers", str(spec.workers), "--logs", str(logs)]
                daemon = await cluster.start(name, "node", arguments)
                keepers.append(asyncio.create_task(cluster.keep(daemon)))
        yield cluster
    finally:
        address_file.unlink(missing_ok=True)
        for keeper in keepers:
            keeper.cancel()
        await asyncio.gather(*keepers, return_exceptions=True)
        await _stop([daemon.process for daemon in cluster.daemons])
        remove_leftovers()  # of nodes that were killed


def _make_log_folder(logs: Path) -> None:
    try:
        logs.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunFolderError(
            f"{logs}: {error.strerror}; give a --run-folder that can be written"
        ) from error


async def _start(
    launcher: LocalLauncher, kind: str, arguments: list[str], logs: Path, name: str
) -> ProcessHandle:
    call = f"from spotlight.cli.daemons import {kind}; {kind}()"
    argv = [sys.executable, "-c", call, *arguments, "--parent", str(os.getpid())]
    return await launcher.start(argv, env=os.environ, name=name, log_path=logs / f"{name}.log")


async def _read_address(file: Path, process: ProcessHandle, logs: Path) -> str:
    ended = asyncio.ensure_future(process.wait())
    try:
        async with asyncio.timeout(_START_LIMIT_S):
            while not file.exists():  # noqa: ASYNC240 - a tiny local file
                if ended.done():
                    raise UserError(
                        f"the coordinator did not start; see {logs / 'coordinator.log'}"
                    )
                await asyncio.sleep(0.02)
    except TimeoutError as error:
        raise UserError(
            f"the coordinator does not answer; see {logs / 'coordinator.log'}"
        ) from error
    finally:
        ended.cancel()
    return file.read_text()  # noqa: ASYNC240 - a tiny local file


async def _stop(processes: list[ProcessHandle]) -> None:
    for process in reversed(processes):
        process.terminate()
    try:
        async with asyncio.timeout(_STOP_LIMIT_S):
            await asyncio.gather(*(process.wait() for process in processes))
    except TimeoutError:
        for process in processes:
            process.kill()
        await asyncio.gather(*(process.wait() for process in processes))


async def _follow(
    cluster: LocalCluster,
    client: CoordinatorClient,
    interrupted: asyncio.Event,
    console: Console,
) -> JobStatus | None:
    """Look at the job until it ends; None if it was broken off, as nobody answered."""
    status = await client.status()
    cancelled = False
    line = ""
    silence = _Silence(cluster, console)
    with Live(console=console, auto_refresh=False, transient=True) as live:
        while not status.outcome:
            try:
                if interrupted.is_set() and not cancelled:
                    cancelled = True
                    await client.cancel(timeout_s=_STOP_LIMIT_S)
                await asyncio.sleep(_POLL_S)
                status = await client.status(timeout_s=_STOP_LIMIT_S)
                silence.is_over()
            except ActorError as error:
                if cancelled:
                    return None
                silence.goes_on(error)
            if console.is_terminal:
                live.update(render(status), refresh=True)
            elif (new := plain_line(status)) != line:
                line = new
                console.print(line, highlight=False, markup=False)
    return status


class _Silence:
    """How long the coordinator has not answered, and what that means: one that is slow, or is
    being started again, is waited for.
    """

    def __init__(self, cluster: LocalCluster, console: Console) -> None:
        self._cluster = cluster
        self._console = console
        self._now = asyncio.get_running_loop().time
        self._told: set[str] = set()
        self.is_over()

    def is_over(self) -> None:
        """It answers."""
        self._since = self._now()
        self._said = False
        for daemon in self._cluster.daemons:
            if daemon.ended and daemon.name not in self._told:
                self._told.add(daemon.name)
                self._console.print(f"{daemon.ended}; see {self._cluster.logs}", soft_wrap=True)

    def goes_on(self, error: ActorError) -> None:
        """It does not. Raises `UserError` when there is nothing more to wait for."""
        silent_s, ended = self._now() - self._since, self._cluster.coordinator.ended
        if ended or silent_s > _SILENCE_LIMIT_S:
            why = ended or f"the coordinator has not answered for {silent_s:.0f} s ({error})"
            raise UserError(f"{why}; see {self._cluster.logs}, and go on with --resume")
        if silent_s > _SILENCE_S and not self._said:
            self._said = True
            self._console.print(
                f"the coordinator has not answered for {silent_s:.0f} s; waiting for it"
                f" (at most {_SILENCE_LIMIT_S:.0f} s; Ctrl-C ends the run)"
            )


def _broken_off(folder: Path, console: Console) -> JobStatus:
    """A run that was ended without its coordinator has a report, too."""
    try:
        console.print(f"report: {write_report(folder)}", soft_wrap=True)
    except UserError as error:
        console.print(f"no report: {error}", soft_wrap=True, markup=False)
    reason = "interrupted; the coordinator did not answer, and was ended with the run"
    return JobStatus(outcome="cancelled", reason=reason)


def _say_how_it_ended(status: JobStatus, folder: Path, console: Console) -> None:
    if status.outcome == "finished":
        console.print(summary_table(summarise(read_run(folder))))
        console.print(f"report: {folder / 'report.html'}", soft_wrap=True)
    else:
        console.print(f"{status.outcome}: {status.reason}", soft_wrap=True, markup=False)
        console.print(f"go on with: spotlight run --resume {folder}", soft_wrap=True)
