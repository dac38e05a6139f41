"""The model card of an export: its README.md, which pages of models show."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import yaml

from spotlight import __version__
from spotlight.jobs import JobSpec
from spotlight.jobs.hub_names import HubName
from spotlight.jobs.losses import loss_title
from spotlight.record.run_metrics import ValidationMetrics
from spotlight.types import COMFYUI_FILE, COMFYUI_FILES_OF_TWO, ExportFormat

NAME = "README.md"
_MOST_ROWS = 20
_WIDEST = 30
_MOST_PROMPTS = 3
_USES: dict[ExportFormat, str] = {
    "diffusers": "`pipeline.load_lora_weights(FOLDER)` of diffusers adds it at strength 1.",
    "peft": "`PeftModel.from_pretrained(pipeline.transformer, FOLDER)` adds it at strength 1.",
    "comfyui": f"Put `{COMFYUI_FILE}` into `models/loras` of ComfyUI; strength 1 is as trained.",
    "pipeline": "`DiffusionPipeline.from_pretrained(FOLDER)` of diffusers loads it.",
}
_USES_OF_TWO: dict[ExportFormat, str] = {
    "diffusers": "`pipeline.load_lora_weights(FOLDER + '/transformer')` and"
    " `pipeline.load_lora_weights(FOLDER + '/transformer_2', load_into_transformer_2=True)` of"
    " diffusers add both at strength 1.",
    "peft": "`PeftModel.from_pretrained(pipeline.transformer, FOLDER + '/transformer')`, and so"
    " with `transformer_2`, add both at strength 1.",
    "comfyui": f"Put {' and '.join(f'`{file}`' for file in COMFYUI_FILES_OF_TWO.values())} into"
    " `models/loras` of ComfyUI, one for the model of high noise, one for that of low noise;"
    " strength 1 is as trained.",
}


class CardFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What a card says besides the job."""

    format: ExportFormat
    iteration: int
    """Iterations that the weights were trained."""
    validations: Sequence[ValidationMetrics]
    """Those of the run, in their order."""
    prompts: Sequence[str]
    """The validation prompts, or the first of them."""
    of_two: bool = False
    """Whether the base has two transformers, one for high and one for low noise."""
    changes_images: bool = False
    """Whether the base changes images, which come with the prompts."""
    licence: str | None
    """The name of the licence of the base, by its own card; None where it names none here."""


def model_card(job: JobSpec, facts: CardFacts) -> str:
    """The card as Markdown. It names no path of this machine."""
    base = _base(job)
    return "\n\n".join(
        [
            f"---\n{yaml.safe_dump(_head(job, facts), sort_keys=False)}---",
            f"# {job.name}",
            f"{_what(job)} of {base}, trained by reinforcement learning with"
            f" {loss_title(job.training.loss)} for {facts.iteration:,} iterations, by Spotlight"
            f" {__version__}.",
            f"## Use\n\n{_use(job, facts)}",
            *_curve(job, facts),
            *_prompts(facts.prompts),
            f"## Settings\n\n{_table(('setting', 'value'), _settings(job))}",
            f"## Licence\n\n{_licence(base, facts.licence)}",
            "",
        ]
    )


def _head(job: JobSpec, facts: CardFacts) -> dict[str, Any]:
    name = HubName.parse(job.model.checkpoint)
    is_lora = job.model.tuning == "lora" and facts.format != "pipeline"
    head: dict[str, Any] = {"base_model": name.repository} if name else {}
    if name and is_lora:
        head["base_model_relation"] = "adapter"
    if facts.licence:
        head["license"] = facts.licence
    head["library_name"] = "peft" if facts.format == "peft" else "diffusers"
    given = "image" if facts.changes_images else "text"
    head["pipeline_tag"] = f"{given}-to-{'video' if job.sampler.frames > 1 else 'image'}"
    return head | {"tags": ["reinforcement-learning", *(["lora"] if is_lora else [])]}


