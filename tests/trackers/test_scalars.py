from typing import Any

import msgspec

from spotlight.record.run_metrics import IterationMetrics, ValidationMetrics
from spotlight.trackers import IterationRecord
from spotlight.trackers.scalars import iteration_scalars, validation_scalars


def test_numbers_are_named_by_where_they_come_from_and_what_is_absent_is_left_out() -> None:
    metrics = IterationMetrics(iteration=3, time_s=9.0, reward_mean=0.5, samples=32)
    scalars = iteration_scalars(IterationRecord(metrics, {"kl": 0.25}))
    assert scalars["iteration/reward_mean"] == 0.5
    assert scalars["iteration/samples"] == 32.0
    assert scalars["loss/kl"] == 0.25
    assert not {"iteration/iteration", "iteration/time_s", "iteration/kind"} & scalars.keys()
    assert "iteration/publish_s" not in scalars


def test_a_validation_has_its_score() -> None:
    metrics = ValidationMetrics(weights_version=5, iteration=5, score=0.75, images=16)
    assert validation_scalars(metrics) == {"validation/score": 0.75, "validation/images": 16.0}


def test_numbers_of_a_section_are_named_by_it() -> None:
    class WithSections(ValidationMetrics, kw_only=True, tag="with_sections"):
        rewards: dict[str, Any] = msgspec.field(default_factory=dict)

    metrics = WithSections(weights_version=1, score=0.5, rewards={"ocr": 0.5, "said": "no"})
    assert validation_scalars(metrics)["validation/rewards/ocr"] == 0.5
    assert "validation/rewards/said" not in validation_scalars(metrics)
