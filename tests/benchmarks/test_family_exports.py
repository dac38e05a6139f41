"""Whether the pipeline of a family draws with an export what our sampler draws."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

import pytest
import torch

from benchmarks.family_exports import TOLERANCE, export_difference, trained_by
from spotlight.diffusion.checkpoints import load_model
from spotlight.jobs import LoraSpec, ModelSpec
from spotlight.store.run_folder import checkpoint_path
from spotlight.training.checkpoints import save_checkpoint
from spotlight.training.export import export_checkpoint
from spotlight_simulation.pipeline_comparison import Trained
from spotlight_simulation.tiny_families import make_tiny_checkpoint
from tests.small_run import write_run


def trained_in(
    folder: Path,
    tuning: Literal["full", "lora"] = "lora",
    *,
    moved: float,
    family: str = "sd3",
) -> Trained:
    """A tiny model whose weights moved so far, in random directions, and its export."""
    make_tiny_checkpoint(family, folder / "base")
    spec = ModelSpec(checkpoint=str(folder / "base"), tuning=tuning, lora=LoraSpec(rank=2))
    generator = torch.Generator().manual_seed(1)
    weights = {
        name: it + moved * torch.randn(it.shape, generator=generator)
        for name, it in load_model(spec, device="cpu").trainable_state().items()
    }
    saved = folder / "checkpoint.safetensors"
    save_checkpoint(saved, {f"ema/{name}": it for name, it in weights.items()}, {})
    export_checkpoint(spec, saved, folder / "export")
    return Trained(spec, weights, folder / "export")


@pytest.mark.parametrize("family", ["sd3", "wan-a14b"])
@pytest.mark.parametrize(("tuning", "moved"), [("full", 0.01), ("lora", 0.3)])
def test_the_pipeline_draws_with_the_export_what_the_sampler_draws(
    tmp_path: Path, family: str, tuning: Literal["full", "lora"], moved: float
) -> None:
    trained = trained_in(tmp_path, tuning, moved=moved, family=family)
    assert export_difference(tmp_path / "base", trained) <= TOLERANCE


def test_an_export_of_other_weights_draws_something_else(tmp_path: Path) -> None:
    trained = trained_in(tmp_path, moved=0.3)
    other = Trained(
        trained.model, {name: 2 * it for name, it in trained.weights.items()}, trained.export
    )
    assert export_difference(tmp_path / "base", other) > TOLERANCE


def test_weights_that_never_moved_prove_nothing_of_an_export(tmp_path: Path) -> None:
    trained = trained_in(tmp_path, moved=0.0)
    with pytest.raises(AssertionError, match="without them"):
        export_difference(tmp_path / "base", trained)


def test_an_export_is_held_against_the_weights_of_its_iteration_which_may_not_be_the_last(
    tmp_path: Path,
) -> None:
    run = write_run(tmp_path / "run")
    (run / "checkpoints").mkdir()
    for iteration in (2, 3):
        weights = {"ema/x": torch.tensor([float(iteration)])}
        save_checkpoint(run / checkpoint_path(iteration), weights, {})
    exported = {"time_s": 9.0, "event": "model_exported", "iteration": 2, "score": 0.5}
    (run / "events.jsonl").write_text(json.dumps(exported) + "\n")
    assert trained_by(run).weights["x"].item() == 2.0
