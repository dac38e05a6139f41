"""The charts of rewards: of the samples, of validation, and of each of several rewards."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from spotlight.jobs import RewardSpec
from spotlight.report import charts, figures, formatting
from spotlight.report.charts import Series
from spotlight.report.run_reading import RunHistory


def samples(run: RunHistory) -> Iterable[str]:
    """Mean and spread of the samples' rewards, by iteration."""
    known = [one for one in run.iterations if one.reward_mean is not None]
    if not known:
        return
    middle = tuple((float(one.iteration), one.reward_mean or 0.0) for one in known)
    spread = [one.reward_std or 0.0 for one in known]
    band = tuple((mean - std, mean + std) for (_, mean), std in zip(middle, spread, strict=True))
    titles = tuple(
        f"iteration {one.iteration}\n"
        f"reward {formatting.score(one.reward_mean)} ± {formatting.score(std)}"
        for one, std in zip(known, spread, strict=True)
    )
    drawn = charts.line_chart(
        [Series("rollout", middle, titles, band)],
        figures.iteration_axis(known),
        _axis([end for ends in band for end in ends], run.job.rewards),
        description=f"mean reward by iteration, {formatting.score(middle[0][1])} to "
        f"{formatting.score(middle[-1][1])}",
    )
    note = "Mean and standard deviation of the samples of each iteration"
    yield figures.figure("Reward of the samples", f"{note}{_by_weight(run)}", drawn)


def validation(run: RunHistory) -> Iterable[str]:
    """The validation score by run time."""
    if not run.validations:
        return
    points = tuple((one.time_s, one.score) for one in run.validations)
    titles = tuple(
        f"weights version {one.weights_version}, after {formatting.duration(one.time_s)}\n"
        f"score {formatting.score(one.score)} over {formatting.count(one.images, 'image')}"
        for one in run.validations
    )
    drawn = charts.line_chart(
        [Series("evaluate", points, titles, dots=True)],
        charts.time_axis(0.0, run.run_seconds, count=5),
        _axis([score for _, score in points], run.job.rewards),
        description=f"validation score by run time, {formatting.score(points[0][1])} to "
        f"{formatting.score(points[-1][1])}",
    )
    note = "Held-out prompts, always with the same seeds, by run time"
    yield figures.figure("Validation score", f"{note}{_by_weight(run)}", drawn)


def each_reward(run: RunHistory) -> Iterable[str]:
    """Every reward of the validation images by itself, where there is more than one."""
    job = run.job
    if len(job.measured_rewards) == 1:
        return
    for reward in job.measured_rewards:
        known = [one for one in run.validations if reward.name in one.rewards]
        if not known:
            continue
        points = tuple((one.time_s, one.rewards[reward.name]) for one in known)
        titles = tuple(
            f"weights version {one.weights_version}\n{reward.name} {formatting.score(mean)}"
            f" ± {formatting.score(one.reward_errors.get(reward.name))}"
            for one, (_, mean) in zip(known, points, strict=True)
        )
        drawn = charts.line_chart(
            [Series("evaluate", points, titles, dots=True)],
            charts.time_axis(0.0, run.run_seconds, count=5),
            _axis([mean for _, mean in points], (reward,)),
            description=f"{reward.name} of validation images by run time,"
            f" {formatting.score(points[0][1])} to {formatting.score(points[-1][1])}",
        )
        trained = reward in job.rewards
        use = f"weight {reward.weight:g} in training" if trained else "not trained on"
        yield figures.figure(f"Validation: {reward.name}", f"Mean of the images; {use}", drawn)


def _axis(values: Sequence[float], rewards: Sequence[RewardSpec]) -> charts.Axis:
    """From 0 for rewards in [0, 1]; otherwise from the least to the greatest of the values."""
    if any(reward.range != (0.0, 1.0) for reward in rewards):
        return charts.nice_axis(min(values), max(values), figures.short)
    high = charts.nice_axis(0, max(*values, 0.1), figures.short).high
    return charts.nice_axis(0, min(1.0, high), figures.short)


def _by_weight(run: RunHistory) -> str:
    return "; of several rewards the mean by their weights" if len(run.job.rewards) > 1 else ""
