"""How fast groups work, by what they denoise with."""

from __future__ import annotations

import msgspec
import pytest
from table_rig import SETTINGS, Profile

from spotlight.actors.coordinator.tenant.step_profile import StepProfile
from spotlight.policies.requests.pace import Pace
from spotlight.policies.requests.rows import Taker
from spotlight.policies.step_times import StepTimes

PREVIEWS = msgspec.structs.replace(SETTINGS, preview_model=True)


def test_the_model_of_previews_has_a_pace_of_its_own() -> None:
    """A smaller one would make each step of the trained model look slow, and have its batches given
    to others."""
    pace, taker = Pace(Profile()), Taker("a", 1, "node", "spot", None)
    pace.measure(taker, PREVIEWS, 1, 0.1)
    pace.measure(taker, SETTINGS, 1, 2.0)
    assert pace.usual_step_s(PREVIEWS, 1) == pytest.approx(0.1)
    assert pace.usual_step_s(SETTINGS, 1) == pytest.approx(2.0)
    assert taker.members == 1
    assert pace.step_s_of(taker, PREVIEWS) == pytest.approx(0.1)
    assert pace.step_s_of(taker, SETTINGS) == pytest.approx(2.0)


def test_what_is_known_of_one_model_says_nothing_of_the_other() -> None:
    profile = StepProfile("model", StepTimes())
    profile.measure(PREVIEWS, 1, 0.1)
    assert profile.step_s(PREVIEWS, 1) == pytest.approx(0.1)
    assert profile.step_s(SETTINGS, 1) is None
