"""Google Cloud: `instance/preempted`, a long poll. The machine has 30 s from `TRUE` on.

The first reading, and each after a failure, does not wait: a notice that came before is seen too.
"""

from __future__ import annotations

from urllib.parse import urlencode

from spotlight.cloud.http import Answer, request
from spotlight.cloud.notices import Announcement, SourceFailed

_PATH = "/computeMetadata/v1/instance/preempted"
_FLAVOR = {"Metadata-Flavor": "Google"}
_LEAD_S = 30.0


class GcpPreempted:
    """See the module's docstring. The service answers a long poll after `wait_s` seconds though
    nothing changed: a connection that died unnoticed is found out soon after.
    """

    name = "gcp"

    def __init__(
        self, base_url: str, poll_s: float = 0.5, wait_s: int = 5, limit_s: float = 2.0
    ) -> None:
        self._url = base_url + _PATH
        self._wait_s = wait_s
        self._limit_s = limit_s
        self._etag = ""
        self.poll_s = poll_s

    async def probe(self) -> None:
        """Return if this is Google's metadata service. Raises `SourceFailed`."""
        await self._get(self._url, self._limit_s)

    async def read(self) -> tuple[Announcement, ...]:
        """Whether the machine is being preempted. Raises `SourceFailed`."""
        url, limit_s = self._url, self._limit_s
        if self._etag:
            query = {
                "wait_for_change": "true",
                "timeout_sec": str(self._wait_s),
                "last_etag": self._etag,
            }
            url, limit_s = f"{url}?{urlencode(query)}", limit_s + self._wait_s
        self._etag = ""
        answer = await self._get(url, limit_s)
        self._etag = answer.headers.get("ETag", "")
        if answer.text.strip() == "TRUE":
            return (Announcement("preempted", "preempt", _LEAD_S),)
        return ()

    async def _get(self, url: str, limit_s: float) -> Answer:
        answer = await request("GET", url, _FLAVOR, limit_s)
        if answer.status != 200:
            raise answer.unexpected()
        if answer.headers.get("Metadata-Flavor") != "Google":
            raise SourceFailed(f"{url}: not Google's metadata service")
        if answer.text.strip() not in ("TRUE", "FALSE"):
            raise SourceFailed(f"{url}: neither TRUE nor FALSE")
        return answer
