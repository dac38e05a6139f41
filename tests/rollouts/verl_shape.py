"""The shape of the interface by which verl-omni uses a rollout replica, as far as it is met.

Read in github.com/verl-project/verl-omni at a1139bafffb5b9711f0a6b6edff8ecaa60bfff30
(`verl_omni/workers/rollout/{replica,diffusion_llm_server}.py`, its `vllm_rollout` and
`verl_omni/agent_loop`) and in github.com/verl-project/verl at
1dda039b9c6311889a9c9a26040677e1254814f9 (`verl/workers/rollout/{replica,base,llm_server}.py`,
`verl/workers/engine_workers.py`), and written anew: names, arguments and the order of calls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, Protocol
from uuid import uuid4

OUTPUT_FIELDS = ("diffusion_output", "log_probs", "stop_reason", "num_preempted", "extra_fields")
"""Of what a server's `generate` answers with."""


class Server(Protocol):
    """The Ray actor of a replica, called by `.remote`."""

    async def generate(
        self,
        prompt_ids: list[int],
        sampling_params: dict[str, Any],
        request_id: str,
        image_data: list[Any] | None = None,
        video_data: list[Any] | None = None,
        negative_prompt_ids: list[int] | None = None,
        extra_prompt_ids: dict[str, list[int]] | None = None,
        negative_extra_prompt_ids: dict[str, list[int]] | None = None,
        priority: int = 0,
    ) -> Any: ...

    async def abort_request(self, request_id: str) -> dict[str, Any]: ...

    async def abort_all_requests(self, reset_prefix_cache: bool = True) -> dict[str, Any]: ...


class Replica(Protocol):
    """What is made for each replica, and commanded. `_server_handle` and `_server_address` are
    read, too."""

    workers: Sequence[Any]
    server_handle: Any
    server_address: str

    def __init__(
        self, replica_rank: int, config: Any, model_config: Any, gpus_per_node: int = 8
    ) -> None: ...

    async def init_hybrid(self, worker_group: Any) -> None: ...
    async def init_standalone(self) -> None: ...
    async def wake_up(self) -> None: ...
    async def sleep(self) -> None: ...
    async def abort_all_requests(self) -> Any: ...
    async def resume_generation(self) -> None: ...
    async def clear_kv_cache(self) -> None: ...
    async def release_kv_cache(self) -> None: ...
    async def resume_kv_cache(self) -> None: ...
    async def start_profile(self, **options: Any) -> None: ...
    async def stop_profile(self) -> None: ...


class ServerAdapter(Protocol):
    """What each rank of the trainer hands weights to."""

    def __init__(self, config: Any, model_config: Any, device_mesh: Any) -> None: ...

    async def resume(self, tags: list[str]) -> None: ...
    async def release(self) -> None: ...
    async def update_weights(
        self,
        weights: Iterable[tuple[str, Any]],
        wire_format: str = "named_tensors",
        peft_config: Any = None,
        base_sync_done: bool = True,
        global_steps: int | None = None,
    ) -> None: ...


class RolloutReplicaRegistry:
    """Replicas by the names that `rollout.name` of a configuration takes."""

    loaders: ClassVar[dict[str, Callable[[], Any]]] = {}

    @classmethod
    def register(cls, name: str, loader: Callable[[], Any]) -> None:
        cls.loaders[name] = loader

    @classmethod
    def get(cls, name: str) -> Any:
        return cls.loaders[name]()


_ROLLOUT_REGISTRY: dict[tuple[str, str], str] = {}
"""By name and mode: the path of a class of `ServerAdapter`'s shape."""


async def generate(
    server: Any, prompt_ids: list[int], sampling_params: dict[str, Any], retries: int = 50
) -> Any:
    """As the client of an agent loop: again while it is aborted, and stamped with the versions."""
    versions: list[int] = []
    for _ in range(retries):
        output = await server.generate.remote(
            request_id=uuid4().hex,
            prompt_ids=prompt_ids,
            sampling_params=sampling_params,
            image_data=None,
            video_data=None,
            negative_prompt_ids=None,
            extra_prompt_ids=None,
            negative_extra_prompt_ids=None,
        )
        versions.append(output.extra_fields["global_steps"])
        if output.stop_reason not in ("aborted", "abort"):
            break
    output.extra_fields["min_global_steps"] = versions[0]
    output.extra_fields["max_global_steps"] = versions[-1]
    return output
