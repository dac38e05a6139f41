"""Frozen weights in fewer bits: the transformer under adapters, quantised while it is loaded.

By diffusers' own configurations, whose libraries replace the linear layers. Whatever multiplies
with a matrix makes it whole in the dtype that the model computes in, so that latents, activations
and gradients stay as precise as they are without.

| kind | library | a matrix | runs on |
|---|---|---|---|
| `fp8` | torchao | float8 (e4m3), and a float32 scale a row | any device |
| `nf4` | bitsandbytes | 4 bits a number, and a float32 scale for every 64 | GPUs |
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch

from spotlight.errors import JobError, MissingDependency, how_to_install
from spotlight.types import QUANTISERS, Quantize


def quantisation(kind: Quantize, device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
    """What `from_pretrained` of diffusers must be told besides.

    Raises `MissingDependency`, and `JobError` where the device cannot do it.
    """
    if kind == "none":
        return {}
    if find_spec(QUANTISERS[kind]) is None:
        raise MissingDependency(
            f"`model.quantize: {kind}` needs {QUANTISERS[kind]}; {how_to_install('quantize')}"
        )
    if kind == "nf4" and device.type == "cpu":
        raise JobError("model.quantize", "must be `fp8` on a CPU: `nf4` needs a GPU")
    import diffusers

    if kind == "fp8":
        weights = import_module("torchao.quantization").Float8WeightOnlyConfig()
        return {"quantization_config": diffusers.TorchAoConfig(weights)}
    config = diffusers.BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=dtype
    )
    return {"quantization_config": config}
