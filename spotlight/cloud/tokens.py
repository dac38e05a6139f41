"""Metadata services that want a session token with each request: AWS (IMDSv2) and Alibaba Cloud.

A token is fetched with PUT, lives for a time that we choose, and is fetched anew shortly before its
end, or when the service no longer takes it.
"""

from __future__ import annotations

import asyncio
import re

from spotlight.cloud.http import Answer, request
from spotlight.cloud.notices import SourceFailed

_LIFE_S = 3600
_RENEW_BEFORE_S = 60.0
_TOKEN = re.compile(r"[\x21-\x7e]{1,4096}")  # what may stand in a header


class TokenService:
    """GET requests with a token; `prefix` begins the names of the vendor's headers."""

    def __init__(self, base_url: str, prefix: str, limit_s: float = 2.0) -> None:
        self._base_url = base_url
        self._prefix = prefix
        self._limit_s = limit_s
        self._token = ""
        self._renew_at = 0.0

    async def probe(self) -> None:
        """Return if the service hands out tokens. Raises `SourceFailed`."""
        await self._fetch_token()

    async def get(self, path: str) -> Answer:
        """Read a path; 401 is answered with a new token, once. Raises `SourceFailed`."""
        if not self._token or asyncio.get_running_loop().time() >= self._renew_at:
            await self._fetch_token()
        answer = await self._get(path)
        if answer.status == 401:
            await self._fetch_token()
            answer = await self._get(path)
        return answer

    async def _get(self, path: str) -> Answer:
        headers = {self._prefix: self._token}
        return await request("GET", self._base_url + path, headers, self._limit_s)

    async def _fetch_token(self) -> None:
        url = f"{self._base_url}/latest/api/token"
        headers = {f"{self._prefix}-ttl-seconds": str(_LIFE_S)}
        answer = await request("PUT", url, headers, self._limit_s)
        if answer.status != 200:
            raise answer.unexpected()
        token = answer.text.strip()
        if not _TOKEN.fullmatch(token):
            raise SourceFailed(f"{url}: the answer is not a token")
        self._token = token
        self._renew_at = asyncio.get_running_loop().time() + _LIFE_S - _RENEW_BEFORE_S
