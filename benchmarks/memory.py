"""The plan of a job's memory against what torch has: `python -m benchmarks.memory --json`.

The plan is computed from the headers of checkpoints; what it is compared with is not:

- What a training pass of one sample keeps for its backward pass, of the published architectures at
  their true widths and depths, in bfloat16 on the meta device: what autograd saves, or with
  activation checkpointing the most that is there at any time of both passes.
- The most that a CPU's allocator gives out in both passes of narrower transformers, in float32.
- What a trainer has of each trained number after an iteration, of the tiny checkpoints.

`plan_error` is the largest relative error of them all.
"""

from __future__ import annotations

import gc
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from benchmarks.report import Report
from spotlight.diffusion.activations import Activations, Adapters, Pass
from spotlight.diffusion.checkpoints import add_adapters, load_model
from spotlight.diffusion.families.base import Facts, Family, ModelInput
from spotlight.diffusion.families.registry import FAMILIES
from spotlight.diffusion.geometry import Grid
from spotlight.jobs import LoraSpec, ModelSpec, SamplerSpec, TrainingSpec
from spotlight.preflight.checkpoint_facts import inspect_checkpoint
from spotlight.preflight.memory import trained_bytes
from spotlight.training.trainer import Trainer, TrainingBatch
from spotlight_simulation.live_memory import (
    LiveMemory,
    attention_in_one_kernel,
    most_allocated,
    saved_bytes,
)
from spotlight_simulation.outlines import (
    OUTLINES,
    make_conditioning,
    make_transformer,
    write_outline,
)
from spotlight_simulation.tiny_families import make_tiny_checkpoint

RANK = 64
SIZES = {
    "qwen-image": (1280, 1280, 1),
    "sd3.5-medium": (1024, 1024, 1),
    "flux.1-dev": (1024, 1024, 1),
    "flux.2-klein-base-4b": (1024, 1024, 1),
    "wan2.1-t2v-1.3b": (480, 832, 33),
    "krea-2": (1024, 1024, 1),
    "z-image": (1024, 1024, 1),
}
"""Height, width and frames of the sample, at true widths. Qwen-Image 2.1 is not here: it counts the
tokens of its text on the way, which the meta device cannot."""
_NARROW: dict[str, Any] = {"num_attention_heads": 4, "attention_head_dim": 64, "num_layers": 4}
_AXES = {"axes_dims_rope": (16, 24, 24)}
NARROW: dict[str, dict[str, Any]] = {
    "qwen-image": _NARROW | _AXES,
    "sd3.5-medium": _NARROW | {"caption_projection_dim": 256, "dual_attention_layers": (0, 1)},
    "flux.1-dev": _NARROW | _AXES | {"num_layers": 2, "num_single_layers": 4},
    "flux.2-klein-base-4b": _NARROW
    | {"axes_dims_rope": (16, 16, 16, 16), "num_layers": 2, "num_single_layers": 4},
    "wan2.1-t2v-1.3b": _NARROW | {"ffn_dim": 1024},
    "krea-2": _NARROW
    | _AXES
    | {
        "num_key_value_heads": 2,
        "intermediate_size": 768,
        "text_intermediate_size": 384,
        "num_layerwise_text_blocks": 1,
        "num_refiner_text_blocks": 1,
    },
    "qwen-image-2.1": _NARROW | _AXES,
    "z-image": {
        "dim": 256,
        "n_layers": 4,
        "n_heads": 4,
        "n_kv_heads": 4,
        "axes_dims": (16, 24, 24),
    },
}
"""What is narrower of the transformers that are really computed with."""
NARROW_SIZE = (512, 512, 1)
PROMPTS = ["a cat", "a dog"]
TUNINGS = ("lora", "full")
FIRST = ("qwen-image", "lora")
"""Whose figures are reported by themselves, and the only ones of a quick run."""


class Case(NamedTuple):
    """A transformer and what it is trained on."""

    name: str
    family: Family
    facts: Facts
    grid: Grid
    changes: dict[str, Any]
    """What is changed of the published architecture."""


