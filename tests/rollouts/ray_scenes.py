"""Programs under Ray, which the tests run as processes: `python -m tests.rollouts.ray_scenes NAME`.

Ray changes the process that it is imported in, so the tests themselves do not.
"""

from __future__ import annotations

import asyncio
import os
import runpy
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import ray
import torch
from ray.exceptions import RayActorError, TaskCancelledError

from spotlight import (
    JobError,
    KeyPair,
    ModelSpec,
    RequestRefused,
    RolloutRequest,
    Rollouts,
    SessionEnded,
    WeightsRefused,
)
from spotlight.diffusion.checkpoints import load_model
from spotlight.errors import ActorError
from spotlight.jobs import PoolSpec, PoolsSpec
from spotlight.join_token import SECRET_BYTES, JoinToken
from spotlight.rollouts.ray_actor import RolloutActor
from spotlight.running.local_cluster import LocalPlaces, local_cluster
from spotlight.store.memory_folder import SHARED_MEMORY
from tests.rollouts import verl_shape
from tests.rollouts.scene_processes import MARK, processes

SPEC = ModelSpec(checkpoint="builtin:ocr-tiny")
OPTIONS: dict[str, Any] = {
    "model": SPEC,
    "sampler": {"height": 16, "width": 48, "steps": 4, "micro_batch": 4},
}
LOCAL = partial(Rollouts.local, **OPTIONS)
MANY = [RolloutRequest(f'the number "{number}"', range(8)) for number in range(256)]
LIMIT_S = 100.0
"""A session whose user is gone is given up after a minute."""


def daemons_are_gone() -> bool:
    return not processes(os.environ[MARK], "spotlight.cli.daemons")


def wait_until_daemons_are_gone() -> None:
    deadline = time.monotonic() + LIMIT_S
    while not daemons_are_gone():
        assert time.monotonic() < deadline, "they end with the session"
        time.sleep(0.1)


def actor(open_rollouts: Callable[[], Any]) -> Any:
    return ray.remote(RolloutActor).remote(open_rollouts)


def error_of(reference: Any) -> Exception:
    try:
        ray.get(reference)
    except Exception as error:
        return error
    raise AssertionError("no error")


def errors() -> None:
    """Errors of every call arrive with their types and fields."""
    token = JoinToken("127.0.0.1:9", KeyPair.new().public, "nobody", bytes(SECRET_BYTES))
    nowhere = actor(partial(Rollouts.connect, str(token), **OPTIONS))
    assert isinstance(error_of(nowhere.capacity.remote()), ActorError)

    rollouts = actor(LOCAL)
    error = error_of(rollouts.publish.remote({"img_in.weight": torch.zeros(1)}, 0))
    assert isinstance(error, WeightsRefused) and "img_in" in str(error)
    error = error_of(rollouts.explore.remote(["a"], keep=1, candidates=2))
    assert isinstance(error, JobError) and error.path == "rewards"
    error = error_of(rollouts.stop_exploring.remote(7))
    assert isinstance(error, JobError) and error.problem == "7 is none that goes on"

    groups = rollouts.rollout.remote(MANY)  # which wait for weights
    ray.get(rollouts.newest_version.remote())
    ray.get(rollouts.close.remote())
    assert isinstance(error_of(next(groups)), SessionEnded)
    assert isinstance(error_of(rollouts.usage.remote()), SessionEnded)


def leaving() -> None:
    """Groups that are not wanted any more are dropped, and so is the session that nobody has."""
    weights = ray.put(load_model(SPEC).transformer.state_dict())
    rollouts = actor(LOCAL)
    ray.get(rollouts.publish.remote(weights, 0))
    groups = rollouts.rollout.remote(MANY)
    assert len(ray.get(next(groups)).samples) == 8
    ray.cancel(groups)
    while True:  # what was done before is still delivered
        try:
            ray.get(next(groups))
        except TaskCancelledError:
            break
    while ray.get(rollouts.capacity.remote()).waiting:
        time.sleep(0.1)  # the rest is dropped
    assert not daemons_are_gone()
    del rollouts, groups
    wait_until_daemons_are_gone()


