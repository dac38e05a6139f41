"""A tiny checkpoint on disk, and jobs on it, for the tests of what is checked before a run."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

from spotlight.jobs import JobSpec

TRANSFORMER = {
    "patch_size": 4,
    "in_channels": 16,
    "out_channels": 1,
    "num_layers": 1,
    "attention_head_dim": 32,
    "num_attention_heads": 2,
    "joint_attention_dim": 32,
    "axes_dims_rope": [8, 8, 16],
}
SHAPES = {
    "img_in.weight": [64, 16],
    "txt_in.weight": [64, 32],
    "transformer_blocks.0.attn.to_q.weight": [64, 64],
    "transformer_blocks.0.attn.to_q.bias": [64],
}


def write_safetensors(path: Path, shapes: dict[str, list[int]], dtype: str = "F32") -> None:
    """A file of zeros with a safetensors header."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, shape in shapes.items():
        start, end = end, end + 4 * _product(shape)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(end))


def write_text_encoder(folder: Path, length: int = 8) -> None:
    """One that reads two words, digits and quotes."""
    config = {"dim": 32, "length": length, "words": ["the", "number"], "characters": '"0123456789'}
    (folder / "config.json").write_text(json.dumps(config))
    write_safetensors(folder / "model.safetensors", {"table": [15, 32], "positions": [length, 32]})


def _product(shape: list[int]) -> int:
    product = 1
    for size in shape:
        product *= size
    return product


MakeJob = Callable[..., JobSpec]


def edit_json(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
