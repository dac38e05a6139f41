"""Whom a coordinator knows, as a file says it."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from spotlight.actors.coordinator.key_ring import KeyRing, door_file
from spotlight.errors import RunFolderError
from spotlight.transport.control import MemoryNetwork


@pytest.mark.virtual_time
async def test_a_damaged_file_is_refused_in_one_line_whatever_it_says(tmp_path: Path) -> None:
    file = door_file(tmp_path)
    file.touch(0o600)
    file.write_text('{"version":1,"book":{},"\\n\\u001b[2J":1}')
    with pytest.raises(RunFolderError, match="is damaged") as refused:
        KeyRing(MemoryNetwork(Random(0)).transport("coordinator"), file)
    assert str(refused.value).isprintable()
