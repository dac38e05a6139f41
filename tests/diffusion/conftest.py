"""One tiny model for the tests that only read it."""

from __future__ import annotations

import pytest
import torch

from spotlight.diffusion.flow_model import FlowModel
from tests.diffusion.tiny_models import tiny_model


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def model() -> FlowModel:
    return tiny_model()
