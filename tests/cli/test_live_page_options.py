"""Where a page is to be, by what the command line says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from spotlight.cli.app import app
from spotlight.cli.live_page import ANYWHERE, wanted_page, with_address
from spotlight.errors import UserError
from spotlight.web.opening import open_page, page_place
from spotlight.web.shown_runs import ShownRuns

PAIR = {"certificate": Path("c.pem"), "key": Path("k.pem")}


@pytest.mark.parametrize(
    ("given", "read"),
    [
        (["run", "job.yaml", "--web"], ["run", "job.yaml", f"--web={ANYWHERE}"]),
        (["--web", "job.yaml"], [f"--web={ANYWHERE}", "job.yaml"]),
        (["--web", "--set", "a=1"], [f"--web={ANYWHERE}", "--set", "a=1"]),
        (["--web", "0.0.0.0:80", "job.yaml"], ["--web", "0.0.0.0:80", "job.yaml"]),
        (["--web=[::1]:80"], ["--web=[::1]:80"]),
        ([], []),
    ],
)
def test_an_address_may_be_left_out(given: list[str], read: list[str]) -> None:
    assert with_address(given) == read


def test_without_the_option_there_is_no_page() -> None:
    assert wanted_page("", None, None, plain=False) is None


@pytest.mark.parametrize(
    ("address", "options", "problem"),
    [
        ("", {"plain": True}, "give --web as well"),
        ("127.0.0.1", {}, "--web 127.0.0.1: names no port"),
        ("no host:80", {}, "--web 'no host:80': names no host"),
        ("127.0.0.1:x", {}, "the port must be a number"),
        (
            "127.0.0.1:0",
            {"certificate": Path("c.pem")},
            "give both --web-certificate",
        ),
        ("127.0.0.1:0", {**PAIR, "plain": True}, "--web-plain: leave it out"),
        ("127.0.0.1:0", PAIR, "--web-certificate c.pem, --web-key k.pem: they cannot be used"),
    ],
)
def test_options_that_contradict_each_other_are_refused(
    address: str, options: dict[str, Any], problem: str
) -> None:
    given = {"certificate": None, "key": None, "plain": False, **options}
    with pytest.raises(UserError, match=problem.replace(".", r"\.")):
        wanted_page(address, given["certificate"], given["key"], plain=bool(given["plain"]))


def test_on_this_machine_nobody_needs_a_token(tmp_path: Path) -> None:
    page = open_page(page_place("--web", "127.0.0.1:0"), ShownRuns(tmp_path))
    with page.server:
        assert page.link("a b").startswith("http://127.0.0.1:")
        assert page.link("a b").endswith("/?run=a+b")
        assert page.notes() == []


def test_a_link_for_other_machines_is_encrypted_and_has_a_token(tmp_path: Path) -> None:
    page = open_page(page_place("--web", "0.0.0.0:0"), ShownRuns(tmp_path))
    with page.server:
        assert page.link().startswith("https://")
        assert "0.0.0.0" not in page.link()
        assert len(page.link().partition("#token=")[2]) >= 32
        assert page.fingerprint in page.notes()[0]


def test_a_private_network_needs_no_certificate_but_a_token(tmp_path: Path) -> None:
    page = open_page(page_place("--web", "0.0.0.0:0", plain=True), ShownRuns(tmp_path))
    with page.server:
        assert page.link().startswith("http://")
        assert "#token=" in page.link()


def test_a_coordinator_has_its_tokens_and_none_in_the_link(tmp_path: Path) -> None:
    place = page_place("--web", "0.0.0.0:0", plain=True)
    page = open_page(place, ShownRuns(tmp_path), tmp_path / ".door.json")
    with page.server:
        assert "#" not in page.link()


def test_a_dashboard_of_nothing_says_what_there_may_be(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["dashboard", str(tmp_path / "nothing")])
    assert "is neither a run, nor a folder of runs" in str(done.exception)
    both = CliRunner().invoke(app, ["dashboard", "a", "--demo"])
    assert "give either a run or --demo" in str(both.exception)
