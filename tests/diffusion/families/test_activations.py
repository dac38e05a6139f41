"""What families say that a pass keeps, against what autograd saves: on the meta device, unless a
transformer cannot be computed there.
"""

from __future__ import annotations

import pytest
import torch

from benchmarks.memory import SIZES, Case, Passes, cases, planned
from spotlight_simulation.live_memory import LiveMemory, attention_in_one_kernel, saved_bytes
from spotlight_simulation.outlines import OUTLINES


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Case]:
    folder = tmp_path_factory.mktemp("narrow")
    return {case.name: case for case in cases(folder, narrow=True)}


@pytest.mark.parametrize("name", OUTLINES)
@pytest.mark.parametrize("tuning", ["full", "lora"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_a_pass_keeps_what_its_family_says(
    narrow: dict[str, Case], name: str, tuning: str, dtype: torch.dtype
) -> None:
    passes = Passes(narrow[name], tuning, dtype, "meta" if name in SIZES else "cpu")
    with attention_in_one_kernel(), saved_bytes(passes.there) as saved:
        velocity = passes.forward()
    assert velocity.requires_grad
    assert planned(narrow[name], tuning, dtype).kept == pytest.approx(saved(), rel=0.1)


@pytest.mark.parametrize("name", OUTLINES)
def test_a_pass_keeps_what_blocks_begin_with_where_they_are_computed_twice(
    narrow: dict[str, Case], name: str
) -> None:
    passes = Passes(narrow[name], "full", torch.bfloat16, "meta" if name in SIZES else "cpu")
    passes.transformer.enable_gradient_checkpointing()
    with attention_in_one_kernel(), LiveMemory(passes.there) as live:
        velocity = passes.forward()
    assert velocity.requires_grad
    assert planned(narrow[name], "full", torch.bfloat16).entered == pytest.approx(
        live.now, rel=0.15
    )
