"""Whoever can read what processes leave lying about, or has a node's disk."""

from __future__ import annotations

import asyncio
import os
import re
import stat
import subprocess
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from benchmarks.security.attack import attack, require, require_words
from benchmarks.security.clients import z85_of
from benchmarks.security.network import ATTACKER, SPOT
from benchmarks.security.site import Site
from spotlight.transport.control import KeyPair

_MAY_HOLD = {".coordinator.key", "operator.token"}
"""Files below `--runs` that hold secrets, and nobody else can read."""
_LARGEST = 64_000_000


def _spellings(site: Site) -> dict[str, list[bytes]]:
    """Every secret, as it may be written."""
    spelled: dict[str, list[bytes]] = {}
    for name, secret in site.secrets.items():
        ways = [secret.encode()]
        if re.fullmatch(r"[A-Za-z0-9_-]{43}", secret):
            ways.append(z85_of(secret).encode())
        spelled[name] = ways
    return spelled


def _found(site: Site, places: Iterable[tuple[str, bytes]]) -> list[str]:
    secrets = _spellings(site)
    return [
        f"{name} in {place}"
        for place, content in places
        for name, ways in secrets.items()
        if any(way in content for way in ways)
    ]


def _processes(site: Site) -> set[int]:
    """All of the site, with what they have started."""
    parents = {}
    for entry in Path("/proc").iterdir():
        with suppress(OSError, ValueError):
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            parents[int(entry.name)] = int(fields[1])
    wanted = {site.coordinator.pid, *(node.pid for node in site.nodes.values())}
    while more := {pid for pid, parent in parents.items() if parent in wanted} - wanted:
        wanted |= more
    return wanted


@attack("keys and tokens are in arguments, environments or names of open files")
async def processes(site: Site) -> None:
    def places() -> list[tuple[str, bytes]]:
        read = []
        for pid in _processes(site):
            for name in ("cmdline", "environ", "comm"):
                with suppress(OSError):
                    read.append((f"/proc/{pid}/{name}", Path(f"/proc/{pid}/{name}").read_bytes()))
            with suppress(OSError):
                targets = [os.readlink(each) for each in Path(f"/proc/{pid}/fd").iterdir()]
                read.append((f"/proc/{pid}/fd", "\n".join(targets).encode()))
        return read

    read = await asyncio.to_thread(places)
    require(len(_processes(site)) >= 5, "there are no workers to look at")
    found = [each for each in _found(site, read) if "reward server" not in each]
    require(not found, found)


def _files(folder: Path) -> list[tuple[str, bytes]]:
    read = []
    for path in folder.rglob("*"):
        with suppress(OSError):
            if path.is_file() and not path.is_symlink() and path.stat().st_size < _LARGEST:
                read.append((str(path), path.read_bytes()))
    return read


@attack("keys and tokens are in logs, run folders and reports")
async def files(site: Site) -> None:
    def look() -> list[str]:
        places = [(path, content) for path, content in _files(site.folder)]
        holders = {str(site.runs / name) for name in _MAY_HOLD} | {str(site.secret)}
        return _found(
            site,
            ((p, c) for p, c in places if p not in holders and not p.endswith(".token")),
        )

    found = await asyncio.to_thread(look)
    require(not found, found)


@attack("other users of the coordinator's machine read its keys and tokens")
async def modes(site: Site) -> None:
    held = [path for path in site.runs.rglob("*") if path.name.startswith(".door")]
    for path in [*(site.runs / name for name in _MAY_HOLD), *held]:
        mode = stat.S_IMODE(path.stat().st_mode)
        require(mode & 0o077 == 0, f"{path.name} has mode {mode:o}")
    require(bool(held), "there is no book of keys")


@attack("the disk and the shared memory of a spot node are stolen while it runs")
async def stolen_disk(site: Site) -> None:
    """All files that its processes have open or made; but for the token that its operator put
    there."""

    def look() -> list[str]:
        folders = [site.folder / "logs" / SPOT]
        opened = []
        children = _processes_of(site.nodes[SPOT].pid)
        for pid in children:
            with suppress(OSError):
                for each in Path(f"/proc/{pid}/fd").iterdir():
                    target = Path(os.readlink(each))
                    if target.is_file() and str(target).startswith(("/dev/shm", "/tmp")):
                        opened.append((str(target), target.read_bytes()))
        shared = [each for each in Path("/dev/shm").iterdir() if each.name.startswith("spotlight")]
        places = [*opened, *(file for folder in (*folders, *shared) for file in _files(folder))]
        secrets = {n: s for n, s in site.secrets.items() if "store" not in n}
        return [
            f"{name} in {place}"
            for place, content in places
            for name, secret in secrets.items()
            if secret.encode() in content
        ]

    found = await asyncio.to_thread(look)
    require(not found, found)


def _processes_of(pid: int) -> set[int]:
    done = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True)
    children = {int(each) for each in done.stdout.split()}
    return {pid}.union(*(_processes_of(child) for child in children))


@attack("a file of keys that others can read is used", stage="alone")
async def wide_modes(site: Site) -> None:
    """By a coordinator, and by a reserved node."""
    runs = site.folder / "wide"
    runs.mkdir(exist_ok=True)
    key = runs / ".coordinator.key"
    key.write_text(KeyPair.new().secret)
    key.chmod(0o644)
    coordinator = site.daemon(
        ATTACKER, "spotlight-coordinator", "--listen", "127.0.0.1:0", "--runs", str(runs)
    )
    code = await asyncio.to_thread(coordinator.wait, 60)
    said = site.log(coordinator)
    require(code == 2 and "Traceback" not in said, said)
    require_words(said, ".coordinator.key")
    file = site.folder / "wide.key"
    file.write_bytes(key.read_bytes())
    file.chmod(0o644)
    token = site.token_file(site.spot_token)
    node = site.daemon(
        ATTACKER, "spotlight-node", "--join", f"@{token}", "--name", "wide", "--pool", "spot",
        "--key-file", str(file),
    )  # fmt: skip
    code = await asyncio.to_thread(node.wait, 60)
    said = site.log(node)
    require(code == 2 and "Traceback" not in said, said)
    require_words(said, "--key-file")
