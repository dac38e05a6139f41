"""Names and shapes of the weights that are trained: what a publication must hold."""

from __future__ import annotations

from spotlight.assets import resolve_checkpoint
from spotlight.jobs import ModelSpec
from spotlight.preflight.weights_facts import Shape, read_weights

_ADAPTER = "default"
"""The name that peft gives to the only adapter."""


def trainable_shapes(model: ModelSpec) -> dict[str, Shape]:
    """Of each tensor that a job with this model trains, by its name in the transformer: all of them
    with `full`, with `lora` the two factors of every adapted layer, [rank, inputs] and [outputs,
    rank]. Raises `CheckpointError`.
    """
    shapes = read_weights(resolve_checkpoint(model.checkpoint) / "transformer")
    if model.tuning == "full":
        return shapes
    rank, found = model.lora.rank, dict[str, Shape]()
    for name, shape in shapes.items():
        layer = name.removesuffix(".weight")
        adapted = any(f".{layer}".endswith(f".{target}") for target in model.lora.targets)
        if layer != name and adapted and len(shape) == 2:
            rows, columns = shape
            found[f"{layer}.lora_A.{_ADAPTER}.weight"] = (rank, columns)
            found[f"{layer}.lora_B.{_ADAPTER}.weight"] = (rows, rank)
    return found
