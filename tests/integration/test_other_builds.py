"""Daemons and commands of two builds of Spotlight: refused by name, and nobody else notices."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from spotlight import __version__
from spotlight.actors.protocol.dialect import own_dialect
from spotlight_simulation.ports import unused_port
from tests.integration.conftest import LIMIT_S, SPOTLIGHT, Workplace, wait_until
from tests.other_build import PARTS, make_build

BIN = Path(__file__).parents[2] / "bin"
TELL = "from spotlight.actors.protocol.dialect import own_dialect; print(own_dialect())"


class Builds:
    """This build and an older one, and a place for their daemons. What these say goes to files."""

    def __init__(self, workplace: Workplace, light_template: tuple[str, str]) -> None:
        self.place = workplace
        self._template = light_template
        self.folder = workplace.folder
        self.ours = dict(os.environ)
        self.older = make_build(workplace.folder / "older", PARTS)
        told = subprocess.run(
            [sys.executable, "-c", TELL], env=self.older, capture_output=True, text=True, check=True
        )
        self.name_of_older = told.stdout.strip()
        self.listen = f"127.0.0.1:{unused_port()}"

    def coordinator(self, env: dict[str, str], log: str) -> subprocess.Popen[str]:
        runs = self.folder / "runs"
        process = self._daemon(env, log, "coordinator", "--listen", self.listen, "--runs", runs)
        wait_until(lambda: bool(self.said(log, "coordinator_listens")), "the coordinator")
        return process

    def node(
        self, env: dict[str, str], name: str, log: str, *options: str
    ) -> subprocess.Popen[str]:
        common = ("--name", name, "--pool", "spot", "--logs", self.folder / "logs", *self._template)
        return self._daemon(env, log, "node", *common, *options)

    def _daemon(
        self, env: dict[str, str], log: str, daemon: str, *options: str | Path
    ) -> subprocess.Popen[str]:
        with (self.folder / log).open("w") as file:
            argv = [sys.executable, BIN / f"spotlight-{daemon}", *options]
            return self.place.start(*argv, env=env, stdout=file)

    def said(self, log: str, event: str) -> list[dict[str, Any]]:
        """The lines of a daemon about an event."""
        lines = (self.folder / log).read_text().splitlines()
        found = [json.loads(line) for line in lines if line.startswith("{")]
        return [line for line in found if line["event"] == event]

    def command(self, env: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*SPOTLIGHT, *arguments],
            env=env, cwd=self.folder, capture_output=True, text=True, timeout=LIMIT_S, check=False,
        )  # fmt: skip

    def listed(self, env: dict[str, str], *command: str) -> list[dict[str, Any]]:
        """What a command lists."""
        done = self.command(env, *command, "--json")
        assert done.returncode == 0, done.stderr
        found: list[dict[str, Any]] = json.loads(done.stdout)
        return found


def refusal(theirs: str, ours: str) -> str:
    return f"it is Spotlight {theirs}, and this is {ours}; install the same build on both machines"


@pytest.fixture
def builds(workplace: Workplace, light_template: tuple[str, str]) -> Builds:
    return Builds(workplace, light_template)


def test_an_older_node_and_an_older_command_are_refused_by_name(builds: Builds) -> None:
    ours, older = str(own_dialect()), builds.name_of_older
    builds.coordinator(builds.ours, "coordinator.log")
    builds.node(builds.ours, "good", "good.log")
    token = builds.command(builds.ours, "token", "new", "--uses", "5").stdout.strip()
    node = builds.node(builds.older, "late", "late.log", "--join", token)
    assert node.wait(LIMIT_S) == 2
    status = builds.command(builds.older, "status")
    assert status.returncode == 2
    line = f"tcp://{builds.listen} cannot be talked to: {refusal(ours, older)}\n"
    assert status.stderr == f"spotlight: {line}"
    assert status.stdout == ""
    log = (builds.folder / "late.log").read_text()
    assert log.endswith(f"\nspotlight-node: {line}")
    assert "Traceback" not in log
    told = builds.said("coordinator.log", "other_version")
    assert [line["reason"] for line in told] == [refusal(older, ours)] * 2  # they had two tokens
    assert not builds.said("coordinator.log", "input_rejected")
    wait_until(lambda: bool(builds.said("good.log", "joined")), "the node of this build")
    good, stranger = builds.listed(builds.ours, "nodes")
    assert (good["name"], good["state"], good["version"]) == ("good", "there", __version__)
    assert (stranger["state"], stranger["version"]) == ("not let in", older)
    found = {each["id"]: each["software"] for each in builds.listed(builds.ours, "token", "list")}
    assert sorted(found.values()) == ["", older]


@pytest.mark.slow
def test_a_node_whose_coordinator_comes_back_in_another_build_keeps_trying(builds: Builds) -> None:
    ours, older = str(own_dialect()), builds.name_of_older
    first = builds.coordinator(builds.ours, "first.log")
    builds.node(builds.ours, "stays", "node.log")
    wait_until(lambda: bool(builds.said("node.log", "joined")), "the node")
    first.terminate()
    first.wait(LIMIT_S)
    second = builds.coordinator(builds.older, "second.log")
    wait_until(lambda: bool(builds.said("node.log", "other_version")), "the node's refusal")
    assert builds.said("node.log", "other_version")[0]["reason"] == refusal(older, ours)
    wait_until(lambda: bool(builds.said("second.log", "other_version")), "the coordinator's")
    assert builds.said("second.log", "other_version")[0]["reason"] == refusal(ours, older)
    [node] = builds.listed(builds.older, "nodes")
    assert (node["name"], node["state"], node["version"]) == ("stays", "away", ours)
    second.terminate()
    second.wait(LIMIT_S)
    builds.coordinator(builds.ours, "third.log")
    wait_until(lambda: len(builds.said("node.log", "joined")) == 2, "the node again")
    [node] = builds.listed(builds.ours, "nodes")
    assert (node["state"], node["version"]) == ("there", __version__)
    assert "Traceback" not in (builds.folder / "node.log").read_text()
