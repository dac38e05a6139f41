"""Studies on the tiny model: 2 lags, 2 prompts, 4 seeds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import msgspec
import pytest
import torch

from benchmarks.staleness.staleness_plan import StalenessPlan
from benchmarks.staleness.staleness_record import (
    Rewards,
    Scoring,
    StalenessRecord,
    read_record,
)
from benchmarks.staleness.study import StalenessStudy, run_study
from spotlight.actors.coordinator.tenant.request_plans import rollout_settings, sampling_settings
from spotlight.diffusion.checkpoints import load_model
from spotlight.diffusion.samplers import sample
from spotlight.errors import CheckpointError, RunFolderError, ScoringError
from spotlight.training.checkpoints import save_checkpoint
from spotlight.training.trainer import Trainer
from tests.small_run import Brightness, small_job, write_run

MakePlan = Callable[..., StalenessPlan]


def study(plan: StalenessPlan) -> StalenessRecord:
    return StalenessStudy(plan, lambda line: None).carry_out()


def scoring(record: StalenessRecord, treatment: str, lag: int) -> Scoring:
    (found,) = (s for s in record.scorings if (s.treatment, s.lag) == (treatment, lag))
    return found


def scored_with(record: StalenessRecord) -> list[tuple[str, int]]:
    return [(s.treatment, s.lag) for s in record.scorings]


@pytest.mark.slow
def test_every_lag_is_scored_with_its_weights(plan: MakePlan, brightness: Brightness) -> None:
    wanted = plan()
    record = study(wanted)

    assert scored_with(record) == [("rollout", 2), ("rollout", 1), ("rollout", 0), ("repeat", 0)]
    rewards = [scoring(record, "rollout", lag).rewards for lag in (2, 1, 0)]
    assert len(set(rewards)) == 3, "weights of different versions give different images"
    assert {len(row) for rows in rewards for row in rows} == {4}
    # The greatest lag is where the study began: the job's initial weights.
    model = load_model(wanted.job.model)
    settings = sampling_settings(wanted.job.sampler, wanted.job.sampler.steps, None)
    for prompt, seeds, row in zip(wanted.prompts, wanted.seeds, rewards[0], strict=True):
        latents = sample(model, [prompt] * 4, seeds, settings).latents
        images = model.decode(latents, settings.height, settings.width)
        assert row == pytest.approx(brightness.score(images, [prompt] * 4))


@pytest.mark.slow
def test_rollout_weights_are_scored_where_they_are_not_the_newest(
    run: Path, plan: MakePlan, brightness: Brightness
) -> None:
    # Without averaging, those of validation are the newest.
    decays = {"rollout_decay": 0.9, "ema_decay": 0.0, "learning_rate": 1e-2}
    write_run(run, training=decays)
    wanted = plan(lags="1")
    done = StalenessStudy(wanted, lambda line: None)
    rewards = scoring(done.carry_out(), "rollout", 0).rewards

    def score(state: dict[str, torch.Tensor]) -> Rewards:
        pairs = [
            (prompt, seed)
            for prompt, seeds in zip(wanted.prompts, wanted.seeds, strict=True)
            for seed in seeds
        ]
        parts = done.engine.scored(state, pairs, rollout_settings(wanted.job, 1))
        found = [reward for part in parts for reward in part.scores]
        each = len(wanted.seeds[0])
        return tuple(tuple(found[at : at + each]) for at in range(0, len(found), each))

    assert rewards == score(done.engine.trainer.rollout_state())
    assert rewards != score(done.engine.trainer.evaluation_state())


@pytest.mark.slow
def test_a_study_depends_on_its_seed_alone(plan: MakePlan, brightness: Brightness) -> None:
    first, again, other = (study(plan(seed=seed)) for seed in (1, 1, 2))
    assert first == again
    assert first.seeds != other.seeds and first.prompts != other.prompts


@pytest.mark.slow
def test_without_noise_a_repetition_gives_the_same_rewards(
    plan: MakePlan, brightness: Brightness
) -> None:
    record = study(plan(lags="1"))
    assert scoring(record, "repeat", 0).rewards == scoring(record, "rollout", 0).rewards
    assert not record.stochastic


@pytest.mark.slow
def test_with_noise_a_repetition_shares_only_the_initial_latents(
    run: Path, plan: MakePlan, brightness: Brightness
) -> None:
    noisy = {"kind": "flow_sde", "steps": 3, "window": {"length": 1, "latest": 1}}
    write_run(run, sampler=noisy)
    few = study(plan(lags="1"))
    assert few.stochastic
    assert scoring(few, "repeat", 0).rewards != scoring(few, "rollout", 0).rewards
    write_run(run, sampler={**noisy, "noise_level": 0.0}, training={"loss": "diffusion_nft"})
    quiet = study(plan(lags="1"))
    repeated, rolled_out = (scoring(quiet, what, 0).rewards for what in ("repeat", "rollout"))
    assert repeated == rolled_out, "without noise nothing else differs"


@pytest.mark.slow
def test_previews_are_scored_where_exploration_takes_fewer_steps(
    run: Path, plan: MakePlan, brightness: Brightness
) -> None:
    write_run(run, exploration={"preview_steps": 1})
    record = study(plan())
    assert [one for one in scored_with(record) if one[0] == "preview"] == [
        ("preview", 1),
        ("preview", 0),
    ]
    assert scoring(record, "preview", 0).steps == 1
    assert scoring(record, "rollout", 0).steps == 2


@pytest.mark.slow
def test_training_goes_on_from_the_newest_checkpoint(
    run: Path, plan: MakePlan, brightness: Brightness
) -> None:
    whole = study(plan(lags="1,2"))
    halfway = StalenessStudy(plan(lags="1"), lambda line: None)
    halfway.carry_out()  # which trains one iteration
    (run / "checkpoints").mkdir()
    for completed in (0, 1):
        save_checkpoint(
            run / "checkpoints" / f"iteration-{completed:06d}.safetensors",
            halfway.engine.trainer.state_dict(),
            {"completed": str(completed)},
        )

    record = study(plan(lags="1"))

    assert (record.completed, record.trained) == (1, 1)
    assert record.checkpoint.endswith("iteration-000001.safetensors")
    for lag in (1, 0):
        assert scoring(record, "rollout", lag) == scoring(whole, "rollout", lag)


@pytest.mark.slow
def test_a_checkpoint_that_does_not_say_its_iterations_is_refused(
    run: Path, plan: MakePlan, brightness: Brightness
) -> None:
    job = small_job()
    trainer = Trainer(load_model(job.model), job.training, job.sampler, seed=0)
    path = run / "checkpoints" / "iteration-000001.safetensors"
    path.parent.mkdir()
    save_checkpoint(path, trainer.state_dict(), {})
    with pytest.raises(CheckpointError, match="how many iterations"):
        study(plan())


@pytest.mark.slow
def test_a_reward_that_is_no_number_ends_the_study(
    plan: MakePlan, brightness: Brightness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(brightness, "score", lambda images, prompts: [float("nan")] * len(images))
    with pytest.raises(ScoringError, match="nan"):
        study(plan())


@pytest.mark.slow
def test_a_scorer_that_fails_once_is_asked_again(
    plan: MakePlan, brightness: Brightness, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = study(plan(lags="1"))
    works, calls = brightness.score, []

    def fails_first(images, prompts):
        calls.append(len(images))
        if len(calls) == 1:
            raise ScoringError("busy")
        return works(images, prompts)

    monkeypatch.setattr(brightness, "score", fails_first)
    assert study(plan(lags="1")) == expected


@pytest.mark.slow
def test_results_are_written_beside_an_unchanged_run(
    run: Path, plan: MakePlan, brightness: Brightness
) -> None:
    config = (run / "config.yaml").read_bytes()
    said: list[str] = []

    run_study(plan(), said.append)

    assert sorted(str(path.relative_to(run)) for path in run.rglob("*.*")) == [
        "config.yaml",
        "studies/staleness.json",
        "studies/staleness.svg",
    ]
    assert (run / "config.yaml").read_bytes() == config
    record = read_record(run)
    assert record == msgspec.json.decode(msgspec.json.encode(record), type=StalenessRecord)
    assert record == study(plan())
    root = ElementTree.parse(run / "studies" / "staleness.svg").getroot()
    assert root.tag.endswith("svg")
    lines = [line for line in said if line.startswith("iteration ")]
    assert len(lines) == 2, "one line for each iteration that was trained"


@pytest.mark.slow
def test_results_that_could_not_be_written_are_refused_before_the_work(
    run: Path, plan: MakePlan, brightness: Brightness
) -> None:
    (run / "studies").write_text("in the way")
    said: list[str] = []
    with pytest.raises(RunFolderError, match="studies: File exists"):
        run_study(plan(), said.append)
    assert len(said) == 1, "nothing was scored yet"


@pytest.mark.slow
def test_a_study_leaves_the_global_generator_alone(plan: MakePlan, brightness: Brightness) -> None:
    before = torch.random.get_rng_state()
    study(plan(lags="1"))
    assert torch.equal(before, torch.random.get_rng_state())
