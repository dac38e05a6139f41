"""Finds out whether a job's model can be loaded, without loading its weights: the process that
`spotlight plan` starts, with the section `model` of the job on standard input. It has torch, and
the command line has not.
"""

from __future__ import annotations

import argparse
import signal
import sys
from importlib import import_module
from importlib.util import find_spec

import msgspec

from spotlight.actors.runtime.launcher import die_with_parent
from spotlight.cli.lines import one_line
from spotlight.diffusion.checkpoints import check_model
from spotlight.errors import UserError
from spotlight.jobs import ModelSpec


def main() -> None:
    """Entry point of the process."""
    parser = argparse.ArgumentParser(description="Started by `spotlight plan`.")
    parser.add_argument("--parent", required=True, type=int, help="pid of who started it")
    die_with_parent(parser.parse_args().parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    _silence_libraries()
    try:
        check_model(msgspec.json.decode(sys.stdin.buffer.read(), type=ModelSpec))
    except UserError as error:
        sys.stderr.write(f"spotlight: {one_line(error)}\n")
        sys.exit(error.exit_code)


def _silence_libraries() -> None:
    """Their reports of what differs are not for users. A model may do without transformers."""
    for name in ("diffusers", "transformers"):
        if find_spec(name) is not None:
            logging = import_module(f"{name}.utils.logging")
            logging.set_verbosity(logging.CRITICAL)
            logging.disable_progress_bar()


if __name__ == "__main__":
    main()
