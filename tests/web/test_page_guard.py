"""Which requests the page's server looks at, and as whose."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from spotlight.transport.tensors.certificates import new_certificate
from spotlight.web.admission import LinkAdmission
from tests.web.page_kit import Page, WrittenRun, serving

TOKEN = "a-token-that-nobody-guesses"
BEARER = {"Authorization": f"Bearer {TOKEN}"}


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    return WrittenRun(tmp_path / "runs" / "a").folder.parent


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", ""])
async def test_a_name_that_leads_here_is_not_answered(runs: Path, host: str) -> None:
    async with serving(runs) as (_, page):
        for path in ("", "api/runs", "healthz", "metrics", "static/signin.js"):
            assert (await page.get(path, Host=host))[0] == 421, path


@pytest.mark.parametrize("host", ["localhost:1234", "127.0.0.1", "[::1]:80", "LOCALHOST"])
async def test_names_of_this_machine_are_answered(runs: Path, host: str) -> None:
    async with serving(runs) as (_, page):
        assert (await page.get("api/runs", Host=host))[0] == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Dest": "image"},
        {"Sec-Fetch-Site": "same-site", "Sec-Fetch-Dest": "empty"},
    ],
)
async def test_what_a_page_of_another_site_asks_is_refused(
    runs: Path, headers: dict[str, str]
) -> None:
    async with (
        serving(runs) as (_, page),
        page.client.get(f"{page.url}api/runs", headers=headers) as answer,
    ):
        assert answer.status == 403
        assert "Access-Control-Allow-Origin" not in answer.headers


async def test_the_own_page_and_a_link_to_it_are_answered(runs: Path) -> None:
    async with serving(runs) as (_, page):
        origin = page.url.rstrip("/")
        assert (await page.get("api/runs", Origin=origin, Sec_Fetch_Site="same-origin"))[0] == 200
        linked = {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Dest": "document"}
        assert (await page.get("", **linked))[0] == 200


async def test_headers_are_bounded(runs: Path) -> None:
    async with serving(runs) as (_, page):
        many = {f"X-{number}": "x" * 1000 for number in range(17)}
        assert (await page.get("healthz", **many))[0] == 431


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "POST", "OPTIONS"])
async def test_nothing_but_looking_is_possible(runs: Path, method: str) -> None:
    async with serving(runs) as (_, page):
        for path in ("", "api/runs", "api/runs/a/view"):
            async with page.client.request(method, page.url + path) as answer:
                assert answer.status == 405, path


async def test_every_answer_says_what_a_browser_may_do_with_it(runs: Path) -> None:
    async with serving(runs) as (_, page):
        for path in ("", "nothing", "api/runs", "api/runs/a/stream", "metrics"):
            async with page.client.get(page.url + path) as answer:
                policy = answer.headers["Content-Security-Policy"]
                assert "default-src 'none'" in policy
                assert "unsafe" not in policy
                assert answer.headers["X-Content-Type-Options"] == "nosniff"
                assert answer.headers["X-Frame-Options"] == "DENY"
                assert "Python" not in answer.headers["Server"]


async def test_without_a_token_there_is_only_the_page_to_sign_in(runs: Path) -> None:
    async with serving(runs, admission=LinkAdmission(TOKEN)) as (_, page):
        for path in (
            "api/runs",
            "api/runs/a/view",
            "api/runs/a/stream",
            "metrics",
            "files/a/b.png",
        ):
            assert (await page.get(path))[0] == 401, path
        status, body = await page.get("")
        assert status == 401
        assert b'action="/session"' in body
        assert (await page.get("static/signin.js"))[0] == 200
        assert (await page.get("healthz"))[0] == 200


@pytest.mark.parametrize(
    "bearer", ["Bearer wrong", TOKEN, "Basic dTpw", "Bearer", f"Basic {TOKEN}"]
)
async def test_a_wrong_token_shows_nothing(runs: Path, bearer: str) -> None:
    async with serving(runs, admission=LinkAdmission(TOKEN)) as (_, page):
        assert (await page.get("api/runs", Authorization=bearer))[0] == 401


async def test_a_bearer_of_the_token_sees_everything(runs: Path) -> None:
    async with serving(runs, admission=LinkAdmission(TOKEN)) as (_, page):
        assert (await page.get("api/runs", **BEARER))[0] == 200
        assert (await page.get("metrics", **BEARER))[0] == 200


async def test_who_signs_in_gets_a_cookie_that_no_script_reads_and_no_other_site_sends(
    runs: Path,
) -> None:
    async with serving(runs, admission=LinkAdmission(TOKEN)) as (_, page):
        cookie = await signed_in(page)
        assert "HttpOnly" in cookie
        assert "SameSite=Strict" in cookie
        assert TOKEN not in cookie
        named = cookie.partition(";")[0]
        assert (await page.get("api/runs", Cookie=named))[0] == 200
        assert (await page.get("", Cookie=named))[0] == 200
        assert (await page.get("api/runs", Cookie=f"{named}0"))[0] == 401


async def test_an_encrypted_page_has_a_cookie_that_is_sent_encrypted_alone(runs: Path) -> None:
    admission, certificate = LinkAdmission(TOKEN), new_certificate()
    async with serving(runs, admission=admission, certificate=certificate) as (server, page):
        assert server.url.startswith("https://")
        form = {"token": TOKEN}
        async with page.client.post(
            f"{page.url}session", data=form, ssl=False, allow_redirects=False
        ) as answer:
            assert "Secure" in answer.headers["Set-Cookie"]


async def test_a_cookie_of_a_server_that_was_started_again_says_so(runs: Path) -> None:
    async with serving(runs, admission=LinkAdmission(TOKEN)) as (server, page):
        port = int(server.url.rsplit(":", 1)[1].strip("/"))
        cookie = (await signed_in(page)).partition(";")[0]
    async with serving(runs, admission=LinkAdmission(TOKEN), port=port) as (_, page):
        status, said = await page.get("api/runs", Cookie=cookie)
        assert (status, said["error"]) == (
            401,
            "the server was started again; sign in again with another token",
        )


async def test_a_form_of_another_site_signs_nobody_in(runs: Path) -> None:
    async with serving(runs, admission=LinkAdmission(TOKEN)) as (_, page):
        headers = {"Origin": "http://evil.example", "Sec-Fetch-Site": "cross-site"}
        async with page.client.post(
            f"{page.url}session", data={"token": TOKEN}, headers=headers
        ) as answer:
            assert answer.status == 403
            assert "Set-Cookie" not in answer.headers


@pytest.mark.parametrize(
    ("body", "status"),
    [(b"", 401), (b"token=wrong", 401), (b"\xff\xfe", 401), (b"token=" + b"a" * 5000, 413)],
)
async def test_a_form_that_names_no_good_token_is_refused(
    runs: Path, body: bytes, status: int
) -> None:
    async with (
        serving(runs, admission=LinkAdmission(TOKEN)) as (_, page),
        page.client.post(f"{page.url}session", data=body) as answer,
    ):
        assert answer.status == status
        assert (await answer.json())["error"]


async def test_nobody_signs_in_where_no_token_is_needed(runs: Path) -> None:
    async with serving(runs) as (_, page), page.client.post(f"{page.url}session") as answer:
        assert answer.status == 404


async def test_a_stream_ends_with_the_token_it_was_asked_for_with(runs: Path) -> None:
    admission = Ending(TOKEN)
    async with (
        serving(runs, admission=admission) as (_, page),
        page.stream("a", **BEARER) as stream,
    ):
        await stream.next()
        admission.end()
        async with asyncio.timeout(10):
            name, _, data = await stream.next()
        assert (name, data["status"]) == ("end", 401)


class Ending(LinkAdmission):
    """Its token may end."""

    ended = False

    def end(self) -> None:
        self.ended = True

    def key_of(self, name: str) -> str:
        return super().key_of("ended" if self.ended else name)


async def signed_in(page: Page) -> str:
    """The cookie."""
    async with page.client.post(
        f"{page.url}session", data={"token": TOKEN}, allow_redirects=False
    ) as answer:
        assert (answer.status, answer.headers["Location"]) == (303, "/")
        return answer.headers["Set-Cookie"]
