"""The rollout replica for verl-omni: its shape, its samples, and how verl uses it under Ray."""

from __future__ import annotations

import asyncio
import inspect
import io
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import fields
from functools import partial
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from PIL import Image

from spotlight import JobError, ModelSpec, RolloutRequest, Rollouts, SpotlightError
from spotlight.diffusion.checkpoints import load_model
from spotlight.jobs import SamplerSpec
from spotlight.rollouts.groups import Failure, Group
from spotlight.rollouts.verl_replica import (
    DiffusionOutput,
    RolloutReplica,
    RolloutServer,
    WeightSender,
)
from tests.rollouts import verl_shape

SPEC = ModelSpec(checkpoint="builtin:ocr-tiny")
SIZE = {"height": 16, "width": 48}
NOISY = {
    **SIZE,
    "steps": 4,
    "kind": "flow_sde",
    "window": {"length": 2, "latest": 3},
    "micro_batch": 4,
}
PROMPT = 'the number "1234"'
IDS = list(PROMPT.encode())
PARAMS = {**SIZE, "num_inference_steps": 4, "output_type": "image", "true_cfg_scale": 1.0}


def text(prompt_ids: Any) -> str:
    return bytes(prompt_ids).decode()


def opening(rewards: Any = ()) -> Callable[[], Any]:
    return partial(Rollouts.local, model=SPEC, sampler=NOISY, rewards=rewards)


SHAPES = [
    (verl_shape.Server, RolloutServer),
    (verl_shape.Replica, RolloutReplica),
    (verl_shape.ServerAdapter, WeightSender),
]


@pytest.mark.parametrize(("shape", "ours"), SHAPES, ids=["server", "replica", "weights"])
def test_every_call_of_the_interface_fits(shape: type, ours: type) -> None:
    for name, call in vars(shape).items():
        if inspect.iscoroutinefunction(call):
            found = getattr(ours, name)
            inspect.signature(found).bind(**{**arguments_of(call), "self": None})
            assert inspect.iscoroutinefunction(found)


def test_replicas_and_senders_of_weights_are_made_as_verl_makes_them() -> None:
    replica = partial(RolloutReplica, opening(), text)
    for shape, ours in ((verl_shape.Replica, replica), (verl_shape.ServerAdapter, WeightSender)):
        made = ours(**{**arguments_of(shape.__init__), "replica_rank": 0})
        for name in vars(shape).get("__annotations__", {}):
            assert hasattr(made, name)
    assert (made := replica(replica_rank=0, config=None, model_config=None)).workers == []
    assert (made._server_address, made._server_handle) == (made.server_address, None)


def arguments_of(call: Callable[..., Any]) -> dict[str, None]:
    """By name; not those that it takes any number of."""
    parameters = [
        each for each in inspect.signature(call).parameters.values() if each.name != "self"
    ]
    return {each.name: None for each in parameters if each.kind is not each.VAR_KEYWORD}


def test_a_sample_is_told_in_the_fields_of_the_interface() -> None:
    assert tuple(each.name for each in fields(DiffusionOutput)) == verl_shape.OUTPUT_FIELDS


def test_a_second_replica_is_refused() -> None:
    with pytest.raises(JobError, match="Spotlight is one replica"):
        RolloutReplica(opening(), text, replica_rank=1, config=None, model_config=None)


class StandIn:
    """Stands for `Rollouts`: groups come when the test says so."""

    newest_version = 3

    def __init__(self, group: Callable[[RolloutRequest], Group] | None) -> None:
        self.group = group
        self.dropped = 0
        self.was_asked = asyncio.Event()
        self.asked: list[RolloutRequest] = []
        self.sampler = msgspec.convert(NOISY, SamplerSpec)

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Any]:
        yield self

    @asynccontextmanager
    async def rollout(self, requests: list[RolloutRequest]) -> AsyncIterator[Any]:
        self.asked += requests
        self.was_asked.set()
        try:
            yield self.groups(requests)
        finally:
            self.dropped += 1

    async def groups(self, requests: list[RolloutRequest]) -> AsyncIterator[Group]:
        if self.group is None:
            await asyncio.Event().wait()
        else:
            yield self.group(requests[0])


def server(group: Callable[[RolloutRequest], Group] | None = None) -> tuple[RolloutServer, StandIn]:
    rollouts = StandIn(group)
    return RolloutServer(rollouts.open, text), rollouts


async def test_an_aborted_sample_is_dropped_and_told_with_the_version_that_there_is() -> None:
    ours, rollouts = server()
    waiting = asyncio.create_task(ours.generate(IDS, PARAMS, "first"))
    await rollouts.was_asked.wait()
    assert await ours.abort_request("other") == {"aborted": False, "request_id": "other"}
    assert (await ours.abort_all_requests())["aborted_count"] == 0
    assert await ours.abort_request("first") == {"aborted": True, "request_id": "first"}
    output = await waiting
    assert (output.stop_reason, output.extra_fields) == ("aborted", {"global_steps": 3})
    assert output.diffusion_output.numel() == 0 and rollouts.dropped == 1


