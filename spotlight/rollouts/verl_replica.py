"""`Rollouts` as a rollout replica of verl-omni, which trains on images that replicas make.

The interface is that of verl-omni at a1139ba (`verl_omni/workers/rollout`) and of verl at 1dda039
(`verl/workers/rollout/{replica,base,llm_server}.py`), both on github.com/verl-project; neither is
imported. Three classes have its shape: the replica, which verl makes and commands; the server, a
Ray actor that agent loops ask for samples; and what the trainer hands new weights to.
"""

from __future__ import annotations

import asyncio
import hashlib
import io
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from spotlight.errors import JobError, SpotlightError
from spotlight.jobs import SamplerSpec
from spotlight.rollouts.groups import RolloutRequest, Sample
from spotlight.rollouts.publication import Kind
from spotlight.rollouts.ray_actor import RolloutActor
from spotlight.rollouts.rollouts import Rollouts

OpenRollouts = Callable[[], AbstractAsyncContextManager[Rollouts]]
PromptText = Callable[[Sequence[int]], str]
ExtraFields = Callable[[Sample], Mapping[str, Any]]

SERVER = "spotlight_server_0_0"
"""Name of the Ray actor, as verl forms it."""


@dataclass
class DiffusionOutput:
    """A sample, as verl-omni's record of this name."""

    diffusion_output: Tensor
    """Pixels [3, H, W], uint8; or latents [tokens, channels], float32; empty if it was aborted."""
    log_probs: Tensor | None = None
    """The log-probability of each noisy step, [steps], float32; where they were asked for."""
    stop_reason: str | None = None
    """`completed`, or `aborted`."""
    num_preempted: int | None = None
    """Workers that lost it before one finished it; None if that is not known."""
    extra_fields: dict[str, Any] = field(default_factory=dict)
    """`global_steps`, the weights version that made it; `seed`; `resumed_at_step`; `all_latents`
    [steps + 1, tokens, channels] of a stochastic sampler; `rewards`, where the session has any; and
    what the replica was told to add."""


class RolloutServer(RolloutActor):
    """The Ray actor that agent loops ask: one call, one sample.

    Args:
        open_rollouts: opens the session.
        prompt_text: the prompt that token ids stand for; verl sends ids, with its chat template.
        extra_fields: what the trainer wants of a sample besides, such as prompt embeddings.
    """

    def __init__(
        self,
        open_rollouts: OpenRollouts,
        prompt_text: PromptText,
        extra_fields: ExtraFields = lambda sample: {},
    ) -> None:
        super().__init__(open_rollouts)
        self._prompt_text = prompt_text
        self._extra_fields = extra_fields
        self._making: dict[asyncio.Task[Sample], str] = {}

    async def generate(
        self,
        prompt_ids: Sequence[int],
        sampling_params: Mapping[str, Any],
        request_id: str,
        image_data: Sequence[Any] | None = None,
        video_data: Sequence[Any] | None = None,
        negative_prompt_ids: Sequence[int] | None = None,
        **options: Any,
    ) -> DiffusionOutput:
        """Make a sample with the newest weights. Without a seed the request's id decides.

        Raises `JobError` for what the session does not do, and `SpotlightError` with the reason if
        the sample cannot be made: it would fail again.
        """
        if image_data or video_data:
            raise JobError("image_data", "must be absent: samples are made from text alone")
        if negative_prompt_ids is not None:
            raise JobError("negative_prompt_ids", "name it as the session's model.negative_prompt")
        rollouts = await self._session()
        _require_same(sampling_params, rollouts.sampler)
        seed = sampling_params.get("seed")
        wants_latents = sampling_params.get("output_type") == "latent"
        request = RolloutRequest(
            self._prompt_text(prompt_ids),
            (_seed(request_id) if seed is None else seed,),
            images=not wants_latents,
            steps=sampling_params.get("num_inference_steps"),
        )
        making = asyncio.create_task(self._make(request))
        self._making[making] = request_id
        try:
            await asyncio.wait((making,))
        finally:
            del self._making[making]
            making.cancel()
        if making.cancelled():
            facts = {"global_steps": rollouts.newest_version}
            return DiffusionOutput(torch.empty(0), None, "aborted", None, facts)
        sample = making.result()
        return DiffusionOutput(
            _latents(sample) if wants_latents else _pixels(sample),
            sample.log_probs if sampling_params.get("logprobs") else None,
            "completed",
            sample.attempts - 1 if sample.attempts else None,
            {**_facts(sample), **self._extra_fields(sample)},
        )

    async def abort_request(self, request_id: str) -> dict[str, Any]:
        """Drop a sample; whoever waits for it gets `aborted`."""
        found = [making for making, its_id in self._making.items() if its_id == request_id]
        for making in found:
            making.cancel()
        return {"aborted": bool(found), "request_id": request_id}

    async def abort_all_requests(self, reset_prefix_cache: bool = True) -> dict[str, Any]:
        """Nothing is thrown away: what is in work is finished with the weights that it began with,
        and says so, while new ones are published.
        """
        return {"aborted_count": 0, "request_ids": []}

    async def update_weights(
        self, weights: Mapping[str, Tensor], global_steps: int | None, kind: Kind = "full"
    ) -> None:
        """Publish the weights of a training step; those that were published before are not again,
        as when verl wakes a replica up. Without a number the next one.
        """
        newest = (await self._session()).newest_version
        version = newest + 1 if global_steps is None else global_steps
        if version != newest:
            await self.publish(weights, version, kind)

    async def _make(self, request: RolloutRequest) -> Sample:
        async with aclosing(self.rollout([request])) as groups:
            group = await anext(groups)
        for failure in group.failed:
            raise SpotlightError(f"seed {failure.seed} of `{request.prompt}`: {failure.reason}")
        return group.samples[0]


