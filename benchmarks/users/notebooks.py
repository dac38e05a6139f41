"""Notebooks, and other programs whose event loop runs already; the README's loop of one's own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from jupyter_client.manager import KernelManager

from benchmarks.users.case import ROOT, case, require
from benchmarks.users.waiting import LIMIT_S, until

_ROLLOUTS = """
from spotlight import BlockingRollouts, ModelSpec, RolloutRequest, load_model
spec = ModelSpec(checkpoint="builtin:ocr-tiny")
sampler = {"height": 16, "width": 48, "steps": 2}
with BlockingRollouts.local(model=spec, sampler=sampler) as rollouts:
    rollouts.publish(load_model(spec).transformer.state_dict(), 0)
    for group in rollouts.rollout([RolloutRequest('the number "1"', range(2))]):
        print(len(group.samples), "samples")
"""
_AWAITED = """
from spotlight import ModelSpec, RolloutRequest, Rollouts, load_model
spec = ModelSpec(checkpoint="builtin:ocr-tiny")
sampler = {"height": 16, "width": 48, "steps": 2}
async with Rollouts.local(model=spec, sampler=sampler) as rollouts:
    await rollouts.publish(load_model(spec).transformer.state_dict(), 0)
    async for group in rollouts.rollout([RolloutRequest('the number "1"', range(2))]):
        print(len(group.samples), "samples")
"""
_JOB = {
    "name": "small",
    "model": {"checkpoint": "builtin:ocr-tiny"},
    "prompts": {"train": "train.txt", "validation": "validation.txt", "per_iteration": 2},
    "sampler": {"height": 16, "width": 48, "steps": 2, "micro_batch": 4},
    "iterations": 1,
    "group_size": 4,
    "exploration": {"mode": "none"},
    "pools": {"spot": {"nodes": 0}},
    "validation": {"seeds": 1},
}


class _Notebook:
    """A real kernel in a folder."""

    def __init__(self, kernel: KernelManager) -> None:
        self.kernel = kernel
        self._client = kernel.client()
        self._client.start_channels()
        self._client.wait_for_ready(timeout=LIMIT_S)
        is_running = self.cell("import asyncio; print(asyncio.get_event_loop().is_running())")
        require(is_running == "True\n", f"the kernel's loop does not run: {is_running}")

    def begin(self, code: str) -> str:
        request: str = self._client.execute(code)
        return request

    def answer(self, request: str, error: str = "") -> str:
        """What a cell printed until it ended, with this error or none."""
        printed, failed = "", ""
        while True:
            message = self._client.get_iopub_msg(timeout=LIMIT_S)
            if message["parent_header"].get("msg_id") != request:
                continue
            content = message["content"]
            if message["msg_type"] == "stream":
                printed += content["text"]
            elif message["msg_type"] == "error":
                failed = content["ename"]
                printed += "\n".join(content["traceback"])
            elif content.get("execution_state") == "idle":
                require(failed == error, f"`{failed}` instead of `{error}`: {printed}")
                return printed

    def cell(self, code: str) -> str:
        return self.answer(self.begin(code))

    def close(self) -> None:
        self._client.stop_channels()


@contextmanager
def _notebook(folder: Path) -> Iterator[_Notebook]:
    for name, number in (("train", 1234), ("validation", 4321)):
        (folder / f"{name}.txt").write_text(f'the number "{number}"\nthe number "{number + 1}"\n')
    kernel = KernelManager()
    places = ("JUPYTER_RUNTIME_DIR", "JUPYTER_DATA_DIR", "IPYTHONDIR")
    kernel.start_kernel(
        cwd=str(folder),
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            **{name: str(folder / name) for name in places},
        },
    )
    notebook = _Notebook(kernel)
    try:
        yield notebook
    finally:
        notebook.close()
        kernel.shutdown_kernel()
        kernel.cleanup_resources()


@case("`BlockingRollouts` in a cell, twice")
def _blocking_rollouts(folder: Path) -> None:
    with _notebook(folder) as notebook:
        for _ in range(2):
            require("2 samples" in notebook.cell(_ROLLOUTS), "no samples")
        require(notebook.cell("print('ready')") == "ready\n", "the kernel is not ready")


@case("`Rollouts` with `await` in a cell")
def _awaited_rollouts(folder: Path) -> None:
    with _notebook(folder) as notebook:
        require("2 samples" in notebook.cell(_AWAITED), "no samples")


@case("`run_blocking` in a cell, and `await run` in the next")
def _runs_in_cells(folder: Path) -> None:
    with _notebook(folder) as notebook:
        for call in ("spotlight.run_blocking", "await spotlight.run"):
            said = notebook.cell(f"import spotlight\nprint(({call}({_JOB})).outcome)")
            require(said.endswith("finished\n"), said)


@case("`run_blocking` in a cell that the user interrupts")
def _interrupted_run(folder: Path) -> None:
    events = folder / "run" / "events.jsonl"
    job = {**_JOB, "iterations": 200}
    with _notebook(folder) as notebook:
        cell = notebook.begin(f"import spotlight\nspotlight.run_blocking({job}, run_folder='run')")
        until(lambda: events.exists() and "rollout" in events.read_text(), "the first rollout")
        notebook.kernel.interrupt_kernel()
        notebook.answer(cell, "KeyboardInterrupt")
    require("cancelled by the program" in events.read_text(), events.read_text())


@case("`run_blocking` and `BlockingRollouts` where a loop runs already", quick=True)
def _calls_within_a_loop(folder: Path) -> None:
    program = """
import asyncio, spotlight

async def main():
    try:
        spotlight.run_blocking("absent.yaml")
    except spotlight.UserError as error:
        print("run:", error)
    rollouts = spotlight.BlockingRollouts.local(model="absent", sampler={})
    try:
        with rollouts:
            pass
    except spotlight.UserError as error:
        print("rollouts:", error)

asyncio.run(main())
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    lines = done.stdout.splitlines()
    require(done.returncode == 0 and not done.stderr, done.stderr)
    require([line.partition(":")[0] for line in lines] == ["run", "rollouts"], done.stdout)


@case("the README's loop of one's own: its rewards rise")
def _own_loop(folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "own_loop.py")],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    require(done.returncode == 0, done.stderr)
    rewards = [float(line.split()[-1]) for line in done.stdout.splitlines()]
    require(len(rewards) == 3 and rewards[0] < rewards[2], done.stdout)


@case("the README's loop of one's own in a cell")
def _own_loop_in_a_cell(folder: Path) -> None:
    program = (ROOT / "examples" / "own_loop.py").read_text(encoding="utf-8")
    with _notebook(folder) as notebook:
        said = notebook.cell(program)
    lines = [line for line in said.splitlines() if line.startswith("step")]
    require(len(lines) == 3, said)
