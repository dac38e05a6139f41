"""Stores on machines of their own, and what is mapped here, for the tests of tensor transport."""

from __future__ import annotations

from pathlib import Path

import pytest

from spotlight.transport.tensors import BundleStore
from spotlight.transport.tensors import store as store_module


async def store_on(
    machine: str, root: Path, monkeypatch: pytest.MonkeyPatch, kind: type[BundleStore] = BundleStore
) -> BundleStore:
    """A started store that takes itself to be on another machine than the others."""
    with monkeypatch.context() as patch:
        patch.setattr(store_module, "machine_identity", lambda: machine)
        store = kind(root, token=f"token of {machine}")
        await store.start()
    return store


def mapped(name: str) -> int:
    """How often a file whose path has this in it is mapped into this process."""
    return sum(name in line for line in Path("/proc/self/maps").read_text().splitlines())