def cases(folder: Path, *, narrow: bool) -> Iterator[Case]:
    """One of every family; of those in `SIZES` unless `narrow`."""
    for name in NARROW if narrow else SIZES:
        changes = NARROW[name] if narrow else {}
        place = folder / f"{name}-{'narrow' if narrow else 'true'}"
        write_outline(name, place, **changes)
        info = inspect_checkpoint(ModelSpec(checkpoint=str(place)))
        grid = info.geometry.grid(*(NARROW_SIZE if narrow else SIZES[name]))
        yield Case(name, info.family, info.facts, grid, changes)


def _tensors_of(transformer: Any) -> Iterator[Tensor]:
    """All that it is made of; tables of positions are neither parameters nor buffers."""
    yield from transformer.parameters()
    yield from transformer.buffers()
    for module in transformer.modules():
        yield from (value for value in vars(module).values() if isinstance(value, Tensor))


def _in(dtype: torch.dtype, transformer: Any) -> Any:
    """The transformer as it is loaded: some of its modules stay in float32."""
    kept = transformer._keep_in_fp32_modules or ()
    for name, module in transformer.to(dtype).named_modules():
        if name.rpartition(".")[2] in kept:
            module.float()
    return transformer


class Passes:
    """Both passes of one training step of one sample."""

    def __init__(self, case: Case, tuning: str, dtype: torch.dtype, device: str) -> None:
        self._case = case
        outline = OUTLINES[case.name]
        with torch.device(device):
            model = _in(dtype, make_transformer(outline, device=device, **case.changes))
            if tuning == "lora":
                lora = LoraSpec(rank=RANK, alpha=RANK)
                add_adapters(model, lora, case.family.targets(lora))
        self.transformer = model
        channels = case.facts.geometry.channels
        self._latents = torch.zeros(1, case.grid.tokens, channels, device=device)
        self._sigmas = torch.ones(1, device=device)
        self._conditioning = make_conditioning(outline, 1, device)
        for parameter in model.parameters():  # as a trainer does it for float32
            if parameter.requires_grad and parameter.dtype == torch.float32:
                parameter.grad = torch.zeros_like(parameter)

    @property
    def there(self) -> list[Tensor]:
        """All tensors that are there before."""
        given = [self._latents, self._sigmas, *self._conditioning.values()]
        gradients = [it.grad for it in self.transformer.parameters() if it.grad is not None]
        return [*_tensors_of(self.transformer), *gradients, *given]

    def forward(self) -> Tensor:
        """The velocity."""
        given = ModelInput(
            self._latents, self._sigmas, self._sigmas, self._conditioning, self._case.grid
        )
        return self._case.family.velocity(self.transformer, given)

    def both(self) -> None:
        """The velocity, and gradients from it."""
        torch.autograd.backward(self.forward().float().square().mean())


def planned(case: Case, tuning: str, dtype: torch.dtype) -> Activations:
    """What the plan says of a case."""
    targets = case.family.targets(LoraSpec(rank=RANK))
    adapters = Adapters(targets, RANK) if tuning == "lora" else None
    step = Pass(1, case.grid.tokens, dtype.itemsize, adapters)
    return case.family.activations(case.facts, step)


def on_meta(case: Case, tuning: str, *, checkpointing: bool) -> tuple[int, int]:
    """Bytes as planned and as they are, on the meta device in bfloat16."""
    passes = Passes(case, tuning, torch.bfloat16, "meta")
    plan = planned(case, tuning, torch.bfloat16)
    with ExitStack() as stack:
        stack.enter_context(attention_in_one_kernel())
        if not checkpointing:
            saved = stack.enter_context(saved_bytes(passes.there))
            velocity = passes.forward()
            assert velocity.requires_grad
            return plan.kept, saved()
        passes.transformer.enable_gradient_checkpointing()
        live = stack.enter_context(LiveMemory(passes.there))
        if tuning == "full":  # gradients in bfloat16 would hide what is there besides
            velocity = passes.forward()
            assert velocity.requires_grad
            return plan.entered, live.now
        passes.both()
        return plan.peak(checkpointing=True), live.most


