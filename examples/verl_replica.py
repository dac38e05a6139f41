"""Registers Spotlight as a rollout replica of verl-omni, whose configuration then says
`rollout.name: spotlight`. verl imports this module when VERL_USE_EXTERNAL_MODULES names it."""

from functools import partial

from verl.workers.rollout.base import _ROLLOUT_REGISTRY
from verl.workers.rollout.replica import RolloutReplicaRegistry

from spotlight import ModelSpec, Rollouts
from spotlight.rollouts.verl_replica import RolloutReplica

SIZE = {"height": 16, "width": 48}
SPEC = ModelSpec(checkpoint="builtin:ocr-tiny")


def open_rollouts():
    """Or `Rollouts.connect`, with a join token of a coordinator."""
    return Rollouts.local(model=SPEC, sampler=SIZE)


def prompt_text(prompt_ids):
    """Or what your tokenizer decodes, without the chat template."""
    return bytes(prompt_ids).decode()


RolloutReplicaRegistry.register(
    "spotlight", lambda: partial(RolloutReplica, open_rollouts, prompt_text)
)
_ROLLOUT_REGISTRY["spotlight", "async"] = "spotlight.rollouts.verl_replica.WeightSender"
