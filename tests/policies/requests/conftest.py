"""What tests of the table of requests begin with."""

from __future__ import annotations

import pytest
from table_rig import Rig


@pytest.fixture
def rig() -> Rig:
    """A table without workers or requests."""
    return Rig()
