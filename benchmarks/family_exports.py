"""Does the pipeline of a family draw with a job's export what our sampler draws?"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from spotlight.diffusion.families.registry import family_of
from spotlight.report.metrics import read_run, summarise
from spotlight.store.run_folder import checkpoint_path, read_config
from spotlight.training.checkpoints import load_role
from spotlight_simulation.pipeline_comparison import Trained, compare, small_case

TOLERANCE = 1e-4


def trained_by(run: Path) -> Trained:
    """What a finished run has exported, and the weights of the same iteration, which is that of the
    best validation and not always the last one."""
    iteration = summarise(read_run(run))["exported"]["iteration"]
    weights = load_role(run / checkpoint_path(iteration), "ema")
    return Trained(read_config(run).model, weights, run / "export")


def export_difference(checkpoint: Path, trained: Trained) -> float:
    """The largest difference of a latent between what our sampler draws with the trained weights
    and what the pipeline draws with the export; both in float32.

    Raises `AssertionError` if the pipeline draws the same without the export: then that it does so
    with it would say nothing.
    """
    case = small_case(family_of(checkpoint))
    untrained = compare(checkpoint, case, trained=replace(trained, export=None)).latents
    assert untrained > TOLERANCE, "the trained weights draw what is drawn without them"
    return compare(checkpoint, case, trained=trained).latents
