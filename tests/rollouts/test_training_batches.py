"""Groups of a rollout become what the trainer takes, or one line says why they cannot."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from spotlight import Group, JobError, RolloutRequest, Sample, SamplerSpec, TrainingSpec
from spotlight import training_batch as batch_of
from spotlight.jobs import WindowSpec

TRAINING = TrainingSpec(advantage_std="group", advantage_clip=5.0)
ODE = SamplerSpec(height=16, width=48)
SDE = SamplerSpec(height=16, width=48, kind="flow_sde", window=WindowSpec(earliest=1, latest=4))


def sample(prompt: str, seed: int, reward: float | None, **rewards: float) -> Sample:
    """Whose tensors say its seed."""
    return Sample(
        prompt=prompt,
        seed=seed,
        policy_version=0,
        rewards=rewards,
        reward=reward,
        latents=torch.full((3, 2), float(seed)),
        states=torch.full((3, 3, 2), float(seed)),
        log_probs=torch.full((2,), float(seed)),
        image=None,
        attempts=1,
        resumed_at_step=0,
    )


def group(index: int, *samples: Sample, window: int | None = None) -> Group:
    request = RolloutRequest(
        samples[0].prompt, [each.seed for each in samples], window_start=window
    )
    return Group(request, index, policy_version=0, samples=samples, failed=())


FIRST = group(0, sample("a", 1, 0.0), sample("a", 2, 1.0))
SECOND = group(1, sample("b", 3, 0.2), sample("b", 4, 0.2), sample("b", 5, 0.8))


def test_samples_stand_in_the_order_of_the_requests_however_groups_were_done() -> None:
    batch = batch_of([SECOND, FIRST], TRAINING, ODE)
    assert batch.prompts == ["a", "a", "b", "b", "b"]
    assert batch.latents[:, 0, 0].tolist() == [1.0, 2.0, 3.0, 4.0, 5.0]
    assert batch.window_states is None
    assert batch.seeds == [1, 2, 3, 4, 5]


def test_advantages_are_within_the_group_in_units_of_its_spread() -> None:
    advantages = batch_of([FIRST, SECOND], TRAINING, ODE).advantages
    expected = [-1.0, 1.0, -(0.5**0.5), -(0.5**0.5), 2**0.5]
    torch.testing.assert_close(advantages, torch.tensor(expected), atol=1e-3, rtol=0)


def test_groups_of_two_rollouts_with_one_prompt_are_apart() -> None:
    again = group(0, sample("a", 6, 10.0), sample("a", 7, 10.0))
    advantages = batch_of([FIRST, again], TRAINING, ODE).advantages.tolist()
    assert advantages[2:] == [0.0, 0.0]
    assert advantages[0] < 0 < advantages[1]


def test_each_reward_is_normalised_by_itself_before_its_weight_counts() -> None:
    rows = ((0.0, 100.0), (1.0, 0.0))
    both = group(0, *(sample("a", n, 0.0, fine=f, coarse=c) for n, (f, c) in enumerate(rows)))
    advantages = batch_of([both], TRAINING, ODE, {"coarse": 1.0, "fine": 3.0}).advantages.tolist()
    assert advantages[0] < 0 < advantages[1]  # by the plain sum of rewards it would be the first


def test_a_sampler_that_adds_noise_gives_its_steps() -> None:
    batch = batch_of([SECOND, FIRST], TRAINING, SDE)
    assert batch.window_states is not None and batch.log_probs is not None
    assert batch.window_states.shape == (5, 3, 3, 2)
    assert batch.log_probs[:, 0].tolist() == [1.0, 2.0, 3.0, 4.0, 5.0]
    assert batch.window_start == 1
    moved = replace(FIRST, request=replace(FIRST.request, window_start=2))
    assert batch_of([moved], TRAINING, SDE).window_start == 2


@pytest.mark.parametrize(
    ("groups", "sampler", "weights", "field"),
    [
        ([], ODE, None, "groups"),
        ([group(0, sample("a", 1, None))], ODE, None, "rewards"),
        ([FIRST], ODE, {"ocr": 1.0}, "weights"),
        ([group(0, replace(sample("a", 1, 0.0), latents=None))], ODE, None, "latents"),
        ([group(0, replace(sample("a", 1, 0.0), states=None))], SDE, None, "states"),
        ([FIRST, group(1, sample("b", 3, 0.0), window=3)], SDE, None, "window_start"),
        ([replace(FIRST, request=replace(FIRST.request, steps=4))], SDE, None, "steps"),
        (
            [FIRST, group(1, replace(sample("b", 3, 0.0), latents=torch.zeros(4, 2)))],
            ODE,
            None,
            "latents",
        ),
    ],
)
def test_what_cannot_be_trained_on_is_refused_by_its_field(
    groups: list[Group], sampler: SamplerSpec, weights: dict[str, float] | None, field: str
) -> None:
    with pytest.raises(JobError) as refused:
        batch_of(groups, TRAINING, sampler, weights)
    assert refused.value.path == field
