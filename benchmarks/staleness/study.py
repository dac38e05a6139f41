"""Does the ranking of seeds survive updates? Trains on from where a run stands, and scores the same
seeds with the weights of several iterations.

The run folder is only read but for the files of the study. Training is the job's own, without
exploration: its prompts, seeds, sampler, reward and loss, in one process, which gives the same
weights as its ranks would.

Each version is scored while it is the newest, so that only one set of weights is held.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.staleness.staleness_chart import write_chart
from benchmarks.staleness.staleness_plan import StalenessPlan
from benchmarks.staleness.staleness_record import (
    Rewards,
    Scoring,
    StalenessRecord,
    Treatment,
    compare,
    make_results_folder,
    write_record,
)
from spotlight.actors.coordinator.tenant.request_plans import (
    TrainingPrompts,
    preview_settings,
    rollout_settings,
    unexplored_choices,
)
from spotlight.assets import read_prompts
from spotlight.errors import CheckpointError
from spotlight.training.checkpoints import load_checkpoint
from spotlight.types import SamplingSettings
from spotlight_simulation.one_process import OneProcess

Say = Callable[[str], None]


class StalenessStudy:
    """One study: `carry_out` does it.

    Args:
        plan: see `StalenessPlan`.
        say: told of progress, a line at a time.

    Raises `CheckpointError`, `JobError` or `MissingDependency` when the job's model, reward or
    checkpoint cannot be used.
    """

    def __init__(self, plan: StalenessPlan, say: Say) -> None:
        job = plan.job
        self._plan = plan
        self._job = job
        self._say = say
        self._train_prompts = TrainingPrompts(job, read_prompts(job.prompts.train))
        self.engine = OneProcess(job)
        """The job's model, scorer and trainer."""
        self._completed = 0
        if plan.checkpoint:
            state, metadata = load_checkpoint(Path(plan.checkpoint))
            self.engine.trainer.load_state_dict(state)
            self._completed = _completed(plan.checkpoint, metadata)
        self._newest = self._completed + plan.lags[-1]

    def carry_out(self) -> StalenessRecord:
        """Train, score, compare.

        Raises `ScoringError` when an image cannot be scored, `NotFinite` and `TrainingDiverged`.
        """
        job, plan = self._job, self._plan
        scorings = []
        for version in range(self._completed, self._newest + 1):
            scorings += [self._score(*wanted) for wanted in self._wanted(self._newest - version)]
            if version < self._newest:
                self._train(version)
        return StalenessRecord(
            job=job.name,
            checkpoint=plan.checkpoint,
            completed=self._completed,
            trained=plan.lags[-1],
            sampler=job.sampler.kind,
            stochastic=job.sampler.kind != "ode",
            keep=job.group_size,
            seed=plan.seed,
            prompts=plan.prompts,
            seeds=plan.seeds,
            scorings=tuple(scorings),
            comparisons=compare(scorings, keep=job.group_size, seeds=plan.seeds, seed=plan.seed),
        )

    def _wanted(self, lag: int) -> list[tuple[Treatment, int, SamplingSettings]]:
        """What is scored with the weights of a lag. Settings, the SDE window included, are those of
        the newest iteration whatever the lag: only the weights differ.
        """
        lags = (0, *self._plan.lags)
        rollout = rollout_settings(self._job, self._newest)
        preview = preview_settings(self._job, self._newest)
        wanted: list[tuple[Treatment, int, SamplingSettings]] = []
        if lag in lags:
            wanted.append(("rollout", lag, rollout))
        if lag == 0:
            wanted.append(("repeat", lag, rollout))
        if lag in lags[:2] and preview != rollout and self._job.exploration.mode != "none":
            wanted.append(("preview", lag, preview))
        return wanted

    def _score(self, treatment: Treatment, lag: int, settings: SamplingSettings) -> Scoring:
        began = time.monotonic()
        pairs = [
            (prompt, seed)
            for prompt, seeds in zip(self._plan.prompts, self._plan.seeds, strict=True)
            for seed in seeds
        ]
        if treatment == "repeat":
            pairs.reverse()  # so that every seed is in another batch
        weights = self.engine.trainer.rollout_state()
        rewards = [
            reward
            for part in self.engine.scored(
                weights, pairs, settings, other_noise=treatment == "repeat"
            )
            for reward in part.scores
        ]
        if treatment == "repeat":
            rewards.reverse()
        mean = sum(rewards) / len(rewards)
        self._say(
            f"lag {lag}, {treatment}: {len(pairs)} images of {settings.steps} steps, mean reward"
            f" {mean:.3f}, {time.monotonic() - began:.1f} s"
        )
        return Scoring(
            treatment=treatment,
            lag=lag,
            steps=settings.steps,
            rewards=_rows(rewards, len(self._plan.prompts)),
        )

    def _train(self, iteration: int) -> None:
        """One iteration of the job, as it is without exploration."""
        began = time.monotonic()
        job = self._job
        choices = unexplored_choices(job, iteration)
        prompts = self._train_prompts.of(iteration)
        rows = [
            (group, prompt, seed)
            for group, (prompt, choice) in enumerate(zip(prompts, choices, strict=True))
            for seed in sorted(choice.seeds)
        ]
        samples = list(
            self.engine.scored(
                self.engine.trainer.rollout_state(),
                [(prompt, seed) for _, prompt, seed in rows],
                rollout_settings(job, iteration),
            )
        )
        rewards = [reward for part in samples for reward in part.scores]
        report = self.engine.train(
            iteration,
            [prompt for _, prompt, _ in rows],
            [group for group, _, _ in rows],
            samples,
        )
        self._say(
            f"iteration {iteration}: trained on {len(rows)} samples, mean reward"
            f" {sum(rewards) / len(rewards):.3f}, loss {report['loss']:.4g},"
            f" {time.monotonic() - began:.1f} s"
        )


def _completed(path: str, metadata: dict[str, str]) -> int:
    try:
        return int(metadata["completed"])
    except (KeyError, ValueError) as error:
        raise CheckpointError(
            f"{path}: does not say how many iterations it has; name a run that a job wrote"
        ) from error


def _rows(rewards: Sequence[float], prompts: int) -> Rewards:
    seeds = len(rewards) // prompts
    return tuple(tuple(rewards[row * seeds : (row + 1) * seeds]) for row in range(prompts))


def run_study(plan: StalenessPlan, say: Say) -> None:
    """Carry the study out and write its results into the run folder."""
    where = plan.checkpoint or "no checkpoint there: the job's initial weights"
    say(f"`{plan.job.name}`: {where}")
    study, run = StalenessStudy(plan, say), Path(plan.run)
    make_results_folder(run)
    record = study.carry_out()
    write_record(run, record)
    write_chart(run, record)
