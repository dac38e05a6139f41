"""Whether the model that a job names for its previews can make them for the model that it trains.

Both are read by their files alone. Previews are decoded and scored as samples are, and their
prompts are encoded once for both models: so latents and text must be alike.
"""

from __future__ import annotations

import math
from dataclasses import replace

import msgspec

from spotlight.errors import JobError
from spotlight.jobs import JobSpec
from spotlight.preflight.checkpoint_facts import CheckpointInfo, inspect_checkpoint


def with_previewer(checkpoint: CheckpointInfo, job: JobSpec) -> CheckpointInfo:
    """What a job's checkpoint says, together with that of its previews if it names one.

    Raises `CheckpointError` naming a file, and `JobError` naming both checkpoints if they do not
    fit.
    """
    spec = job.work.preview_model
    if spec is None:
        return checkpoint
    previewer = inspect_checkpoint(spec)
    problem = _misfit(previewer, checkpoint)
    if problem:
        raise JobError(
            "exploration.preview_checkpoint",
            f"`{spec.checkpoint}` cannot make previews for `{job.model.checkpoint}`: {problem}",
        )
    heads = math.gcd(checkpoint.heads, previewer.heads)  # a group shares out both
    return msgspec.structs.replace(checkpoint, previewer=previewer, heads=heads)


def _misfit(previewer: CheckpointInfo, trained: CheckpointInfo) -> str:
    """Why one cannot make previews for the other; empty if it can."""
    ours, theirs = previewer.family, trained.family
    if not ours.any_step:
        return f"it is of {ours.name}, which needs as many steps; give one of anyflow"
    parts = (ours.vae, ours.text_encoders), (theirs.vae, theirs.text_encoders)
    if parts[0] != parts[1]:
        return f"{ours.name} has another text encoder or VAE than {theirs.name}"
    if previewer.facts.conditioning != trained.facts.conditioning:
        return "their text encoders differ in width; give one for the same text encoder"
    if _latents(previewer) != _latents(trained):
        return "their latents differ in channels or size; give one for the same VAE"
    return ""


def _latents(checkpoint: CheckpointInfo) -> object:
    """What latents of both must agree in: how far positions reach is another matter."""
    return replace(checkpoint.geometry, longest_edge=None)