async def test_a_sample_that_cannot_be_made_is_an_error_with_its_reason() -> None:
    ours, _ = server(lambda asked: Group(asked, 0, 3, (), (Failure(7, "no scorer answers"),)))
    with pytest.raises(SpotlightError, match='seed 7 of `the number "1234"`: no scorer answers'):
        await ours.generate(IDS, {**PARAMS, "seed": 7}, "first")


async def test_without_a_seed_the_id_of_the_request_decides() -> None:
    ours, rollouts = server(lambda asked: Group(asked, 0, 3, (), (Failure(0, "none"),)))
    for request_id in ("a", "b", "a"):
        with pytest.raises(SpotlightError):
            await ours.generate(IDS, PARAMS, request_id)
    first, second, again = (asked.seeds for asked in rollouts.asked)
    assert first == again != second


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"height": 512}, "sampling_params.height: is 512, but the session's sampler has 16"),
        ({"num_frames": 81}, "sampling_params.num_frames: is 81"),
        ({"true_cfg_scale": 4.0}, "sampling_params.true_cfg_scale: is 4.0"),
        ({"logprobs": True, "sde_type": "cps"}, "sde_type: is cps, but .* has sde"),
        ({"logprobs": True, "noise_level": 1.0}, "noise_level: is 1.0, but .* has 0.7"),
        ({"logprobs": True, "sde_window_size": 3}, "sde_window_size: is 3, but .* has 2"),
    ],
)
async def test_what_the_session_does_otherwise_is_refused(
    changes: dict[str, Any], problem: str
) -> None:
    ours, rollouts = server()
    with pytest.raises(JobError, match=problem):
        await ours.generate(IDS, {**PARAMS, **changes}, "first")
    assert not rollouts.asked


async def test_inputs_besides_text_are_refused() -> None:
    ours, _ = server()
    with pytest.raises(JobError, match="image_data: must be absent"):
        await ours.generate(IDS, PARAMS, "first", image_data=[object()])
    with pytest.raises(JobError, match=r"negative_prompt_ids: name it as .*model\.negative_prompt"):
        await ours.generate(IDS, PARAMS, "first", negative_prompt_ids=IDS)


@pytest.mark.parametrize(("rank", "is_base"), [("1", False), ("0", True)])
async def test_weights_that_are_not_to_be_published_are_taken_all_the_same(
    rank: str, is_base: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", rank)  # all ranks gather each tensor as it is taken
    sender = WeightSender(config=None, model_config=None, device_mesh=None)
    weights = iter([("a", torch.zeros(1)), ("b", torch.zeros(1))])
    peft_config = {"r": 8} if is_base else None  # the session has the base model's itself
    await sender.update_weights(
        weights, global_steps=1, peft_config=peft_config, base_sync_done=not is_base
    )
    assert list(weights) == []


async def test_weights_in_another_format_are_refused() -> None:
    sender = WeightSender(config=None, model_config=None, device_mesh=None)
    with pytest.raises(JobError, match="wire_format: must be `named_tensors`, not `delta_flush`"):
        await sender.update_weights([], wire_format="delta_flush")


@pytest.mark.slow
@pytest.mark.timeout(400)
async def test_its_samples_are_those_of_rollouts() -> None:
    ours = RolloutServer(opening([{"kind": "ocr"}]), text, lambda sample: {"prompt": sample.prompt})
    weights = load_model(SPEC).transformer.state_dict()
    await ours.update_weights(weights, 5)
    await ours.update_weights({}, 5)  # as when verl wakes it up: it has them
    seeds = [3, 4]
    pictures: list[DiffusionOutput] = []
    latents: list[DiffusionOutput] = []
    for kind, found in (("image", pictures), ("latent", latents)):
        for seed in seeds:
            params = {**PARAMS, "seed": seed, "output_type": kind, "logprobs": True}
            found.append(await ours.generate(IDS, params, f"{kind} {seed}"))
    request = RolloutRequest(PROMPT, seeds, images=True, steps=4)
    (group,) = [group async for group in ours.rollout([request])]
    for sample, picture, latent in zip(group.samples, pictures, latents, strict=True):
        pixels = np.asarray(Image.open(io.BytesIO(sample.image or b"")).convert("RGB"))
        assert picture.diffusion_output.dtype == torch.uint8
        np.testing.assert_array_equal(picture.diffusion_output.permute(1, 2, 0).numpy(), pixels)
        assert torch.equal(latent.diffusion_output, sample.latents)
        assert torch.equal(latent.log_probs, sample.log_probs) and latent.log_probs.shape == (2,)
        for output in (picture, latent):
            assert (output.stop_reason, output.num_preempted) == ("completed", 0)
            facts = output.extra_fields
            assert (facts["global_steps"], facts["seed"]) == (5, sample.seed)
            assert (facts["prompt"], facts["rewards"]) == (PROMPT, sample.rewards)
            assert torch.equal(facts["all_latents"], sample.states)
    await ours.close()
