"""Joining with real daemons: tokens that let in and such that do not, keys that are kept, and who
is shown out.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from spotlight.actors.protocol.door import KnownNode, KnownToken
from spotlight.join_token import SECRET_BYTES, JoinToken
from spotlight.running.client import CoordinatorClient, connect
from spotlight.transport.control.keys import KeyPair
from spotlight.types import Pool, TokenRole
from spotlight_simulation.ports import unused_port
from tests.integration.conftest import Workplace, descendants, wait_until
from tests.worker_templates import apart

LIMIT_S = 120.0


class Place:
    """A coordinator whose port stays the same, and its operator."""

    def __init__(self, workplace: Workplace, light_template: tuple[str, str]) -> None:
        self.workplace = workplace
        self._template = light_template
        self.runs = workplace.folder / "runs"
        self.listen = f"127.0.0.1:{unused_port()}"
        self.start()

    def start(self) -> None:
        """Start it, also again."""
        file = self.workplace.folder / "address"
        file.unlink(missing_ok=True)
        self.coordinator = self.workplace.daemon(
            "coordinator", "--listen", self.listen, "--address-file", file, "--runs", self.runs
        )
        wait_until(file.exists, "the coordinator")

    def kill(self) -> None:
        """End it at once."""
        self.coordinator.kill()
        self.coordinator.wait()

    def operator(self) -> JoinToken:
        """The token in the folder of the runs."""
        return JoinToken.parse("token", (self.runs / "operator.token").read_text())

    def _asked(self, call: Callable[[CoordinatorClient], Coroutine[Any, Any, Any]]) -> Any:
        async def over_one_connection() -> Any:
            async with connect(self.operator()) as client:
                return await call(client)

        return asyncio.run(over_one_connection())

    def token(
        self,
        role: TokenRole = "node",
        pool: Pool | None = "spot",
        uses: int = 1,
        ttl_s: float = 86_400.0,
    ) -> str:
        """A new one. What its command says is told by the tests of commands."""
        return self._asked(lambda client: client.new_token(role, pool, uses, ttl_s))

    def tokens(self) -> tuple[KnownToken, ...]:
        """All that were made, in their order."""
        return self._asked(lambda client: client.guests()).tokens

    def node(self, name: str, *options: str | Path, forks: bool = False) -> subprocess.Popen[str]:
        """A node that joins; its workers are processes below it if it `forks` them itself."""
        words = ("--name", name, *options)
        if forks:
            return self.workplace.daemon("node", *words, env=apart())
        return self.workplace.daemon("node", *words, *self._template)

    def refused(self, name: str, *options: str | Path) -> str:
        """The one line with which a node ends that is not let in."""
        node = self.node(name, *options)
        output = node.communicate(timeout=LIMIT_S)[0]
        lines = [line for line in output.splitlines() if not line.startswith("{")]
        assert (node.returncode, len(lines)) == (2, 1), output
        return lines[0]

    def known(self) -> dict[str, KnownNode]:
        """The nodes that have enrolled, by name."""
        return {node.name: node for node in self._asked(lambda client: client.guests()).nodes}

    def until_there(self, name: str, *, there: bool = True) -> None:
        """Wait until a node has joined, or is no longer `there`."""
        asyncio.run(self._until_there(name, there))

    async def _until_there(self, name: str, there: bool) -> None:
        """By one connection: a command for every look would take half a second of a core."""
        async with asyncio.timeout(LIMIT_S), connect(self.operator()) as client:
            while there != any(  # noqa: ASYNC110 (another process does it)
                node.name == name and node.is_connected for node in (await client.guests()).nodes
            ):
                await asyncio.sleep(0.02)


def process_with(word: str, below: int) -> psutil.Process:
    """One below a process whose command has this word, once it is there."""
    found: list[psutil.Process] = []

    def is_there() -> bool:
        for process in descendants(below):
            with suppress(psutil.NoSuchProcess):
                if word in process.cmdline():
                    found.append(process)
        return bool(found)

    wait_until(is_there, word)
    return found[0]


def worker_of(node: str) -> psutil.Process:
    """The one worker of a node; all of them are forked from one template."""
    return process_with(f"{node}/0", os.getpid())


@pytest.fixture
def place(workplace: Workplace, light_template: tuple[str, str]) -> Place:
    return Place(workplace, light_template)


def test_a_token_lets_in_so_many_nodes_of_its_pool_and_no_other(place: Place) -> None:
    token = place.token()
    assert "is for the pool spot" in place.refused("r", "--join", token, "--pool", "reserved")
    place.node("s", "--join", token)
    place.until_there("s")
    assert place.known()["s"].pool == "spot"
    assert "is used up" in place.refused("t", "--join", token)
    assert list(place.known()) == ["s"]


@pytest.mark.slow
def test_a_token_that_is_mistyped_expired_or_revoked_is_one_line_that_says_so(place: Place) -> None:
    token = place.token(ttl_s=1.0)
    mistyped = str(replace(JoinToken.parse("token", token), secret=bytes(SECRET_BYTES)))
    assert "does not know this join token" in place.refused("a", "--join", mistyped)
    wait_until(lambda: (place.tokens()[-1].expires_in_s or 0.0) <= 0, "its end")
    assert "expired on" in place.refused("b", "--join", token)
    revoked = place.token()
    assert place.workplace.spotlight("revoke", revoked.split(".")[-2]).code == 0
    assert "revoked" in place.refused("c", "--join", revoked)
    assert place.known() == {}


@pytest.mark.slow
def test_commands_say_who_does_not_answer_and_why(place: Place) -> None:
    status = ("status", "--join")
    operator = place.operator()
    other_key = str(replace(operator, key=KeyPair.new().public))
    mistyped = str(replace(operator, secret=bytes(SECRET_BYTES)))
    nobody = str(replace(operator, place=f"127.0.0.1:{unused_port()}"))
    submitter, node = place.token("submitter", pool=None), place.token()
    for words, said in (
        ((*status, other_key), "has another key"),
        ((*status, mistyped), "does not know this join token"),
        ((*status, nobody), "is spotlight-coordinator running there?"),
        ((*status, node), "does not allow that"),
        (("preempt", "n", "--join", submitter), "does not allow that"),
        (("token", "new", "--join", submitter), "does not allow that"),
        (("revoke", "n", "--join", submitter), "does not allow that"),
        (("status", "-j", f"@{place.runs / 'absent'}"), "cannot be read"),
    ):
        done = place.workplace.spotlight(*words)
        assert (done.code, done.errors.count("\n")) == (2, 1), done.errors
        assert said in done.errors
        assert not any(secret in done.errors for secret in (other_key, mistyped, nobody))
    assert place.workplace.spotlight(*status, submitter).code == 0


def test_a_node_that_is_revoked_ends_with_its_workers_and_says_why(place: Place) -> None:
    node = place.node("s", "--join", place.token(uses=2))
    place.until_there("s")
    worker = worker_of("s")
    done = place.workplace.spotlight("revoke", "s")
    assert done.code == 0, done.errors
    output = node.communicate(timeout=LIMIT_S)[0]
    assert node.returncode == 3
    assert "revoked" in output.splitlines()[-1]
    assert "Traceback" not in output
    psutil.wait_procs([worker], timeout=LIMIT_S)
    assert not worker.is_running()


@pytest.mark.slow
def test_two_nodes_of_one_name_are_one_too_many(place: Place) -> None:
    place.node("s", "--pool", "spot")
    place.until_there("s")
    assert "a node `s` is there" in place.refused("s", "--pool", "spot")


def test_a_node_is_known_again_after_its_coordinator_was_killed(place: Place) -> None:
    node = place.node("s", "--join", place.token())
    place.until_there("s")
    before = place.operator()
    place.kill()
    place.start()
    assert place.operator() == before
    place.until_there("s")
    assert node.poll() is None


@pytest.mark.slow
def test_a_coordinator_that_comes_later_is_waited_for(place: Place) -> None:
    token = place.token()
    place.kill()
    node = place.node("s", "--join", token)
    assert node.stdout is not None
    wait_until(lambda: "waiting_for_coordinator" in node.stdout.readline(), "its waiting")
    place.start()
    place.until_there("s")


@pytest.mark.slow
def test_a_node_that_waits_for_its_coordinator_ends_when_it_is_told_to(place: Place) -> None:
    token = place.token()
    place.kill()
    node = place.node("s", "--join", token)
    assert node.stdout is not None
    wait_until(lambda: "waiting_for_coordinator" in node.stdout.readline(), "its waiting")
    node.terminate()
    output = node.communicate(timeout=LIMIT_S)[0]
    assert (node.returncode, "Traceback" in output) == (0, False)


@pytest.mark.slow
def test_a_coordinator_that_has_lost_its_book_knows_nobody(place: Place) -> None:
    node = place.node("s", "--join", place.token(uses=9))
    place.until_there("s")
    place.kill()
    (place.runs / ".door.json").unlink()
    place.start()
    output = node.communicate(timeout=LIMIT_S)[0]
    assert node.returncode == 3
    assert "does not know this join token" in output.splitlines()[-1]
    assert place.known() == {}


def test_a_reserved_node_with_a_key_file_needs_its_token_once(place: Place) -> None:
    key = place.workplace.folder / "key"
    words = ("--join", place.token(pool="reserved"), "--key-file", key)
    first = place.node("r", *words)
    place.until_there("r")
    assert key.stat().st_mode & 0o777 == 0o600
    first.terminate()
    first.communicate(timeout=LIMIT_S)
    place.until_there("r", there=False)
    place.node("r", *words)
    place.until_there("r")
    key.chmod(0o644)
    assert "--key-file: " in place.refused("q", *words)
    spot = place.token()
    other = place.workplace.folder / "other"
    assert "is for the pool spot" in place.refused("q", "--join", spot, "--key-file", other)


def test_no_secret_is_in_the_arguments_or_environments_of_any_process(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = place.token(uses=2)
    monkeypatch.setenv("SPOTLIGHT_JOIN", token)
    place.node("s")
    forks = place.node("t", forks=True)
    monkeypatch.delenv("SPOTLIGHT_JOIN")
    place.until_there("s")
    template = process_with("spotlight.actors.runtime.fork_template", forks.pid)
    coordinator = psutil.Process(place.coordinator.pid)
    words = ("SPOTLIGHT_JOIN", "SPOTLIGHT_WORKER_KEY", token)
    for process in (coordinator, worker_of("s"), template):
        folder = Path(f"/proc/{process.pid}")
        for name in ("cmdline", "environ"):
            text = (folder / name).read_bytes().decode()
            assert not any(word in text for word in words), (process.pid, name)
        assert os.readlink(folder / "fd" / "0").startswith(("/dev/null", "pipe:", "socket:"))


@pytest.mark.slow
def test_a_coordinator_refuses_files_of_keys_that_others_can_read(place: Place) -> None:
    place.kill()
    for name in (".coordinator.key", "operator.token"):
        file = place.runs / name
        file.chmod(0o640)
        started = place.workplace.daemon(
            "coordinator", "--listen", place.listen, "--runs", place.runs
        )
        output = started.communicate(timeout=LIMIT_S)[0]
        assert started.returncode == 2
        assert f"{name} is open to others (mode 0640)" in output.splitlines()[-1]
        file.chmod(0o600)


@pytest.mark.slow
def test_a_coordinator_that_moves_keeps_its_key_and_its_operators_token(place: Place) -> None:
    before = place.operator()
    place.kill()
    place.listen = f"127.0.0.1:{unused_port()}"
    place.start()
    assert place.operator() == replace(before, place=place.listen)
    assert place.workplace.spotlight("status").code == 0
    assert [token.id for token in place.tokens()] == [before.id]
