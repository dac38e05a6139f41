"""The reward that is 0 or 1."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.exploration.cases import Case
from benchmarks.exploration.strict import StrictShapes
from spotlight.assets import read_prompt_lines
from spotlight.permissions import Permissions
from spotlight.rewards import compositional
from spotlight.rewards.base import build_scorer

PROMPT = read_prompt_lines("builtin:compositional-tiny/mixed-train").items[0]


@pytest.mark.parametrize(("soft", "strict"), [(1.0, 1.0), (0.999, 0.0), (0.0, 0.0)])
def test_only_a_whole_soft_score_counts(
    monkeypatch: pytest.MonkeyPatch, soft: float, strict: float
) -> None:
    monkeypatch.setattr(compositional, "soft_score", lambda *_: soft)
    image = np.zeros((1, 32, 32, 3), np.uint8)
    assert StrictShapes().score(image, [PROMPT]) == [strict]


def test_the_task_names_it_so_that_it_may_run() -> None:
    job = Case(task="compositional-strict", rival="rollouts", seed=11).job()
    scorer = build_scorer(job.rewards[0], Permissions.of(job))
    image = np.full((1, 32, 32, 3), 255, np.uint8)
    assert scorer.score(image, [PROMPT]) == [0.0]
