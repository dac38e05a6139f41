"""What every benchmark prints."""

import subprocess
import sys

_WARNS_AND_FINISHES = """
import structlog
from benchmarks.report import arguments, finish
arguments(None)
structlog.get_logger().warning("not_all_is_well")
finish("example", {}, json_only=True)
"""


def test_warnings_of_a_run_do_not_mix_with_its_figures() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _WARNS_AND_FINISHES],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    (line,) = done.stdout.splitlines()
    assert line.startswith('{"name": "example"')
    assert "not_all_is_well" in done.stderr
