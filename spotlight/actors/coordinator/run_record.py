"""What a job writes down while it runs: events, metrics, validation pictures, progress.

All times are seconds of run time: those of earlier, interrupted runs of the same folder included.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog

from spotlight.errors import RunFolderError
from spotlight.policies.exploration.planners import SeedChoice
from spotlight.policies.exploration.ranking import median_or_none, spearman, spread
from spotlight.policies.step_times import StepTimes
from spotlight.store.run_folder import RunFolder
from spotlight.types import Result

log = structlog.get_logger(__name__)


@dataclass
class IterationFigures:
    """What is measured during one iteration."""

    iteration: int
    publish_s: float = 0.0
    """From the end of training to the first grant with the new weights."""
    explore_s: float = 0.0
    """Of exploration that nothing else went on beside: with fresh weights."""
    rollout_s: float = 0.0
    train_s: float = 0.0
    samples: int = 0
    samples_restored: int = 0
    """Of these, those that were made before a coordinator came back, and are not in `rollout_s`."""
    scoring_s: float = 0.0
    """Time that scoring took since the iteration before, all workers together; workers score beside
    whatever their state says."""
    reward_mean: float = 0.0
    reward_std: float = 0.0
    group_std_mean: float = 0.0
    zero_variance_groups: int = 0
    contrast: float = 0.0
    """Root mean square, over prompt groups, of the standard deviation of their samples' rewards."""
    contrast_at_random: float | None = None
    """What that would be, had as many seeds been taken at random; from the rewards of probes."""
    rank_correlation: float | None = None
    preview_group_std_mean: float | None = None
    """Of the previews of the kept seeds; and the standard deviation of their samples."""
    explored_std_mean: float = 0.0
    realised_share: float | None = None
    """Of the gain over any previewed seeds that previews promised."""
    previews: int = 0
    """Scored previews that chose this iteration's seeds."""
    previews_late: int = 0
    explored_prompts: int = 0
    probes: int = 0
    """Previewed seeds, drawn at random, that were regenerated whether or not they were chosen."""
    probe_correlation: float | None = None
    """Spearman, of their preview and fresh rewards."""
    probe_tau: float | None = None
    """Kendall's tau-b, with those of earlier iterations, which fade."""
    preview_steps: int | None = None
    """Of the previews that chose this iteration's seeds."""
    prompt_pool: int | None = None
    """Over how many times the iteration's prompts they were spread."""
    window_s: float | None = None
    """Time to explore in for the next iteration: what training was predicted to take, less what
    open validations need of it; None if there was no prediction."""
    exploration_share: float = 1.0
    """Of the previews that the job allows, for the next iteration; with fresh weights for this
    one."""


class RunRecord:
    """Writes to a run folder with the run's own clock."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._loop = asyncio.get_running_loop()
        self._offset_s = folder.last_time_s() - self._loop.time()

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

    def event(self, event: str, **fields: Any) -> None:
        """Append to events.jsonl."""
        self._folder.record_event({"time_s": round(self.time_s(), 4), "event": event, **fields})

    def iteration(self, figures: IterationFigures, training: dict[str, float]) -> None:
        """Append an iteration to metrics.jsonl."""
        record: dict[str, Any] = {
            "kind": "iteration",
            "weights_version": figures.iteration,
            "time_s": self.time_s(),
            "images_per_s": (figures.samples - figures.samples_restored) / figures.rollout_s
            if figures.rollout_s
            else 0.0,
            **vars(figures),
            **training,
        }
        self._folder.record_metrics(_rounded(record))

    def validation(self, version: int, score: float, results: Sequence[Result]) -> None:
        """Append a validation to metrics.jsonl and put its pictures in place."""
        record = {
            "kind": "validation",
            "weights_version": version,
            "iteration": version,
            "time_s": self.time_s(),
            "score": score,
            "images": len(results),
        }
        self._folder.record_metrics(_rounded(record))
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

    def sync(self) -> None:
        """Make what was recorded so far durable."""
        self._folder.sync_events()

    def keep_checkpoint(self, path: str) -> None:
        """Older checkpoints are no longer needed."""
        self._folder.keep_checkpoints({path})

    def close(self) -> None:
        """Release the folder."""
        self._folder.close()


def rollout_figures(
    figures: IterationFigures, results: Sequence[Result], choices: Sequence[SeedChoice]
) -> None:
    """Fill in what the finished samples of an iteration say."""
    by_group: dict[int, dict[int, float]] = {}
    for result in results:
        by_group.setdefault(result.request.group, {})[result.request.seed] = result.reward
    rewards = [result.reward for result in results]
    spreads = [spread(list(group.values())) for group in by_group.values()]
    figures.samples = len(results)
    figures.reward_mean = sum(rewards) / len(rewards)
    figures.reward_std = spread(rewards)
    figures.group_std_mean = sum(spreads) / len(spreads)
    figures.zero_variance_groups = sum(value == 0 for value in spreads)
    figures.contrast = math.sqrt(sum(value * value for value in spreads) / len(spreads))
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
    figures.explored_prompts = len(explored)
    figures.rank_correlation = median_or_none(
        [spearman([p for p, _ in group], [r for _, r in group]) for group in explored]
    )
    if explored:
        previewed = [spread([preview for preview, _ in group]) for group in explored]
        figures.preview_group_std_mean = sum(previewed) / len(previewed)
        realised = [spread([reward for _, reward in group]) for group in explored]
        figures.explored_std_mean = sum(realised) / len(realised)


def _rounded(record: dict[str, Any]) -> dict[str, Any]:
    return {
        key: round(value, 6) if isinstance(value, float) else value for key, value in record.items()
    }
