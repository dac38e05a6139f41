"""Callbacks are told of everything in order, and nothing they do reaches the run."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping

import pytest

from spotlight.errors import StopJob
from spotlight.record.run_events import CallbackTrouble, PhaseBegan, RunEvent
from spotlight.record.run_metrics import IterationMetrics, ValidationMetrics
from spotlight.trackers import CallbackThread, IterationRecord, NamedCallback, ValidationPictures

LIMIT_S = 20.0


class Notes:
    """Writes down what it is told."""

    def __init__(self) -> None:
        self.said: list[object] = []

    def on_iteration(self, metrics: IterationMetrics, loss: Mapping[str, float]) -> None:
        self.said.append((metrics.iteration, dict(loss)))

    def on_validation(self, metrics: ValidationMetrics) -> None:
        self.said.append(metrics.score)

    def on_event(self, event: RunEvent) -> None:
        self.said.append(event.name)


class Broken(Notes):
    """Raises whatever it is told."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error

    def on_event(self, event: RunEvent) -> None:
        raise self.error


class Gate(Notes):
    """Hangs until it is let go on."""

    def __init__(self) -> None:
        super().__init__()
        self.entered, self.open = threading.Event(), threading.Event()

    def on_event(self, event: RunEvent) -> None:
        self.entered.set()
        assert self.open.wait(LIMIT_S)
        super().on_event(event)


def nobody(name: str, reason: str) -> None:
    raise AssertionError(f"{name} must not stop the job ({reason})")


def named(**callbacks: Notes) -> list[NamedCallback]:
    return [NamedCallback(name, lambda made=made: made) for name, made in callbacks.items()]


RECORDS = (
    PhaseBegan(phase="rollout"),
    IterationRecord(IterationMetrics(iteration=3), {"kl": 0.5}),
    ValidationMetrics(weights_version=4, score=0.75),
)


async def test_each_record_calls_its_method_in_order() -> None:
    one, other = Notes(), Notes()
    thread = CallbackThread(named(one=one, other=other), nobody)
    for record in RECORDS:
        thread.put(record)
    assert await thread.aclose(LIMIT_S)
    assert one.said == other.said == ["phase", (3, {"kl": 0.5}), 0.75]
    assert thread.troubles() == ()


@pytest.mark.parametrize("error", [ValueError("no luck"), SystemExit(3)], ids=["error", "exit"])
async def test_a_callback_that_raises_is_named_and_counted_and_the_others_go_on(
    error: BaseException,
) -> None:
    broken, well = Broken(error), Notes()
    thread = CallbackThread(named(broken=broken, well=well), nobody)
    for record in (*RECORDS, *RECORDS):
        thread.put(record)
    assert await thread.aclose(LIMIT_S)
    assert well.said == ["phase", (3, {"kl": 0.5}), 0.75] * 2
    said = f"{type(error).__name__}: {error}"
    (trouble,) = thread.troubles()
    where = trouble.traceback
    assert trouble == CallbackTrouble(
        callback="broken", failures=2, dropped=0, error=said, traceback=where
    )
    assert "in on_event" in where and where.endswith(said)


async def test_a_callback_that_cannot_be_made_is_counted_once() -> None:
    def make() -> Notes:
        raise ImportError("there is no such tracker")

    well = Notes()
    thread = CallbackThread([NamedCallback("absent", make), *named(well=well)], nobody)
    for record in RECORDS:
        thread.put(record)
    assert await thread.aclose(LIMIT_S)
    assert len(well.said) == 3
    (trouble,) = thread.troubles()
    assert (trouble.callback, trouble.failures) == ("absent", 1)


async def test_a_callback_ends_the_job_only_when_it_says_so() -> None:
    stopped: list[tuple[str, str]] = []
    told = asyncio.Event()

    def stop(name: str, reason: str) -> None:
        stopped.append((name, reason))
        told.set()

    thread = CallbackThread(named(early=Broken(StopJob("good enough"))), stop)
    thread.put(RECORDS[0])
    await asyncio.wait_for(told.wait(), LIMIT_S)
    assert stopped == [("early", "good enough")]
    assert await thread.aclose(LIMIT_S)
    assert thread.troubles() == ()


async def test_one_that_hangs_holds_up_nobody_and_what_is_dropped_is_counted() -> None:
    gate = Gate()
    thread = CallbackThread(named(slow=gate), nobody, most=2)
    thread.put(PhaseBegan(phase="first"))
    assert await asyncio.to_thread(gate.entered.wait, LIMIT_S)
    for record in (*RECORDS, RECORDS[2]):
        thread.put(record)
    gate.open.set()
    assert await thread.aclose(LIMIT_S)
    assert gate.said == ["phase", 0.75, 0.75]
    (trouble,) = thread.troubles()
    assert (trouble.callback, trouble.failures, trouble.dropped) == ("slow", 0, 2)


async def test_one_that_hangs_at_the_end_is_left_behind_after_the_limit() -> None:
    gate = Gate()
    thread = CallbackThread(named(slow=gate), nobody)
    for record in (RECORDS[0], *RECORDS):
        thread.put(record)
    assert await asyncio.to_thread(gate.entered.wait, LIMIT_S)
    assert not await thread.aclose(0.01)
    assert thread.troubles()[0].dropped == 3
    gate.open.set()
    assert await thread.aclose(LIMIT_S)


async def test_without_callbacks_no_thread_is_started() -> None:
    before = threading.active_count()
    thread = CallbackThread([], nobody)
    thread.put(RECORDS[0])
    assert threading.active_count() == before
    assert await thread.aclose(LIMIT_S)


async def test_the_first_failure_of_each_is_told_at_once() -> None:
    told: list[CallbackTrouble] = []
    happened = asyncio.Event()

    def troubled(trouble: CallbackTrouble) -> None:
        told.append(trouble)
        happened.set()

    thread = CallbackThread(
        named(broken=Broken(ValueError("no luck")), well=Notes()), nobody, troubled=troubled
    )
    thread.put(RECORDS[0])
    await asyncio.wait_for(happened.wait(), LIMIT_S)
    for record in (*RECORDS, *RECORDS):
        thread.put(record)
    assert await thread.aclose(LIMIT_S)
    (trouble,) = told
    assert (trouble.callback, trouble.failures) == ("broken", 1)
    assert trouble.error == "ValueError: no luck"


async def test_pictures_are_told_to_those_alone_who_show_them() -> None:
    class Wall(Notes):
        def on_pictures(self, pictures: ValidationPictures) -> None:
            self.said.append(pictures.weights_version)

    wall, plain = Wall(), Notes()
    thread = CallbackThread(named(wall=wall, plain=plain), nobody)
    thread.put(ValidationPictures(7, 7, ()))
    assert await thread.aclose(LIMIT_S)
    assert (wall.said, plain.said) == ([7], [])
    assert thread.troubles() == ()
