"""What `import spotlight` gives: these names, and nothing heavy."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import spotlight

NAMES = [
    "Actor",
    "ActorRef",
    "ActorSystem",
    "AtLeast",
    "BlockingRollouts",
    "Callback",
    "Capacity",
    "Exactly",
    "Exploration",
    "ExploredPrompt",
    "Failure",
    "Group",
    "GroupStream",
    "Guests",
    "JobError",
    "JobSpec",
    "KeyPair",
    "Message",
    "ModelSpec",
    "RequestRefused",
    "RewardSpec",
    "RolloutRequest",
    "Rollouts",
    "RunSummary",
    "Sample",
    "SamplerSpec",
    "SessionEnded",
    "SpotlightError",
    "StopJob",
    "Trainer",
    "TrainingSpec",
    "Usage",
    "UserError",
    "VersionGone",
    "WeightsRefused",
    "ZeroMQTransport",
    "handles",
    "load_model",
    "run",
    "run_blocking",
    "runtime_rights",
    "training_batch",
]
NEED_TORCH = {"Trainer", "load_model", "training_batch"}
HEAVY = {"torch", "diffusers", "transformers", "peft", "numpy", "onnxruntime", "wandb"}


def test_the_public_names_are_these() -> None:
    assert sorted(spotlight.__all__) == NAMES
    assert set(NAMES) <= set(dir(spotlight))
    for name in NAMES:
        assert getattr(spotlight, name).__name__ == name


def test_another_name_is_refused() -> None:
    with pytest.raises(AttributeError, match="has no attribute `walk`"):
        _ = spotlight.walk


def test_those_that_need_no_torch_load_nothing_heavy() -> None:
    code = (
        "import json, sys, spotlight;"
        f"[getattr(spotlight, name) for name in {sorted(set(NAMES) - NEED_TORCH)}];"
        "print(json.dumps(list(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert not HEAVY & set(json.loads(done.stdout))
    assert done.stderr == ""
