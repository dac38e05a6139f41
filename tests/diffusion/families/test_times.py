"""A transformer in bfloat16 is told the flow time that the family's pipeline tells it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from spotlight.diffusion.checkpoints import load_model
from spotlight.diffusion.families.registry import family_of
from spotlight.diffusion.samplers import sample
from spotlight.jobs import ModelSpec
from spotlight.types import SamplingSettings
from spotlight_simulation.pipeline_comparison import MANNERS
from spotlight_simulation.text_pipelines import load_pipeline

HEIGHT, WIDTH, STEPS = 32, 64, 20


@contextmanager
def told_times(transformer: Any) -> Iterator[list[torch.Tensor]]:
    """The times of all forward passes meanwhile."""
    times: list[torch.Tensor] = []

    def note(_: Any, __: Any, named: dict[str, Any]) -> None:
        times.append(named["timestep"].flatten()[:1].clone())

    handle = transformer.register_forward_pre_hook(note, with_kwargs=True)
    try:
        yield times
    finally:
        handle.remove()


@pytest.mark.parametrize("family", ["qwen-image", "qwen-image-2.1", "sd3", "flux", "flux2-klein"])
def test_times_are_rounded_as_the_pipeline_rounds_them(
    checkpoint_of: Callable[[str], Path], family: str
) -> None:
    folder = checkpoint_of(family)
    pipeline = load_pipeline(folder, torch_dtype=torch.bfloat16)
    manner = MANNERS[family_of(folder).name]
    scale = {manner.scale: manner.unguided}
    with told_times(pipeline.transformer) as expected:
        pipeline(
            prompt="a cat",
            height=HEIGHT,
            width=WIDTH,
            num_inference_steps=STEPS,
            output_type="latent",
            **scale,
        )
    model: Any = load_model(ModelSpec(checkpoint=str(folder)), device="cpu")
    model.transformer.to(torch.bfloat16)
    with told_times(model.transformer) as told:
        sample(
            model,
            ["a cat"],
            [0],
            SamplingSettings(kind="ode", steps=STEPS, height=HEIGHT, width=WIDTH, micro_batch=1),
        )
    assert len(told) == STEPS
    for ours, theirs in zip(told, expected, strict=True):
        torch.testing.assert_close(ours, theirs.to(ours.dtype), rtol=0, atol=0)
