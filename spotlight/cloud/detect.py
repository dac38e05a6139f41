"""Which cloud a machine is in, as far as notices go."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

import structlog

from spotlight.cloud.alibaba import ALIBABA_HEADER, AlibabaTermination
from spotlight.cloud.aws import AWS_HEADER, AwsInterruption, AwsRebalance
from spotlight.cloud.azure import AzureEvents
from spotlight.cloud.gcp import GcpPreempted
from spotlight.cloud.notices import NoticeSource, SourceFailed
from spotlight.cloud.tokens import TokenService

log = structlog.get_logger(__name__)

METADATA_VARIABLE = "SPOTLIGHT_METADATA_URL"
"""Environment variable: base URL of the metadata service, instead of each cloud's own address. For
a proxy, or for rehearsals."""


@dataclass(frozen=True)
class MetadataUrls:
    """Where each cloud's metadata service is; numbers, so that no name has to be looked up."""

    aws: str = "http://169.254.169.254"
    gcp: str = "http://169.254.169.254"
    azure: str = "http://169.254.169.254"
    alibaba: str = "http://100.100.100.200"


def metadata_urls(environ: Mapping[str, str]) -> MetadataUrls:
    """The addresses that the environment asks for."""
    url = environ.get(METADATA_VARIABLE, "").rstrip("/")
    return MetadataUrls(url, url, url, url) if url else MetadataUrls()


async def detect(urls: MetadataUrls, budget_s: float = 1.0) -> list[NoticeSource]:
    """The sources of the clouds that answer within `budget_s` seconds, all asked at once.

    What was found is in the log, and a warning if nothing was.
    """
    aws = TokenService(urls.aws, AWS_HEADER)
    alibaba = TokenService(urls.alibaba, ALIBABA_HEADER)
    gcp, azure = GcpPreempted(urls.gcp), AzureEvents(urls.azure)
    clouds: tuple[tuple[Callable[[], Awaitable[None]], tuple[NoticeSource, ...]], ...] = (
        (aws.probe, (AwsInterruption(aws), AwsRebalance(aws))),
        (gcp.probe, (gcp,)),
        (azure.probe, (azure,)),
        (alibaba.probe, (AlibabaTermination(alibaba),)),
    )
    problems = await asyncio.gather(*(_problem(probe, budget_s) for probe, _ in clouds))
    found = [
        source
        for (_, sources), problem in zip(clouds, problems, strict=True)
        if problem is None
        for source in sources
    ]
    if found:
        log.info("notice_sources", sources=[source.name for source in found])
    else:
        tried = {s[0].name: problem for (_, s), problem in zip(clouds, problems, strict=True)}
        log.warning("no_notice_source", tried=tried)
    return found


async def _problem(probe: Callable[[], Awaitable[None]], budget_s: float) -> str | None:
    """Why a cloud is not there; None if it is."""
    try:
        async with asyncio.timeout(budget_s):
            await probe()
    except SourceFailed as error:
        return str(error)
    except TimeoutError:
        return f"no answer within {budget_s:g} s"
    return None
