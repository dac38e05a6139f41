"""Addresses as users write them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from spotlight.errors import UserError
from spotlight.transport.addresses import (
    control_address,
    host_of,
    read_address,
    require_known,
)
from spotlight.transport.listening import data_listening, listening

OPTIONS: dict[str, Callable[[str], Any]] = {
    "--listen": lambda text: listening("--listen", text, "", takes_port=True).bind,
    "--data-listen": lambda text: (
        data_listening(text, listening("--listen", "10.0.0.1:7070", "", takes_port=True)).bind
    ),
    "--coordinator": lambda text: control_address("--coordinator", text),
    "--advertise": lambda text: (
        listening("--listen", "10.0.0.1:7070", text, takes_port=True).advertise
    ),
}


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("10.0.0.2:5000", "tcp://10.0.0.2:5000"),
        ("tcp://10.0.0.2:5000", "tcp://10.0.0.2:5000"),
        ("localhost:1", "tcp://localhost:1"),
        (
            "tcp://spot_light-0.svc.cluster.local:65535",
            "tcp://spot_light-0.svc.cluster.local:65535",
        ),
        ("[::1]:5000", "tcp://[::1]:5000"),
        ("tcp://[fe80::1%eth0]:5000", "tcp://[fe80::1%eth0]:5000"),
    ],
)
def test_every_option_understands_an_address_with_and_without_its_protocol(
    option: str, text: str, address: str
) -> None:
    assert OPTIONS[option](text) == address


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize(
    "text",
    [
        "host:",
        ":5000",
        "tcp://",
        "tcp://:5000",
        "http://host:5000",
        "tcp://tcp://host:5000",
        "host:70000",
        "host:70700000",
        "host:-1",
        "host:port",
        "host:5000/",
        "host:5000\n",
        "host\n:5000",
        " host:5000",
        "host:5000 ",
        "host :5000",
        "ho st:5000",
        "host:\u0667\u0660",
        "-host:5000",
        "host-:5000",
        "[::1:5000",
        "[::1]5000",
        "[]:5000",
        "[host]:5000",
        "[::1 ]:5000",
        "a:b:c",
        "host:5000;tcp://other:5000",
        f"{'x' * 300}:5000",
    ],
)
def test_every_option_refuses_what_is_no_address_in_one_line_that_names_it(
    option: str, text: str
) -> None:
    with pytest.raises(UserError, match=rf"^{option} '") as refused:
        OPTIONS[option](text)
    said = str(refused.value)
    assert "give HOST:PORT" in said
    assert said.isprintable() and len(said) < 350


@pytest.mark.parametrize("option", [option for option in OPTIONS if option != "--advertise"])
@pytest.mark.parametrize("text", ["10.0.0.2", "host", "tcp://host", "::1", "::1:5000", "[::1]"])
def test_where_a_port_is_needed_a_host_alone_is_refused(option: str, text: str) -> None:
    with pytest.raises(UserError, match=rf"^{option} .*: names no port; give HOST:PORT"):
        OPTIONS[option](text)


@pytest.mark.parametrize("option", ["--coordinator", "--advertise"])
@pytest.mark.parametrize("text", ["host:0", "*:5000"])
def test_what_others_are_to_reach_is_one_address_with_a_port(option: str, text: str) -> None:
    with pytest.raises(UserError, match=rf"^{option} "):
        OPTIONS[option](text)


@pytest.mark.parametrize("option", ["--listen", "--data-listen"])
def test_what_is_bound_may_have_any_free_port(option: str) -> None:
    assert OPTIONS[option]("10.0.0.2:0") == "tcp://10.0.0.2:0"


def test_an_empty_address_is_refused_where_one_is_needed() -> None:
    with pytest.raises(UserError, match=r"^--coordinator '': names no host"):
        control_address("--coordinator", "")


@pytest.mark.parametrize(
    ("text", "expected"),
    [("*", ("*", None)), ("*:7", ("*", 7)), ("fd00::1", ("fd00::1", None)), ("[::]", ("::", None))],
)
def test_a_host_to_bind_may_stand_alone(text: str, expected: tuple[str, int | None]) -> None:
    assert read_address("--host", text, to_bind=True) == expected


def test_the_host_of_an_address_has_no_brackets() -> None:
    assert host_of("tcp://[::1]:5000") == "::1"
    assert host_of("tcp://host:5000") == "host"


def test_a_host_that_nobody_knows_is_refused_before_anybody_dials_it() -> None:
    require_known("--advertise", "127.0.0.1")
    require_known("--advertise", "::1")
    with pytest.raises(UserError, match=r"^--advertise: the host `no\.invalid` cannot be found"):
        require_known("--advertise", "no.invalid")
    with pytest.raises(UserError, match=r"^--join: the host .* cannot be found"):
        require_known("--join", f"{'x' * 70}.invalid")
