"""The one string by which somebody joins a coordinator: `sl1.HOST:PORT.KEY.ID.SECRET`.

It says where the coordinator is and which key it has, so nobody else can pose as it; and a secret
from which the joiner derives the pair of keys by which the coordinator knows the token. The secret
itself never travels.
"""

from __future__ import annotations

import base64
import re
from dataclasses import dataclass

from spotlight.errors import UserError
from spotlight.transport.addresses import control_address
from spotlight.transport.control.keys import KEY_PATTERN, KeyPair

VERSION = "sl1"
SECRET_BYTES = 16
_FORM = re.compile(
    rf"{VERSION}\.(?P<place>.+)\.(?P<key>{KEY_PATTERN})\.(?P<id>[a-z0-9]{{6}})"
    r"\.(?P<secret>[A-Za-z0-9_-]{21}[AQgw])"
)


@dataclass(frozen=True)
class JoinToken:
    """See the module's docstring. The secret is in no `repr`."""

    place: str
    """HOST:PORT by which others reach the coordinator."""
    key: str
    """The coordinator's public key."""
    id: str
    """The id by which the coordinator and its operator name the token: six letters and digits."""
    secret: bytes

    @classmethod
    def parse(cls, option: str, text: str) -> JoinToken:
        """Read one; raises `UserError` that names the option and shows nothing of a secret."""
        found = _FORM.fullmatch(text.strip())
        if found is None:
            raise UserError(
                f"{option}: this is no join token: it looks like {VERSION}.HOST:PORT.KEY.ID.SECRET;"
                " copy the whole line that `spotlight token new` prints"
            )
        place = control_address(option, found["place"]).removeprefix("tcp://")
        secret = base64.urlsafe_b64decode(f"{found['secret']}==")
        return cls(place, found["key"], found["id"], secret)

    @property
    def coordinator(self) -> str:
        """The coordinator's control address, with its key."""
        return f"tcp://{self.place}/{self.key}"

    @property
    def keys(self) -> KeyPair:
        """The pair by which the coordinator knows who has the token."""
        return KeyPair.derived(self.secret)

    def __str__(self) -> str:
        secret = base64.urlsafe_b64encode(self.secret).rstrip(b"=").decode()
        return f"{VERSION}.{self.place}.{self.key}.{self.id}.{secret}"

    def __repr__(self) -> str:
        return f"JoinToken({VERSION}.{self.place}.{self.key}.{self.id}...)"
