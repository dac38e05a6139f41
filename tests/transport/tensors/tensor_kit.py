"""Stores on machines of their own, what they hold and what is open here, for the tests of tensor
transport."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from spotlight.transport.tensors import BundleStore
from spotlight.transport.tensors import store as store_module
from spotlight.types import BundleOffer, StoreEndpoint

TOKEN = "a secret"
BIG = os.urandom(1 << 20) * 9  # more than one chunk and more than any socket buffers


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


def elsewhere(offer: BundleOffer, **changes: Any) -> BundleOffer:
    """The same offer as another machine sees it: the files are out of reach."""
    return msgspec.structs.replace(offer, store=remote(offer.store), **changes)


def remote(endpoint: StoreEndpoint, **changes: Any) -> StoreEndpoint:
    changes = {"machine": "another machine", "root": "/nowhere", **changes}
    return msgspec.structs.replace(endpoint, **changes)


def files(root: Path) -> set[str]:
    """What is there, finished or not."""
    return {str(file.relative_to(root)) for file in root.rglob("*") if file.is_file()}


def sockets() -> set[str]:
    """Inodes of the sockets that this process has open."""
    found = set()
    for entry in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            target = os.readlink(f"/proc/self/fd/{entry}")
            if target.startswith("socket:"):
                found.add(target)
    return found


async def until(condition: Callable[[], object]) -> None:
    """Let the loop turn until something holds that no event announces."""
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.001)  # threads of the port need the interpreter, too
