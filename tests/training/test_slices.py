"""Slices of an update: how they are cut, sent and refused."""

import msgspec
import pytest
import torch

from spotlight.errors import SliceRefused, TrainingDiverged, TransferFailed
from spotlight.training.slices import SliceGradient, cut, pack, unpack
from spotlight.training.trainer import Trainer
from spotlight.transport.tensors import bundles

from .fakes import GRPO, NFT, NOISY, SAMPLER, FakeModel, make_batch, same_bits, with_options
from .slice_kit import Helper, weights_of

TRAINING = msgspec.structs.replace(
    NFT, options={"times": 3}, slices=3, micro_batch=2, updates_per_iteration=2
)


def rows_of(found, per_sample):
    """What the slices say, as (sample, its row) one after the other."""
    return [
        (each.samples[row // per_sample], row % per_sample)
        for each in found
        for row in range(each.first, each.first + each.rows)
    ]


@pytest.mark.parametrize("slices", [1, 2, 3, 7, 64])
@pytest.mark.parametrize(("samples", "per_sample", "size"), [(7, 3, 2), (4, 1, 4), (5, 8, 3)])
def test_slices_are_all_rows_in_order_cut_between_micro_batches(samples, per_sample, size, slices):
    chosen = list(range(10, 10 + samples))
    draws = [it + 100 for it in chosen]
    found = cut(chosen, draws, rows=samples * per_sample, size=size, slices=slices)
    passes = -(-samples * per_sample // size)
    assert rows_of(found, per_sample) == [(it, row) for it in chosen for row in range(per_sample)]
    assert [each.index for each in found] == list(range(min(slices, passes)))
    assert all(each.rows % size == 0 for each in found[:-1])
    assert all(draw == it + 100 for x in found for it, draw in zip(x.samples, x.draws, strict=True))
    counts = [-(-each.rows // size) for each in found]
    assert max(counts) - min(counts) <= 1
    assert all(len(each.samples) <= -(-each.rows // per_sample) + 1 for each in found)


def test_there_is_no_slice_of_nothing():
    assert cut([], [], rows=0, size=4, slices=3) == ()


GRADIENT = SliceGradient(3, 1, 0, 2, torch.randn(10), torch.randn(4, dtype=torch.float64))


def test_a_gradient_arrives_as_it_was_sent():
    found = unpack(pack(GRADIENT))
    assert (found.iteration, found.update, found.rank, found.index) == (3, 1, 0, 2)
    assert torch.equal(found.gradient, GRADIENT.gradient)
    assert torch.equal(found.sums, GRADIENT.sums)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"nonsense",
        bundles.pack({"gradient": GRADIENT.gradient, "sums": GRADIENT.sums}),
        bundles.pack({"gradient": GRADIENT.gradient}, {"iteration": "1"}),
        pack(SliceGradient(3, 1, 0, 2, GRADIENT.gradient.bfloat16(), GRADIENT.sums)),
        pack(SliceGradient(3, 1, 0, 2, GRADIENT.gradient, GRADIENT.sums.float())),
    ],
)
def test_bytes_that_are_no_gradient_are_refused(data):
    with pytest.raises(TransferFailed):
        unpack(data)


# --- what an update counts ---


class Update:
    """A trainer in the middle of an update, and what others computed for it."""

    def __init__(self, training=TRAINING, sampler=SAMPLER, batch=None):
        self.trainer = Trainer(FakeModel(), training, sampler, seed=0)
        self.batch = make_batch(FakeModel(), sampler) if batch is None else batch
        self.helper = Helper(FakeModel(), training, sampler)
        self.before = self.trainer.state_dict()
        began = self.trainer.rollout_state()
        self.trainer.begin(4, self.batch)
        self.weights = weights_of(self.trainer, began)

    def gradient(self, index):
        slice_ = self.trainer.update.slices[index]
        own = self.batch.select(slice_.samples)
        return self.helper.gradient(self.trainer.update, slice_, own, self.weights)

    def refuses(self, found, match):
        """And counts nothing of it."""
        place = self.trainer.next_slice
        with pytest.raises(SliceRefused, match=match):
            self.trainer.add(found)
        assert self.trainer.next_slice == place
        assert same_bits(self.trainer.state_dict(), self.before)


def test_a_slice_is_counted_once():
    update = Update()
    first = update.gradient(0)
    update.trainer.add(first)
    update.refuses(first, r"update 0, rank 0, slice 0 came where that of .* slice 1 is")


def test_a_slice_that_the_rank_has_computed_is_not_counted_again():
    update = Update()
    first = update.gradient(0)
    update.trainer.compute()
    update.refuses(first, "slice 0 came where that of .* slice 1 is")


def test_slices_are_counted_in_their_order():
    update = Update()
    update.refuses(update.gradient(1), "slice 1 came where that of .* slice 0 is")


@pytest.mark.parametrize("field", ["iteration", "update", "rank"])
def test_a_slice_of_another_update_is_refused(field):
    update = Update()
    found = update.gradient(0)
    other = {**vars(found), field: 9}
    update.refuses(SliceGradient(**other), f"{field} 9")


def test_a_gradient_of_another_model_or_loss_is_refused():
    update = Update()
    found = update.gradient(0)
    for name in ("gradient", "sums"):
        other = {**vars(found), name: vars(found)[name][1:]}
        update.refuses(SliceGradient(**other), "of another model or loss")


@pytest.mark.parametrize("name", ["gradient", "sums"])
def test_a_gradient_that_is_not_finite_is_refused(name):
    update = Update()
    found = update.gradient(0)
    vars(found)[name][0] = float("nan")
    update.refuses(found, r"iteration 4, update 0, rank 0, slice 0 is not finite")


def test_there_is_no_step_before_all_slices_are_counted():
    update = Update()
    with pytest.raises(SliceRefused, match="no update all of whose slices"):
        update.trainer.step()
    assert same_bits(update.trainer.state_dict(), update.before)


def test_there_is_nothing_to_compute_after_the_last_slice():
    update = Update()
    for _ in update.trainer.update.slices:
        last = update.gradient(update.trainer.next_slice)
        update.trainer.compute()
    with pytest.raises(SliceRefused, match="its step comes next"):
        update.trainer.compute()
    update.refuses(last, "its step comes next")


def test_nothing_is_computed_before_updates_are_begun():
    trainer = Trainer(FakeModel(), TRAINING, SAMPLER, seed=0)
    assert trainer.update is None
    with pytest.raises(SliceRefused):
        trainer.compute()


def test_a_batch_of_other_samples_than_the_slices_is_refused():
    update = Update()
    slice_ = update.trainer.update.slices[0]
    with pytest.raises(ValueError, match=f"8 samples for a slice of {len(slice_.samples)}"):
        update.helper.gradient(update.trainer.update, slice_, update.batch, update.weights)


def test_nobody_computes_what_is_not_wanted():
    update = Update()
    slice_ = update.trainer.update.slices[0]
    own, asked = update.batch.select(slice_.samples), []

    def wanted():
        asked.append(True)
        return len(asked) < 2

    given = update.trainer.update, slice_, own, update.weights
    assert update.helper.gradient(*given, wanted) is None
    assert len(asked) == 2
    assert all(it.grad is None for it in update.helper.model.transformer.parameters())


# --- what is not finite ---

SPOILED = 5
"""The sample that is."""


def spoiled(kind, sampler=SAMPLER):
    """A batch, one sample of which gives a loss or only a gradient that is not finite."""
    batch = make_batch(FakeModel(), sampler)
    batch.seeds = [100 + number for number in range(8)]
    batch.latents[SPOILED] = float("nan") if kind == "loss" else 1e30
    if batch.log_probs is not None and batch.window_states is not None:
        batch.log_probs[SPOILED, 1] = float("nan")
    return batch


@pytest.mark.parametrize("slices", [1, 3, 64])
@pytest.mark.parametrize("kind", ["loss", "gradient"])
def test_a_trainer_names_the_sample_that_is_not_finite(kind, slices):
    training = msgspec.structs.replace(TRAINING, slices=slices)
    trainer = Trainer(FakeModel(), training, SAMPLER, seed=0)
    trainer.train(0, make_batch(FakeModel()))
    with pytest.raises(TrainingDiverged, match=r"iteration 1, update .*prompt 'three', seed 105"):
        trainer.train(1, spoiled(kind))


@pytest.mark.parametrize("slices", [1, 3])
def test_nothing_is_changed_by_an_update_with_a_sample_that_is_not_finite(slices):
    training = msgspec.structs.replace(TRAINING, slices=slices, updates_per_iteration=1)
    trainer = Trainer(FakeModel(), training, SAMPLER, seed=0)
    trainer.train(0, make_batch(FakeModel()))
    before = trainer.state_dict()
    with pytest.raises(TrainingDiverged):
        trainer.train(1, spoiled("loss"))
    assert same_bits(trainer.state_dict(), before)
    assert trainer.update is None
    untouched = Trainer(FakeModel(), training, SAMPLER, seed=0)
    untouched.load_state_dict(before)
    assert trainer.train(1, make_batch(FakeModel())) == untouched.train(1, make_batch(FakeModel()))


@pytest.mark.parametrize(
    ("training", "sampler", "kind"),
    [
        (TRAINING, SAMPLER, "loss"),
        (TRAINING, SAMPLER, "gradient"),
        (with_options(TRAINING, shared_noise=True), SAMPLER, "loss"),
        (msgspec.structs.replace(GRPO, slices=3, micro_batch=2), NOISY, "loss"),
    ],
)
def test_who_computes_a_slice_names_the_sample_that_is_not_finite(training, sampler, kind):
    update = Update(training, sampler, spoiled(kind, sampler))
    while True:
        refused = [
            index
            for index, each in enumerate(update.trainer.update.slices)
            if SPOILED in each.samples
        ]
        if refused:
            break
        while update.trainer.next_slice < len(update.trainer.update.slices):
            update.trainer.compute()
        update.trainer.step()
        update.weights["current"] = update.trainer.current_state()
    match = rf"slice {refused[0]} of rank 0: .*prompt 'three', seed 105"
    with pytest.raises(TrainingDiverged, match=match):
        update.gradient(refused[0])


def test_a_sample_without_a_seed_is_named_by_its_prompt():
    batch = spoiled("loss")
    batch.seeds = None
    trainer = Trainer(FakeModel(), TRAINING, SAMPLER, seed=0)
    with pytest.raises(TrainingDiverged, match="of prompt 'three';"):
        trainer.train(1, batch)
