"""Runs that go on after their end: `python -m benchmarks.going_on --json`.

A run that has ended is continued on the simulated cluster and compared with one that was as long
from the start, by its weights (whose name is made of all samples they were trained on) and by all
figures of its iterations.

Then jobs begin with weights that were trained before: by a run, in a transformer folder, in a whole
pipeline, in adapters that peft or diffusers have written. Images are drawn and scored with a real
tiny model, and the score is compared with that of the same weights where they were: in the run, or
in the library's own model, loaded by itself.
"""

from __future__ import annotations

import copy
import json
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import diffusers
import msgspec
import torch
from peft import LoraConfig, PeftModel, get_peft_model, get_peft_model_state_dict
from torch import Tensor

from benchmarks.report import Report
from spotlight.actors.coordinator.tenant.request_plans import sampling_settings
from spotlight.assets import resolve_checkpoint
from spotlight.diffusion.checkpoints import load_model
from spotlight.diffusion.families.registry import family_of
from spotlight.diffusion.model import DiffusionModel
from spotlight.diffusion.samplers import sample
from spotlight.jobs import JobSpec, LoraSpec, ModelSpec, job_from_data, job_to_yaml
from spotlight.preflight.starts import find_start
from spotlight.store.run_folder import checkpoint_path
from spotlight.store.start_file import write_start
from spotlight.training.checkpoints import save_checkpoint
from spotlight.training.export import export_checkpoint
from spotlight.training.state_files import StateFile, StateFiles
from spotlight.training.trainer import Trainer
from spotlight.types import ExportFormat
from spotlight_simulation.continued_run import ContinuedRun

EXPLORATIONS: tuple[Mapping[str, Any], ...] = (
    {"mode": "uniform"},
    {"mode": "bandit", "prompt_pool": 2},
    {"mode": "none"},
    {"mode": "uniform", "weights": "fresh"},
)
QUICK, ALL_OF_IT = (3, 6), (20, 40)
"""Iterations of a run, and of the longer one that it becomes."""
BASE = "builtin:ocr-tiny"
LORA = LoraSpec(rank=4, alpha=8)
SPECS = (ModelSpec(checkpoint=BASE), ModelSpec(checkpoint=BASE, tuning="lora", lora=LORA))
TRAINED = 5
"""Iterations in the checkpoint that others begin with."""
SEEDS = range(2)
"""The seeds of the images that are scored."""


def continued(exploration: Mapping[str, Any], short: int, long: int) -> bool:
    """Whether a run that was continued has the bits of one that was as long from the start."""
    whole = ContinuedRun(exploration, long)
    again = ContinuedRun(exploration, short, f"iterations={long}")
    return (whole.weights, whole.iterations) == (again.weights, again.iterations)


# --- scores ---


def job_of(model: ModelSpec) -> JobSpec:
    """A small job with this model."""
    data = {
        "name": "begun",
        "model": msgspec.to_builtins(model),
        "prompts": {"train": f"{BASE}/train", "validation": f"{BASE}/validation"},
        "sampler": {"height": 16, "width": 48, "steps": 2, "micro_batch": 2},
    }
    return job_from_data(data)


def score(model: DiffusionModel, job: JobSpec) -> float:
    """The mean brightness of some images, weighted so that every pixel counts otherwise."""
    settings = sampling_settings(job.sampler, job.sampler.steps, None)
    prompts = [f'the number "{seed}"' for seed in SEEDS]
    with torch.no_grad():
        drawn = sample(model, prompts, SEEDS, settings)
    pixels = torch.from_numpy(model.decode(drawn.latents, settings.height, settings.width)).double()
    return float((pixels.flatten() * torch.arange(1, pixels.numel() + 1)).mean())


def score_begun(job: JobSpec, folder: Path) -> float:
    """Of the weights that a job with `model.start` validates first."""
    start = find_start(job.model)
    path = folder / checkpoint_path(0)
    write_start(path, start.pieces, start.metadata)
    model = load_model(job.model, device="cpu")
    trainer = Trainer(model, job.training, job.sampler, seed=job.seed)
    files = StateFiles([StateFile(path)])
    trainer.begin_with(files.for_rank(trainer.rows), files.earlier_updates)
    model.load_trainable_state(trainer.evaluation_state())
    return score(model, job)


def moved(model: DiffusionModel, seed: int) -> dict[str, Tensor]:
    """Weights as if some training had moved them."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: tensor + 0.05 * torch.randn(tensor.shape, generator=generator)
        for name, tensor in model.trainable_state().items()
    }


class TrainedRun:
    """A run folder with a validated checkpoint, and the score of its averaged weights."""

    def __init__(self, spec: ModelSpec, folder: Path) -> None:
        self.folder, self.spec, self.job = folder, spec, job_of(spec)
        model = load_model(spec, device="cpu")
        average = moved(model, 1)
        tensors = {f"ema/{name}": tensor for name, tensor in average.items()}
        tensors |= {f"weights/{name}": tensor for name, tensor in moved(model, 2).items()}
        (folder / "checkpoints").mkdir(parents=True)
        self.checkpoint = folder / checkpoint_path(TRAINED)
        save_checkpoint(self.checkpoint, tensors, {})
        untrained = score(model, self.job)
        model.load_trainable_state(average)
        self.score = score(model, self.job)
        if self.score == untrained:
            raise AssertionError("the score does not depend on the weights")
        (folder / "config.yaml").write_text(job_to_yaml(self.job))
        validation = {"kind": "validation", "time_s": 1.0, "weights_version": TRAINED}
        line = json.dumps({**validation, "score": self.score}) + "\n"
        (folder / "metrics.jsonl").write_text(line)

    def off(self, begun: float) -> float:
        """How far another score is from this run's."""
        return abs(begun - self.score)

    def export(self, format: ExportFormat) -> Path:
        """Of its averaged weights."""
        folder = self.folder / format
        export_checkpoint(self.spec, self.checkpoint, folder, format=format)
        return folder


