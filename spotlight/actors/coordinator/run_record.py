"""What a job writes down while it runs: events, metrics, validation pictures, progress.

All times are seconds of run time: those of earlier, interrupted runs of the same folder included.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import structlog

from spotlight.errors import RunFolderError
from spotlight.policies.checkpoint_retention import best_version, kept_checkpoints
from spotlight.policies.exploration.planners import SeedChoice
from spotlight.policies.exploration.ranking import median_or_none, spearman, spread
from spotlight.policies.step_times import StepTimes
from spotlight.run_events import RunEvent, encode_event
from spotlight.run_metrics import (
    IterationMetrics,
    RunMetrics,
    ValidationMetrics,
    with_update,
)
from spotlight.store.run_folder import RunFolder
from spotlight.trackers import CallbackThread, IterationRecord, RunRecords
from spotlight.types import Result

log = structlog.get_logger(__name__)


class RunRecord:
    """Writes to a run folder with the run's own clock.

    Args:
        callbacks: told of all that is written.
    """

    def __init__(self, folder: RunFolder, callbacks: CallbackThread | None = None) -> None:
        self._folder = folder
        self._tell = callbacks.put if callbacks is not None else _to_nobody
        self._loop = asyncio.get_running_loop()
        self._offset_s = folder.last_time_s() - self._loop.time()
        self.scores = folder.validation_scores()
        """Of each weights version that is validated."""

    @property
    def path(self) -> Path:
        """The run folder."""
        return self._folder.path

    def time_s(self) -> float:
        """Run time now."""
        return self._loop.time() + self._offset_s

    def require_there(self) -> None:
        """Raise `RunFolderError` if the folder is gone."""
        self._folder.require_there()

    def event(self, event: RunEvent) -> None:
        """Append to events.jsonl."""
        time_s = round(self.time_s(), 4)
        self._folder.record_event(encode_event(event, time_s))
        self._tell(msgspec.structs.replace(event, time_s=time_s))

    def iteration(self, metrics: IterationMetrics, training: Mapping[str, float]) -> None:
        """Append an iteration to metrics.jsonl, with the metrics of its update."""
        metrics.weights_version = metrics.iteration
        made = metrics.samples - metrics.samples_restored
        metrics.images_per_s = made / metrics.rollout_s if metrics.rollout_s else 0.0
        self._append_metrics(metrics, training)
        self._tell(IterationRecord(*with_update(metrics, training)))

    def validation(self, version: int, score: float, results: Sequence[Result]) -> None:
        """Append a validation to metrics.jsonl and put its pictures in place."""
        images = len(results)
        self.scores[version] = score
        metrics = ValidationMetrics(
            weights_version=version, iteration=version, score=score, images=images
        )
        self._append_metrics(metrics)
        self._tell(metrics)
        pictured = sorted(
            (result for result in results if result.request.image_key),
            key=lambda result: result.request.group,
        )
        listing = [
            {
                "prompt": result.request.prompt,
                "reward": result.reward,
                "file": Path(result.request.image_key).name,
            }
            for result in pictured
        ]
        self._folder.show_pictures(version, listing)

    def _append_metrics(self, metrics: RunMetrics, others: Mapping[str, float] = {}) -> None:
        metrics.time_s = self.time_s()
        line: dict[str, Any] = {**msgspec.to_builtins(metrics), **others}
        self._folder.record_metrics(
            {key: round(it, 6) if isinstance(it, float) else it for key, it in line.items()}
        )

    def step_times(self) -> StepTimes:
        """What this run measured before; nothing if its file is absent or damaged: it will be
        measured again.
        """
        try:
            saved = self._folder.step_times()
            return StepTimes.from_dict(json.loads(saved)) if saved is not None else StepTimes()
        except (RunFolderError, ValueError, RecursionError) as error:
            path = str(self._folder.path / "step-times.json")
            log.warning("step_times_not_loaded", path=path, reason=str(error))
            return StepTimes()

    def save_step_times(self, times: StepTimes) -> None:
        """Replace step-times.json."""
        self._folder.save_step_times(times.to_dict())

    def rewind(self, completed: int, validated: Collection[int]) -> None:
        """The run goes on after so many iterations, with these versions validated."""
        self._folder.rewind(completed, validated)
        self.scores = self._folder.validation_scores()

    def sync(self) -> None:
        """Make what was recorded so far durable."""
        self._folder.sync_events()

    def keep_checkpoints(self, committed: int, *, last: int) -> None:
        """Delete checkpoints that nobody needs; see `kept_checkpoints`."""
        saved = self._folder.checkpoints()
        self._folder.keep_checkpoints(kept_checkpoints(saved, committed, self.scores, last))

    def best_checkpoint(self) -> int:
        """The one with the best score, of those that there are. Raises `RunFolderError` if none has
        a score: a job that has ended has validated what it saved last.
        """
        saved = self._folder.checkpoints()
        best = best_version({one: self.scores[one] for one in saved if one in self.scores})
        if best is None:
            raise RunFolderError(
                f"{self.path / 'checkpoints'} lacks the checkpoint of any validation; somebody"
                " deleted it while the run went on: submit the job again"
            )
        return best

    def close(self) -> None:
        """Release the folder."""
        self._folder.close()


def _to_nobody(record: RunRecords) -> None:
    """There are no callbacks."""


def measure_rollout(
    metrics: IterationMetrics, results: Sequence[Result], choices: Sequence[SeedChoice]
) -> None:
    """Fill in what follows from the finished samples of an iteration."""
    by_group: dict[int, dict[int, float]] = {}
    for result in results:
        by_group.setdefault(result.request.group, {})[result.request.seed] = result.reward
    rewards = [result.reward for result in results]
    spreads = [spread(list(group.values())) for group in by_group.values()]
    metrics.samples = len(results)
    metrics.reward_mean = sum(rewards) / len(rewards)
    metrics.reward_std = spread(rewards)
    metrics.group_std_mean = sum(spreads) / len(spreads)
    metrics.zero_variance_groups = sum(value == 0 for value in spreads)
    metrics.contrast = math.sqrt(sum(value * value for value in spreads) / len(spreads))
    pairs = [
        [
            (preview, by_group[group][seed])
            for seed, preview in zip(choice.seeds, choice.preview_rewards, strict=True)
            if preview is not None and seed in by_group[group]
        ]
        for group, choice in enumerate(choices)
        if group in by_group
    ]
    explored = [group for group in pairs if len(group) > 1]
    metrics.explored_prompts = len(explored)
    metrics.rank_correlation = median_or_none(
        [spearman([p for p, _ in group], [r for _, r in group]) for group in explored]
    )
    if explored:
        previewed = [spread([preview for preview, _ in group]) for group in explored]
        metrics.preview_group_std_mean = sum(previewed) / len(previewed)
        realised = [spread([reward for _, reward in group]) for group in explored]
        metrics.explored_std_mean = sum(realised) / len(realised)
