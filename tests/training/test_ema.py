import torch

from spotlight.training.ema import Ema


def test_the_average_moves_by_the_rest_of_the_decay():
    ema = Ema(torch.tensor([0.0, 10.0]), decay=0.75)
    ema.update(torch.tensor([4.0, 10.0]))
    ema.update(torch.tensor([4.0, 10.0]))
    assert ema.average.tolist() == [1.75, 10.0]


def test_the_average_does_not_share_memory_with_the_weights():
    weights = torch.ones(2)
    ema = Ema(weights, decay=0.5)
    weights.zero_()
    assert ema.average.tolist() == [1.0, 1.0]


def test_without_decay_the_average_is_the_newest_weights():
    ema = Ema(torch.zeros(1), decay=0.0)
    ema.update(torch.full((1,), 0.3))
    assert torch.equal(ema.average, torch.full((1,), 0.3))
