import pytest
import torch

from spotlight.training.batches import TrainingBatch, deal, key


def test_every_sample_is_dealt_exactly_once():
    hands = deal(20, 3, choice=7)
    assert sorted(sample for hand in hands for sample in hand) == list(range(20))
    assert sorted(map(len, hands)) == [6, 7, 7]


def test_the_key_alone_decides_the_order():
    assert deal(20, 2, choice=7) == deal(20, 2, choice=7)
    assert deal(20, 2, choice=7) != deal(20, 2, choice=8)


def test_no_hand_is_empty():
    assert [len(hand) for hand in deal(2, 5, choice=0)] == [1, 1]


def test_keys_tell_choices_apart():
    parts = [(seed, iteration) for seed in range(20) for iteration in range(20)]
    assert len({key(*part) for part in parts}) == 400
    assert key(1, 2) != key(1, 2, 0)
    assert 0 <= key(2**63 - 1) < 2**64


def test_a_part_of_a_batch_is_a_batch_of_these_samples():
    batch = TrainingBatch(
        prompts=["a", "b", "c"],
        latents=torch.randn(3, 2, 4),
        advantages=torch.randn(3),
        window_states=torch.randn(3, 3, 2, 4),
        log_probs=torch.randn(3, 2),
        window_start=2,
        seeds=[7, 8, 9],
    )
    part = batch.select([2, 0])
    assert (part.prompts, part.seeds, part.window_start) == (["c", "a"], [9, 7], 2)
    for name in ("latents", "advantages", "window_states", "log_probs"):
        assert torch.equal(getattr(part, name), getattr(batch, name)[[2, 0]])
    assert batch.name_of(1) == "prompt 'b', seed 8"


@pytest.mark.parametrize("name", ["latents", "advantages", "log_probs"])
def test_a_field_with_another_number_of_rows_is_named(name):
    good = {"latents": torch.zeros(2, 3, 4), "advantages": torch.zeros(2)}
    with pytest.raises(ValueError, match=name):
        TrainingBatch(prompts=["a", "b"], **{**good, name: torch.zeros(3, 2)})


def test_an_empty_batch_is_refused():
    with pytest.raises(ValueError, match="prompts"):
        TrainingBatch(prompts=[], latents=torch.zeros(0, 3, 4), advantages=torch.zeros(0))
