"""A member refuses commits that it cannot go on from, with why; `test_commit_bundles` has all of
them."""

from __future__ import annotations

from typing import Any

import pytest
from member_commits_kit import *  # noqa: F403  (its fixtures)
from member_kit import STEPS, Gate, Tensors, Worker, wanted
from msgspec.structs import replace

from spotlight.actors.protocol.up import Completed, LeaseFailed
from spotlight.types import Commit, Request


@pytest.fixture
async def interrupted(
    workers: tuple[Worker, Worker], gate: Gate
) -> tuple[Worker, tuple[Request, ...], tuple[Commit, ...]]:
    """A member, and two requests with the commits of another one."""
    first, second = workers
    await gate.run(first, wanted(1, 2), 2)
    gate.open()
    commits = tuple(Commit(2, first.committed(2), row) for row in range(2))
    return second, wanted(1, 2), commits


async def refusal(
    worker: Worker, requests: tuple[Request, ...], commits: tuple[Commit | None, ...]
) -> str:
    worker.denoise(requests, commits)
    (answer,) = await worker.hears(1)
    assert isinstance(answer, LeaseFailed), answer
    assert answer.what == "commits"
    return answer.error


async def test_a_refusal_says_why(interrupted: Any) -> None:
    worker, (first, _), (commit, _) = interrupted
    reason = await refusal(worker, (replace(first, seed=99),), (commit,))
    assert f"is of seed {first.seed}, not of 99" in reason


async def test_a_commit_whose_bundle_is_gone_is_refused(interrupted: Any) -> None:
    worker, requests, commits = interrupted
    gone = replace(commits[0], bundle=replace(commits[0].bundle, key="gone"))
    assert "CommitRefused" in await refusal(worker, requests[:1], (gone,))


async def test_those_whose_bundle_is_there_are_not_refused(interrupted: Any) -> None:
    worker, requests, commits = interrupted
    gone = replace(commits[1], bundle=replace(commits[1].bundle, key="gone"))
    await refusal(worker, requests, (commits[0], gone))
    assert worker.leader.last(LeaseFailed).failed == (requests[1].id,)


async def test_a_commit_made_with_other_weights_of_the_same_version_is_refused(
    interrupted: Any, weights: Tensors
) -> None:
    worker, requests, commits = interrupted
    await worker.hold({name: tensor * 1.01 for name, tensor in weights.items()})
    assert "other weights" in await refusal(worker, requests, commits)


async def test_a_commit_for_only_some_is_refused_and_the_same_request_is_done_from_its_first_step(
    interrupted: Any,
) -> None:
    worker, requests, commits = interrupted
    assert "with and without" in await refusal(worker, requests, (commits[0], None))
    worker.leader.inbox.clear()
    worker.denoise(requests)
    await worker.done()
    assert worker.leader.last(Completed).steps == STEPS
