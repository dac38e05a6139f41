"""Spotlight: reinforcement-learning post-training of Diffusion Transformers on reserved and spot
GPUs.

As a library it prints nothing, handles no signals and owns no event loop. What is named here is
imported when it is first used, and only `Trainer`, `load_model` and `training_batch` load torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spotlight.actors.runtime import (
        Actor,
        ActorRef,
        ActorSystem,
        Message,
        handles,
        runtime_rights,
    )
    from spotlight.diffusion.checkpoints import load_model
    from spotlight.errors import (
        JobError,
        RequestRefused,
        SessionEnded,
        SpotlightError,
        StopJob,
        UserError,
        VersionGone,
        WeightsRefused,
    )
    from spotlight.jobs import JobSpec, ModelSpec, RewardSpec, SamplerSpec, TrainingSpec
    from spotlight.rollouts.blocking import BlockingRollouts
    from spotlight.rollouts.exploration import Exploration
    from spotlight.rollouts.groups import (
        Capacity,
        ExploredPrompt,
        Failure,
        Group,
        RolloutRequest,
        Sample,
        Usage,
    )
    from spotlight.rollouts.rollouts import Rollouts
    from spotlight.rollouts.streams import GroupStream
    from spotlight.rollouts.training_batches import training_batch
    from spotlight.rollouts.versions import AtLeast, Exactly
    from spotlight.running.run import RunSummary, run, run_blocking
    from spotlight.trackers import Callback
    from spotlight.training.trainer import Trainer
    from spotlight.transport.control import Guests, KeyPair, ZeroMQTransport

__version__ = "0.2.0.dev0"

_HOMES = {
    "Actor": "spotlight.actors.runtime",
    "ActorRef": "spotlight.actors.runtime",
    "ActorSystem": "spotlight.actors.runtime",
    "AtLeast": "spotlight.rollouts.versions",
    "BlockingRollouts": "spotlight.rollouts.blocking",
    "Callback": "spotlight.trackers",
    "Capacity": "spotlight.rollouts.groups",
    "Exactly": "spotlight.rollouts.versions",
    "Exploration": "spotlight.rollouts.exploration",
    "ExploredPrompt": "spotlight.rollouts.groups",
    "Failure": "spotlight.rollouts.groups",
    "Group": "spotlight.rollouts.groups",
    "GroupStream": "spotlight.rollouts.streams",
    "Guests": "spotlight.transport.control",
    "JobError": "spotlight.errors",
    "JobSpec": "spotlight.jobs",
    "KeyPair": "spotlight.transport.control",
    "Message": "spotlight.actors.runtime",
    "ModelSpec": "spotlight.jobs",
    "RequestRefused": "spotlight.errors",
    "RewardSpec": "spotlight.jobs",
    "RolloutRequest": "spotlight.rollouts.groups",
    "Rollouts": "spotlight.rollouts.rollouts",
    "RunSummary": "spotlight.running.run",
    "Sample": "spotlight.rollouts.groups",
    "SamplerSpec": "spotlight.jobs",
    "SessionEnded": "spotlight.errors",
    "SpotlightError": "spotlight.errors",
    "StopJob": "spotlight.errors",
    "Trainer": "spotlight.training.trainer",
    "TrainingSpec": "spotlight.jobs",
    "Usage": "spotlight.rollouts.groups",
    "UserError": "spotlight.errors",
    "VersionGone": "spotlight.errors",
    "WeightsRefused": "spotlight.errors",
    "ZeroMQTransport": "spotlight.transport.control",
    "handles": "spotlight.actors.runtime",
    "load_model": "spotlight.diffusion.checkpoints",
    "run": "spotlight.running.run",
    "run_blocking": "spotlight.running.run",
    "runtime_rights": "spotlight.actors.runtime",
    "training_batch": "spotlight.rollouts.training_batches",
}
"""Every public name, and the module that it is of."""

__all__ = [
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


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module `spotlight` has no attribute `{name}`")
    import_module("spotlight.actors.runtime.logs").log_to_the_program()
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
