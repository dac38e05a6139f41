"""Which samples, and which weights, are NaN or infinite."""

from __future__ import annotations

import pytest
import torch

from spotlight.diffusion.finite import first_not_finite, rows_not_finite

NAN, INFINITE = float("nan"), float("inf")


def test_a_row_counts_when_any_tensor_has_a_value_in_it_that_is_not_finite() -> None:
    first, other = torch.zeros(4, 2), torch.zeros(4, 1, 3)
    first[1, 0], other[3, 0, 2] = NAN, -INFINITE
    assert rows_not_finite(first, other) == (1, 3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("values", [(NAN,), (INFINITE,), (-INFINITE,), (INFINITE, -INFINITE)])
def test_the_first_weight_with_a_value_that_is_not_finite_is_named(
    values: tuple[float, ...], dtype: torch.dtype
) -> None:
    spoilt = torch.ones(5, 7, dtype=dtype)
    spoilt.view(-1)[: len(values)] = torch.tensor(values, dtype=dtype)
    sound = {"numbers": torch.arange(3), "none": torch.empty(0), "mask": torch.ones(2).bool()}
    assert first_not_finite(sound) is None
    assert first_not_finite({**sound, "spoilt": spoilt, "other": spoilt}) == "spoilt"


def test_large_values_are_finite_though_their_sum_is_not() -> None:
    assert first_not_finite({"large": torch.full((10,), 3e38)}) is None
