"""Real processes: a coordinator, a node and its workers, used by loops of the tests' own."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import structlog
import torch

from spotlight import (
    AtLeast,
    BlockingRollouts,
    JobError,
    ModelSpec,
    RolloutRequest,
    Rollouts,
    UserError,
    WeightsRefused,
)
from spotlight.diffusion.checkpoints import load_model
from spotlight.diffusion.samplers import start
from spotlight.errors import ActorError
from spotlight.join_token import SECRET_BYTES, JoinToken
from spotlight.transport.control.keys import KeyPair
from spotlight.types import Request, SamplingSettings
from tests.conftest import running_children

SPEC = ModelSpec(checkpoint="builtin:ocr-tiny")
SAMPLER = {"height": 16, "width": 48, "steps": 4, "micro_batch": 4}
PROMPTS = [f'the number "{number}"' for number in (1234, 5678)]
EXAMPLE = Path(__file__).parents[2] / "examples" / "own_loop.py"
PNG = b"\x89PNG"

pytestmark = pytest.mark.timeout(240)


@pytest.fixture(autouse=True)
def nobody_has_set_up_logs() -> None:
    """As in a program that uses Spotlight as a library, which then prints nothing."""
    structlog.reset_defaults()


def workers() -> list[psutil.Process]:
    """Processes below this one that run Spotlight's daemons or what they started; a template that
    stays is none of them."""
    found = []
    for child in running_children():
        with suppress(psutil.NoSuchProcess):
            words = " ".join(child.cmdline())
            if "spotlight" in words and "fork_template" not in words:
                found.append(child)
    return found


async def test_a_loop_of_ones_own(capfd: pytest.CaptureFixture[str]) -> None:
    model = load_model(SPEC)
    noisy = {name: tensor + 0.01 for name, tensor in model.transformer.state_dict().items()}
    requests = [RolloutRequest(prompt, range(4), images=True) for prompt in PROMPTS]
    async with Rollouts.local(
        workers=2, model=SPEC, sampler=SAMPLER, rewards=[{"kind": "ocr"}]
    ) as rollouts:
        with pytest.raises(WeightsRefused):
            await rollouts.publish({"img_in.weight": torch.zeros(1)}, 0)
        found = []
        for version, state in ((0, model.transformer.state_dict()), (1, noisy)):
            await rollouts.publish(state, version)
            groups = [group async for group in rollouts.rollout(requests)]
            found.append(sorted(groups, key=lambda group: group.index))
        first, second = found
        assert [group.policy_version for group in (*first, *second)] == [0, 0, 1, 1]
        for group in first:
            assert [sample.seed for sample in group.samples] == [0, 1, 2, 3]
            assert all(0.0 <= (sample.reward or 0.0) <= 1.0 for sample in group.samples)
            assert all(sample.image and sample.image.startswith(PNG) for sample in group.samples)
            expected = denoised(group.request)
            latents = torch.stack([sample.latents for sample in group.samples])  # type: ignore[misc]
            torch.testing.assert_close(latents, expected, rtol=0, atol=2e-5)
        assert not torch.equal(first[0].samples[0].latents, second[0].samples[0].latents)  # type: ignore[arg-type]

        exploration = rollouts.explore(PROMPTS, keep=2, candidates=8, version=AtLeast(1))
        await exploration.wait()
        assert [explored.previewed for explored in await exploration.stop()] == [8, 8]
        usage = await rollouts.usage()
        assert (usage.samples, usage.previews) == (16, 16)
        assert (await rollouts.capacity()).workers == 2
        stream = rollouts.rollout([RolloutRequest(p, range(64)) for p in PROMPTS])
    assert stream is not None, "left in the middle"
    assert workers() == []
    assert capfd.readouterr() == ("", "")


def denoised(request: RolloutRequest) -> torch.Tensor:
    """The same samples, made in this process."""
    settings = SamplingSettings(
        kind="ode",
        steps=SAMPLER["steps"],
        height=SAMPLER["height"],
        width=SAMPLER["width"],
        micro_batch=4,
    )
    rows = [
        Request(str(seed), "rollout", 0, 0, request.prompt, seed, 0, settings)
        for seed in request.seeds
    ]
    prompts, seeds = [row.prompt for row in rows], [row.seed for row in rows]
    denoising = start(load_model(SPEC), prompts, seeds, rows[0].settings)
    while not denoising.done:
        denoising.step()
    return denoising.progress().latents


@pytest.mark.slow
async def test_a_killed_coordinator_and_a_killed_worker_cost_no_group() -> None:
    model = load_model(SPEC)
    requests = [RolloutRequest(prompt, range(32)) for prompt in PROMPTS * 4]
    async with Rollouts.local(workers=2, model=SPEC, sampler=SAMPLER) as rollouts:
        await rollouts.publish(model.transformer.state_dict(), 0)
        stream = rollouts.rollout(requests)
        groups = [await anext(stream)]
        for name in ("spotlight.actors.worker", "coordinator()"):
            kill(name)
            await asyncio.sleep(0.5)
        groups += [group async for group in stream]
        assert sorted(group.index for group in groups) == list(range(8))
        assert all(len(group.samples) == 32 and not group.failed for group in groups)
        assert {sample.reward for group in groups for sample in group.samples} == {None}
    assert workers() == []


def kill(name: str) -> None:
    """One process below this one that bears it in its command line, or else the last of them."""
    named = [each for each in workers() if name in " ".join(each.cmdline())]
    (named or workers())[-1].kill()


@pytest.mark.slow
def test_the_example_runs_as_it_is_printed() -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLE)], capture_output=True, text=True, timeout=200, check=False
    )
    lines = done.stdout.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["step 0", "step 1", "step 2"]
    assert (done.returncode, done.stderr) == (0, "")
    rewards = [float(line.split()[-1]) for line in lines]
    assert rewards[0] < rewards[-1]
    assert len(EXAMPLE.read_text(encoding="utf-8").splitlines()) <= 30


@pytest.mark.slow
def test_it_is_called_as_a_pipeline_of_diffusers() -> None:
    from spotlight.rollouts.pipeline import RolloutPipeline

    model = load_model(SPEC)
    with BlockingRollouts.local(model=SPEC, sampler=SAMPLER) as rollouts:
        rollouts.publish(model.transformer.state_dict(), 0)
        pipeline = RolloutPipeline(rollouts)

        def images(output_type: Any) -> Any:
            generator = torch.Generator().manual_seed(3)
            options = {"num_images_per_prompt": 2, "generator": generator}
            return pipeline(PROMPTS, output_type=output_type, **options).images

        pictures, pixels, latents = images("pil"), images("np"), images("latent")
        assert [picture.size for picture in pictures] == [(48, 16)] * 4
        assert pixels.shape == (4, 16, 48, 3) and 0.0 <= pixels.min() < pixels.max() <= 1.0
        np.testing.assert_array_equal(
            pixels, np.stack([np.asarray(p) / np.float32(255) for p in pictures])
        )
        decoded = model.decode(latents, 16, 48)
        np.testing.assert_array_equal(decoded, np.stack([np.asarray(p) for p in pictures]))
        with pytest.raises(JobError, match="generator: there are 1 for 2 images"):
            pipeline(PROMPTS, generator=[torch.Generator()])


@pytest.mark.slow
def test_the_blocking_twin_can_be_left_in_the_middle() -> None:
    model = load_model(SPEC)
    with BlockingRollouts.local(model=SPEC, sampler=SAMPLER, tensors=False) as rollouts:
        rollouts.publish(model.transformer.state_dict(), 0)
        groups = rollouts.rollout([RolloutRequest(prompt, range(64)) for prompt in PROMPTS * 8])
        group = next(groups)
        assert group.samples[0].latents is None
        assert rollouts.newest_version == 0
    assert workers() == []


async def test_a_coordinator_that_is_not_there_is_said() -> None:
    nobody = JoinToken("127.0.0.1:9", KeyPair.new().public, "nobody", bytes(SECRET_BYTES))
    with pytest.raises(ActorError, match=r"127\.0\.0\.1:9"):
        async with Rollouts.connect(str(nobody), model=SPEC, sampler=SAMPLER):
            pass


async def test_what_is_no_join_token_is_said() -> None:
    with pytest.raises(UserError, match="join: this is no join token"):
        async with Rollouts.connect("10.0.0.1:7070", model=SPEC, sampler=SAMPLER):
            pass


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        ({"workers": 0}, "workers: must be at least 1"),
        ({"sampler": {"height": 16}}, "sampler.width: is missing"),
        ({"sampler": {**SAMPLER, "stepz": 4}}, "sampler.stepz: unknown key; did you mean `steps`"),
        ({"rewards": [{"kind": "orc"}]}, "rewards"),
    ],
)
async def test_what_cannot_be_done_is_said_before_any_process_starts(
    wrong: dict[str, object], problem: str
) -> None:
    with pytest.raises(JobError, match=problem):
        async with Rollouts.local(**{"model": SPEC, "sampler": SAMPLER, **wrong}):  # type: ignore[arg-type]
            pass
    assert workers() == []


async def test_a_store_that_is_not_there_is_refused_before_any_process_starts(
    tmp_path: Path,
) -> None:
    with pytest.raises(UserError, match=r"^store .*missing: No such file"):
        async with Rollouts.local(model=SPEC, sampler=SAMPLER, store=tmp_path / "missing"):
            pass
    assert workers() == []
