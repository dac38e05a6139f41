"""Names and shapes of the weights that are trained: what a publication must hold."""

from __future__ import annotations

from spotlight.diffusion.checkpoint_files import Shape
from spotlight.diffusion.checkpoint_names import find_description
from spotlight.diffusion.families.registry import open_transformers
from spotlight.jobs import ModelSpec

_ADAPTER = "default"
"""The name that peft gives to the only adapter."""


def trainable_shapes(model: ModelSpec) -> dict[str, Shape]:
    """Of each tensor that a job with this model trains, by its name in the model: all of them with
    `full`, with `lora` the two factors of every adapted layer, [rank, inputs] and [outputs,
    rank]. Raises `CheckpointError`.
    """
    family, folder = open_transformers(find_description(model.checkpoint))
    shapes = folder.transformer_shapes()
    if model.tuning == "full":
        return {name: shape for name, shape in shapes.items() if name not in family.untrained}
    targets = family.targets(model.lora)
    rank, found = model.lora.rank, dict[str, Shape]()
    for name, shape in shapes.items():
        layer = name.removesuffix(".weight")
        adapted = any(f".{layer}".endswith(f".{target}") for target in targets)
        if layer != name and adapted and len(shape) == 2:
            rows, columns = shape
            found[f"{layer}.lora_A.{_ADAPTER}.weight"] = (rank, columns)
            found[f"{layer}.lora_B.{_ADAPTER}.weight"] = (rows, rank)
    return found
