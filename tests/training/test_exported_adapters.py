"""Exported adapters compute what was trained for readers that know names and tensors alone."""

from __future__ import annotations

from itertools import cycle

import pytest
import torch

from benchmarks.users.adapters import FAMILIES, READERS, Exported
from spotlight.jobs import LoraSpec

SCALES = {"twice": LoraSpec(), "a-sixth": LoraSpec(rank=6, alpha=1)}
TRIED = list(zip(FAMILIES, cycle(SCALES), strict=False))
"""Each family with one scale, and each scale with several families."""


@pytest.fixture(scope="module", params=TRIED, ids="-".join)
def exported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Exported:
    family, scale = request.param
    return Exported(family, tmp_path_factory.mktemp(family), SCALES[scale])


@pytest.mark.parametrize("reader", READERS)
def test_every_reader_computes_what_was_trained(exported: Exported, reader: str) -> None:
    found = exported.velocity(READERS[reader](exported))
    assert (found - exported.velocity(exported.bare())).abs().max() > 1e-2
    torch.testing.assert_close(found, exported.velocity(), rtol=0, atol=1e-5)