class RolloutReplica:
    """What verl makes and commands; see `RolloutServer` for the first arguments. There is one,
    whatever nodes the session has, and no GPU of Ray's is its own: waking up and sleeping do
    nothing. `functools.partial` of it with these arguments is what verl's registry is given.
    """

    def __init__(
        self,
        open_rollouts: OpenRollouts,
        prompt_text: PromptText,
        extra_fields: ExtraFields = lambda sample: {},
        *,
        replica_rank: int,
        config: Any,
        model_config: Any,
        **options: Any,
    ) -> None:
        if replica_rank:
            raise JobError(
                "rollout.tensor_model_parallel_size",
                "must be the number of all GPUs that verl counts: Spotlight is one replica",
            )
        self._arguments = (open_rollouts, prompt_text, extra_fields)
        self.replica_rank = replica_rank
        self.workers: list[Any] = []
        self.servers: list[Any] = []
        self.server_handle: Any = None
        self._server_handle: Any = None  # verl reads either name
        self.server_address = self._server_address = SERVER

    async def launch_servers(self) -> None:
        """Start the server, and open its session. Raises what keeps it from being opened."""
        import ray

        server = ray.remote(RolloutServer).options(num_cpus=0, name=SERVER)
        self.server_handle = self._server_handle = server.remote(*self._arguments)
        self.servers = [self.server_handle]
        await self.server_handle.capacity.remote()

    async def init_standalone(self, *resources: Any, **named: Any) -> None:
        """As `launch_servers`: what verl has of its own to run on is not used."""
        await self.launch_servers()

    init_hybrid = init_hybrid_colocated = init_colocated = init_standalone

    async def abort_all_requests(self) -> dict[str, Any]:
        """See `RolloutServer.abort_all_requests`."""
        found: dict[str, Any] = await self.server_handle.abort_all_requests.remote()
        return found

    async def _do_nothing(self, **options: Any) -> None:
        """Nothing is to be done."""

    wake_up = sleep = resume_generation = _do_nothing
    clear_kv_cache = release_kv_cache = resume_kv_cache = _do_nothing
    start_profile = stop_profile = _do_nothing


class WeightSender:
    """What verl's trainer hands new weights to, on every rank; the first of them publishes. It is
    for `checkpoint_engine.backend: naive`.
    """

    def __init__(self, config: Any, model_config: Any, device_mesh: Any, **options: Any) -> None:
        self._is_first = os.environ.get("RANK", "0") == "0"

    async def update_weights(
        self,
        weights: Iterable[tuple[str, Tensor]],
        *,
        global_steps: int | None = None,
        peft_config: Any = None,
        base_sync_done: bool = True,
        wire_format: str = "named_tensors",
        **options: Any,
    ) -> None:
        """Publish them; with a `peft_config` they are adapters, and those of the base model, which
        the session has, are passed over. Raises `WeightsRefused`.
        """
        if wire_format != "named_tensors":
            raise JobError("wire_format", f"must be `named_tensors`, not `{wire_format}`")
        is_wanted = self._is_first and (peft_config is None or base_sync_done)
        # Each rank takes all of them: they are gathered from all ranks as they are taken.
        state = {name: tensor.detach().cpu() for name, tensor in weights if is_wanted}
        if is_wanted:
            import ray

            kind = "full" if peft_config is None else "lora"
            await ray.get_actor(SERVER).update_weights.remote(state, global_steps, kind)

    async def resume(self, tags: Sequence[str] = ()) -> None:
        """Nothing is to be done."""

    release = resume


def _require_same(wanted: Mapping[str, Any], sampler: SamplerSpec) -> None:
    """Raises `JobError` naming what the session's sampler does otherwise."""
    ours: dict[str, Any] = {"height": sampler.height, "width": sampler.width}
    ours["num_frames"] = sampler.frames
    ours["true_cfg_scale"] = sampler.guidance
    if wanted.get("logprobs"):
        if sampler.kind == "ode":
            raise JobError("sampling_params.logprobs", "the session's sampler `ode` has none")
        ours["noise_level"] = sampler.noise_level
        ours["sde_type"] = "sde" if sampler.kind == "flow_sde" else sampler.kind
        ours["sde_window_size"] = sampler.window.length
    for name, value in ours.items():
        if wanted.get(name) not in (None, value):
            raise JobError(
                f"sampling_params.{name}",
                f"is {wanted[name]}, but the session's sampler has {value}",
            )


def _seed(request_id: str) -> int:
    digest = hashlib.blake2b(request_id.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def _facts(sample: Sample) -> dict[str, Any]:
    facts: dict[str, Any] = {"global_steps": sample.policy_version, "seed": sample.seed}
    facts["resumed_at_step"] = sample.resumed_at_step
    if sample.states is not None:
        facts["all_latents"] = sample.states
    if sample.rewards:
        facts["rewards"] = dict(sample.rewards)
    return facts


def _latents(sample: Sample) -> Tensor:
    if sample.latents is None:
        raise JobError("sampling_params.output_type", "is `latent`, but the session has no tensors")
    return sample.latents


def _pixels(sample: Sample) -> Tensor:
    image = Image.open(io.BytesIO(sample.image or b"")).convert("RGB")
    return torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous()
