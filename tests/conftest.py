"""Fixtures of all tests: on which event loop a test runs, which tests of a sweep run, and a check
that a test leaves nothing behind.

An async test runs on plain asyncio, on virtual time with `@pytest.mark.virtual_time`, or on asyncio
and on uvloop with `@pytest.mark.both_loops`.
"""

from __future__ import annotations

import asyncio
import gc
import inspect
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import date
from pathlib import Path
from random import Random
from typing import Any

import psutil
import pytest
import structlog
from hypothesis import settings

from spotlight_simulation.virtual_time import VirtualTimeLoop

ALLOWED_THREADS = (
    "waitpid-",
    "asyncio-waitpid-",
    "asyncio_",
    "die-with-parent",
    "tqdm",
    "TMonitor",
)
"""Beginnings of the names, or of the types, of threads that libraries keep."""
ALLOWED_CHILDREN = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")
SHARED_MEMORY = Path("/dev/shm")
OURS = {os.getpid()}
"""Ids of this process and of those below it, living or not, as far as they were noticed. Others may
run tests at the same time; what they make is not looked at."""
DAY = "SPOTLIGHT_TEST_DAY"
"""Of which day the moments of sweeps are, for all processes that run tests at the same time."""
EXAMPLES = 50
"""Of what holds for all that hypothesis thinks of, where a test does not say how many it takes."""
SWEPT = 12
"""Moments of all sweeps together that are tried unless all are asked for."""
ENOUGH_SPACE = 4 << 30
"""Bytes: more than temporary folders have at any time."""
ENDED_S = float(os.environ.get("SPOTLIGHT_TEST_ENDED_S", "30"))
"""What a test has ended is gone by then, however busy the machine is; only a leak is waited for."""
MANY_MODULES = 200
"""As many are loaded with torch, diffusers or their like."""


class Frozen:
    """How many modules were loaded when the garbage collector was last told to pass them over."""

    modules = 0


class RememberedPopen(subprocess.Popen):  # type: ignore[type-arg]
    """Notes its process among ours, since one that has ended no longer says whose child it was."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        OURS.add(self.pid)


def pytest_configure(config: pytest.Config) -> None:
    # For torch, here and below: threads that wait for each other take the cores from other tests.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if _can_hold_tests(SHARED_MEMORY):
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(SHARED_MEMORY))
    config.addinivalue_line("markers", "virtual_time: runs on a loop whose clock never waits")
    config.addinivalue_line("markers", "both_loops: runs on asyncio and on uvloop")
    os.environ.setdefault(DAY, date.today().isoformat())
    # Else every process that a test starts compiles the package anew, whatever the machine is set
    # up for.
    sys.dont_write_bytecode = False
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    settings.register_profile("few", max_examples=EXAMPLES)
    settings.load_profile("few")
    subprocess.Popen = RememberedPopen  # type: ignore[misc]
    # Tracebacks with all local variables, drawn in frames, took a fifth of the time of the suite.
    structlog.dev.ConsoleRenderer.get_active().exception_formatter = structlog.dev.plain_traceback


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Of tests that try one promise at many moments, keep a few, which are others every day."""
    swept = [item for item in items if item.get_closest_marker("sweep")]
    if "sweep" in config.option.markexpr or len(swept) <= SWEPT:
        return
    kept = set(Random(os.environ[DAY]).sample([item.nodeid for item in swept], SWEPT))
    config.hook.pytest_deselected(items=[item for item in swept if item.nodeid not in kept])
    items[:] = [item for item in items if item not in swept or item.nodeid in kept]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Large libraries consist of some 400,000 objects that stay; looking at all of them at each
    collection of garbage took a third of the time of the suite.
    """
    if len(sys.modules) > Frozen.modules + MANY_MODULES:
        gc.collect()
        gc.freeze()
        Frozen.modules = len(sys.modules)


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    if item.get_closest_marker("virtual_time"):
        return {"virtual": VirtualTimeLoop}
    if item.get_closest_marker("both_loops"):
        import uvloop

        return {"asyncio": asyncio.SelectorEventLoop, "uvloop": uvloop.new_event_loop}
    return {"asyncio": asyncio.SelectorEventLoop}


@pytest.fixture(scope="session", autouse=True)
def one_template(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    """In a session with slow tests, the workers of all that they start are forked from one
    template: each of its own would take several seconds of a core to import torch."""
    if not any(item.get_closest_marker("slow") for item in request.session.items):
        yield
        return
    from spotlight.running.worker_template import VARIABLE
    from tests.worker_templates import shared_template

    with shared_template(tmp_path_factory.mktemp("template")) as address:
        os.environ[VARIABLE] = address
        yield
        del os.environ[VARIABLE]


@pytest.fixture(autouse=True)
def logs_are_set_up_as_before() -> Iterator[None]:
    """A program that uses Spotlight as a library has its logs elsewhere; the next test has not.
    To write what is told for debugging took a third of the time of a simulated job."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.INFO))
    yield
    structlog.reset_defaults()


