"""The samples of an iteration while they come in."""

from __future__ import annotations

import random

import pytest
from job_kit import job, offer, request

from spotlight.actors.coordinator.job.rollout import Rollout, training_samples
from spotlight.types import Request, Result

WANTED = [request(seed, group=group) for group in (0, 1) for seed in (3, 1, 2)]


def result(wanted: Request, reward: float = 0.5, key: str = "samples/a") -> Result:
    return Result(wanted, (reward,), offer(key), wanted.seed)


def test_a_rollout_is_complete_when_nothing_is_open() -> None:
    rollout = Rollout(WANTED)
    for wanted in WANTED:
        assert not rollout.complete
        rollout.add([result(wanted)])
    assert rollout.complete
    assert (rollout.finished, rollout.wanted) == (6, 6)


def test_a_sample_counts_once() -> None:
    rollout = Rollout(WANTED)
    rollout.add([result(WANTED[0], 0.25)])
    rollout.add([result(WANTED[0], 0.75)])
    assert [sample.rewards for sample in rollout.samples()] == [(0.25,)]


def test_a_sample_of_another_iteration_changes_nothing() -> None:
    rollout = Rollout(WANTED)
    rollout.add([result(request(1, iteration=1), key="samples/other")])
    assert rollout.finished == 0
    assert rollout.bundles() == set()


def test_samples_are_in_canonical_order_whoever_finished_what_when() -> None:
    shuffled = random.Random(1).sample(WANTED, len(WANTED))
    rollout = Rollout(WANTED)
    for wanted in shuffled:
        rollout.add([result(wanted)])
    order = [(sample.request.group, sample.request.seed) for sample in rollout.samples()]
    assert order == sorted(order)


def test_a_dropped_group_is_waited_for_no_more() -> None:
    rollout = Rollout(WANTED)
    rollout.add([result(WANTED[0])])
    rollout.add([result(WANTED[3])])
    assert [dropped.request for dropped in rollout.drop_group(0)] == [WANTED[0]]
    assert not rollout.expects(WANTED[1])
    rollout.add([result(WANTED[1])])
    assert [sample.request for sample in rollout.samples()] == [WANTED[3]]
    for wanted in WANTED[4:]:
        assert rollout.expects(wanted)
        rollout.add([result(wanted)])
    assert rollout.complete


def test_the_bundles_of_dropped_groups_are_still_known() -> None:
    rollout = Rollout(WANTED)
    rollout.add([result(WANTED[0], key="samples/dropped")])
    rollout.drop_group(0)
    assert rollout.bundles() == {offer("samples/dropped")}


def test_open_requests_for_weights_that_are_gone_are_counted() -> None:
    rollout = Rollout([request(1), request(2), request(3, version=1)])
    rollout.add([result(request(1))])
    assert rollout.count_outdated({1, 2}) == 1
    assert rollout.count_outdated({0, 1}) == 0


def test_training_samples_keep_the_order_and_name_their_rows() -> None:
    results = [
        result(wanted, reward) for wanted, reward in zip(WANTED[:3], (0.0, 0.5, 1.0), strict=True)
    ]
    samples = training_samples(results, job().rewards, job().training)
    assert [(s.prompt, s.row) for s in samples] == [('"0"', 3), ('"0"', 1), ('"0"', 2)]
    assert [s.seed for s in samples] == [each.seed for each in WANTED[:3]]
    assert [s.advantage for s in samples] == pytest.approx(
        [-s for s in [sample.advantage for sample in reversed(samples)]]
    )
    assert samples[0].advantage < samples[1].advantage < samples[2].advantage


# --- probes ---

PROBES = [request(seed, group=1) for seed in (9, 8)]


def test_probes_are_waited_for_and_are_no_samples() -> None:
    rollout = Rollout(WANTED, PROBES)
    for wanted in (*WANTED, PROBES[0]):
        rollout.add([result(wanted)])
    assert not rollout.complete
    rollout.add([result(PROBES[1])])
    assert rollout.complete
    assert (rollout.finished, rollout.wanted) == (6, 6)
    assert {sample.request for sample in rollout.samples()} == set(WANTED)
    assert [probe.request for probe in rollout.probes()] == PROBES[::-1]


def test_a_probe_that_cannot_be_had_is_not_waited_for_and_costs_nothing() -> None:
    rollout = Rollout(WANTED, PROBES)
    rollout.drop_probes([PROBES[0], WANTED[0]])
    assert not rollout.expects(PROBES[0])
    assert rollout.expects(WANTED[0])
    for wanted in (*WANTED, PROBES[1]):
        rollout.add([result(wanted)])
    assert rollout.complete


def test_probes_of_a_dropped_group_are_dropped_with_it() -> None:
    rollout = Rollout(WANTED, PROBES)
    for wanted in (*WANTED[:3], PROBES[0]):
        rollout.add([result(wanted)])
    rollout.drop_group(1)
    assert rollout.complete
    assert rollout.probes() == []
