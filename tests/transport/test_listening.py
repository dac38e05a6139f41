"""Where a daemon listens, and under which address others reach it."""

from __future__ import annotations

import pytest

from spotlight.errors import UserError
from spotlight.transport.listening import data_listening, listening


@pytest.mark.parametrize(
    ("listen", "advertise", "bind", "advertised"),
    [
        ("10.0.0.1:7070", "", "tcp://10.0.0.1:7070", None),
        ("tcp://10.0.0.1:7070", "", "tcp://10.0.0.1:7070", None),
        ("0.0.0.0:7070", "10.0.0.1", "tcp://0.0.0.0:7070", "tcp://10.0.0.1:7070"),
        ("0.0.0.0:0", "10.0.0.1", "tcp://0.0.0.0:0", "tcp://10.0.0.1:0"),
        ("*:7070", "head.example", "tcp://0.0.0.0:7070", "tcp://head.example:7070"),
        ("10.0.0.1:7070", "nat.example:9999", "tcp://10.0.0.1:7070", "tcp://nat.example:9999"),
        ("[::]:7070", "fd00::1", "tcp://[::]:7070", "tcp://[fd00::1]:7070"),
        ("[::1]:7070", "[fd00::1]:80", "tcp://[::1]:7070", "tcp://[fd00::1]:80"),
    ],
)
def test_what_is_bound_and_what_others_use_are_two_addresses(
    listen: str, advertise: str, bind: str, advertised: str | None
) -> None:
    place = listening("--listen", listen, advertise, takes_port=True)
    assert (place.bind, place.advertise) == (bind, advertised)


def test_a_host_without_a_port_has_the_system_choose_it() -> None:
    place = listening("--host", "0.0.0.0", "10.0.0.2", takes_port=False)
    assert (place.bind, place.advertise) == ("tcp://0.0.0.0:0", "tcp://10.0.0.2:0")
    assert (place.host, place.advertised_host) == ("0.0.0.0", "10.0.0.2")


@pytest.mark.parametrize(
    ("advertise", "text", "expected"),
    [
        ("", "", ("10.0.0.1", 0, "")),
        ("", "10.0.0.9:7071", ("10.0.0.9", 7071, "")),
        ("head.example:80", "", ("10.0.0.1", 0, "head.example")),
        ("head.example", "0.0.0.0:7071", ("0.0.0.0", 7071, "head.example")),
    ],
)
def test_bundles_are_served_on_the_same_host_unless_another_is_given(
    advertise: str, text: str, expected: tuple[str, int, str]
) -> None:
    control = listening("--listen", "10.0.0.1:7070", advertise, takes_port=True)
    data = data_listening(text, control)
    assert (data.host, data.port, data.advertised_host) == expected


@pytest.mark.parametrize("text", ["7071", "10.0.0.1", "0.0.0.0:7071", "10.0.0.1:99999"])
def test_a_place_for_bundles_that_cannot_be_is_refused_by_its_option(text: str) -> None:
    control = listening("--listen", "10.0.0.1:7070", "", takes_port=True)
    with pytest.raises(UserError, match="--data-listen"):
        data_listening(text, control)


@pytest.mark.parametrize("listen", ["0.0.0.0:7070", "*:7070", "[::]:7070", "[0::0]:7070"])
def test_listening_on_all_interfaces_asks_for_the_address_that_others_use(listen: str) -> None:
    with pytest.raises(UserError, match=r"--listen .* all interfaces: say with --advertise HOST"):
        listening("--listen", listen, "", takes_port=True)


@pytest.mark.parametrize(
    ("listen", "advertise", "problem"),
    [
        ("10.0.0.1", "", "--listen '10.0.0.1': names no port"),
        ("", "", "--listen '': names no host"),
        (":7070", "", "--listen ':7070': names no host"),
        ("10.0.0.1:70700", "", "a number from 0 to 65535"),
        ("10.0.0.1:-1", "", "a number from 0 to 65535"),
        ("10.0.0.1:x", "", "a number from 0 to 65535"),
        ("10.0.0.1:٣", "", "a number from 0 to 65535"),
        ("http://10.0.0.1:7070", "", "names no host"),
        ("10.0.0.1:1", "a\nb", "--advertise 'a.nb': names no host"),
        ("10.0.0.1:1", "0.0.0.0", "--advertise 0.0.0.0: name one address"),
        ("10.0.0.1:1", "a:b", "--advertise 'a:b': the port"),
    ],
)
def test_what_makes_no_sense_is_one_line_that_names_the_option(
    listen: str, advertise: str, problem: str
) -> None:
    with pytest.raises(UserError, match=problem) as error:
        listening("--listen", listen, advertise, takes_port=True)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("host", "advertise"), [("10.0.0.1:1", ""), ("10.0.0.1", "a:1")])
def test_a_port_where_the_system_chooses_it_is_refused(host: str, advertise: str) -> None:
    with pytest.raises(UserError, match="take no port here"):
        listening("--host", host, advertise, takes_port=False)


@pytest.mark.parametrize(
    ("listen", "advertise", "alone"),
    [
        ("127.0.0.1:0", "", True),
        ("127.0.0.2:0", "127.0.0.1", True),
        ("localhost:0", "", True),
        ("[::1]:0", "", True),
        ("127.0.0.1:0", "10.0.0.1", False),
        ("0.0.0.0:0", "127.0.0.1", False),
        ("[::]:0", "::1", False),
        ("10.0.0.1:0", "", False),
        ("127.0.0.1.example:0", "", False),
        ("localhost.example:0", "", False),
        ("*:0", "localhost", False),
    ],
)
def test_only_what_is_bound_and_advertised_on_loopback_is_out_of_reach_of_other_machines(
    listen: str, advertise: str, alone: bool
) -> None:
    place = listening("--listen", listen, advertise, takes_port=True)
    assert place.is_loopback == alone
    assert data_listening("", place).is_loopback == alone
