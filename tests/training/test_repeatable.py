"""Kernels that give the same bits every time: what torch is told, without a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import pytest
import torch

from spotlight.training import slices
from spotlight.training.repeatable import repeatable_kernels
from spotlight.training.trainer import Trainer

from .fakes import NFT, SAMPLER, FakeModel, make_batch

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


def test_on_cuda_torch_is_told_to_repeat_itself_and_afterwards_what_it_was_before():
    with repeatable_kernels(CUDA):
        assert torch.are_deterministic_algorithms_enabled()
        assert not torch.is_deterministic_algorithms_warn_only_enabled()
    assert not torch.are_deterministic_algorithms_enabled()


def test_what_a_user_has_told_torch_holds_again_after_an_error():
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        with pytest.raises(RuntimeError, match="not repeatable"), repeatable_kernels(CUDA):
            raise RuntimeError("not repeatable")
        assert torch.is_deterministic_algorithms_warn_only_enabled()
    finally:
        torch.use_deterministic_algorithms(False)


def test_who_leaves_while_another_one_computes_changes_nothing_for_that_one():
    left_behind, next_one = repeatable_kernels(CUDA), repeatable_kernels(CUDA)
    left_behind.__enter__()
    with next_one:
        left_behind.__exit__(None, None, None)
        assert torch.are_deterministic_algorithms_enabled()
    assert not torch.are_deterministic_algorithms_enabled()


def test_kernels_of_a_cpu_are_left_alone():
    with repeatable_kernels(CPU):
        assert not torch.are_deterministic_algorithms_enabled()


@pytest.mark.parametrize(("count", "is_asked"), [(1, False), (3, True)])
def test_slices_are_computed_so_where_there_are_several(
    monkeypatch: pytest.MonkeyPatch, count: int, is_asked: bool
):
    asked: list[torch.device] = []

    @contextmanager
    def noted(device: torch.device) -> Iterator[None]:
        asked.append(device)
        yield

    monkeypatch.setattr(slices, "repeatable_kernels", noted)
    training = msgspec.structs.replace(NFT, options={"times": 3}, slices=count, micro_batch=2)
    model = FakeModel()
    Trainer(model, training, SAMPLER, seed=0).train(0, make_batch(model))
    assert set(asked) == ({CPU} if is_asked else set())
