"""Alibaba Cloud ECS: the release time of a preemptible instance, about five minutes ahead."""

from __future__ import annotations

import time
from collections.abc import Callable

from spotlight.cloud.notices import Announcement, SourceFailed
from spotlight.cloud.times import seconds_until
from spotlight.cloud.tokens import TokenService
from spotlight.policies.notices import plausible_lead

ALIBABA_HEADER = "X-aliyun-ecs-metadata-token"
_LEAST_S = 300.0
_LONGEST_S = 900.0


class AlibabaTermination:
    """`spot/termination-time`: 404 or empty until the instance is to be released."""

    name = "alibaba"

    def __init__(
        self, service: TokenService, poll_s: float = 2.0, wall: Callable[[], float] = time.time
    ) -> None:
        self._service = service
        self._wall = wall
        self.poll_s = poll_s

    async def read(self) -> tuple[Announcement, ...]:
        """The release, if there is one. Raises `SourceFailed`."""
        answer = await self._service.get("/latest/meta-data/instance/spot/termination-time")
        said = answer.text.strip()
        if answer.status == 404 or (answer.status == 200 and not said):
            return ()
        if answer.status != 200:
            raise answer.unexpected()
        said_s = seconds_until(said, self._wall())
        if said_s is None:
            raise SourceFailed(f"{answer.url}: not a time")
        lead_s = plausible_lead(said_s, _LEAST_S, _LONGEST_S)
        return (Announcement("termination", "preempt", lead_s, said),)
