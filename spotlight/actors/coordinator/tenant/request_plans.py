"""From a job and its seeds to requests: the only place that decides how a sample is denoised, and
what is asked of exploration.

All samples of an iteration share their settings, the SDE window included; it is drawn here and
travels in every request.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import msgspec

from spotlight.jobs import JobSpec, SamplerSpec, WorkSpec
from spotlight.policies.exploration.explored import Explored
from spotlight.policies.exploration.explorer import Preview
from spotlight.policies.exploration.planners import (
    SeedChoice,
    derived_seed,
    draw_prompts,
    first_seeds,
    widest,
)
from spotlight.policies.exploration.random_groups import random_seeds
from spotlight.policies.exploration.settings import ExplorationSettings
from spotlight.types import Request, RequestId, RequestKind, SamplingSettings


def window_start(job: JobSpec, iteration: int) -> int:
    """First step of the iteration's SDE window. A sliding one goes as in MixGRPO, arXiv 2507.21802,
    and turns back where it would no longer be whole.
    """
    window = job.sampler.window
    room = window.latest - window.length - window.earliest
    if window.placement == "sliding":
        return window.earliest + iteration // window.slide_every % (room + 1)
    return window.earliest + derived_seed(job.seed, iteration, "window") % (room + 1)


class TrainingPrompts:
    """The training prompts of a job, of which every iteration has its own.

    Args:
        texts: all of them.
        sorts: see `draw_prompts`.
    """

    def __init__(self, job: JobSpec, texts: Sequence[str], *, sorts: bool = False) -> None:
        self._job = job
        self._texts = texts
        self._sorts = sorts

    def of(self, iteration: int) -> list[str]:
        """The prompt groups of an iteration; with a prompt pool, those that it explores."""
        job, texts = self._job, self._texts
        drawn = draw_prompts(
            job.seed, iteration, len(texts), job.explored_prompts, sorts=self._sorts
        )
        return [texts[index] for index in drawn]


def unexplored_choices(job: JobSpec, iteration: int) -> list[SeedChoice]:
    """The seeds of an iteration that nobody explored for; of a prompt pool, the first prompts."""
    choices = first_seeds(job.seed, iteration, job.explored_prompts, job.group_size)
    return widest(choices, job.prompts.per_iteration)


def unexplored(job: JobSpec, iteration: int) -> Explored:
    """The same, as if they were the outcome of an exploration."""
    choices = unexplored_choices(job, iteration)
    return Explored(
        iteration,
        tuple(choice.seeds for choice in choices),
        tuple(choice.preview_rewards for choice in choices),
        previews=0,
        late=0,
    )


def exploration_settings(job: JobSpec) -> ExplorationSettings:
    """What a job asks of exploration."""
    asked = job.exploration
    return ExplorationSettings(
        seed=job.seed,
        keep=job.group_size,
        trained=job.prompts.per_iteration,
        candidates=asked.candidates * job.group_size,
        limits=tuple(reward.limits for reward in job.rewards),
        weights=job.reward_weights,
        micro_batch=job.sampler.micro_batch,
        planner="uniform" if asked.mode == "none" else asked.mode,  # which nobody asks then
        budget=asked.budget,
        probes=0 if job.compares else asked.probes,  # one made again would have no group
        heat=job.group_size if job.compares else 1,
        divides=job.divides_training,
        finishes=job.exploration.finish == "previous",
        previews_are_alike=job.preview_steps == job.sampler.steps,
    )


def rollout_settings(job: JobSpec, iteration: int) -> SamplingSettings:
    """How the samples of an iteration are denoised."""
    return _settings(job, job.sampler.steps, iteration)


def preview_settings(
    job: JobSpec, iteration: int, *, are_samples: bool = False
) -> SamplingSettings:
    """How the candidates of an iteration are previewed: as its samples will be, or without noise,
    and perhaps by another solver, when the steps differ. A model of its own for previews has
    guidance in its weights and its own schedule, and its steps are Euler's.

    Args:
        are_samples: they take all steps, whatever the job says.
    """
    if are_samples or job.preview_steps == job.sampler.steps:
        return rollout_settings(job, iteration)
    settings = _settings(job, job.preview_steps, None)
    asked = job.exploration
    if not asked.preview_checkpoint:
        return msgspec.structs.replace(settings, solver=asked.preview_solver or settings.solver)
    return msgspec.structs.replace(
        settings, preview_model=True, guidance=1.0, shift=None, solver="euler"
    )


def evaluation_settings(job: JobSpec) -> SamplingSettings:
    """How validation images are denoised: without noise, perhaps with a guidance of their own."""
    settings = _settings(job, job.sampler.evaluation_steps or job.sampler.steps, None)
    guidance = job.validation.guidance
    return settings if guidance is None else msgspec.structs.replace(settings, guidance=guidance)


def request_of(
    kind: RequestKind,
    iteration: int,
    version: int,
    group: int,
    prompt: str,
    seed: int,
    settings: SamplingSettings,
) -> Request:
    """One seed of a prompt group."""
    return Request(
        id=str(RequestId(kind, iteration, version, group, seed)),
        kind=kind,
        iteration=iteration,
        group=group,
        prompt=prompt,
        seed=seed,
        weights_version=version,
        settings=settings,
    )


def scored_together(work: WorkSpec, requests: Sequence[Request]) -> tuple[Request, ...]:
    """The same: where a reward compares images, those of a prompt group are scored in one call."""
    if not any(reward.groupwise for one in requests[:1] for reward in work.rewards_of(one.kind)):
        return tuple(requests)
    seeds: defaultdict[int, list[int]] = defaultdict(list)
    for request in requests:
        seeds[request.group].append(request.seed)
    return tuple(
        msgspec.structs.replace(request, scored_with=tuple(seeds[request.group]))
        for request in requests
    )


def _shown(request: Request) -> Request:
    """The same for a sample that is trained on, of which people may want to see a picture."""
    key = f"pictures/{request.iteration}/{request.group}-{request.seed}.webp"
    return msgspec.structs.replace(request, thumbnail_key=key)


def rollout_requests(
    job: JobSpec, iteration: int, prompts: Sequence[str], choices: Sequence[SeedChoice]
) -> tuple[Request, ...]:
    """The samples of an iteration in canonical order: by prompt group, then as chosen."""
    settings = rollout_settings(job, iteration)
    requests = [
        _shown(request_of("rollout", iteration, iteration, group, prompt, seed, settings))
        for group, (prompt, choice) in enumerate(zip(prompts, choices, strict=True))
        for seed in choice.seeds
    ]
    return scored_together(job.work, requests)


def explored_version(job: JobSpec, iteration: int) -> int:
    """The weights with which the candidates of an iteration are previewed."""
    return iteration if job.exploration.weights == "fresh" else iteration - 1


def preview_request(job: JobSpec, preview: Preview, *, are_samples: bool) -> Request:
    """The request of a preview that the explorer asks for.

    Args:
        are_samples: the chosen ones are trained on themselves, so they take all steps.
    """
    request = request_of(
        "preview",
        preview.iteration,
        explored_version(job, preview.iteration),
        preview.group,
        preview.prompt,
        preview.seed,
        preview_settings(job, preview.iteration, are_samples=are_samples),
    )
    return _shown(request) if are_samples else request


def preview_id(job: JobSpec, preview: Preview) -> str:
    """The id of its request."""
    version = explored_version(job, preview.iteration)
    return str(RequestId("preview", preview.iteration, version, preview.group, preview.seed))


def previewed(request: Request) -> Preview:
    """The preview that such a request is of."""
    return Preview(request.iteration, request.group, request.prompt, request.seed)


def preview_of(job: JobSpec, rollout: Request) -> Request:
    """The preview that may take a rollout's place: the same, perhaps with the weights before."""
    request = request_of(
        "preview",
        rollout.iteration,
        explored_version(job, rollout.iteration),
        rollout.group,
        rollout.prompt,
        rollout.seed,
        rollout.settings,
    )
    return _shown(request)


