"""Trainers whose samples may be one iteration old: previews that are trained on."""

import msgspec
import pytest
import torch

from spotlight.training.batches import deal, key
from spotlight.training.trainer import Trainer, TrainingDiverged

from .fakes import GRPO, NFT, NOISY, SAMPLER, FakeModel, make_batch, same_bits
from .slice_kit import Helper, train_with_help

GUARD = msgspec.structs.replace(GRPO, loss="grpo_guard", options={"clip_range": 0.1})


def build(training, sampler=NOISY, *, reuse=True):
    return Trainer(FakeModel(), training, sampler, seed=0, iterations=10, reuse=reuse)


@pytest.mark.parametrize("decay", [0.0, 0.5])
@pytest.mark.parametrize(("rule", "sampler"), [(NFT, SAMPLER), (GRPO, NOISY), (GUARD, NOISY)])
def test_the_drift_is_how_far_the_rollout_weights_move_the_velocity(rule, sampler, decay):
    """A plain PyTorch loop over the same rows says the same."""
    training = msgspec.structs.replace(rule, rollout_decay=decay, micro_batch=3)
    batch, plain = make_batch(FakeModel(), sampler), FakeModel()
    trainer = build(training, sampler)
    (hand, _) = deal(8, 2, key(0, 5))
    terms = trainer._terms(5, 0, batch, hand)
    prompts = plain.encode_prompts([batch.prompts[row] for row in terms.samples[:3]])
    velocities = []
    for weights in (trainer.rollout_state(), None):
        if weights is None:
            drift = trainer.train(5, batch)["drift"]
            newest, weights = trainer.state_dict(), trainer.rollout_state()
        plain.load_trainable_state(weights)
        with torch.no_grad():
            velocities.append(
                plain.velocity(terms.latents[:3], terms.sigmas[:3], prompts, height=8, width=8)
            )
    before, after = velocities
    assert drift > 0
    assert drift == pytest.approx(
        ((after - before).square().mean() / before.square().mean()).item(), rel=1e-4
    )
    model = trainer._model.trainable_state()
    assert all(
        torch.equal(model[name.removeprefix("weights/")], tensor)
        for name, tensor in newest.items()
        if name.startswith("weights/")
    ), "the model holds the newest weights again"


def test_the_drift_is_measured_only_where_it_is_asked_for():
    assert "drift" not in build(NFT, SAMPLER, reuse=False).train(0, make_batch(FakeModel()))


@pytest.mark.parametrize("training", [GRPO, GUARD], ids=["grpo", "grpo-guard"])
def test_samples_of_the_newest_weights_train_the_same_bits_with_reuse(training):
    plain = build(training, reuse=False)
    reusing = build(training)
    batch = make_batch(FakeModel(), NOISY)
    expected, found = plain.train(0, batch), reusing.train(0, batch)
    assert same_bits(reusing.state_dict(), plain.state_dict())
    assert {name: found[name] for name in expected} == expected
    assert (found["reuse_weight"], found["reuse_truncated"]) == (1, 0)


@pytest.mark.parametrize("training", [GRPO, GUARD], ids=["grpo", "grpo-guard"])
def test_older_samples_count_by_the_weights_before_the_first_update(training):
    """Also those of the second update."""
    older = make_batch(FakeModel(seed=9), NOISY)
    trainer = build(training)
    report = trainer.train(0, older)
    terms = trainer._terms(0, 0, older, range(8))
    prompts = FakeModel().encode_prompts([older.prompts[row] for row in terms.samples])
    with torch.no_grad():
        velocity = FakeModel().velocity(terms.latents, terms.sigmas, prompts, height=8, width=8)
    by_newest = trainer._loss._replayed.log_prob_under(terms, velocity)
    weights = (by_newest - terms.log_probs).exp().clamp(max=2)
    assert report["reuse_weight"] == pytest.approx(weights.mean().item(), rel=1e-5)
    assert abs(report["reuse_weight"] - 1) > 1e-3
    assert report["first_ratio_deviation"] == 0, "the ratio is to the weights that are trained"


def test_older_samples_without_a_number_for_a_probability_change_nothing():
    older = make_batch(FakeModel(seed=9), NOISY)
    older.log_probs[3, 1] = float("nan")
    training = msgspec.structs.replace(GRPO, updates_per_iteration=1)
    trainer = build(training)
    before = trainer.rollout_state()
    with pytest.raises(TrainingDiverged, match="loss nan"):
        trainer.train(0, older)
    assert same_bits(trainer.rollout_state(), before)


class TestAnIterationInTwoParts:
    """Later updates are of samples that were not known when the first ones were taken."""

    FIRST, REST = range(1), range(1, 2)

    def halves(self, sampler):
        return make_batch(FakeModel(), sampler), make_batch(FakeModel(seed=3), sampler)

    @pytest.mark.parametrize("decay", [0.0, 0.5])
    @pytest.mark.parametrize(("rule", "sampler"), [(NFT, SAMPLER), (GRPO, NOISY)])
    def test_the_old_policy_of_the_later_part_is_that_of_the_beginning(self, rule, sampler, decay):
        training = msgspec.structs.replace(rule, rollout_decay=decay)
        first, rest = self.halves(sampler)
        trainer, told = build(training, sampler), build(training, sampler)
        began = trainer.rollout_state()
        for one in (trainer, told):
            assert one.train(4, first, self.FIRST) == {}
        assert not same_bits(trainer.current_state(), began)
        helper = Helper(FakeModel(), training, sampler, reuse=True)
        found = train_with_help(told, helper, 4, rest, lambda _: True, self.REST, began=began)
        assert trainer.train(4, rest, self.REST) == found
        assert same_bits(trainer.state_dict(), told.state_dict())

    def test_the_report_of_the_last_part_is_of_all_updates(self):
        first, rest = self.halves(SAMPLER)
        trainer = build(NFT, SAMPLER)
        trainer.train(4, first, self.FIRST)
        early = dict(trainer._reports[0])
        report = trainer.train(4, rest, self.REST)
        assert report["loss"] == pytest.approx((early["loss"] + trainer._reports[1]["loss"]) / 2)
        assert report["drift"] > 0

    def test_the_weights_of_the_beginning_are_not_kept_for_longer(self):
        trainer = build(NFT, SAMPLER)
        first, rest = self.halves(SAMPLER)
        trainer.train(4, first, self.FIRST)
        trainer.train(4, rest, self.REST)
        assert trainer._began is None

    def test_each_part_has_its_own_samples_dealt_out(self):
        trainer = build(NFT, SAMPLER)
        assert trainer.own_samples(4, 8, self.FIRST) == list(range(8))
        assert trainer._hands(4, 8, self.FIRST) != trainer._hands(4, 8, self.REST)
        assert len(trainer._hands(4, 8, self.REST)) == 1
