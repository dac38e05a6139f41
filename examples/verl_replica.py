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
    return Rollouts.local(
        model=SPEC, sampler=SIZE
    )  # or Rollouts.connect("tcp://10.0.0.1:7070", ...)


def prompt_text(prompt_ids):
    return bytes(prompt_ids).decode()  # or what your tokenizer decodes, without the chat template


RolloutReplicaRegistry.register(
    "spotlight", lambda: partial(RolloutReplica, open_rollouts, prompt_text)
)
_ROLLOUT_REGISTRY["spotlight", "async"] = "spotlight.rollouts.verl_replica.WeightSender"
