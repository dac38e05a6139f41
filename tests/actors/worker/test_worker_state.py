"""What the actors of a worker process share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from spotlight.actors.worker.torch_engine import TorchEngine
from spotlight.actors.worker.worker_state import WorkerContext


@pytest.fixture
def context() -> Iterator[WorkerContext]:
    threads = torch.get_num_threads()
    context = WorkerContext("w", 1, "somewhere", TorchEngine().limit_threads)
    yield context
    context.close()
    torch.set_num_threads(threads)


async def test_work_is_computed_with_one_thread_unless_a_job_says_more(
    context: WorkerContext,
) -> None:
    assert await context.on_accelerator(torch.get_num_threads) == 1
    context.use_threads(3)
    assert await context.on_accelerator(torch.get_num_threads) == 3
    context.use_threads(1)
    assert await context.on_accelerator(torch.get_num_threads) == 1


async def test_a_new_thread_of_the_accelerator_computes_with_as_many(
    context: WorkerContext,
) -> None:
    context.use_threads(2)
    assert await context.on_accelerator(torch.get_num_threads) == 2
    context.abandon_accelerator()
    assert await context.on_accelerator(torch.get_num_threads) == 2
