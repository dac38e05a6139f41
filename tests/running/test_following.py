"""Looking on at a job, also while its coordinator is away."""

from __future__ import annotations

from typing import Any

import pytest

from spotlight.actors.protocol.users import JobStatus
from spotlight.errors import (
    AskTimeout,
    NotAdmitted,
    NotAllowed,
    OtherVersion,
    PeerUnreachable,
    UnknownJob,
    UserError,
)
from spotlight.running.following import follow

pytestmark = pytest.mark.virtual_time

RUNS = JobStatus(job="first", id="first-01", iteration=1, iterations=4)
ENDED = JobStatus(job="first", id="first-01", outcome="finished")


class Client:
    """Answers, or raises, one after the other; the last again and again."""

    def __init__(self, *answers: JobStatus | Exception) -> None:
        self._answers = list(answers)
        self.asked: list[str] = []

    async def status(self, job: str = "", *, timeout_s: float = 10.0) -> JobStatus:
        self.asked.append(job)
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


class Spectator:
    """See `Observer`."""

    def __init__(self) -> None:
        self.seen: list[JobStatus] = []
        self.told: list[str] = []

    async def progress(self, status: JobStatus) -> None:
        self.seen.append(status)

    def tell(self, line: str) -> None:
        self.told.append(line)


async def followed(client: Any, job: str = "") -> tuple[JobStatus, Spectator]:
    spectator = Spectator()
    return await follow(client, job, spectator), spectator


async def test_a_job_is_shown_until_it_has_ended() -> None:
    last, spectator = await followed(Client(RUNS, RUNS, ENDED), "first")
    assert last is ENDED
    assert spectator.seen == [RUNS, RUNS, ENDED]


async def test_whoever_names_no_job_keeps_to_the_one_that_was_there_first() -> None:
    client = Client(RUNS, ENDED)
    await followed(client)
    assert client.asked == ["", "first-01"]


async def test_without_a_job_there_is_nothing_to_look_on_at() -> None:
    with pytest.raises(UserError, match="no job is running"):
        await followed(Client(JobStatus()))


async def test_a_coordinator_that_is_started_again_is_waited_for() -> None:
    away = [PeerUnreachable("gone")] * 60
    last, spectator = await followed(Client(RUNS, *away, RUNS, ENDED))
    assert last is ENDED
    assert len(spectator.told) == 2
    assert "has not answered for" in spectator.told[0]
    assert spectator.told[1] == "the coordinator answers again"


async def test_a_short_silence_is_not_worth_a_word() -> None:
    _, spectator = await followed(Client(RUNS, AskTimeout("slow"), AskTimeout("slow"), ENDED))
    assert not spectator.told


async def test_a_coordinator_that_does_not_come_back_is_given_up() -> None:
    with pytest.raises(PeerUnreachable):
        await followed(Client(RUNS, PeerUnreachable("gone")))


@pytest.mark.parametrize(
    "error", [NotAllowed("a"), NotAdmitted("b"), OtherVersion("c"), UnknownJob("d")], ids=repr
)
async def test_what_the_coordinator_will_not_take_back_is_told_at_once(error: Exception) -> None:
    client = Client(RUNS, error)
    with pytest.raises(type(error)):
        await followed(client)
    assert len(client.asked) == 2


async def test_one_that_is_not_there_to_begin_with_is_not_waited_for() -> None:
    client = Client(PeerUnreachable("nobody"))
    with pytest.raises(PeerUnreachable):
        await followed(client)
    assert client.asked == [""]
