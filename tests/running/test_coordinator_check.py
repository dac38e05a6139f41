"""What is found out about the way to a coordinator, over real connections."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from spotlight.actors.coordinator.key_ring import KeyRing
from spotlight.actors.protocol.dialect import own_dialect
from spotlight.preflight.machine import Finding
from spotlight.running.coordinator_check import coordinator_findings
from spotlight.transport.control import Dialect
from spotlight.transport.control.keys import KeyPair
from tests.running.door_site import Site


@pytest.fixture
async def keys(tmp_path: Path) -> AsyncIterator[KeyRing]:
    """Those of a coordinator of this process."""
    (tmp_path / "cluster").mkdir()
    site = Site(tmp_path / "cluster")
    await site.open()
    yield site.keys
    await site.system.aclose()


async def found(given: str, folder: Path) -> dict[str, Finding]:
    return {finding.what: finding for finding in await coordinator_findings(given, folder)}


async def test_a_machine_without_a_token_needs_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SPOTLIGHT_JOIN", raising=False)
    findings = await found("", tmp_path)
    assert findings["join token"].state == "ok"
    assert set(findings) == {"join token", "port"}


@pytest.mark.parametrize(
    ("role", "said"),
    [("operator", "answers"), ("observer", "answers"), ("node", "lets nodes in by this token")],
)
async def test_a_coordinator_that_is_there_answers(
    keys: KeyRing, tmp_path: Path, role: str, said: str
) -> None:
    join = keys.new_token(role, "spot" if role == "node" else None)  # type: ignore[arg-type]
    findings = await found(str(join), tmp_path)
    assert {finding.state for finding in findings.values()} <= {"ok", "warn"}
    assert said in findings["coordinator"].said
    assert str(own_dialect()) in findings["coordinator"].said


async def test_a_coordinator_of_another_build_says_so(tmp_path: Path) -> None:
    site = Site(tmp_path, Dialect("9.9.9", "0" * 32))
    await site.open()
    finding = (await found(str(site.operator), tmp_path))["coordinator"]
    await site.system.aclose()
    assert finding.state == "fail"
    assert "9.9.9" in finding.said and str(own_dialect()) in finding.said
    assert "install the same build" in finding.advice


async def test_a_token_that_was_revoked_says_so(keys: KeyRing, tmp_path: Path) -> None:
    join = keys.new_token("observer")
    keys.revoke(join.id)
    finding = (await found(str(join), tmp_path))["coordinator"]
    assert finding.state == "fail"
    assert "was revoked" in finding.said and finding.advice


async def test_a_token_that_nobody_made_says_so(keys: KeyRing, tmp_path: Path) -> None:
    join = replace(keys.new_token("observer"), secret=b"x" * 16)
    finding = (await found(str(join), tmp_path))["coordinator"]
    assert finding.state == "fail" and "does not know this join token" in finding.said


async def test_a_place_where_nobody_listens_says_so(keys: KeyRing, tmp_path: Path) -> None:
    join = replace(keys.new_token("observer"), place="127.0.0.1:1", key=KeyPair.new().public)
    findings = await found(str(join), tmp_path)
    assert findings["connection"].state == "fail"
    assert "127.0.0.1:1" in findings["connection"].said
    assert "start spotlight-coordinator" in findings["connection"].advice
    assert "coordinator" not in findings


async def test_a_token_file_that_others_can_read_says_so(keys: KeyRing, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(str(keys.new_token("observer")))
    file.chmod(0o644)
    finding = (await found(f"@{file}", tmp_path))["join token"]
    assert finding.state == "fail"
    assert "is open to others (mode 0644)" in finding.said
    assert f"chmod 600 {file}" in finding.advice
