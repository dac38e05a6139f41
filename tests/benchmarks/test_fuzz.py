"""Some input that is almost right, of what `benchmarks.fuzz` tries for as long as one likes."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.fuzz.inputs import data_of, message_types, packed
from benchmarks.fuzz.properties import PURE, Property, properties
from spotlight.transport.control import BadInput, decode_message

FILES = ("door_files", "key_files", "token_files")
PORTS = ("doorkeeper", "handshakes", "lies")
"""Of properties that need a port or a doorkeeper."""


@pytest.fixture(scope="module")
def served() -> Iterator[dict[str, Property]]:
    with properties() as known:
        yield {each.name: each for each in known}


@pytest.mark.parametrize("tried", PURE, ids=lambda tried: tried.name)
@given(rng=st.randoms(use_true_random=False))
def test_what_is_almost_right_is_taken_or_refused_with_a_reason(
    tried: Property, rng: Random
) -> None:
    tried.check(tried.make(rng))


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_almost_right_is_read_or_refused_without_its_secret(
    served: dict[str, Property], name: str
) -> None:
    for number in range(500):
        served[name].check(served[name].input(number))


@pytest.mark.parametrize("name", PORTS)
def test_whoever_reaches_the_port_is_let_in_by_his_key_alone_and_troubles_nobody(
    served: dict[str, Property], name: str
) -> None:
    for number in range(200):
        served[name].check(served[name].input(number))


@pytest.mark.parametrize("kind", message_types(), ids=lambda kind: kind.__name__)
def test_messages_of_every_type_are_made_up_that_are_right(kind: type) -> None:
    rng = Random(0)
    for _ in range(2000):
        try:
            assert type(decode_message(packed(data_of(kind)(rng)))) is kind
        except BadInput:  # for what no declaration says
            continue
        return
    pytest.fail("none was taken")
