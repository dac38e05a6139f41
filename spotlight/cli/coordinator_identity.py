"""Who a coordinator is, and whom it knows from the beginning: by the files in the folder of its
runs, or by what the process that started it hands over.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path

from spotlight.actors.coordinator.key_ring import OPERATOR, KeyRing, door_file
from spotlight.errors import RunFolderError, UserError
from spotlight.join_token import JoinToken
from spotlight.running.handed_keys import CoordinatorKeys
from spotlight.running.join_option import OPERATOR_TOKEN
from spotlight.running.key_files import key_pair_of
from spotlight.store.secret_files import read_secret_file, write_secret_file
from spotlight.timings import DoorTimings
from spotlight.transport.control import ControlTransport
from spotlight.transport.control.keys import KeyPair, key_of, place_of

_KEY_FILE = ".coordinator.key"


@dataclass(frozen=True)
class CoordinatorIdentity:
    """See the module's docstring."""

    pair: KeyPair
    runs: Path
    handed: CoordinatorKeys | None

    def open_ring(self, transport: ControlTransport, timings: DoorTimings) -> KeyRing:
        """Whom the coordinator knows. The transport has not started yet."""
        if self.handed is None:
            return KeyRing(transport, door_file(self.runs), timings=timings)
        keys = KeyRing(transport, timings=timings)
        keys.admit_user(OPERATOR, self.handed.operator, "operator")
        for node in self.handed.nodes:
            keys.admit_node(node.name, node.key, node.pool)
        return keys

    async def leave_operator_token(self, keys: KeyRing, address: str) -> None:
        """Write a token for the operator into the folder of the runs, unless the one that is there
        still leads here. Raises `RunFolderError`, and `UserError` if others could have read it."""
        if self.handed is not None:
            return
        file = self.runs / OPERATOR_TOKEN
        was = _text_of(file)
        join = _moved(was, address)
        if join is None or not keys.knows(join):
            join = keys.new_token("operator")
            await keys.saved()
        if str(join) == was:
            return
        try:
            write_secret_file(file, str(join))
        except OSError as error:
            raise RunFolderError(
                f"{file}: {error.strerror}; give a --runs folder that can be written"
            ) from error


def coordinator_identity(runs: Path, handed: CoordinatorKeys | None) -> CoordinatorIdentity:
    """The folder is there, and locked. Raises `UserError`."""
    if handed is not None:
        return CoordinatorIdentity(handed.pair, runs, handed)
    pair, _ = key_pair_of("--runs", runs / _KEY_FILE)
    return CoordinatorIdentity(pair, runs, None)


def _text_of(file: Path) -> str:
    """Empty if it is not there."""
    return read_secret_file(file) if os.path.lexists(file) else ""


def _moved(text: str, address: str) -> JoinToken | None:
    """The same token for a coordinator that is reached by another address by now."""
    try:
        join = JoinToken.parse(OPERATOR_TOKEN, text)
    except UserError:
        return None
    place = place_of(address).removeprefix("tcp://")
    return replace(join, place=place, key=key_of(address))
