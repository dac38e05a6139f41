"""Makes it safe to read typed data in several threads.

msgspec works out the types of a struct's fields when the first data for it come. A thread that
needs the struct meanwhile finds it half made, and the process crashes. So a process works them out
before it starts a thread that reads what others read, too.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

_PACKAGE = "spotlight"
_done: set[type[msgspec.Struct]] = set()


def resolve_structs() -> None:
    """Work out the types of all structs of ours that are loaded by now."""
    for struct in set(_below(msgspec.Struct)) - _done:
        _done.add(struct)
        if struct.__module__.partition(".")[0] != _PACKAGE:
            continue
        try:
            msgspec.json.Decoder(struct)
        except (TypeError, NameError):  # it is only ever made here, and never read
            continue


def _below(struct: type[msgspec.Struct]) -> Iterator[type[msgspec.Struct]]:
    for each in struct.__subclasses__():
        yield each
        yield from _below(each)
