"""Processes that are forked from one that has imported what they need."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import psutil
import pytest
import structlog

from spotlight.actors.runtime.fork_launcher import ForkedProcess, ForkLauncher
from spotlight.actors.runtime.fork_owner import TemplateOwner
from spotlight.actors.runtime.fork_template import ForkRequest
from spotlight.actors.runtime.launcher import (
    LocalLauncher,
    LocalProcess,
    ProcessHandle,
    ProcessLauncher,
)
from spotlight.errors import UserError
from spotlight.timings import RuntimeTimings

WITHIN_S = 20.0

PREPARED = """
    import os
    with open(os.environ["IMPORTS"], "a") as imports:
        imports.write("once\\n")
    def prepare_to_fork():
        pass
"""
WITH_A_THREAD = """
    import threading
    def prepare_to_fork():
        threading.Thread(target=threading.Event().wait, daemon=True).start()
"""
BROKEN = """
    def prepare_to_fork():
        raise RuntimeError("this cannot be forked")
"""
SLEEPER = "import time; time.sleep(600)"

Write = Callable[[str, str], None]


@pytest.fixture
def module(tmp_path: Path) -> Write:
    """Writes a module that templates and processes find."""

    def write(name: str, code: str) -> None:
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(code))

    write("sleeper", SLEEPER)
    write("prepared", PREPARED)
    return write


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    path = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    return {"PYTHONPATH": path, "IMPORTS": str(tmp_path / "imports"), "OMP_NUM_THREADS": "1"}


@asynccontextmanager
async def owning(env: Mapping[str, str], tmp_path: Path) -> AsyncIterator[str]:
    owner = TemplateOwner("prepared", env, tmp_path / "logs" / "template.log")
    owner.start()
    try:
        async with asyncio.timeout(3 * WITHIN_S):
            yield owner.address
    finally:
        await owner.aclose()


@asynccontextmanager
async def launching(
    env: Mapping[str, str], tmp_path: Path, timings: RuntimeTimings = RuntimeTimings()
) -> AsyncIterator[ForkLauncher]:
    async with owning(env, tmp_path) as template:
        launcher = ForkLauncher(template, timings)
        try:
            yield launcher
        finally:
            await launcher.aclose()


async def start(
    launcher: ProcessLauncher, name: str, env: Mapping[str, str], tmp_path: Path, *arguments: str
) -> ProcessHandle:
    argv = [sys.executable, "-m", name, *arguments]
    return await launcher.start(argv, env, name, tmp_path / "logs" / f"{name}.log")


def has_ended(pid: int) -> bool:
    """Perhaps nobody has collected its exit code yet."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.mark.both_loops
async def test_a_forked_process_is_as_one_started_by_itself(
    module: Write, env: dict[str, str], tmp_path: Path
) -> None:
    module(
        "worker",
        """
        import os, signal, sys
        print(sys.argv[1:], os.environ["GREETING"], "HOME" in os.environ, __name__)
        print(os.getpgid(0) == os.getsid(0) == os.getpid(), int(signal.getsignal(signal.SIGTERM)))
        print(os.readlink("/proc/self/fd/0"), len(os.listdir("/proc/self/fd")))
        print("and errors", file=sys.stderr)
        sys.exit(7)
        """,
    )
    logs = []
    async with launching(env, tmp_path) as launcher:
        for each in (launcher, LocalLauncher()):
            process = await start(each, "worker", {**env, "GREETING": "hello"}, tmp_path, "--of=2")
            assert await process.wait() == 7
            assert isinstance(process, ForkedProcess) == (each is launcher)
            log_path = tmp_path / "logs" / "worker.log"
            logs.append(sorted(log_path.read_text().splitlines()))
            log_path.unlink()
    assert logs[0] == logs[1]
    assert logs[0][2:] == ["['--of=2'] hello False __main__", "and errors"]


