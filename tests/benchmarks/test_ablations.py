"""What the ablations compare, and what they make of it."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from scipy import stats

from benchmarks import ablations
from benchmarks.ablation_losses import SharedNoise, StratifiedTimes
from benchmarks.ablations import PROFILE, Scale, compared, reached, run
from benchmarks.direct_training import Clock
from spotlight.jobs import job_from_data
from spotlight_simulation.profile import load_profile
from tests.training.fakes import NFT, FakeModel, make_batch, with_options
from tests.training.losses.kit import KEYS, setup

SCALE = Scale(way_s=800, until_s=1000)
SMALL = {
    "name": "small",
    "model": {"checkpoint": "builtin:ocr-tiny"},
    "prompts": {
        "train": "builtin:ocr-tiny/train",
        "validation": "builtin:ocr-tiny/validation",
        "per_iteration": 4,
    },
    "sampler": {"height": 16, "width": 48},
    "group_size": 4,
    "training": {"options": {"times": 8}},
}


def line(slope: float) -> list[tuple[float, float]]:
    return [(time_s, slope * time_s) for time_s in range(0, 1001, 100)]


def test_a_run_that_learns_twice_as_fast_has_a_speedup_of_two_less_what_smoothing_costs() -> None:
    figures = compared([(line(1.0), line(2.0))] * 3, SCALE)
    # From 100 at 100 s to 800 at 800 s the levels are at 450, 625 and 765.
    assert figures["speedup_50"] == pytest.approx(2.0, abs=0.01)
    assert figures["speedup"] == figures["speedup_low"] == figures["speedup_high"]
    assert figures["unreached"] == 0


def test_a_run_is_as_fast_as_itself() -> None:
    assert set(compared([(line(1.0), line(1.0))], SCALE).values()) == {1.0, 0}


def test_whoever_does_not_arrive_counts_as_arriving_at_the_end() -> None:
    figures = compared([(line(1.0), line(0.5))], SCALE)
    assert figures["unreached"] == 2
    assert figures["speedup_95"] == pytest.approx(765 / 1000, abs=0.01)


def test_the_interval_of_seeds_that_differ_holds_their_geometric_mean() -> None:
    pairs = [(line(1.0), line(slope)) for slope in (2.0, 1.0, 2.0, 1.0)]
    figures = compared(pairs, SCALE)
    assert figures["speedup_50"] == pytest.approx(2**0.5, abs=0.01)
    # Of logarithms that are half ln 2 and half 0 the standard error is ln 2 / (2 sqrt(3)).
    margin = stats.t.ppf(0.95, 3) * math.log(2) / (2 * math.sqrt(3))
    assert math.log(figures["speedup_50_high"]) == pytest.approx(math.log(2) / 2 + margin, abs=0.02)
    assert math.log(figures["speedup_50_low"]) == pytest.approx(math.log(2) / 2 - margin, abs=0.02)
    assert "speedup_50_low" not in compared(pairs[:2], SCALE)


def test_a_level_is_read_between_points() -> None:
    assert reached(0.25, [(0.0, 0.0), (10.0, 0.5), (20.0, 0.1)]) == 5.0
    assert reached(0.0, [(3.0, 0.1)]) == 3.0
    assert reached(0.6, [(0.0, 0.0), (10.0, 0.5)]) is None


@pytest.mark.parametrize(
    ("noisiest", "iteration_s", "previews"), [(1.0, 85.0, 66), (0.5, 45.0, 32), (0.25, 25.0, 15)]
)
def test_the_clock_charges_training_by_rows_and_fills_it_with_previews(
    noisiest: float, iteration_s: float, previews: int
) -> None:
    job = job_from_data(SMALL | {"training": {"options": {"times": 8, "noisiest": noisiest}}})
    clock = Clock.of(job, load_profile(PROFILE))
    assert (clock.iteration_s, clock.previews) == (iteration_s, previews)


def test_a_run_is_made_once_unless_something_of_it_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    curves = [[(0.0, 0.5), (99.6, 0.25)], [(0.0, 0.5), (99.6, 0.75)]]
    left = iter(curves)
    monkeypatch.setattr(ablations, "train_on_previews", lambda *_, **__: next(left))
    scale = Scale(way_s=80, until_s=80, validate_s=80, validated=1)
    for _ in range(2):
        assert run(("ocr", "base", 1), scale, tmp_path) == curves[0]
    monkeypatch.setattr(ablations, "VERSION", 2)
    assert run(("ocr", "base", 1), scale, tmp_path) == curves[1]


def test_a_group_shares_its_noise_and_its_times() -> None:
    batch = make_batch(FakeModel())
    training = with_options(NFT, times=3)
    terms = SharedNoise(setup(training)).terms(batch, range(8), KEYS)
    noise = (terms.targets + batch.latents[terms.samples]).view(4, 2, 3, *batch.latents.shape[1:])
    for group in range(2):  # every second sample is of the same prompt
        torch.testing.assert_close(noise[:, group], noise[:1, group].expand(4, -1, -1, -1))
        assert len({tuple(row) for row in terms.sigmas.view(4, 2, 3)[:, group].tolist()}) == 1
    assert not torch.equal(noise[0, 0], noise[0, 1])


def test_a_group_has_every_flow_time_equally_often() -> None:
    training = with_options(NFT, times=3)
    terms = StratifiedTimes(setup(training)).terms(make_batch(FakeModel()), range(8), KEYS)
    for group in range(2):
        own = terms.sigmas.view(4, 2, 3)[:, group].flatten().tolist()
        assert sorted(own.count(sigma) for sigma in set(own)) == [2] * 6