def on_cpu(case: Case, tuning: str, *, checkpointing: bool) -> tuple[int, int]:
    """Bytes as planned and as the CPU's allocator gives them out, in float32."""
    passes = Passes(case, tuning, torch.float32, "cpu")
    if checkpointing:
        passes.transformer.enable_gradient_checkpointing()
    passes.both()  # what is made once, such as tables of positions
    plan = planned(case, tuning, torch.float32)
    return plan.peak(checkpointing=checkpointing), most_allocated(passes.both)


def of_trainer(folder: Path, name: str, tuning: str) -> tuple[int, int]:
    """Bytes as planned and as a trainer has them after an iteration, of a tiny checkpoint."""
    spec = ModelSpec(
        checkpoint=str(folder),
        tuning="lora" if tuning == "lora" else "full",
        lora=LoraSpec(rank=4),
    )
    training = TrainingSpec(micro_batch=2, options={"times": 1}, kl=0.1, rollout_decay=0.5)
    sampler = SamplerSpec(height=32, width=48, frames=5 if name == "wan" else 1)
    model = load_model(spec, device="cpu")
    shape = model.latent_shape(sampler.height, sampler.width, sampler.frames)
    batch = TrainingBatch(
        prompts=PROMPTS * 2, latents=torch.zeros(4, *shape), advantages=torch.linspace(-1, 1, 4)
    )
    # What the model itself keeps, such as embeddings, is there when the second trainer comes.
    Trainer(model, training, sampler, seed=0).train(0, batch)
    with LiveMemory([*_tensors_of(model.transformer), batch.latents, batch.advantages]) as live:
        trainer = Trainer(model, training, sampler, seed=0)
        trainer.train(0, batch)
        gc.collect()
        found = live.now
    assert trainer.updates > 0
    numbers = inspect_checkpoint(spec).trainable
    return numbers * sum(trained_bytes(training).values()), found


def chosen(folder: Path, *, narrow: bool, quick: bool) -> Iterator[tuple[Case, str, bool]]:
    """Cases with both tunings, with and without checkpointing; `quick` ones are of `FIRST`."""
    for case in cases(folder, narrow=narrow):
        for tuning in TUNINGS:
            if not quick or (case.name, tuning) == FIRST:
                yield case, tuning, True
                yield case, tuning, False


def main() -> None:
    """Print every error, and the figures of one sample of 1280 pixels."""
    report = Report("memory", __doc__, minutes=4)
    quick = report.begin().quick
    errors: dict[str, float] = {}

    def compare(what: str, bytes_of_both: tuple[int, int]) -> int:
        plan, found = bytes_of_both
        errors[what] = round(abs(plan / found - 1), 4)
        report.add({f"plan_error[{what}]": errors[what]})
        return found

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for case, tuning, checkpointing in chosen(folder, narrow=False, quick=quick):
            what = f"{case.name} {tuning}{' checkpointing' * checkpointing}, meta device"
            found = compare(what, on_meta(case, tuning, checkpointing=checkpointing))
            if (case.name, tuning) == FIRST:
                kind = "" if checkpointing else "_without_checkpointing"
                report.add({f"activation_gb_1280{kind}": round(found / 1e9, 2)})
        for case, tuning, checkpointing in chosen(folder, narrow=True, quick=quick):
            what = f"{case.name} {tuning}{' checkpointing' * checkpointing}, CPU"
            compare(what, on_cpu(case, tuning, checkpointing=checkpointing))
        trained = [one for one in FAMILIES.values() if not one.image_processor and not one.any_step]
        families = [one.name for one in trained]
        for family in families[: 1 if quick else None]:
            make_tiny_checkpoint(family, folder / family)
            for tuning in TUNINGS:
                compare(f"{family} {tuning} trainer", of_trainer(folder / family, family, tuning))
    report.add({"plan_error": max(errors.values())})
    report.finish()


if __name__ == "__main__":
    main()
