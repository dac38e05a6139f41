"""What tests of commands share: the command itself, and the seam at which it would connect."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import structlog

from spotlight.cli.app import main
from spotlight.join_token import JoinToken
from spotlight.running import client as clients
from tests.cli.stand_in import JOIN


@pytest.fixture
def spotlight(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """The exit code of these words, and what they print."""

    def call(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["spotlight", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        output = capsys.readouterr()
        return int(ended.value.code or 0), output.out, output.err

    return call


@pytest.fixture
def reached_by_join(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    """Makes a stand-in the coordinator of the join token in the environment; the working folder is
    an empty one, and lines have 80 columns."""

    def reach(one: Any) -> Any:
        @asynccontextmanager
        async def connect(join: JoinToken) -> AsyncIterator[Any]:
            assert join == JOIN
            yield one

        monkeypatch.setattr(clients, "connect", connect)
        return one

    monkeypatch.setenv("SPOTLIGHT_JOIN", str(JOIN))
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(tmp_path)
    yield reach
    structlog.reset_defaults()
