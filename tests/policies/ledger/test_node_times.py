"""What a node counts: every millisecond of every worker once."""

from __future__ import annotations

import random

from spotlight.policies.ledger.node_times import MOST_STRETCHES, NodeTimes
from spotlight.record.ledger import WorkerTimes


def total(told: tuple[WorkerTimes, ...], worker: str) -> int:
    return sum(sum(each.workers[worker].values()) for each in told)


def test_a_worker_starts_until_it_says_what_it_does() -> None:
    node = NodeTimes(["n/0"], now=10.0, before_s=2.5)
    node.does("n/0", "idle", 12.0)
    (told,) = node.told(13.0)
    assert told == WorkerTimes(0, "", {"n/0": {"starting": 4500, "idle": 1000}})


def test_time_belongs_to_the_job_for_which_the_node_works() -> None:
    node = NodeTimes(["n/0"], now=0.0)
    node.does("n/0", "idle", 0.0)
    assert node.work_for("a", 1.0)
    assert not node.work_for("a", 1.5)
    node.does("n/0", "rollout", 2.0)
    node.work_for("", 4.0)
    assert node.told(5.0) == (
        WorkerTimes(0, "", {"n/0": {"idle": 1000}}),
        WorkerTimes(1, "a", {"n/0": {"idle": 1000, "rollout": 2000}}),
        WorkerTimes(2, "", {"n/0": {"rollout": 1000}}),
    )


def test_what_is_idle_with_notice_drains() -> None:
    node = NodeTimes(["n/0", "n/1"], now=0.0)
    node.does("n/0", "idle", 0.0)
    node.does("n/1", "rollout", 0.0)
    node.leaves(True, 1.0)
    node.leaves(False, 3.0)
    (told,) = node.told(4.0)
    assert told.workers["n/0"] == {"idle": 2000, "draining": 2000}
    assert told.workers["n/1"] == {"rollout": 4000}


def test_a_worker_without_a_process_is_lost() -> None:
    node = NodeTimes(["n/0"], now=0.0)
    node.does("n/0", "gone", 1.0)
    node.does("n/0", "starting", 1.5)
    (told,) = node.told(2.0)
    assert told.workers["n/0"] == {"starting": 1500, "lost": 500}


def test_only_the_latest_stretches_are_told() -> None:
    node = NodeTimes(["n/0"], now=0.0)
    for number in range(3 * MOST_STRETCHES):
        node.work_for(f"job-{number}", float(number))
    told = node.told(100.0)
    assert [each.number for each in told] == list(
        range(2 * MOST_STRETCHES + 1, 3 * MOST_STRETCHES + 1)
    )


def test_all_time_adds_up_to_the_millisecond_whatever_happens() -> None:
    for seed in range(50):
        rng = random.Random(seed)
        now, workers = rng.uniform(0, 1e6), ["n/0", "n/1", "n/2"]
        began = now
        node = NodeTimes(workers, now)
        for _ in range(60):
            now += rng.choice([0.0, 1e-5, 0.0004, 0.0016, 7.7])
            match rng.randrange(4):
                case 0:
                    node.does(rng.choice(workers), rng.choice(["idle", "rollout", "gone"]), now)
                case 1:
                    node.leaves(rng.random() < 0.5, now)
                case 2 if len(node.told(now)) < MOST_STRETCHES:
                    node.work_for(rng.choice(["", "a", "b"]), now)
                case _:
                    node.told(now)
        told = node.told(now)
        passed = round(now * 1000) - round(began * 1000)
        assert [total(told, worker) for worker in workers] == [passed] * 3
