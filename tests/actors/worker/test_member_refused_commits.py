"""A commit of anything else than what is asked for, or a damaged one, is refused with why."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from member_commits_kit import *  # noqa: F403  (its fixtures)
from member_kit import NOISY, STEPS, Gate, Tensors, Worker, wanted
from msgspec.structs import replace

from spotlight.actors.protocol import Completed, LeaseFailed
from spotlight.transport.tensors import fetch
from spotlight.transport.tensors.bundles import metadata_of, pack, unpack
from spotlight.types import Commit, Request

Change = Callable[[Request, Commit], tuple[Request, Commit]]
CHANGES: dict[str, Change] = {
    "another prompt": lambda r, c: (replace(r, prompt="else"), c),
    "another seed": lambda r, c: (replace(r, seed=99), c),
    "another id": lambda r, c: (replace(r, id="else"), c),
    "other settings": lambda r, c: (replace(r, settings=replace(NOISY, noise_level=0.1)), c),
    "another size": lambda r, c: (replace(r, settings=replace(NOISY, height=16)), c),
    "another kind": lambda r, c: (replace(r, kind="preview"), c),
    "another row": lambda r, c: (r, replace(c, row=1)),
    "a row that is not there": lambda r, c: (r, replace(c, row=2)),
    "a negative row": lambda r, c: (r, replace(c, row=-2)),
    "another step": lambda r, c: (r, replace(c, step=c.step + 1)),
    "a bundle that is gone": lambda r, c: (r, replace(c, bundle=replace(c.bundle, key="gone"))),
}


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


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
async def test_a_commit_of_anything_else_is_refused(interrupted: Any, change: Change) -> None:
    worker, requests, commits = interrupted
    changed = change(requests[0], commits[0])
    assert "CommitRefused" in await refusal(worker, changed[:1], changed[1:])


async def test_a_refusal_says_why(interrupted: Any) -> None:
    worker, (first, _), (commit, _) = interrupted
    reason = await refusal(worker, (replace(first, seed=99),), (commit,))
    assert f"is of seed {first.seed}, not of 99" in reason


async def test_a_commit_for_only_some_is_refused(interrupted: Any) -> None:
    worker, requests, commits = interrupted
    assert "with and without" in await refusal(worker, requests, (commits[0], None))


async def test_a_commit_of_another_job_is_refused(interrupted: Any, weights: Tensors) -> None:
    worker, requests, commits = interrupted
    await worker.prepare(worker.store, "next")
    await worker.hold(weights)
    assert "is of job job, not of next" in await refusal(worker, requests, commits)


async def test_a_commit_made_with_other_weights_of_the_same_version_is_refused(
    interrupted: Any, weights: Tensors
) -> None:
    worker, requests, commits = interrupted
    await worker.hold({name: tensor * 1.01 for name, tensor in weights.items()})
    assert "other weights" in await refusal(worker, requests, commits)


TENSORS: dict[str, Callable[[Tensors], Tensors]] = {
    "without latents": lambda t: {k: v for k, v in t.items() if k != "latents"},
    "with another step": lambda t: {**t, "step": torch.tensor(3)},
    "with no number as its step": lambda t: {**t, "step": torch.tensor([1, 2])},
    "with other latents": lambda t: {**t, "latents": t["latents"][:, :1]},
    "of doubles": lambda t: {**t, "latents": t["latents"].double()},
    "without its window": lambda t: {**t, "window_states": t["window_states"][:, :0]},
    "without log probabilities": lambda t: {**t, "log_probs": t["log_probs"][:, :0]},
}


@pytest.mark.parametrize("change", TENSORS.values(), ids=TENSORS.keys())
async def test_a_commit_that_does_not_hold_what_it_says_is_refused(
    interrupted: Any, change: Callable[[Tensors], Tensors]
) -> None:
    worker, requests, commits = interrupted
    data = await fetch(commits[0].bundle)
    forged = worker.store.put("forged", pack(change(unpack(data)), metadata_of(data)))
    await refusal(worker, requests, tuple(replace(c, bundle=forged) for c in commits))


@pytest.mark.parametrize(
    ("old", "new"),
    [('{"format"', '{"tiles":4,"format"'), ('"prompt"', '"negative":"a blur","prompt"')],
    ids=["of the commit", "of a request"],
)
async def test_a_commit_with_a_field_that_is_not_known_here_is_refused(
    interrupted: Any, old: str, new: str
) -> None:
    """Another build left it, whose samples depend on more."""
    worker, requests, commits = interrupted
    data = await fetch(commits[0].bundle)
    record = metadata_of(data)["commit"]
    assert old in record
    forged = worker.store.put("forged", pack(unpack(data), {"commit": record.replace(old, new)}))
    reason = await refusal(worker, requests, tuple(replace(c, bundle=forged) for c in commits))
    assert "unknown field" in reason


METADATA = {
    "without a record": {},
    "with half a record": {"commit": '{"format": 1'},
    "of another format": {"commit": '{"format": 2}'},
}


@pytest.mark.parametrize("metadata", METADATA.values(), ids=METADATA.keys())
async def test_a_bundle_that_does_not_say_what_it_is_is_refused(
    interrupted: Any, metadata: dict[str, str]
) -> None:
    worker, requests, commits = interrupted
    tensors = unpack(await fetch(commits[0].bundle))
    forged = worker.store.put("forged", pack(tensors, metadata))
    await refusal(worker, requests, tuple(replace(c, bundle=forged) for c in commits))


async def test_damaged_bytes_are_refused(interrupted: Any) -> None:
    worker, requests, commits = interrupted
    data = await fetch(commits[0].bundle)
    forged = worker.store.put("forged", data[: len(data) // 2])
    await refusal(worker, requests, tuple(replace(c, bundle=forged) for c in commits))


async def test_after_a_refusal_the_same_request_is_done_from_its_first_step(
    interrupted: Any,
) -> None:
    worker, requests, commits = interrupted
    await refusal(worker, requests, (commits[0], None))
    worker.leader.inbox.clear()
    worker.denoise(requests)
    await worker.done()
    assert worker.leader.last(Completed).steps == STEPS


@pytest.mark.parametrize("name", ["latents", "log_probs"])
async def test_nobody_goes_on_from_a_commit_that_is_not_finite(interrupted: Any, name: str) -> None:
    worker, requests, commits = interrupted
    data = await fetch(commits[0].bundle)
    tensors = unpack(data)
    tensors[name].select(0, 1).fill_(torch.nan)
    bundle = worker.store.put("commits/of-nan", pack(tensors, metadata_of(data)))
    changed = tuple(replace(commit, bundle=bundle) for commit in commits)
    assert "commits/of-nan: its latents are NaN or infinite" in await refusal(
        worker, requests, changed
    )
