"""The `spotlight` command: which verbs there are, and in which panel of `--help` each stands.

Heavy imports happen inside the commands, so that `--help` answers at once. A `UserError` becomes
one line on standard error and a non-zero exit code.
"""

from __future__ import annotations

import logging
import sys

import typer

from spotlight.actors.runtime.logs import log_as_json_lines
from spotlight.cli.comparing import compare, report
from spotlight.cli.dashboard import dashboard
from spotlight.cli.doctor import doctor, version
from spotlight.cli.door import revoke, token
from spotlight.cli.fleet import drain, nodes, preempt, undrain
from spotlight.cli.going_on import export, fork, resume
from spotlight.cli.jobs import cancel, list_jobs, status, submit
from spotlight.cli.lines import one_line
from spotlight.cli.live_page import CommandWithPage
from spotlight.cli.on_this_machine import chaos, init, plan, restore, run
from spotlight.cli.options import VersionOption
from spotlight.cli.replaying import replay
from spotlight.cli.serve_reward import serve_reward
from spotlight.cli.sweeping import sweep
from spotlight.cli.try_reward import try_reward
from spotlight.cli.watching import logs, watch
from spotlight.errors import UserError
from spotlight.process_start import outlive_notices, standard_streams

_PANELS = {
    "Begin, on this machine": (init, plan, try_reward, run, restore),
    "Jobs of a coordinator": (submit, resume, sweep, list_jobs, status, watch, logs, cancel),
    "Results": (dashboard, report, compare, fork, export),
    "Nodes and people of a coordinator": (nodes, drain, undrain, preempt, revoke),
    "Other": (doctor, serve_reward, replay, chaos, version),
}
_NAMES = {"list_jobs": "list", "try_reward": "try-reward"}
"""Names of commands that are not those of their functions."""
_CLASSES = {"run": CommandWithPage}
"""Classes of commands whose arguments are not read in the usual way."""

app = typer.Typer(
    help="Post-train Diffusion Transformers with reinforcement learning on reserved and spot GPUs.",
    epilog="New here? Try `spotlight init job.yaml`, then `spotlight plan job.yaml`, then"
    " `spotlight run job.yaml`. `spotlight doctor` says what is wrong with this machine.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
for _panel, _commands in _PANELS.items():
    for _command in _commands:
        app.command(
            _NAMES.get(_command.__name__),
            cls=_CLASSES.get(_command.__name__),
            rich_help_panel=_panel,
        )(_command)
app.add_typer(token, name="token", rich_help_panel="Nodes and people of a coordinator")


@app.callback()
def options(version: VersionOption = False) -> None:
    """Options that need no command."""


def main() -> None:
    """Entry point of the `spotlight` command."""
    outlive_notices()
    with standard_streams("spotlight"):
        log_as_json_lines(logging.ERROR)
        try:
            app()
        except UserError as error:
            sys.stderr.write(f"spotlight: {one_line(error)}\n")
            sys.exit(error.exit_code)
