"""What `import spotlight` gives: these names and no others, without torch and without a word."""

from __future__ import annotations

import subprocess
import sys

import spotlight

NAMES = [
    "Actor",
    "ActorRef",
    "ActorSystem",
    "AtLeast",
    "BlockingRollouts",
    "Capacity",
    "Exactly",
    "Exploration",
    "ExploredPrompt",
    "Failure",
    "Group",
    "GroupStream",
    "JobError",
    "Message",
    "ModelSpec",
    "RequestRefused",
    "RewardSpec",
    "RolloutRequest",
    "Rollouts",
    "Sample",
    "SamplerSpec",
    "SessionEnded",
    "SpotlightError",
    "Usage",
    "UserError",
    "VersionGone",
    "WeightsRefused",
    "ZeroMQTransport",
    "handles",
]
HEAVY = ("torch", "diffusers", "transformers", "peft", "numpy", "onnxruntime", "typer", "aiohttp")


def test_these_are_the_public_names() -> None:
    assert spotlight.__all__ == NAMES
    for name in NAMES:
        assert getattr(spotlight, name).__doc__, name
    assert set(NAMES) <= set(dir(spotlight))


def test_a_name_that_there_is_not_is_an_error() -> None:
    try:
        spotlight.Rollout  # noqa: B018
    except AttributeError as error:
        assert "no attribute `Rollout`" in str(error)
    else:
        raise AssertionError("there is no such name")


def test_all_of_them_are_had_without_torch_and_without_a_word() -> None:
    script = f"""
import sys
import spotlight
for name in spotlight.__all__:
    getattr(spotlight, name)
heavy = [name for name in {HEAVY!r} if name in sys.modules]
assert not heavy, heavy
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
