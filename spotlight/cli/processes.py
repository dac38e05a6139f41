"""Commands that need torch run in a process of their own: the command line never loads it."""

from __future__ import annotations

import os
import subprocess
import sys

import msgspec
import typer

_CANCELLED = 130


def run_in_process(module: str, plan: msgspec.Struct, what: str) -> int:
    """Run a module with a plan on its standard input; returns the exit code.

    Args:
        what: what it does, in the line that says that a signal ended it.
    """
    argv = [sys.executable, "-m", module, "--parent", str(os.getpid())]
    try:
        code = subprocess.run(argv, input=msgspec.json.encode(plan), check=False).returncode
    except KeyboardInterrupt:
        return _CANCELLED
    if code < 0:
        typer.echo(f"spotlight: {what} was ended by signal {-code}", err=True)
        return 1
    return code
