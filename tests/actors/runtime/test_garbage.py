"""When Python looks for cyclic garbage in a daemon."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest

from spotlight.actors.runtime import garbage
from spotlight.join_token import SECRET_BYTES, JoinToken
from spotlight.transport.control.keys import KeyPair


class Knot:
    """Refers to itself."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture
def collector() -> Iterator[None]:
    """As it was, afterwards; by itself it does nothing. What is frozen stays so: else every full
    collection of a later test looks at all that is imported, as the one of each model does."""
    before = gc.get_threshold()
    gc.disable()
    yield
    gc.set_threshold(*before)
    gc.enable()


def knot() -> weakref.ref[Knot]:
    return weakref.ref(Knot())


def test_a_process_that_was_not_tuned_is_left_to_python(collector: None) -> None:
    tied = knot()
    garbage.collect()
    assert tied() is not None


def test_collections_that_were_put_off_are_made_up_for(collector: None) -> None:
    garbage.tune()
    tied = knot()
    garbage.collect()
    assert tied() is None


def test_what_is_there_at_the_start_is_never_looked_at_again(collector: None) -> None:
    there = Knot()
    garbage.tune()
    assert gc.get_freeze_count() > 10_000
    assert not any(each is there for each in gc.get_objects())


@pytest.mark.parametrize("daemon", ["coordinator", "node"])
def test_both_daemons_are_tuned_when_they_start(daemon: str, tmp_path: Path) -> None:
    program = (
        "import sys; from spotlight.cli import daemons; from spotlight.actors.runtime import"
        f" garbage; garbage.tune = lambda: sys.exit(7); daemons.{daemon}()"
    )
    nobody = JoinToken("127.0.0.1:1", KeyPair.new().public, "nobody", bytes(SECRET_BYTES))
    coordinator = ("--runs", "runs", "--listen", "127.0.0.1:0")
    where = coordinator if daemon == "coordinator" else ("--join", str(nobody))
    done = subprocess.run(
        [sys.executable, "-c", program, *where],
        cwd=tmp_path,
        capture_output=True,
        check=False,
        timeout=50,
    )
    assert done.returncode == 7, done.stderr