def killed() -> None:
    """An actor that is killed leaves no process behind, and no session; its files in shared memory
    are removed as the next begins."""
    weights = ray.put(load_model(SPEC).transformer.state_dict())
    killed_ids: list[int] = []

    def kill_in_the_middle(rollouts: Any) -> None:
        killed_ids.append(ray.get(rollouts.__ray_call__.remote(lambda self: os.getpid())))
        ray.get(rollouts.publish.remote(weights, 0))
        groups = rollouts.rollout.remote(MANY)
        ray.get(next(groups))
        ray.kill(rollouts)
        assert isinstance(error_of(rollouts.usage.remote()), RayActorError)

    kill_in_the_middle(actor(LOCAL))
    wait_until_daemons_are_gone()

    async def on_a_cluster_that_stays() -> None:
        pools = PoolsSpec(reserved=PoolSpec(workers=1), spot=PoolSpec(nodes=0))
        with tempfile.TemporaryDirectory() as folder:
            async with local_cluster(pools, Path(folder), LocalPlaces()) as cluster:
                connect = partial(Rollouts.connect, str(cluster.join), **OPTIONS)
                await asyncio.to_thread(kill_in_the_middle, actor(connect))
                async with asyncio.timeout(LIMIT_S):
                    await begin_the_next_session(connect)

    async def begin_the_next_session(connect: Callable[[], Any]) -> None:
        while True:
            try:
                async with connect() as rollouts:
                    assert (await rollouts.capacity()).waiting == 0
                    return
            except RequestRefused:  # it still hopes for the one before
                await asyncio.sleep(0.5)

    asyncio.run(on_a_cluster_that_stays())
    assert len(killed_ids) == 2
    for pid in killed_ids:
        assert not list(SHARED_MEMORY.glob(f"spotlight-{pid}-*"))


def verl() -> None:
    """verl-omni's order of calls, on what the example registers."""
    rollout = "verl.workers.rollout"
    for name in ("verl", "verl.workers", rollout, f"{rollout}.base", f"{rollout}.replica"):
        sys.modules[name] = verl_shape
    runpy.run_path("examples/verl_replica.py")
    asyncio.run(as_verl_trains())
    wait_until_daemons_are_gone()


async def as_verl_trains() -> None:
    made_by = verl_shape.RolloutReplicaRegistry.get("spotlight")
    replica = made_by(replica_rank=0, config=None, model_config=None, gpus_per_node=1)
    await replica.init_hybrid(None)
    sender: Any = resolve_name(verl_shape._ROLLOUT_REGISTRY["spotlight", "async"])
    sender = sender(config=None, model_config=None, device_mesh=None)
    state = load_model(SPEC).transformer.state_dict()
    params = {"height": 16, "width": 48, "num_inference_steps": 4, "output_type": "image"}
    found = []
    for step in range(2):
        await sender.resume(tags=["weights"])
        weights = (  # with the prefix and the type that verl-omni's trainer gives them
            (f"transformer.{name}", (tensor + 0.01 * step).to(torch.bfloat16))
            for name, tensor in state.items()
        )
        await sender.update_weights(
            weights, peft_config=None, base_sync_done=True, global_steps=step
        )
        await replica.wake_up()
        outputs = await asyncio.gather(
            *(
                verl_shape.generate(
                    replica._server_handle, list(b'the number "12"'), {**params, "seed": seed}
                )
                for seed in range(16)
            )
        )
        await replica.sleep()
        assert {output.stop_reason for output in outputs} == {"completed"}
        for bound in ("min_global_steps", "max_global_steps"):
            assert {output.extra_fields[bound] for output in outputs} == {step}
        found.append(torch.stack([output.diffusion_output for output in outputs]))
    assert found[0].shape == (16, 3, 16, 48) and not torch.equal(*found)
    assert len(set(map(bytes, found[0].flatten(1).numpy()))) == 16, "each seed has its own"


if __name__ == "__main__":
    ray.init(num_cpus=2, object_store_memory=100 << 20, log_to_driver=False)
    scenes = {"errors": errors, "leaving": leaving, "killed": killed, "verl": verl}
    scenes[sys.argv[1]]()
