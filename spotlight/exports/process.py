"""Carries out an export: the process that `spotlight export` starts, with the plan on standard
input.
"""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path

import msgspec

from spotlight.actors.runtime.launcher import die_with_parent
from spotlight.errors import UserError
from spotlight.exports.card import NAME as CARD
from spotlight.exports.plan import ExportPlan
from spotlight.process_start import standard_streams
from spotlight.training.export import export_checkpoint


def main() -> None:
    """Entry point of the process."""
    parser = argparse.ArgumentParser(description="Started by `spotlight export`.")
    parser.add_argument("--parent", required=True, type=int, help="pid of who started it")
    die_with_parent(parser.parse_args().parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    plan = msgspec.json.decode(sys.stdin.buffer.read(), type=ExportPlan)
    with standard_streams("spotlight"):
        try:
            export_checkpoint(
                plan.model,
                Path(plan.checkpoint),
                Path(plan.folder),
                role=plan.role,
                format=plan.format,
            )
            (Path(plan.folder) / CARD).write_text(plan.card, encoding="utf-8")
        except UserError as error:
            sys.stderr.write(f"spotlight: {error}\n")
            sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
