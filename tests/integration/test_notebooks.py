"""The blocking calls in a real notebook kernel, whose event loop runs while a cell does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("ipykernel")

from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager

from tests.integration.conftest import LIMIT_S, Workplace, events, wait_for_phase

pytestmark = pytest.mark.slow  # a kernel, and whole runs


class Notebook:
    """A kernel that runs cells in a workplace."""

    def __init__(self, kernel: KernelManager, client: BlockingKernelClient) -> None:
        self.kernel = kernel
        self._client = client
        assert "True" in self.cell("import asyncio; print(asyncio.get_event_loop().is_running())")

    def cell(self, code: str, *, error: str = "ok") -> str:
        """Run a cell; returns what it printed. `error` is the name of the one that it ends with."""
        return self.answer(self.begin(code), error=error)

    def begin(self, code: str) -> str:
        """Start a cell; returns the id of the request."""
        found: str = self._client.execute(code)
        return found

    def answer(self, request: str, *, error: str = "ok") -> str:
        """What a cell printed until it ended."""
        printed = ""
        while True:
            message = self._client.get_iopub_msg(timeout=LIMIT_S)
            if message["parent_header"].get("msg_id") != request:
                continue
            content = message["content"]
            if message["msg_type"] == "stream":
                printed += content["text"]
            elif message["msg_type"] == "error":
                assert content["ename"] == error, "\n".join(content["traceback"])
                error = "ok"
            elif content.get("execution_state") == "idle":
                assert error == "ok", f"no {error}: {printed}"
                return printed


@pytest.fixture
def notebook(
    workplace: Workplace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Notebook]:
    for variable in ("JUPYTER_RUNTIME_DIR", "JUPYTER_DATA_DIR", "IPYTHONDIR"):
        monkeypatch.setenv(variable, str(tmp_path / variable))
    kernel = KernelManager()
    kernel.start_kernel(cwd=str(workplace.folder))
    client = kernel.client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=LIMIT_S)
        yield Notebook(kernel, client)
    finally:
        client.stop_channels()
        kernel.shutdown_kernel()
        kernel.cleanup_resources()


def test_a_cell_runs_a_job_to_its_end(workplace: Workplace, notebook: Notebook) -> None:
    job = workplace.job(iterations=1)
    said = notebook.cell(
        f"import spotlight\nprint(spotlight.run_blocking({str(job)!r}, run_folder='run').outcome)"
    )
    assert said.splitlines()[-1] == "finished"


def test_a_cell_that_is_interrupted_cancels_its_job(
    workplace: Workplace, notebook: Notebook
) -> None:
    job = workplace.job(iterations=50)
    cell = notebook.begin(
        f"import spotlight\nspotlight.run_blocking({str(job)!r}, run_folder='run')"
    )
    wait_for_phase(workplace.folder / "run", "rollout", 0)

    notebook.kernel.interrupt_kernel()
    notebook.answer(cell, error="KeyboardInterrupt")

    (finished,) = events(workplace.folder / "run", "run_finished")
    assert finished["reason"] == "cancelled by the program that ran it"
    assert notebook.cell("print('ready')") == "ready\n"


def test_rollouts_in_a_cell_are_made_and_end_with_their_context(notebook: Notebook) -> None:
    said = notebook.cell(
        "from spotlight import BlockingRollouts, ModelSpec, RolloutRequest, load_model\n"
        "spec = ModelSpec(checkpoint='builtin:ocr-tiny')\n"
        "sampler = {'height': 16, 'width': 48, 'steps': 2}\n"
        "with BlockingRollouts.local(model=spec, sampler=sampler) as rollouts:\n"
        "    rollouts.publish(load_model(spec).transformer.state_dict(), 0)\n"
        "    for group in rollouts.rollout([RolloutRequest('the number \"1\"', range(2))]):\n"
        "        print(len(group.samples))"
    )
    assert said.splitlines()[-1] == "2"  # tqdm may say something first
