"""What rewards that are models of transformers have in common: where they come from, and where
they compute."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from spotlight.diffusion.checkpoint_files import quantised, read_header
from spotlight.diffusion.hub import CONFIG
from spotlight.errors import CheckpointError
from spotlight.jobs.clip_rewards import ClipSpec
from spotlight.jobs.hub_names import HubName


def named(name: str) -> dict[str, str]:
    """A folder or a name of the hub, as transformers takes it."""
    on_hub = HubName.parse(name)
    if on_hub is None:
        return {"pretrained_model_name_or_path": name}
    return {"pretrained_model_name_or_path": on_hub.repository, "revision": on_hub.revision}


def require_plain(files: Iterable[Path]) -> None:
    """Raise the `ValueError` of quantised weights: whoever loads them makes plain numbers of them,
    without their scales, and says nothing."""
    for file in files:
        try:
            problem = quantised(read_header(file))
        except CheckpointError as error:
            raise ValueError(str(error).removeprefix("model.checkpoint: ")) from error
        if problem:
            raise ValueError(f"{file.name} {problem}")


def weights_of(name: str) -> list[Path]:
    """The files of a model's weights, in its folder or in the hub's cache, where it is by now."""
    on_hub = HubName.parse(name)
    folder = Path(name)
    if on_hub is not None:
        from huggingface_hub import hf_hub_download

        repository, revision = on_hub
        config = hf_hub_download(repository, CONFIG, revision=revision, local_files_only=True)
        folder = Path(config).parent
    return weights_in(folder)


def weights_in(folder: Path) -> list[Path]:
    """The files of weights in a folder that transformers loads: one whole one goes before parts,
    and copies in other precisions may lie beside it."""
    whole = folder / "model.safetensors"
    return [whole] if whole.is_file() else sorted(folder.glob("*.safetensors"))


def device_of(torch: Any, spec: ClipSpec) -> Any:
    """The device of the model: `torch` has it."""
    is_there = spec.device == "accelerator" and torch.accelerator.is_available()
    return torch.accelerator.current_accelerator() if is_there else torch.device("cpu")
