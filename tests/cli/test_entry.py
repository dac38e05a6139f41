"""What the commands answer before they do anything: version, completion, `python -m`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from spotlight import __version__
from spotlight.cli.app import app

BIN = Path(__file__).parents[2] / "bin"
COMMANDS = {
    "python -m spotlight": ["-m", "spotlight"],
    "python -m spotlight.cli": ["-m", "spotlight.cli"],
    "spotlight-coordinator": [str(BIN / "spotlight-coordinator")],
    "spotlight-node": [str(BIN / "spotlight-node")],
}


def said(*words: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, *words],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    return done.stdout


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_says_its_version(command: str) -> None:
    assert said(*COMMANDS[command], "--version") == f"spotlight {__version__}\n"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_is_told_how_to_complete(shell: str) -> None:
    named = {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}  # not the shell that runs tests
    assert "spotlight" in said("-m", "spotlight", "--show-completion", shell, **named)


def test_the_help_shows_each_command_in_a_panel_with_a_line_of_its_own() -> None:
    shown = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "200"}).output
    commands = [command.name or command.callback.__name__ for command in app.registered_commands]
    assert {"list", "submit", "watch", "doctor"} <= set(commands)
    for command in commands:
        assert f"│ {command.replace('_', '-')} " in shown, command
    for panel in ("Begin, on this machine", "Jobs of a coordinator", "Results", "Nodes and people"):
        assert f"─ {panel}" in shown
    assert "─ Commands ─" not in shown


def test_commands_are_completed() -> None:
    words = {"COMP_WORDS": "spotlight st", "COMP_CWORD": "1"}
    program = "import sys; sys.argv = ['spotlight']; from spotlight.cli.app import main; main()"
    found = said("-c", program, _SPOTLIGHT_COMPLETE="complete_bash", **words)
    assert found.split() == ["status"]