@pytest.fixture(autouse=True)
def leaves_nothing_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test that leaves tasks, threads, child processes or shared memory."""
    threads, children, segments = _threads(), running_children(), memory_segments()
    if inspect.iscoroutinefunction(getattr(request, "function", None)):
        request.getfixturevalue("leaves_no_task")
    yield
    deadline = time.monotonic() + ENDED_S
    leaked = {
        "threads": [str(thread) for thread in _remaining(_threads, threads, deadline)],
        "child processes": [
            _end(child) for child in _remaining(running_children, children, deadline)
        ],
        "shared memory": [path.name for path in _remaining(memory_segments, segments, deadline)],
    }
    found = {kind: names for kind, names in leaked.items() if names}
    assert not found, f"the test left behind {found}"


@pytest.fixture
async def leaves_no_task() -> AsyncIterator[None]:
    """Fail an async test that leaves a task on its loop."""
    yield
    for _ in range(10):
        await asyncio.sleep(0)
    leaked = asyncio.all_tasks() - {asyncio.current_task()}
    assert not leaked, f"the test left tasks behind: {leaked}"


def _can_hold_tests(folder: Path) -> bool:
    """Whether temporary folders may be there: every entry of a journal is synced, which took half
    of the time of the suite where it was to a disk.
    """
    if not os.access(folder, os.W_OK):
        return False
    space = os.statvfs(folder)
    return space.f_bavail * space.f_frsize >= ENOUGH_SPACE and not space.f_flag & os.ST_NOEXEC


def _remaining(look: Callable[[], set[Any]], before: set[Any], deadline: float) -> set[Any]:
    """What is new, after giving it until the deadline to end."""
    while (new := look() - before) and time.monotonic() < deadline:
        time.sleep(0.02)
    return new


def _threads() -> set[threading.Thread]:
    return {
        thread
        for thread in threading.enumerate()
        if not thread.name.startswith(ALLOWED_THREADS)
        and not type(thread).__name__.startswith(ALLOWED_THREADS)
    }


def running_children() -> set[psutil.Process]:
    """Processes below this one, without those that libraries keep."""
    children: set[psutil.Process] = set()
    if not _has_children():
        return children
    for child in psutil.Process().children(recursive=True):
        try:
            command = " ".join(child.cmdline())
            if child.status() == psutil.STATUS_ZOMBIE and not command:
                continue
        except psutil.NoSuchProcess:
            continue
        if not any(allowed in command for allowed in ALLOWED_CHILDREN):
            children.add(child)
            OURS.add(child.pid)
    return children


def _has_children() -> bool:
    """Asks the kernel, since psutil looks at all processes of the machine."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _end(child: psutil.Process) -> str:
    try:
        name = f"{child.pid} {' '.join(child.cmdline())}"
        child.kill()
    except psutil.NoSuchProcess:
        return f"{child.pid}, which ended meanwhile"
    return name


def memory_segments() -> set[Path]:
    """Folders in shared memory of our processes; they are named `spotlight-PID-...`."""
    if not SHARED_MEMORY.exists():
        return set()
    ours = {str(pid) for pid in OURS}
    return {path for path in SHARED_MEMORY.glob("spotlight-*-*") if path.name.split("-")[1] in ours}
