"""Whether one more spot node is worth its price."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from spotlight.policies.money.advice import Measured, advise

RUN = Measured(
    reserved_gpus=4,
    spot_gpus=8,
    node_gpus=2,
    reserved_price=2.0,
    spot_price=0.6,
    iteration_s=77.0,
    rollout_s=11.0,
    train_s=66.0,
    previews_per_sample=4.0,
    most_previews=16,
    contrast=(1.7, 1.76),
    doubling=0.5,
    useful_share=0.84,
    explores="in training time",
)
"""The split of 85 % training with four previews a sample, and a contrast whose square is 3; twice
the previews would make that 4."""


def test_the_numbers_are_those_of_the_model() -> None:
    found = advise(replace(RUN, contrast=(3**0.5, 3**0.5)))
    # c(5) / c(4) = (3 + 2 * 0.5 * log2(5 / 4)) / 3 = 1.107; iterations 77 s and 77 - 11 * 2 / 14 s
    assert found.sentence == (
        "One more spot node (2 GPUs) costs $1.20 an hour, 9.4% more than now, and by what was"
        " measured here the run would learn 13.0% faster, with 5 instead of 4 previews a sample"
        " (84% of paid spot time is of use): worth it."
    )
    assert found.worth == "worth it"


@pytest.mark.parametrize(
    ("changes", "worth"),
    [
        ({}, "worth it"),
        ({"spot_price": 2.0}, "not worth it"),
        ({"contrast": (1.0, 2.4)}, "not shown"),
        ({"most_previews": 4}, "not worth it"),
        ({"doubling": 0.0}, "not worth it"),
        ({"spot_price": 0.0}, "worth it"),
        ({"explores": "never", "rollout_s": 20.0, "contrast": None}, "not worth it"),
        ({"reserved_price": 20.0}, "worth it"),
        ({"spot_share_of_previews": 0.0}, "not worth it"),
    ],
    ids=[
        "cheap",
        "without a discount",
        "contrast that scatters",
        "all previews are made already",
        "rewards that pass or fail",
        "for nothing",
        "no exploration",
        "dear reserved nodes",
        "others explore",
    ],
)
def test_it_is_worth_it_if_speed_grows_more_than_cost(changes: dict[str, Any], worth: str) -> None:
    assert advise(replace(RUN, **changes)).worth == worth


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"spot_price": None}, "price"),
        ({"reserved_price": None}, "price"),
        ({"spot_gpus": 0}, "no spot node"),
        ({"iteration_s": 0.0}, "no iteration"),
        ({"explores": "otherwise"}, "does not fill the time of training"),
        ({"rollout_s": 40.0}, "model does not hold"),
        ({"contrast": None}, "not known with an interval yet"),
        ({"doubling": None}, "more previews would gain is not known yet"),
        ({"previews_per_sample": 1.2}, "fewer than 1.5 previews"),
    ],
)
def test_where_the_model_does_not_hold_nothing_is_said_but_why(
    changes: dict[str, Any], why: str
) -> None:
    found = advise(replace(RUN, **changes))
    assert found.worth == "cannot be said"
    assert why in found.sentence and "cannot be said" in found.sentence


def test_a_gain_with_an_interval_says_both_ends() -> None:
    sentence = advise(replace(RUN, contrast=(1.6, 1.8))).sentence
    assert "% to 1" in sentence and "one more" in sentence.lower()


def test_seeds_that_contrast_less_than_random_ones_make_no_gain() -> None:
    assert advise(replace(RUN, contrast=(0.78, 0.82))).worth == "not worth it"


def test_one_gpu_is_not_counted() -> None:
    assert "spot node costs" in advise(replace(RUN, node_gpus=1)).sentence


def test_another_currency_is_named() -> None:
    assert "1.20 EUR an hour" in advise(replace(RUN, currency="EUR")).sentence