def finishing_of(rollout: Request) -> Request:
    """The same sample, made with the weights of its preview."""
    version = rollout.weights_version - 1
    name = RequestId("rollout", rollout.iteration, version, rollout.group, rollout.seed)
    return msgspec.structs.replace(rollout, id=str(name), weights_version=version)


def probe_requests(
    job: JobSpec,
    iteration: int,
    prompts: Sequence[str],
    choices: Sequence[SeedChoice],
    probes: Sequence[Sequence[int]],
) -> tuple[Request, ...]:
    """Probes, by prompt group, that are not chosen: they are regenerated beside the samples."""
    if not probes:
        return ()
    others = [
        SeedChoice(tuple(seed for seed in seeds if seed not in choice.seeds), ())
        for seeds, choice in zip(probes, choices, strict=True)
    ]
    requests = rollout_requests(job, iteration, prompts, others)
    return tuple(msgspec.structs.replace(request, is_probe=True) for request in requests)


def is_finishing(request: Request) -> bool:
    """Whether a sample is finished with the weights of its preview."""
    return request.weights_version < request.iteration


def finishing_requests(
    job: JobSpec, explored: Explored, prompts: Sequence[str]
) -> tuple[Request, ...]:
    """The samples and probes of an iteration, to be finished with the weights of its previews."""
    pairs = zip(explored.seeds, explored.preview_rewards, strict=True)
    choices = [SeedChoice(*pair) for pair in pairs]
    rollouts = rollout_requests(job, explored.iteration, prompts, choices)
    probes = probe_requests(job, explored.iteration, prompts, choices, explored.probe_seeds)
    return tuple(map(finishing_of, (*rollouts, *probes)))


