"""Control addresses as users write them."""

from __future__ import annotations

import re

from spotlight.errors import UserError

_LONGEST = 200
"""Characters; the greeting between two processes has room for so many."""
_HOST = r"[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_])?|\[[0-9A-Fa-f:.]+(%\w+)?\]"


def control_address(option: str, text: str) -> str:
    """`tcp://HOST:PORT` for that, or for `HOST:PORT`; raises `UserError` naming the option for
    anything else.
    """
    address = text if text.startswith("tcp://") else f"tcp://{text}"
    found = re.fullmatch(rf"tcp://(?:{_HOST}):(?P<port>[0-9]{{1,5}})", address)
    if found is None or len(address) > _LONGEST or not 1 <= int(found["port"]) <= 65535:
        raise UserError(
            f"{option}: `{text[:_LONGEST]}` is not an address; give HOST:PORT, such as"
            " 10.0.0.1:7070"
        )
    return address
