"""The built-in checkpoint under the compositional reward: where post-training starts."""

from __future__ import annotations

import numpy as np
import pytest

from spotlight.assets import read_prompt_lines
from spotlight.diffusion.checkpoints import load_model
from spotlight.diffusion.samplers import sample
from spotlight.jobs import ModelSpec, RewardSpec
from spotlight.rewards.base import build_scorer
from spotlight.types import SamplingSettings

pytest.importorskip("cv2")

VALIDATION = "builtin:compositional-tiny/validation"


def test_the_builtin_checkpoint_is_partly_right_and_its_seeds_differ() -> None:
    model = load_model(ModelSpec(checkpoint="builtin:compositional-tiny"), device="cpu")
    prompts = [prompt for prompt in read_prompt_lines(VALIDATION).items for _ in range(4)]
    settings = SamplingSettings(kind="ode", steps=8, height=32, width=32, micro_batch=16)
    texts = [prompt.text for prompt in prompts]
    latents = sample(model, texts, range(len(texts)), settings).latents
    scorer = build_scorer(RewardSpec(kind="compositional"))
    rewards = np.array(scorer.score(model.decode(latents, 32, 32), prompts))
    assert 0.4 < rewards.mean() < 0.55
    assert rewards.reshape(-1, 4).std(axis=1).mean() > 0.2