def random_requests(
    job: JobSpec, iteration: int, prompts: Sequence[str], groups: Sequence[int], *, is_due: bool
) -> tuple[Request, ...]:
    """Random seeds of these prompt groups, denoised as the samples of the iteration are. If one of
    the groups is due, it does not wait for idle time."""
    settings = rollout_settings(job, iteration)
    seeds = random_seeds(job.seed, iteration, len(prompts), job.group_size)
    requests = [
        msgspec.structs.replace(
            request_of("random", iteration, iteration, group, prompts[group], seed, settings),
            in_idle_time=place > 0 or not is_due,
        )
        for place, group in enumerate(groups)
        for seed in seeds[group].seeds
    ]
    return scored_together(job.work, requests)


def gradient_request(job: JobSpec, iteration: int, group: int, number: int) -> Request:
    """A slice of an update: the `group` says which, the seed how many updates were taken before."""
    settings = rollout_settings(job, iteration)
    return request_of("gradient", iteration, iteration, group, "", number, settings)


def evaluation_requests(job: JobSpec, version: int, prompts: Sequence[str]) -> tuple[Request, ...]:
    """The validation of a weights version: every prompt with the same seeds each time."""
    settings = evaluation_settings(job)
    requests = [
        Request(
            id=str(RequestId("evaluation", version, version, group, number)),
            kind="evaluation",
            iteration=version,
            group=group,
            prompt=prompt,
            seed=derived_seed("validation", group, number),
            weights_version=version,
            settings=settings,
            image_key=f"validation/v{version:06d}/p{group:03d}.png" if number == 0 else "",
        )
        for number in range(job.validation.seeds)
        for group, prompt in enumerate(prompts)
    ]
    return scored_together(job.work, requests)


def _settings(job: JobSpec, steps: int, noisy_iteration: int | None) -> SamplingSettings:
    noisy = job.sampler.kind != "ode" and noisy_iteration is not None
    start = window_start(job, noisy_iteration) if noisy and noisy_iteration is not None else None
    return sampling_settings(job.sampler, steps, start)


def sampling_settings(sampler: SamplerSpec, steps: int, noisy_from: int | None) -> SamplingSettings:
    """How requests are denoised; noise is added from step `noisy_from` on, and never without it."""
    noisy = noisy_from is not None
    return SamplingSettings(
        kind=sampler.kind if noisy else "ode",
        steps=steps,
        shift=sampler.shift,
        guidance=sampler.guidance,
        noise_level=sampler.noise_level,
        window=(noisy_from, sampler.window.length) if noisy_from is not None else None,
        height=sampler.height,
        width=sampler.width,
        micro_batch=sampler.micro_batch,
        solver=sampler.solver,
        frames=sampler.frames,
        text_tokens=sampler.text_tokens,
    )
