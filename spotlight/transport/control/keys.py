"""The keys of processes: each has a CURVE key pair, and its address says the public one.

An address is `tcp://HOST:PORT/KEY`. Whoever dials it accepts the process with that key and no
other; whoever is dialled holds the key that libzmq proved against the address of the greeting. So
an address that was learned over a connection to somebody known says whom to expect, and no server
of keys and no authority is needed.

As text a key is its 32 bytes in the alphabet of base64url, without padding: 43 characters that need
no quoting anywhere.
"""

from __future__ import annotations

import base64
import hashlib
import re

import msgspec
import zmq

KEY_PATTERN = r"[A-Za-z0-9_-]{42}[AEIMQUYcgkosw048]"
"""The last character stands for four bits; with any other, several texts would be one key."""
_KEY = re.compile(KEY_PATTERN)
_MEMORY = "memory"


class KeyPair(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Both keys as text. The secret one is in no `repr`."""

    public: str
    secret: str

    @classmethod
    def new(cls) -> KeyPair:
        """One that nobody else has."""
        public, secret = zmq.curve_keypair()
        return cls(key_text(_from_z85(public)), key_text(_from_z85(secret)))

    @classmethod
    def derived(cls, secret: bytes) -> KeyPair:
        """The pair that everybody who knows `secret` derives (BLAKE2b, RFC 7693, of 32 bytes)."""
        own = hashlib.blake2b(secret, digest_size=32, person=b"spotlight-join").digest()
        return cls.of(key_text(own))

    @classmethod
    def of(cls, secret: str) -> KeyPair:
        """The pair of this secret key. Raises `ValueError` for what is none."""
        public = zmq.curve_public(_to_z85(key_bytes(secret)))
        return cls(key_text(_from_z85(public)), secret)

    def __repr__(self) -> str:
        return f"KeyPair(public={self.public!r})"


def key_text(key: bytes) -> str:
    """32 bytes as text."""
    return base64.urlsafe_b64encode(key).rstrip(b"=").decode()


def key_bytes(text: str) -> bytes:
    """The 32 bytes of a key. Raises `ValueError` for what is none."""
    if _KEY.fullmatch(text) is None:
        raise ValueError(f"{text[:60]!r} is not a key: it has 43 letters, digits, `-` and `_`")
    return base64.urlsafe_b64decode(f"{text}=")


def key_of(address: str) -> str:
    """The public key that an address says; empty if it says none. In a `MemoryNetwork`, where
    nobody can pretend to be at another's address, a name is the key."""
    scheme, _, rest = address.partition("://")
    return rest if scheme == _MEMORY else rest.partition("/")[2]


def place_of(address: str) -> str:
    """The same address without its key, `tcp://HOST:PORT`: what a socket binds or connects to."""
    scheme, _, rest = address.partition("://")
    return f"{scheme}://{rest.partition('/')[0]}"


def _to_z85(key: bytes) -> bytes:
    from zmq.utils import z85

    encoded: bytes = z85.encode(key)
    return encoded


def _from_z85(key: bytes) -> bytes:
    from zmq.utils import z85

    decoded: bytes = z85.decode(key)
    return decoded