def begun(spec: ModelSpec, folder: Path, **changes: Any) -> float:
    """The first score of a job with such a model."""
    return score_begun(job_of(msgspec.structs.replace(spec, **changes)), folder)


def of_a_run(folder: Path, *, quick: bool) -> float:
    """How far from a run's score jobs begin that take its weights, in every way; quickly in one."""
    errors = []
    for spec in SPECS[:1] if quick else SPECS:
        run = TrainedRun(spec, folder / spec.tuning)
        pipeline = str(run.export("pipeline"))
        starts = [str(run.folder), f"{run.folder}@{TRAINED}", str(run.export("diffusers"))]
        if spec.tuning == "full":
            as_checkpoint = job_of(ModelSpec(checkpoint=pipeline))
            errors.append(run.off(score(load_model(as_checkpoint.model), as_checkpoint)))
            starts.append(pipeline)
        errors += [
            run.off(begun(spec, folder / f"{spec.tuning}-{number}", start=start))
            for number, start in enumerate(starts)
        ]
    return max(errors)


def of_a_library(folder: Path, write: Callable[[Any, Path], Any]) -> float:
    """How far from the score of a library's own model a job begins with the adapters that `write`
    leaves in a folder; it returns what the library loads of them again."""
    others, spec = copy.copy(load_model(SPECS[0], device="cpu")), SPECS[1]
    job, untrained = job_of(spec), score(others, job_of(spec))
    others.transformer = write(bare(), folder)
    theirs = score(others, job)
    if theirs == untrained:
        raise AssertionError("the adapters change nothing")
    return abs(begun(spec, folder, start=str(folder)) - theirs)


def bare() -> Any:
    """The transformer of the checkpoint, as diffusers loads it."""
    base = resolve_checkpoint(BASE)
    kind = getattr(diffusers, family_of(base).transformer)
    return kind.from_pretrained(base / "transformer").eval()


def adapters() -> LoraConfig:
    """As a library's user describes them."""
    targets = list(family_of(resolve_checkpoint(BASE)).lora_targets)
    return LoraConfig(r=LORA.rank, lora_alpha=2, target_modules=targets)


def fill(transformer: Any) -> None:
    """Have the adapters change something."""
    generator = torch.Generator().manual_seed(3)
    for name, parameter in transformer.named_parameters():
        if "lora_" in name:
            parameter.data = 0.1 * torch.randn(parameter.shape, generator=generator)


def by_peft(transformer: Any, folder: Path) -> Any:
    """Adapters that peft saves, and loads again."""
    adapted = get_peft_model(transformer, adapters())
    fill(adapted)
    adapted.save_pretrained(str(folder))
    again = bare()
    PeftModel.from_pretrained(again, str(folder))
    return again.eval()


def by_diffusers(transformer: Any, folder: Path) -> Any:
    """Adapters that a pipeline of diffusers saves, and loads again."""
    transformer.add_adapter(adapters())
    fill(transformer)
    pipeline = getattr(diffusers, family_of(resolve_checkpoint(BASE)).pipeline)
    metadata = transformer.peft_config["default"].to_dict()
    pipeline.save_lora_weights(
        folder,
        transformer_lora_layers=get_peft_model_state_dict(transformer),
        transformer_lora_adapter_metadata=metadata,
    )
    again = bare()
    again.load_lora_adapter(folder, weight_name="pytorch_lora_weights.safetensors")
    return again.eval()


def main() -> None:
    """See the module's docstring."""
    report = Report("going_on", __doc__, minutes=2)
    quick = report.begin().quick
    short, long = QUICK if quick else ALL_OF_IT
    explorations = EXPLORATIONS[1:3] if quick else EXPLORATIONS
    equal = [continued(each, short, long) for each in explorations]
    report.add({"continued_bit_equal": sum(equal) / len(equal), "continued_runs": len(equal)})
    with tempfile.TemporaryDirectory(prefix="spotlight-going-on-") as scratch:
        folder = Path(scratch)
        errors = {
            "started_score_error_run": of_a_run(folder / "run", quick=quick),
            "started_score_error_peft": of_a_library(folder / "peft", by_peft),
            "started_score_error_diffusers": of_a_library(folder / "diffusers", by_diffusers),
        }
    report.add({"started_score_error": max(errors.values()), **errors})
    report.finish()


if __name__ == "__main__":
    main()