async def test_each_forked_process_reads_its_own_secret_once(
    module: Write, env: dict[str, str], tmp_path: Path
) -> None:
    """Also one that had to be started by itself; and one that is handed nothing has empty input."""
    module(
        "worker",
        """
        import os, sys
        from spotlight.actors.runtime.launcher import read_secret
        print(read_secret(), read_secret(), len(os.listdir("/proc/self/fd")))
        """,
    )
    log_path = tmp_path / "logs" / "worker.log"
    argv = [sys.executable, "-m", "worker"]
    async with launching(env, tmp_path) as launcher:
        for secret in (b"the first", b"", b"the third"):
            process = await launcher.start(argv, env, "worker", log_path, secret)
            assert isinstance(process, ForkedProcess)
            assert await process.wait() == 0
    unforked = ForkLauncher("nothing listens here")
    process = await unforked.start(argv, env, "worker", log_path, b"the last")
    assert await process.wait() == 0
    words = [line.rsplit(" ", 1) for line in log_path.read_text().splitlines()]
    secrets = [b"the first", b"", b"the third", b"the last"]
    assert [said for said, _ in words] == [f"{secret!r} b''" for secret in secrets]
    assert len({descriptors for _, descriptors in words}) == 1


async def test_processes_show_their_own_arguments(
    module: Write, env: dict[str, str], tmp_path: Path
) -> None:
    async with launching(env, tmp_path) as launcher:
        process = await start(launcher, "sleeper", env, tmp_path, "--name", "spot-0/3")
        shown = psutil.Process(process.pid).cmdline()
        async with asyncio.timeout(WITHIN_S):
            while "spot-0/3" not in shown:
                await asyncio.sleep(0.01)
                shown = psutil.Process(process.pid).cmdline()
        assert shown[:5] == [sys.executable, "-m", "sleeper", "--name", "spot-0/3"]


async def test_however_many_processes_cost_one_import(
    module: Write, env: dict[str, str], tmp_path: Path
) -> None:
    module("worker", "import prepared")
    async with launching(env, tmp_path) as launcher:
        for process in await asyncio.gather(
            *(start(launcher, "worker", env, tmp_path) for _ in range(5))
        ):
            assert await process.wait() == 0
    assert (tmp_path / "imports").read_text() == "once\n"


async def test_forked_processes_draw_their_own_random_numbers(
    module: Write, env: dict[str, str], tmp_path: Path
) -> None:
    module("worker", "import random, secrets; print(random.random(), secrets.token_hex())")
    module("prepared", "import random, secrets\ndef prepare_to_fork(): random.random()")
    async with launching(env, tmp_path) as launcher:
        for _ in range(3):
            await (await start(launcher, "worker", env, tmp_path)).wait()
    numbers = (tmp_path / "logs" / "worker.log").read_text().split()
    assert len(set(numbers)) == 6


@pytest.mark.both_loops
@pytest.mark.parametrize(
    ("end", "number"), [("terminate", signal.SIGTERM), ("kill", signal.SIGKILL)]
)
async def test_a_signal_ends_a_forked_process(
    module: Write, env: dict[str, str], tmp_path: Path, end: str, number: signal.Signals
) -> None:
    async with launching(env, tmp_path) as launcher:
        process = await start(launcher, "sleeper", env, tmp_path)
        getattr(process, end)()
        assert await process.wait() == -number
        getattr(process, end)()  # once more does no harm


async def test_when_the_template_is_killed_its_processes_end_and_others_can_be_started(
    module: Write, env: dict[str, str], tmp_path: Path
) -> None:
    async with launching(env, tmp_path) as launcher:
        processes = [await start(launcher, "sleeper", env, tmp_path) for _ in range(3)]
        template = psutil.Process(processes[0].pid).parent()
        assert template is not None
        template.kill()
        assert [await process.wait() for process in processes] == [-signal.SIGKILL] * 3
        assert all(has_ended(process.pid) for process in processes)
        again = await start(launcher, "sleeper", env, tmp_path)
        assert isinstance(again, ForkedProcess)
        again.kill()
        assert await again.wait() == -signal.SIGKILL


async def test_launchers_of_several_processes_share_one_template(
    module: Write, env: dict[str, str], tmp_path: Path
) -> None:
    module("worker", "import prepared")
    async with owning(env, tmp_path) as template:
        one, other = ForkLauncher(template), ForkLauncher(template)
        try:
            async with asyncio.TaskGroup() as tasks:
                for launcher in (one, other):
                    process = await start(launcher, "worker", env, tmp_path)
                    tasks.create_task(process.wait())
                    assert isinstance(process, ForkedProcess)
        finally:
            await asyncio.gather(one.aclose(), other.aclose())
    assert (tmp_path / "imports").read_text() == "once\n"


