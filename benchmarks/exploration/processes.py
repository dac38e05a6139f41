"""Makes units of runs in processes, one for each core, until all are made or time is over."""

from __future__ import annotations

import math
import multiprocessing
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import islice
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path

from benchmarks.exploration.cases import Unit
from benchmarks.exploration.testbed_runs import VirtualRuns
from spotlight.errors import SpotlightError
from spotlight_simulation.chaos import scratch_folder

_FORKED = multiprocessing.get_context("forkserver")
"""What all runs need is imported once, by the server that their processes are forked from."""
_FORKED.set_forkserver_preload(["benchmarks.exploration.other_order"])
_LONGEST_RUN_S = 7200.0
_END_S = 10.0
"""The longest that a process which is told to end may take."""


@dataclass
class _Process:
    unit: Unit
    process: BaseProcess
    result: Connection
    scratch: ExitStack
    ends_by: float


def make_units(
    units: Sequence[Unit], folder: Path, *, quick: bool, ends_by: float = math.inf
) -> dict[str, str]:
    """Make what is missing of them, in this order wherever that can be; returns why units could not
    be made, by the name of their first run. Nothing is begun after `ends_by`, in seconds of
    `time.monotonic`, and what is not ready then is given up.
    """
    failed: dict[str, str] = {}
    waiting, at_work = list(units), list[_Process]()
    try:
        with _one_thread_each():
            while time.monotonic() < ends_by:
                free = len(os.sched_getaffinity(0)) - len(at_work)
                for unit in islice(_next(waiting, VirtualRuns(folder, quick=quick), failed), free):
                    at_work.append(_begin(unit, folder, quick))
                if not at_work:
                    break  # all is made, or what the others need could not be
                next_end = min(ends_by, *(one.ends_by for one in at_work))
                timeout_s = max(0.0, min(next_end - time.monotonic(), _LONGEST_RUN_S))
                done = wait([one.result for one in at_work], timeout_s)
                for one in list(at_work):
                    if one.result in done or time.monotonic() >= one.ends_by:
                        at_work.remove(one)
                        failed |= _outcome(one)
    finally:
        for one in at_work:
            _end(one)
    return failed


def _next(waiting: list[Unit], runs: VirtualRuns, failed: dict[str, str]) -> Iterator[Unit]:
    """Those that can begin, taken out of those that wait."""
    for unit in list(waiting):
        try:
            if not runs.can_begin(unit):
                continue
            is_made = all(runs.read(case) is not None for case in unit)
        except SpotlightError as error:
            failed[unit[0].name] = str(error)
            is_made = True
        waiting.remove(unit)
        if not is_made:
            yield unit


def _begin(unit: Unit, folder: Path, quick: bool) -> _Process:
    scratch = ExitStack()
    place = scratch.enter_context(scratch_folder())  # removed here, however the process ends
    result, told = _FORKED.Pipe(duplex=False)
    process = _FORKED.Process(target=_make, args=(unit, folder, place, quick, told), daemon=True)
    process.start()
    told.close()
    print(f"making {', '.join(case.name for case in unit)}", file=sys.stderr, flush=True)
    return _Process(unit, process, result, scratch, time.monotonic() + _LONGEST_RUN_S)


def _make(unit: Unit, folder: Path, scratch: Path, quick: bool, told: Connection) -> None:
    """In a process of its own."""
    import torch

    torch.set_num_threads(1)
    problem = ""
    try:
        VirtualRuns(folder, quick=quick).make(unit, scratch)
    except SpotlightError as error:
        problem = str(error)
    told.send(problem)


def _outcome(one: _Process) -> dict[str, str]:
    """Why it could not be made, if it could not."""
    try:
        problem: str = one.result.recv() if one.result.poll() else "it took too long"
        one.process.join(_END_S)
    except EOFError:
        problem = "its process ended; see what it printed"
    _end(one)
    return {one.unit[0].name: problem} if problem else {}


def _end(one: _Process) -> None:
    for stop in (one.process.terminate, one.process.kill):
        if one.process.is_alive():
            stop()
            one.process.join(_END_S)
    one.result.close()
    one.scratch.close()


@contextmanager
def _one_thread_each() -> Iterator[None]:
    """Several threads in each process would only get in each other's way."""
    before = os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ["OMP_NUM_THREADS"]
        else:
            os.environ["OMP_NUM_THREADS"] = before
