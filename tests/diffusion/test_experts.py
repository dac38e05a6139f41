"""Two transformers as one: who computes which sample, and what the other one sees of it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from spotlight.diffusion.experts import Experts, experts_of

BOUNDARY = 0.875
TIMES = torch.tensor([900.0, 100.0, 875.0, 874.0])
ROWS = torch.arange(4.0)[:, None]


class Scales(nn.Module):
    """Multiplies what it is given, and notes how many samples these were."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(scale))
        self.passes: list[int] = []

    def forward(
        self, *, hidden_states: Tensor, timestep: Tensor, return_dict: bool
    ) -> tuple[Tensor]:
        self.passes.append(len(hidden_states))
        return (self.scale * hidden_states + timestep[:, None],)


def experts() -> Experts:
    return Experts(Scales(2.0), Scales(3.0), boundary=BOUNDARY)


def test_each_sample_is_computed_by_its_own_and_stays_in_its_row() -> None:
    (found,) = experts()(hidden_states=ROWS, timestep=TIMES)
    assert torch.equal(found, torch.tensor([[2.0], [3.0], [2.0], [3.0]]) * ROWS + TIMES[:, None])


@pytest.mark.parametrize(("time", "passes"), [(900.0, ([4], [])), (100.0, ([], [4]))])
def test_one_without_a_sample_does_nothing(time: float, passes: tuple[list[int], ...]) -> None:
    model = experts()
    model(hidden_states=ROWS, timestep=torch.full((4,), time))
    assert tuple(each.passes for each in experts_of(model)) == passes


def test_a_time_that_was_rounded_in_float32_counts_as_what_it_was() -> None:
    model = Experts(Scales(2.0), Scales(3.0), boundary=0.502)
    rounded = torch.tensor([502 / 1000]) * 1000
    assert rounded < 502
    model(hidden_states=ROWS[:1], timestep=rounded)
    assert model.transformer.passes == [1]


@pytest.mark.parametrize("time", [900.0, 100.0])
def test_where_ranks_must_run_the_same_both_run_and_one_gets_no_gradient(time: float) -> None:
    model = experts()
    times = torch.full((4,), time)
    (alone,) = model(hidden_states=ROWS, timestep=times)
    model.both = True
    (found,) = model(hidden_states=ROWS, timestep=times)
    assert torch.equal(found, alone)
    found.sum().backward()
    used, idle = experts_of(model) if time == 900.0 else experts_of(model)[::-1]
    assert (used.scale.grad, idle.scale.grad) == (ROWS.sum(), 0), "a gradient, though of nothing"


def test_the_names_of_weights_begin_with_the_parts() -> None:
    assert [*experts().state_dict()] == ["transformer.scale", "transformer_2.scale"]


def test_what_is_no_pair_is_its_own_transformer() -> None:
    alone = Scales(1.0)
    assert experts_of(alone) == (alone,)