async def test_what_a_launcher_asked_for_ends_with_it_and_what_others_asked_for_goes_on(
    module: Write, env: dict[str, str], tmp_path: Path
) -> None:
    async with owning(env, tmp_path) as template:
        staying = ForkLauncher(template)
        try:
            kept = await start(staying, "sleeper", env, tmp_path)
            argv = [sys.executable, "-c", textwrap.dedent(JOINING), template, str(tmp_path / "log")]
            process = await asyncio.create_subprocess_exec(
                *argv, stdout=subprocess.PIPE, env={**os.environ, **env}
            )
            assert process.stdout is not None
            its = [psutil.Process(int(await process.stdout.readline())) for _ in range(2)]
            process.kill()
            await process.wait()
            _, alive = await asyncio.to_thread(psutil.wait_procs, its, WITHIN_S)
            assert alive == []
            assert not has_ended(kept.pid)
            again = await start(staying, "sleeper", env, tmp_path)
            assert isinstance(again, ForkedProcess)
        finally:
            await staying.aclose()
    assert has_ended(kept.pid)


async def test_a_template_that_is_killed_while_it_imports_is_started_again(
    module: Write, env: dict[str, str], tmp_path: Path
) -> None:
    module(
        "prepared",
        """
        import os, signal
        def prepare_to_fork():
            if not os.path.exists(os.environ["IMPORTS"]):
                open(os.environ["IMPORTS"], "w").close()
                os.kill(os.getpid(), signal.SIGKILL)
        """,
    )
    async with launching(env, tmp_path) as launcher:
        assert isinstance(await start(launcher, "sleeper", env, tmp_path), ForkedProcess)


async def test_a_template_that_is_killed_each_time_is_given_up(
    module: Write, env: dict[str, str], tmp_path: Path
) -> None:
    module(
        "prepared",
        """
        import os, signal
        def prepare_to_fork():
            os.kill(os.getpid(), signal.SIGKILL)
        """,
    )
    async with launching(env, tmp_path) as launcher:
        process = await start(launcher, "sleeper", env, tmp_path)
        assert isinstance(process, LocalProcess)
        process.kill()
        await process.wait()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be another user, too")
async def test_another_user_cannot_have_anything_forked(
    module: Write, env: dict[str, str], tmp_path: Path
) -> None:
    code = """
        import os, socket, sys
        os.seteuid(int(sys.argv[2]))
        asking = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        asking.connect("\\0" + sys.argv[1])
        print(asking.recv(100))
    """
    async with owning(env, tmp_path) as template:
        answers = []
        for user in (0, 65534):
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-c", textwrap.dedent(code), template, str(user)),
                stdout=subprocess.PIPE,
            )
            output, _ = await process.communicate()
            answers.append(output.strip())
    assert b"Ready" in answers[0]
    assert answers[1] == b"b''"


async def test_a_template_that_hangs_is_given_up(
    module: Write, env: dict[str, str], tmp_path: Path
) -> None:
    async with launching(env, tmp_path, RuntimeTimings(exit_report_limit_s=0.5)) as launcher:
        process = await start(launcher, "sleeper", env, tmp_path)
        template = psutil.Process(process.pid).parent()
        assert template is not None
        template.suspend()
        process.kill()
        assert await process.wait() == -signal.SIGKILL
        assert isinstance(await start(launcher, "sleeper", env, tmp_path), ForkedProcess)


LAUNCHING = """
    import asyncio, os, sys
    from pathlib import Path
    from spotlight.actors.runtime.fork_launcher import ForkLauncher
    from spotlight.actors.runtime.fork_owner import TemplateOwner

    async def main():
        owner = TemplateOwner("prepared", os.environ, Path(sys.argv[1]))
        owner.start()
        launcher = ForkLauncher(owner.address)
        argv = [sys.executable, "-m", "sleeper"]
        for number in range(2):
            process = await launcher.start(argv, os.environ, "sleeper", Path(sys.argv[1]))
            print(process.pid, flush=True)
        await process.wait()

    asyncio.run(main())
"""


