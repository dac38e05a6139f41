"""What is read of a commit's bundle before a worker goes on from it: it is of exactly the samples
that are asked for, and holds what it says; else it is refused with why."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from job_kit import SETTINGS, offer, request
from msgspec.structs import replace

from spotlight.actors.worker import commit_bundles
from spotlight.actors.worker.commit_bundles import pack_commit, unpack_commits
from spotlight.actors.worker.engine import Origin
from spotlight.diffusion.progress import Progress
from spotlight.errors import CommitRefused
from spotlight.transport.tensors.bundles import metadata_of, pack, unpack
from spotlight.types import Commit, Request

NOISY = replace(SETTINGS, kind="flow_sde", steps=5, noise_level=0.7, window=(1, 2))
ORIGIN = Origin("job", 7)
SHAPE = (3, 4)
"""Tokens and channels of one sample."""
STEP = 2
"""Steps taken; the second one is in the window."""
KEY = "commits/w0/1-1-2"
REQUESTS = tuple(replace(request(number, group=number), settings=NOISY) for number in (1, 2))
COMMITS = tuple(Commit(STEP, offer(KEY), row) for row in range(2))

Tensors = dict[str, torch.Tensor]
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
}
USES: dict[str, Callable[[Request], Request]] = {
    "a probe": lambda r: replace(r, is_probe=True),
    "in idle time": lambda r: replace(r, in_idle_time=True),
    "with a picture": lambda r: replace(r, image_key="a.png", thumbnail_key="a.webp"),
    "compared with others": lambda r: replace(r, scored_with=(1, r.seed)),
}
TENSORS: dict[str, Callable[[Tensors], Tensors]] = {
    "without latents": lambda t: {k: v for k, v in t.items() if k != "latents"},
    "with another step": lambda t: {**t, "step": torch.tensor(3)},
    "with no number as its step": lambda t: {**t, "step": torch.tensor([1, 2])},
    "with other latents": lambda t: {**t, "latents": t["latents"][:, :1]},
    "of doubles": lambda t: {**t, "latents": t["latents"].double()},
    "without its window": lambda t: {**t, "window_states": t["window_states"][:, :0]},
    "without log probabilities": lambda t: {**t, "log_probs": t["log_probs"][:, :0]},
}
METADATA = {
    "without a record": {},
    "with half a record": {"commit": '{"format": 1'},
    "of another format": {"commit": '{"format": 2}'},
}


def progress() -> Progress:
    latents = torch.arange(24.0).view(2, *SHAPE)
    states = torch.stack([latents, latents + 1], dim=1)
    return Progress(STEP, latents, states, torch.zeros(2, 1), latents.new_zeros(2, 0, *SHAPE))


@pytest.fixture
def data() -> bytes:
    """A sound bundle."""
    return pack_commit(ORIGIN, REQUESTS, progress())


def read(
    data: bytes,
    requests: tuple[Request, ...] = REQUESTS,
    commits: tuple[Commit, ...] = COMMITS,
    origin: Origin = ORIGIN,
) -> Progress:
    return unpack_commits(origin, requests, commits, {KEY: data}, SHAPE)


def test_what_was_committed_is_read_in_whatever_order_it_is_asked_for(data: bytes) -> None:
    found = read(data, REQUESTS[::-1], COMMITS[::-1])
    for name, tensor in progress().select([1, 0]).tensors().items():
        assert torch.equal(found.tensors()[name], tensor), name


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_a_commit_of_anything_else_is_refused(data: bytes, change: Change) -> None:
    first, commit = change(REQUESTS[0], COMMITS[0])
    with pytest.raises(CommitRefused, match=KEY):
        read(data, (first,), (commit,))


@pytest.mark.parametrize("used", USES.values(), ids=USES.keys())
def test_it_is_gone_on_with_whatever_the_sample_is_made_for_by_now(
    data: bytes, used: Callable[[Request], Request]
) -> None:
    """The next coordinator may choose a probe of the one before as a sample."""
    found = read(data, (used(REQUESTS[0]),), COMMITS[:1])
    assert torch.equal(found.latents, progress().select([0]).latents)


def test_a_refusal_says_which_field_is_another(data: bytes) -> None:
    seed = REQUESTS[0].seed
    with pytest.raises(CommitRefused, match=f"is of seed {seed}, not of 99"):
        read(data, (replace(REQUESTS[0], seed=99),), COMMITS[:1])


@pytest.mark.parametrize(
    ("origin", "reason"),
    [(Origin("next", 7), "is of job job, not of next"), (Origin("job", 8), "other weights")],
    ids=["another job", "other weights"],
)
def test_a_commit_of_another_origin_is_refused(data: bytes, origin: Origin, reason: str) -> None:
    with pytest.raises(CommitRefused, match=reason):
        read(data, origin=origin)


@pytest.mark.parametrize("change", TENSORS.values(), ids=TENSORS.keys())
def test_a_commit_that_does_not_hold_what_it_says_is_refused(
    data: bytes, change: Callable[[Tensors], Tensors]
) -> None:
    with pytest.raises(CommitRefused, match=KEY):
        read(pack(change(unpack(data)), metadata_of(data)))


@pytest.mark.parametrize(
    ("old", "new"),
    [('{"format"', '{"tiles":4,"format"'), ('"prompt"', '"negative":"a blur","prompt"')],
    ids=["of the commit", "of a request"],
)
def test_a_commit_with_a_field_that_is_not_known_here_is_refused(
    data: bytes, old: str, new: str
) -> None:
    """Another build left it, whose samples depend on more."""
    record = metadata_of(data)["commit"]
    assert old in record
    with pytest.raises(CommitRefused, match="unknown field"):
        read(pack(unpack(data), {"commit": record.replace(old, new)}))


@pytest.mark.parametrize("metadata", METADATA.values(), ids=METADATA.keys())
def test_a_bundle_that_does_not_say_what_it_is_is_refused(
    data: bytes, metadata: dict[str, str]
) -> None:
    with pytest.raises(CommitRefused, match="is not a commit"):
        read(pack(unpack(data), metadata))


def test_a_refusal_names_those_whose_commits_are_at_fault(data: bytes) -> None:
    other = Commit(STEP, replace(COMMITS[0].bundle, key="other"), 1)
    bundles = {KEY: data, "other": data[: len(data) // 2]}
    with pytest.raises(CommitRefused, match="other is not a commit") as refused:
        unpack_commits(ORIGIN, REQUESTS, (COMMITS[0], other), bundles, SHAPE)
    assert refused.value.rows == (1,)


def test_a_bundle_of_several_is_opened_once(data: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[bytes] = []

    def noted(data: bytes) -> Tensors:
        opened.append(data)
        return unpack(data)

    monkeypatch.setattr(commit_bundles, "unpack", noted)
    read(data)
    assert opened == [data]


def test_damaged_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(CommitRefused, match="is not a commit"):
        read(data[: len(data) // 2])


@pytest.mark.parametrize("name", ["latents", "log_probs"])
def test_nobody_goes_on_from_a_commit_that_is_not_finite(data: bytes, name: str) -> None:
    tensors = unpack(data)
    tensors[name].select(0, 1).fill_(torch.nan)
    with pytest.raises(CommitRefused, match="its latents are NaN or infinite"):
        read(pack(tensors, metadata_of(data)))
