"""Names and addresses in messages: whatever decodes may go to a log, a terminal and a path."""

from __future__ import annotations

import math

import msgspec
import pytest
from job_kit import STORE

from spotlight.actors.protocol.down import NodePlan, UserNotice
from spotlight.actors.protocol.up import NodeReport, WorkerRefs, WorkerReport, WorkerUp
from spotlight.actors.protocol.users import PreemptNode
from spotlight.actors.runtime import ActorRef
from spotlight.transport.control import BadInput, Message, decode_message, encode_message
from spotlight.types import StoreEndpoint

REF = ActorRef("tcp://10.0.0.1:1", "node", 1)


def worker_up(name: str) -> Message:
    return WorkerUp(WorkerRefs(name, 1, REF, REF, REF), "key", "cpu")


def join(name: str, store: StoreEndpoint = STORE) -> Message:
    return NodeReport(1, name, "spot", REF, (), store)


@pytest.mark.parametrize("name", ["spot-1", "gpu_07.example.org", "_", "a" * 100])
def test_names_of_machines_are_names_of_nodes(name: str) -> None:
    for message in (join(name), worker_up(name), worker_up(f"{name}/0"), worker_up(f"{name}/17")):
        assert decode_message(encode_message(message)) == message


BAD_NAMES = ["", ".", "..", "../a", "a/b/0", "a/", "/0", "a b", "a\n", "\x1b[2J", "a\0", "ä"]


@pytest.mark.parametrize("name", [*BAD_NAMES, "a" * 101], ids=repr)
@pytest.mark.parametrize(
    "make",
    [
        join,
        worker_up,
        lambda name: WorkerReport(name, 1),
        lambda name: WorkerReport("a/0", 1, culprits=(name,)),
    ],
    ids=["node", "up", "worker", "culprit"],
)
def test_what_is_no_name_is_refused(make: object, name: str) -> None:
    with pytest.raises(BadInput) as refusal:
        decode_message(encode_message(make(name)))  # type: ignore[operator]
    assert refusal.value.reason == "wrong_type"
    assert str(refusal.value).isprintable()


@pytest.mark.parametrize(
    "changes",
    [
        {"host": ""},
        {"host": "a\nb"},
        {"host": "a b"},
        {"host": "x" * 256},
        {"port": -1},
        {"port": 65_536},
        {"token": "\x1b[2J"},
        {"token": "x" * 201},
        {"machine": "a\0"},
        {"root": "/tmp/\n"},
        {"root": "/tmp/\0"},
        {"root": "/" * 4097},
    ],
    ids=repr,
)
def test_what_is_no_place_of_a_store_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(BadInput):
        decode_message(encode_message(join("a", msgspec.structs.replace(STORE, **changes))))


@pytest.mark.parametrize("seconds", [math.nan, math.inf, -1.0, 1e300])
def test_a_notice_of_no_time_that_a_clock_can_be_set_to_is_refused(seconds: float) -> None:
    told = NodePlan(1, REF, notice=UserNotice(1, seconds, False))
    for notice in (PreemptNode("spot", seconds, False), told):
        with pytest.raises(BadInput, match="notice_s"):
            decode_message(encode_message(notice))
