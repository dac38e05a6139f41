"""What rewards that are models of transformers have in common: where they come from, and where
they compute."""

from __future__ import annotations

from typing import Any

from spotlight.jobs.clip_rewards import ClipSpec
from spotlight.jobs.hub_names import HubName


def named(name: str) -> dict[str, str]:
    """A folder or a name of the hub, as transformers takes it."""
    on_hub = HubName.parse(name)
    if on_hub is None:
        return {"pretrained_model_name_or_path": name}
    return {"pretrained_model_name_or_path": on_hub.repository, "revision": on_hub.revision}


def device_of(torch: Any, spec: ClipSpec) -> Any:
    """The device of the model: `torch` has it."""
    is_there = spec.device == "accelerator" and torch.accelerator.is_available()
    return torch.accelerator.current_accelerator() if is_there else torch.device("cpu")
