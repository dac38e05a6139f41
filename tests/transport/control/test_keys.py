"""Keys as text, keys that are derived from a secret, and what addresses say of them."""

from __future__ import annotations

import pytest
import zmq
from zmq.utils import z85

from spotlight.transport.control import KeyPair, key_of
from spotlight.transport.control.keys import key_bytes, key_text, place_of


def test_a_new_pair_is_one_that_libzmq_takes_for_a_pair() -> None:
    pair = KeyPair.new()
    public = zmq.curve_public(z85.encode(key_bytes(pair.secret)))
    assert z85.decode(public) == key_bytes(pair.public)


def test_no_two_new_pairs_are_alike() -> None:
    assert len({KeyPair.new().secret for _ in range(100)}) == 100


def test_everybody_who_knows_a_secret_derives_the_same_pair() -> None:
    assert KeyPair.derived(b"secret") == KeyPair.derived(b"secret")
    assert KeyPair.derived(b"secret") != KeyPair.derived(b"another")


def test_a_derived_pair_is_what_other_libraries_make_of_the_secret() -> None:
    import hashlib

    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    own = hashlib.blake2b(b"secret", digest_size=32, person=b"spotlight-join").digest()
    public = X25519PrivateKey.from_private_bytes(own).public_key()
    raw = public.public_bytes(Encoding.Raw, PublicFormat.Raw)
    assert key_bytes(KeyPair.derived(b"secret").public) == raw


def test_a_secret_key_is_in_no_repr() -> None:
    pair = KeyPair.new()
    assert pair.secret not in repr(pair)
    assert pair.public in repr(pair)


@pytest.mark.parametrize("byte", [0, 0x7F, 0xFF])
def test_a_key_survives_its_text(byte: int) -> None:
    key = bytes([byte]) * 32
    assert key_bytes(key_text(key)) == key
    assert len(key_text(key)) == 43


@pytest.mark.parametrize(
    "text", ["", "x" * 42, "x" * 44, "x" * 42 + "=", "ä" * 43, "x" * 42 + "\n"]
)
def test_what_is_no_key_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a key"):
        key_bytes(text)


def test_a_key_has_one_text_so_that_whoever_compares_texts_compares_keys() -> None:
    text = key_text(bytes(32))
    assert text == "A" * 43
    for last in "BCD":  # these differ in two bits that belong to no byte
        with pytest.raises(ValueError, match="is not a key"):
            key_bytes(text[:-1] + last)


@pytest.mark.parametrize(
    ("address", "key", "place"),
    [
        ("tcp://10.0.0.1:7070/KEY", "KEY", "tcp://10.0.0.1:7070"),
        ("tcp://[::1]:7070/KEY", "KEY", "tcp://[::1]:7070"),
        ("tcp://10.0.0.1:7070", "", "tcp://10.0.0.1:7070"),
        ("memory://node-0", "node-0", "memory://node-0"),
        ("memory://node-0/1", "node-0/1", "memory://node-0"),
        ("nonsense", "", "nonsense://"),
    ],
)
def test_an_address_says_a_place_and_a_key(address: str, key: str, place: str) -> None:
    assert key_of(address) == key
    assert place_of(address) == place
