"""What a training checkpoint says of itself, in the header of its safetensors file."""

from __future__ import annotations

import json
from collections.abc import Mapping

FORMAT = "spotlight-training"
VERSION = 1
HEADER = "spotlight"
"""The name of the entry."""
UPDATES, EARLIER_UPDATES = "updates", "earlier_updates"
"""The tensors with the optimizer's updates of the run, and of those with whose moments it began."""
START, FACTOR = "start", "factor"
"""Entries of the metadata of weights that a run begins with: where they are from, and by what the
second matrix of each adapter is to be multiplied. They have one of the earlier updates, too."""


def header_text(metadata: Mapping[str, str]) -> str:
    """The entry of a checkpoint with this metadata (iteration, job, ...)."""
    header = {"format": FORMAT, "version": VERSION, "metadata": dict(metadata)}
    return json.dumps(header, sort_keys=True)
