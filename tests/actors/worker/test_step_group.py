"""Ranks that keep step: two in one process, each in a thread of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from job_kit import request
from msgspec.structs import replace

from spotlight.actors.worker.commit_bundles import pack_commit, unpack_commits
from spotlight.actors.worker.engine import Origin
from spotlight.actors.worker.step_group import GroupSteps, SoloSteps
from spotlight.actors.worker.torch_collective import TorchCollective
from spotlight.actors.worker.torch_model import TorchModel
from spotlight.diffusion.checkpoints import load_model
from spotlight.diffusion.model import DiffusionModel
from spotlight.diffusion.samplers import Denoising, resume, sample, start
from spotlight.diffusion.sequence_parallel import SequenceParallel
from spotlight.errors import TransportError
from spotlight.jobs import ModelSpec
from spotlight.transport.collectives import Group, listen
from spotlight.types import (
    BundleOffer,
    Commit,
    Request,
    SamplingSettings,
    StoreEndpoint,
)
from spotlight_simulation.rank_groups import init_group

LIMIT_S = 30.0
STEPS = 4
SETTINGS = SamplingSettings(
    kind="flow_sde", steps=STEPS, height=32, width=64, noise_level=0.7, window=(1, 2), micro_batch=4
)
PROMPTS, SEEDS = ('the number "1"', 'the number "22"'), (7, 8)
SECOND_ORDER = SamplingSettings(
    kind="ode", steps=6, height=32, width=64, micro_batch=4, solver="dpmpp_2m"
)


def requests(settings: SamplingSettings) -> tuple[Request, ...]:
    return tuple(
        replace(request(seed), prompt=prompt, seed=seed, settings=settings)
        for prompt, seed in zip(PROMPTS, SEEDS, strict=True)
    )


REQUESTS = requests(SETTINGS)


class Pair:
    """Rank 0 in this thread, rank 1 in another."""

    def __init__(self, models: list[DiffusionModel]) -> None:
        self.models = models
        self.thread = ThreadPoolExecutor(1, thread_name_prefix="rank 1")
        listener = listen("127.0.0.1")
        port = listener.getsockname()[1]
        joining = self.thread.submit(init_group, 1, 2, port=port, timeout_s=LIMIT_S)
        self.groups: list[Group] = [init_group(0, 2, listener=listener, timeout_s=LIMIT_S)]
        self.groups.append(joining.result(LIMIT_S))
        self.first, self.second = (
            GroupSteps(TorchCollective(group, [SequenceParallel(model.transformer)], ring=1))
            for group, model in zip(self.groups, models, strict=True)
        )

    def begin(self, settings: SamplingSettings = SETTINGS) -> Denoising:
        return start(self.models[0], PROMPTS, SEEDS, settings)

    def follow(
        self,
        run: int,
        prepare: Callable[[], None] = lambda: None,
        these: tuple[Request, ...] = REQUESTS,
    ):
        """Rank 1 takes part; the number of steps that it takes."""
        return self.thread.submit(
            lambda: self.second.follow(run, TorchModel(self.models[1]), these, prepare=prepare)
        )

    def close(self) -> None:
        for group in self.groups:
            group.close()
        self.thread.shutdown()


@pytest.fixture(scope="module")
def models() -> list[DiffusionModel]:
    return [load_model(ModelSpec(checkpoint="builtin:ocr-tiny")) for _ in range(2)]


@pytest.fixture
def pair(models: list[DiffusionModel]) -> Iterator[Pair]:
    pair = Pair(models)
    yield pair
    pair.close()


def lead(group: SoloSteps | GroupSteps, run: int, denoising: Denoising, steps: int) -> None:
    with group.lead(run):
        group.begin(denoising)
        for _ in range(steps):
            group.step(denoising)


def test_two_ranks_make_the_samples_of_one(pair: Pair) -> None:
    denoising = pair.begin()
    following = pair.follow(1)
    lead(pair.first, 1, denoising, STEPS)
    assert following.result(LIMIT_S) == STEPS
    plain = sample(pair.models[0], PROMPTS, SEEDS, SETTINGS)
    together = denoising.result()
    assert torch.allclose(together.latents, plain.latents, atol=1e-5)
    assert together.log_probs is not None
    assert plain.log_probs is not None
    assert torch.allclose(together.log_probs, plain.log_probs, atol=1e-5)


def test_a_run_goes_on_where_the_last_one_ended_in_whatever_company(pair: Pair) -> None:
    denoising = pair.begin()
    following = pair.follow(1)
    lead(pair.first, 1, denoising, 1)
    assert following.result(LIMIT_S) == 1
    lead(SoloSteps(lambda denoising: denoising.step()), 1, denoising, 1)
    denoising = resume(pair.models[0], PROMPTS, SEEDS, SETTINGS, denoising.progress())
    following = pair.follow(2)
    lead(pair.first, 2, denoising, STEPS - 2)
    assert following.result(LIMIT_S) == STEPS - 2
    plain = sample(pair.models[0], PROMPTS, SEEDS, SETTINGS)
    assert torch.allclose(denoising.result().latents, plain.latents, atol=1e-5)


@pytest.mark.parametrize("broken_after", [1, 4])
def test_a_group_goes_on_from_a_commit_of_a_solver_that_looks_back_with_the_same_bits(
    pair: Pair, broken_after: int
) -> None:
    these = requests(SECOND_ORDER)
    whole = pair.begin(SECOND_ORDER)
    following = pair.follow(1, these=these)
    lead(pair.first, 1, whole, 6)
    assert following.result(LIMIT_S) == 6

    broken = pair.begin(SECOND_ORDER)
    following = pair.follow(2, these=these)
    lead(pair.first, 2, broken, broken_after)
    following.result(LIMIT_S)
    origin = Origin("job", 0)
    data = pack_commit(origin, these, broken.progress())
    offer = BundleOffer("commit", len(data), 0, StoreEndpoint("here", 1, "", "", ""))
    commits = [Commit(broken_after, offer, row) for row in range(2)]
    shape = pair.models[0].latent_shape(32, 64)
    progress = unpack_commits(origin, these, commits, {"commit": data}, shape)
    resumed = resume(pair.models[0], PROMPTS, SEEDS, SECOND_ORDER, progress)
    following = pair.follow(3, these=these)
    lead(pair.first, 3, resumed, 6 - broken_after)
    following.result(LIMIT_S)
    assert torch.equal(resumed.result().latents, whole.result().latents)


def test_a_run_without_a_step_lets_the_others_go_unprepared(pair: Pair) -> None:
    prepared: list[bool] = []
    following = pair.follow(1, prepare=lambda: prepared.append(True))
    with pair.first.lead(1):
        pass
    assert following.result(LIMIT_S) == 0
    assert prepared == []


def test_an_error_between_steps_lets_the_others_go(pair: Pair) -> None:
    denoising = pair.begin()
    following = pair.follow(1)
    with pytest.raises(ValueError, match="of rank 0 alone"), pair.first.lead(1):
        pair.first.begin(denoising)
        pair.first.step(denoising)
        raise ValueError("of rank 0 alone")
    assert following.result(LIMIT_S) == 1
    following = pair.follow(2)
    lead(pair.first, 2, denoising, 1)
    assert following.result(LIMIT_S) == 1


def test_a_rank_that_is_in_another_run_is_an_error_that_says_so(pair: Pair) -> None:
    following = pair.follow(2)
    with pair.first.lead(1):
        pass
    with pytest.raises(TransportError, match="rank 0 leads run 1, but rank 1 is in 2"):
        following.result(LIMIT_S)


@pytest.mark.parametrize("kind", [RuntimeError, KeyError, TypeError])
def test_a_step_that_fails_on_rank_0_is_an_error_of_the_group(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, kind: type[Exception]
) -> None:
    denoising = pair.begin()
    following = pair.follow(1)

    def fail() -> None:
        raise kind("out of memory")

    monkeypatch.setattr(denoising, "step", fail)
    with pytest.raises(TransportError, match=f"on rank 0 of 2: {kind.__name__}: .*out of memory"):
        lead(pair.first, 1, denoising, 1)
    assert denoising.steps_taken == 0
    pair.groups[0].close()  # or rank 1 would wait for it
    with pytest.raises(TransportError):
        following.result(LIMIT_S)


def test_a_rank_that_waits_for_a_word_is_inside(pair: Pair) -> None:
    assert not pair.second.inside
    following = pair.follow(1)
    while not pair.second.inside:
        assert not following.done()
    with pair.first.lead(1):
        assert pair.first.inside
    following.result(LIMIT_S)
    assert not pair.first.inside
    assert not pair.second.inside


def test_a_follower_whose_rank_0_has_left_is_told_so(pair: Pair) -> None:
    following = pair.follow(1)
    pair.groups[0].close()
    with pytest.raises(TransportError):
        following.result(LIMIT_S)
    assert not pair.second.inside
