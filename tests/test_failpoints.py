import signal
import subprocess
import sys

import pytest

from spotlight import failpoints
from spotlight.errors import UserError


@pytest.fixture(autouse=True)
def nobody_acts_afterwards():
    yield
    failpoints.install(None)


def test_a_place_without_a_handler_does_nothing():
    failpoints.reach("here")


def test_a_handler_is_told_each_place_that_is_reached():
    reached = []
    failpoints.install(reached.append)
    failpoints.reach("here")
    failpoints.reach("there")
    assert reached == ["here", "there"]


def test_a_place_raises_what_its_handler_raises():
    class Killed(BaseException):
        pass

    def kill(name: str) -> None:
        raise Killed(name)

    failpoints.install(kill)
    with pytest.raises(Killed, match="here"):
        failpoints.reach("here")


def test_a_removed_handler_acts_no_more():
    reached = []
    failpoints.install(reached.append)
    failpoints.install(None)
    failpoints.reach("here")
    assert reached == []


def test_an_unset_variable_leaves_the_handler_alone(monkeypatch):
    monkeypatch.delenv("SPOTLIGHT_FAILPOINT", raising=False)
    reached = []
    failpoints.install(reached.append)
    failpoints.from_environment()
    failpoints.reach("here")
    assert reached == ["here"]


@pytest.mark.parametrize("text", ["here", "here:", ":3", "here:0", "here:-1", "here:x", "here:²"])
def test_a_variable_that_says_something_else_is_refused(monkeypatch, text):
    monkeypatch.setenv("SPOTLIGHT_FAILPOINT", text)
    with pytest.raises(UserError, match=r"SPOTLIGHT_FAILPOINT is .*; give name:count"):
        failpoints.from_environment()


WALK = """
from spotlight import failpoints
failpoints.from_environment()
for name in ("a:b", "c", "a:b", "c", "a:b", "c"):
    failpoints.reach(name)
    print(name, flush=True)
"""


def walk(asked: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", WALK],
        env={"SPOTLIGHT_FAILPOINT": asked},
        capture_output=True,
        text=True,
        timeout=30,
    )


def test_the_environment_kills_the_process_when_it_reaches_the_place_for_the_nth_time():
    ended = walk("a:b:2")
    assert (ended.returncode, ended.stdout.split()) == (-signal.SIGKILL, ["a:b", "c"])


def test_a_place_that_is_not_reached_that_often_kills_nobody():
    ended = walk("c:4")
    assert (ended.returncode, len(ended.stdout.split())) == (0, 6)
