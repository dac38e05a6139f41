"""What ranks publish of their weights."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from spotlight.errors import TrainingDiverged
from spotlight.training.weights import FlatWeights, share
from tests.training.qwen import tiny_model


@given(st.lists(st.integers(1, 100), min_size=1, max_size=30), st.integers(1, 6))
def test_the_parts_hold_every_tensor_once_in_order(sizes: list[int], parts: int) -> None:
    indices = list(range(len(sizes)))
    found = [index for part in range(parts) for index in indices[share(sizes, part, parts)]]
    assert found == indices


@given(st.lists(st.integers(1, 100), min_size=1, max_size=30), st.integers(1, 6))
def test_no_part_is_larger_than_its_share_and_one_tensor(sizes: list[int], parts: int) -> None:
    for part in range(parts):
        assert sum(sizes[share(sizes, part, parts)]) <= sum(sizes) / parts + max(sizes)


def test_the_parts_of_several_ranks_are_all_that_one_rank_publishes() -> None:
    weights = FlatWeights(tiny_model())
    whole = weights.published(weights.values)
    parts = [weights._published(weights.values, part, 3) for part in range(3)]
    assert all(parts)
    joined = {name: tensor for part in parts for name, tensor in part.items()}
    assert list(joined) == list(whole)
    assert all(torch.equal(joined[name], tensor) for name, tensor in whole.items())


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_weights_that_are_not_finite_are_not_published(value: float) -> None:
    weights = FlatWeights(tiny_model())
    weights.values[-1] = value
    with pytest.raises(TrainingDiverged, match="weights are not finite"):
        weights.published_part(weights.values)
