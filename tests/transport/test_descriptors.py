"""How many descriptors a process may have."""

from __future__ import annotations

import subprocess
import sys

import pytest

from spotlight.transport.control.zeromq_settings import ZeroMQSettings

REPORT = """
import resource, sys
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
soft, allowed = (int(word) for word in sys.argv[1:])
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, min(hard, allowed)))
from spotlight.transport import descriptors
before = descriptors.limit()
descriptors.raise_limit()
print(before, descriptors.limit(), resource.getrlimit(resource.RLIMIT_NOFILE)[1])
"""


@pytest.mark.parametrize(("soft", "allowed"), [(256, 1024), (256, 256), (64, 4096)])
def test_a_process_takes_as_many_as_its_system_allows(soft: int, allowed: int) -> None:
    command = [sys.executable, "-c", REPORT, str(soft), str(allowed)]
    before, after, hard = subprocess.check_output(command, text=True).split()
    assert int(before) == soft
    assert int(after) == int(hard) == allowed


@pytest.mark.parametrize("limit", [256, 1024, 4096, 65_536])
def test_what_a_port_may_hold_leaves_descriptors_for_files_and_stores(
    monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    monkeypatch.setattr("spotlight.transport.descriptors.limit", lambda: limit)
    settings = ZeroMQSettings()
    assert 0 < settings.connections + 4 * settings.dialed <= 0.75 * limit