def _base(job: JobSpec) -> str:
    name = HubName.parse(job.model.checkpoint)
    if name is None:
        return f"`{_without_folders(job.model.checkpoint)}`"
    return f"[{name.repository}](https://huggingface.co/{name.repository})"


def _without_folders(path: str) -> str:
    return path if path.startswith("builtin:") else Path(path).name


def _what(job: JobSpec) -> str:
    if job.model.tuning == "full":
        return "All weights of the transformer"
    return f"Adapters (LoRA of rank {job.model.lora.rank})"


def _use(job: JobSpec, facts: CardFacts) -> str:
    if facts.format == "diffusers" and job.model.tuning == "full":
        if facts.of_two:
            return (
                "`from_pretrained(FOLDER, subfolder='transformer')` of the transformer's class in"
                " diffusers loads the one for high noise, and `subfolder='transformer_2'` the one"
                " for low noise."
            )
        return "`from_pretrained(FOLDER)` of the transformer's class in diffusers loads it."
    return (_USES | _USES_OF_TWO if facts.of_two else _USES)[facts.format]


def _curve(job: JobSpec, facts: CardFacts) -> list[str]:
    """At most so many validations, evenly chosen, the last one among them."""
    found = facts.validations
    if not found:
        return []
    count = min(len(found), _MOST_ROWS)
    places = sorted({round(n * (len(found) - 1) / max(count - 1, 1)) for n in range(count)})
    scores = [one.score for one in found]
    low, span = min(scores), max(scores) - min(scores)
    rows = [
        (
            f"**{one.iteration}**" if one.iteration == facts.iteration else f"{one.iteration}",
            f"{one.score:.3f}" + (f" ± {one.score_error:.3f}" if one.score_error else ""),
            "█" * (1 + round((_WIDEST - 1) * (one.score - low) / span) if span else 1),
        )
        for one in (found[place] for place in places)
    ]
    guidance = job.validation.guidance or job.sampler.guidance
    steps = job.sampler.evaluation_steps or job.sampler.steps
    text = (
        f"Mean reward on held-out prompts, with its standard error, at guidance {guidance:g} and"
        f" {steps} steps. These weights are in bold."
    )
    return [f"## Validation\n\n{text}\n\n{_table(('iterations', 'score', ''), rows)}"]


def _prompts(prompts: Sequence[str]) -> list[str]:
    if not prompts:
        return []
    shown = "\n".join(f"- {_cell(prompt)}" for prompt in prompts[:_MOST_PROMPTS])
    return [f"## Prompts\n\nAmong the prompts of the validation are:\n\n{shown}"]


def _settings(job: JobSpec) -> list[tuple[str, str]]:
    sampler, training = job.sampler, job.training
    frames = f" x {sampler.frames} frames" if sampler.frames > 1 else ""
    rewards = ", ".join(f"{reward.name} (weight {reward.weight:g})" for reward in job.rewards)
    per_iteration = f"{job.prompts.per_iteration} prompts x {job.group_size} samples"
    rate = f"{training.learning_rate:g}, {training.learning_rate_schedule}"
    return [
        ("size", f"{sampler.width} x {sampler.height} pixels{frames}"),
        ("rollouts", f"{sampler.kind}, {sampler.steps} steps, guidance {sampler.guidance:g}"),
        ("rewards", rewards),
        ("iteration", f"{per_iteration}, {training.updates_per_iteration} updates"),
        ("learning rate", rate),
        ("seed", f"{job.seed}"),
        ("prompts", _without_folders(job.prompts.train)),
    ]


def _licence(base: str, licence: str | None) -> str:
    if licence is None:
        return f"The licence of {base} holds for what is made from it; its own page names it."
    return f"{_cell(licence)}, as {base}."


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(map(_cell, line))} |" for line in lines)


def _cell(text: str) -> str:
    """On one line, and without what Markdown would take for a border or a tag."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")