JOINING = """
    import asyncio, os, sys
    from pathlib import Path
    from spotlight.actors.runtime.fork_launcher import ForkLauncher

    async def main():
        launcher = ForkLauncher(sys.argv[1])
        for number in range(2):
            argv = [sys.executable, "-m", "sleeper"]
            process = await launcher.start(argv, os.environ, "sleeper", Path(sys.argv[2]))
            print(process.pid, flush=True)
        await process.wait()

    asyncio.run(main())
"""


def test_nothing_outlives_a_launcher_that_is_killed(
    module: Write, env: dict[str, str], tmp_path: Path
) -> None:
    argv = [sys.executable, "-c", textwrap.dedent(LAUNCHING), str(tmp_path / "log")]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, env=env) as launcher:
        assert launcher.stdout is not None
        first, _ = (int(launcher.stdout.readline()) for _ in range(2))
        template = psutil.Process(first).parent()
        assert template is not None
        family = [template, *template.children()]
        launcher.kill()
        _, alive = psutil.wait_procs(family, WITHIN_S)
    assert len(family) == 3
    assert alive == []


@pytest.mark.parametrize(
    ("code", "reason"),
    [(WITH_A_THREAD, "2 threads run in the template"), (BROKEN, "see template.log")],
)
async def test_what_cannot_be_forked_is_started_by_itself_and_the_log_says_why(
    module: Write, env: dict[str, str], tmp_path: Path, code: str, reason: str
) -> None:
    module("prepared", code)
    module("worker", "import sys; sys.exit(7)")
    async with launching(env, tmp_path) as launcher:
        with structlog.testing.capture_logs() as logs:
            processes = [await start(launcher, "worker", env, tmp_path) for _ in range(2)]
        assert [await process.wait() for process in processes] == [7, 7]
    assert not any(isinstance(process, ForkedProcess) for process in processes)
    assert [reason in line["reason"] for line in logs] == [True, True]


async def test_a_log_that_cannot_be_written_is_named(
    module: Write, env: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "logs" / "worker.log").mkdir(parents=True)
    async with launching(env, tmp_path) as launcher:
        with pytest.raises(UserError, match="worker"):
            await start(launcher, "worker", env, tmp_path)


async def test_a_template_goes_on_when_one_of_another_build_asks_it_for_more_than_it_knows(
    module: Write, env: dict[str, str], tmp_path: Path
) -> None:
    request = ForkRequest("sleeper", [], env, str(tmp_path / "log"))
    newer = {**msgspec.structs.asdict(request), "nice": 5}
    async with owning(env, tmp_path) as template:
        launcher = ForkLauncher(template)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as other:
            process = await start(launcher, "sleeper", env, tmp_path)
            other.connect(b"\0" + template.encode())
            other.send(msgspec.msgpack.encode(newer))
            other.settimeout(WITHIN_S)
            ready, end = await asyncio.to_thread(lambda: (other.recv(1000), other.recv(1000)))
        assert b"Ready" in ready
        assert end == b""
        assert "nice" in (tmp_path / "logs" / "template.log").read_text()
        assert isinstance(process, ForkedProcess)
        assert not has_ended(process.pid)
        await launcher.aclose()


async def test_a_template_of_another_build_is_done_without(
    module: Write, env: dict[str, str], tmp_path: Path
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind("")
        listener.listen()
        name: bytes = listener.getsockname()
        launcher = ForkLauncher(name.removeprefix(b"\0").decode())
        starting = asyncio.ensure_future(start(launcher, "sleeper", env, tmp_path))
        connection, _ = await asyncio.to_thread(listener.accept)
        with connection, structlog.testing.capture_logs() as logs:
            connection.send(msgspec.msgpack.encode({"type": "Ready", "pid": 1, "speaks": 2}))
            process = await asyncio.wait_for(starting, WITHIN_S)
    assert isinstance(process, LocalProcess)
    assert "speaks" in str(next(line for line in logs if "not_understood" in str(line["event"])))
    process.kill()
    await process.wait()
    await launcher.aclose()
