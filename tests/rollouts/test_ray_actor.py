"""The Ray actor: by itself, and under real Ray."""

from __future__ import annotations

import importlib.util
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from spotlight import JobError, ModelSpec, RolloutRequest, Rollouts, SessionEnded
from spotlight.diffusion.checkpoints import load_model
from spotlight.rollouts.ray_actor import RolloutActor
from tests.rollouts.scene_processes import MARK, processes

ROOT = Path(__file__).parents[2]
SPEC = ModelSpec(checkpoint="builtin:ocr-tiny")
OPTIONS: dict[str, Any] = {
    "model": SPEC,
    "sampler": {"height": 16, "width": 48, "steps": 4, "micro_batch": 4},
    "rewards": [{"kind": "ocr"}],
}
REQUEST = RolloutRequest('the number "1234"', range(4))

pytestmark = pytest.mark.timeout(400)
with_ray = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None,
    reason='Ray is not installed: pip install ".[ray]"',
)


@pytest.mark.slow
async def test_it_rolls_out_and_explores_until_it_is_closed() -> None:
    actor = RolloutActor(partial(Rollouts.local, workers=2, **OPTIONS))
    await actor.publish(load_model(SPEC).transformer.state_dict(), 0)
    (group,) = [group async for group in actor.rollout([REQUEST])]
    for sample in group.samples:  # alone, as each is sent with all of what it is part of
        assert sample.latents is not None and sample.latents.shape == (48, 16)
        assert sample.latents.untyped_storage().nbytes() == sample.latents.nbytes
    number = await actor.explore([REQUEST.prompt], keep=2, candidates=8)
    (chosen,) = await actor.stop_exploring(number, when_complete=True)
    assert (len(chosen.seeds), chosen.previewed) == (2, 8)
    usage = await actor.usage()
    assert (usage.samples, usage.previews, await actor.newest_version()) == (4, 8, 0)
    await actor.explore([REQUEST.prompt] * 64, keep=8, candidates=64)
    await actor.close()
    await actor.close()
    with pytest.raises(SessionEnded):
        await actor.capacity()


async def test_a_session_that_cannot_be_opened_is_tried_again_at_the_next_call() -> None:
    tries = 0

    def open_rollouts() -> Any:
        nonlocal tries
        tries += 1
        return Rollouts.local(workers=0, **OPTIONS)

    actor = RolloutActor(open_rollouts)
    for _ in range(2):
        with pytest.raises(JobError, match="workers: must be at least 1"):
            await actor.capacity()
    assert tries == 2


@pytest.fixture
def scene() -> Iterator[dict[str, str]]:
    """The environment of a program under Ray; what it left behind fails the test."""
    folder = tempfile.mkdtemp(prefix="ray-")  # sockets are in it, whose paths must be short
    try:
        yield {
            **os.environ,
            MARK: folder,
            "TMPDIR": folder,
            "RAY_TMPDIR": folder,
            "RAY_AUTH_TOKEN": secrets.token_hex(32),  # else it keeps one in the home folder
            "RAY_USAGE_STATS_ENABLED": "0",
        }
        deadline = time.monotonic() + 60.0
        while (left := processes(folder)) and time.monotonic() < deadline:
            time.sleep(0.1)  # Ray's own end a little later than the program
        for process in left:
            process.kill()
        assert not left
    finally:
        shutil.rmtree(folder)


def run(environment: dict[str, str], *argv: str) -> str:
    """What a program prints that ends well."""
    done = subprocess.run(
        [sys.executable, *argv],
        capture_output=True,
        text=True,
        timeout=360,
        check=False,
        cwd=ROOT,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
@with_ray
def test_the_example_runs_under_ray(scene: dict[str, str]) -> None:
    lines = run(scene, "examples/ray_loop.py").splitlines()
    assert [line.partition(":")[0] for line in lines] == ["step 0", "step 1", "step 2"]


@pytest.mark.slow
@with_ray
@pytest.mark.parametrize("name", ["errors", "leaving", "killed", "verl"])
def test_under_ray(name: str, scene: dict[str, str]) -> None:
    scene["RAY_ENABLE_ZERO_COPY_TORCH_TENSORS"] = "1"
    run(scene, "-m", "tests.rollouts.ray_scenes", name)
