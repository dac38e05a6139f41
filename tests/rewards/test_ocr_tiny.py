"""The built-in checkpoint under the OCR reward: where post-training starts."""

from __future__ import annotations

import numpy as np
import pytest

from spotlight.assets import read_prompt_lines
from spotlight.diffusion.checkpoints import load_model
from spotlight.diffusion.samplers import sample
from spotlight.jobs import ModelSpec, RewardSpec
from spotlight.rewards.base import build_scorer
from spotlight.types import SamplingSettings

pytest.importorskip("rapidocr")


def test_the_builtin_checkpoint_is_partly_right_and_its_seeds_differ() -> None:
    model = load_model(ModelSpec(checkpoint="builtin:ocr-tiny"), device="cpu")
    lines = read_prompt_lines("builtin:ocr-tiny/validation")
    prompts = [prompt for prompt in lines.items for _ in range(4)]
    settings = SamplingSettings(kind="ode", steps=8, height=16, width=48, micro_batch=16)
    texts = [prompt.text for prompt in prompts]
    latents = sample(model, texts, range(len(texts)), settings).latents
    rewards = np.array(
        build_scorer(RewardSpec(kind="ocr")).score(model.decode(latents, 16, 48), prompts)
    )
    assert 0.25 < rewards.mean() < 0.45
    assert rewards.reshape(-1, 4).std(axis=1).mean() > 0.1
