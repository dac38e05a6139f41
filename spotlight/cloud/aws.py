"""AWS EC2: the spot interruption notice (two minutes ahead) and the rebalance recommendation (at
risk, no time).

The two are sources of their own, so that trouble with one does not hide the other.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec

from spotlight.cloud.notices import Announcement
from spotlight.cloud.times import seconds_until
from spotlight.cloud.tokens import TokenService
from spotlight.policies.notices import plausible_lead

AWS_HEADER = "X-aws-ec2-metadata-token"
_LEAST_S = 120.0
_LONGEST_S = 600.0


class _InstanceAction(msgspec.Struct, frozen=True):
    action: str
    time: str = ""


class _Rebalance(msgspec.Struct, frozen=True, rename="camel"):
    notice_time: str = ""


class AwsInterruption:
    """`spot/instance-action`: 404 until the instance is to be stopped, terminated or hibernated."""

    name = "aws"

    def __init__(
        self, service: TokenService, poll_s: float = 2.0, wall: Callable[[], float] = time.time
    ) -> None:
        self._service = service
        self._wall = wall
        self.poll_s = poll_s

    async def read(self) -> tuple[Announcement, ...]:
        """The interruption, if there is one. Raises `SourceFailed`."""
        answer = await self._service.get("/latest/meta-data/spot/instance-action")
        if answer.status == 404:
            return ()
        if answer.status != 200:
            raise answer.unexpected()
        notice = answer.decode(_InstanceAction)
        said_s = seconds_until(notice.time, self._wall())
        # Hibernation begins with the notice.
        hibernates = notice.action == "hibernate"
        lead_s = 0.0 if hibernates else plausible_lead(said_s, _LEAST_S, _LONGEST_S)
        # AWS gives no event id, and a machine is interrupted once: the time is no part of it, so
        # that a service which writes another time at each reading announces one event.
        said = f"{notice.action} {notice.time}"
        return (Announcement("spot-interruption", "preempt", lead_s, said),)


class AwsRebalance:
    """`events/recommendations/rebalance`: 404 until the instance is at elevated risk."""

    name = "aws-rebalance"

    def __init__(self, service: TokenService, poll_s: float = 5.0) -> None:
        self._service = service
        self.poll_s = poll_s

    async def read(self) -> tuple[Announcement, ...]:
        """The recommendation, if there is one. Raises `SourceFailed`."""
        answer = await self._service.get("/latest/meta-data/events/recommendations/rebalance")
        if answer.status == 404:
            return ()
        if answer.status != 200:
            raise answer.unexpected()
        said = answer.decode(_Rebalance).notice_time
        return (Announcement("rebalance", "advise", None, said),)
