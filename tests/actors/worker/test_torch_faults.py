"""What torch's errors say of the accelerator."""

from __future__ import annotations

import pytest
import torch

from spotlight.actors.worker.torch_faults import fault_of
from spotlight.errors import ScoringError


def accelerator_error(code: int | None = None) -> Exception:
    """As CUDA raises it; older versions of torch do not say which error it is."""
    error = torch.AcceleratorError("CUDA error: device-side assert triggered")
    if code is not None:
        error.error_code = code  # type: ignore[attr-defined]
    return error


@pytest.mark.parametrize("code", [None, 700, 710])
def test_an_error_of_the_accelerator_means_that_it_is_lost(code: int | None) -> None:
    assert fault_of(accelerator_error(code)) == "accelerator"


@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("tried to allocate"), MemoryError(), accelerator_error(2)]
)
def test_out_of_memory_is_told_from_that(error: Exception) -> None:
    assert fault_of(error) == "memory"


@pytest.mark.parametrize("error", [RuntimeError("CUBLAS_STATUS_INTERNAL_ERROR"), ValueError()])
def test_other_errors_say_nothing(error: Exception) -> None:
    assert fault_of(error) == ""


def test_what_an_error_was_raised_from_counts() -> None:
    """A scorer on the same accelerator is out of order for the same reason."""
    scoring = ScoringError("reward `ocr`")
    scoring.__cause__ = accelerator_error()
    wrapped = RuntimeError("while cleaning up")
    wrapped.__context__ = scoring
    assert fault_of(wrapped) == "accelerator"
