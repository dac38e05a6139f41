"""`spotlight run`: a coordinator and local nodes as daemons of this machine, a submission, and a
view of it until it ends.

No special path: the daemons are those that a cluster runs. They end with this process, however it
ends. A coordinator that is killed is started again at the same address and goes on with the job.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from rich.console import Console
from rich.live import Live

from spotlight.actors.launcher import LocalLauncher, ProcessHandle
from spotlight.actors.loop import run
from spotlight.actors.messages import JobStatus
from spotlight.cli.client import CoordinatorClient, connect
from spotlight.cli.live import plain_line, render, summary_table
from spotlight.cli.plan import plan_lines
from spotlight.errors import ActorError, RunFolderError, UserError
from spotlight.files import path_problem
from spotlight.jobs import JobSpec, load_job
from spotlight.preflight import check
from spotlight.store.memory_folder import remove_leftovers
from spotlight.store.run_folder import next_run_folder, read_config
from spotlight.web.figures import read_run, summarise

_START_LIMIT_S = 60.0
_STOP_LIMIT_S = 1.0
_POLL_S = 0.1
_COORDINATORS = 5
_COME_BACK_LIMIT_S = 10.0
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
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, interrupted.set)
    async with local_cluster(job, folder / "logs") as address, connect(address) as client:
        try:
            await client.submit(job, str(folder), resume=resume)
        except ActorError as error:
            log = folder / "logs" / "coordinator.log"
            raise UserError(f"the coordinator did not take the job ({error}); see {log}") from error
        last = await _follow(client, interrupted, console)
    _say_how_it_ended(last, folder, console)
    return _EXIT_CODES[last.outcome or "failed"]


@asynccontextmanager
async def local_cluster(job: JobSpec, logs: Path) -> AsyncIterator[str]:
    """A coordinator and the nodes of the job's pools; yields the coordinator's address. Ends them
    all at the end.
    """
    launcher = LocalLauncher()
    processes: list[ProcessHandle] = []
    address_file = logs / "coordinator.address"
    address_file.unlink(missing_ok=True)
    (logs / ".running").unlink(missing_ok=True)
    keeper: asyncio.Task[None] | None = None
    try:
        arguments = ["--runs", str(logs), "--address-file", str(address_file), "--listen"]
        processes.append(await _start(launcher, "coordinator", [*arguments, _ANY_PORT], logs))
        address = await _read_address(address_file, processes[0], logs)
        again = [*arguments, address.removeprefix("tcp://")]
        keeper = asyncio.create_task(_keep_coordinator(launcher, processes, again, logs))
        for pool, spec in (("reserved", job.pools.reserved), ("spot", job.pools.spot)):
            for index in range(spec.nodes):
                name = f"{pool}-{index}"
                arguments = ["--coordinator", address, "--name", name, "--pool", pool]
                arguments += ["--workers", str(spec.workers), "--logs", str(logs)]
                processes.append(await _start(launcher, "node", arguments, logs, name))
        yield address
    finally:
        address_file.unlink(missing_ok=True)
        if keeper is not None:
            keeper.cancel()
            await asyncio.wait((keeper,))
        await _stop(processes)
        remove_leftovers()  # of nodes that were killed


async def _keep_coordinator(
    launcher: LocalLauncher, processes: list[ProcessHandle], arguments: list[str], logs: Path
) -> None:
    """Start it again when a signal ended it; `processes[0]` is always the present one."""
    for _ in range(_COORDINATORS):
        if await processes[0].wait() >= 0:
            return  # it ended by itself, and its log says why
        processes[0] = await _start(launcher, "coordinator", arguments, logs)


def _make_log_folder(logs: Path) -> None:
    try:
        logs.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunFolderError(
            f"{logs}: {error.strerror}; give a --run-folder that can be written"
        ) from error


async def _start(
    launcher: LocalLauncher, daemon: str, arguments: list[str], logs: Path, name: str = ""
) -> ProcessHandle:
    call = f"from spotlight.cli.daemons import {daemon}; {daemon}()"
    argv = [sys.executable, "-c", call, *arguments, "--parent", str(os.getpid())]
    name = name or daemon
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
    client: CoordinatorClient, interrupted: asyncio.Event, console: Console
) -> JobStatus:
    status = await client.status()
    cancelled = False
    line = ""
    loop = asyncio.get_running_loop()
    heard_at = loop.time()
    with Live(console=console, auto_refresh=False, transient=True) as live:
        while not status.outcome:
            if interrupted.is_set() and not cancelled:
                cancelled = True
                await client.cancel(timeout_s=_STOP_LIMIT_S)
            await asyncio.sleep(_POLL_S)
            try:
                status = await client.status(timeout_s=_STOP_LIMIT_S)
                heard_at = loop.time()
            except ActorError as error:
                if loop.time() - heard_at > _COME_BACK_LIMIT_S:
                    raise UserError(
                        f"the coordinator is gone ({error}); go on with --resume"
                    ) from error
            if console.is_terminal:
                live.update(render(status), refresh=True)
            elif (new := plain_line(status)) != line:
                line = new
                console.print(line, highlight=False, markup=False)
    return status


def _say_how_it_ended(status: JobStatus, folder: Path, console: Console) -> None:
    if status.outcome == "finished":
        console.print(summary_table(summarise(read_run(folder))))
        console.print(f"report: {folder / 'report.html'}", soft_wrap=True)
    else:
        console.print(f"{status.outcome}: {status.reason}", soft_wrap=True, markup=False)
        console.print(f"go on with: spotlight run --resume {folder}", soft_wrap=True)
