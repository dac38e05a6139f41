"""Schedules of faults against real processes."""

from __future__ import annotations

import pytest

from benchmarks.live.strikes import (
    LIVE_KINDS,
    PARTITIONS,
    WORKER_ONLY,
    draw_live_faults,
    effect_of,
)
from spotlight_simulation.faults import Fault

SPOT = ("spot-1", "spot-2")


def _draw(seed: int, *, partitions: bool = True) -> tuple[Fault, ...]:
    return draw_live_faults(seed, spot=SPOT, until_s=20.0, partitions=partitions)


@pytest.mark.parametrize("seed", range(20))
def test_a_seed_always_means_the_same_faults_in_order_and_in_time(seed: int) -> None:
    faults = _draw(seed)
    assert faults == _draw(seed)
    assert [fault.at_s for fault in faults] == sorted(fault.at_s for fault in faults)
    assert all(0.0 < fault.at_s <= 20.0 for fault in faults)
    assert {fault.node for fault in faults} <= {"", *SPOT}


def test_seeds_together_have_every_kind_of_fault() -> None:
    drawn = [fault for seed in range(50) for fault in _draw(seed)]
    assert {fault.kind for fault in drawn} == set(LIVE_KINDS)
    assert {effect_of(f) for f in drawn if f.kind == "pause_node"} == {"pause_node", "pause_worker"}
    assert {fault.inwards for fault in drawn if fault.kind == "one_way_partition"} == {True, False}


def test_without_namespaces_a_seed_has_its_other_faults() -> None:
    others = tuple(fault for fault in _draw(3) if fault.kind not in PARTITIONS)
    assert others != _draw(3)
    assert _draw(3, partitions=False) == others


def test_a_worker_that_is_paused_alone_is_counted_as_such() -> None:
    assert effect_of(Fault(1.0, "pause_node", "spot-1", amount=WORKER_ONLY)) == "pause_worker"
    assert effect_of(Fault(1.0, "kill_node", "spot-1", amount=WORKER_ONLY)) == "kill_node"
