"""Made-up work of an iteration, for tests of the clocks."""

from __future__ import annotations

from benchmarks.exploration.clocks import Work

WORK = Work(
    denoised=16,
    is_window=False,
    denoise_s=4.0,
    rows=32,
    row_s=2.5,
    updates=2,
    score_s=2.0,
    publish_s=5.0,
    load_s=10.0,
    weights_s=1.0,
    gradient_s=1.0,
    taken_s=0.0,
)
"""Sixteen samples an iteration, and an update of 20 s on four GPUs."""
