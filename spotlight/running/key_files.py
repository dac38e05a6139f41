"""Key pairs that outlive their process: a coordinator's, so that its address stays the same, and
that of a reserved node whose user wants it to.

The file holds the secret key alone, as text; the public one follows from it.
"""

from __future__ import annotations

from pathlib import Path

from spotlight.errors import UserError
from spotlight.store.secret_files import read_secret_file, write_secret_file
from spotlight.transport.control.keys import KeyPair


def key_pair_of(option: str, path: Path) -> tuple[KeyPair, bool]:
    """The pair in this file, and whether it was there already; else a new one, which is there from
    now on.

    Raises `UserError` that names the option, for a file that is none, or is open to others.
    """
    if not path.exists():
        pair = KeyPair.new()
        try:
            write_secret_file(path, pair.secret)
        except OSError as error:
            raise UserError(
                f"{option} {path}: {error.strerror}; give a file in a folder that can be written"
            ) from error
        return pair, False
    try:
        return KeyPair.of(read_secret_file(path)), True
    except ValueError as error:
        raise UserError(
            f"{option} {path}: this is no key; remove the file, and a new key is made, by which"
            " nobody knows this process yet"
        ) from error
    except UserError as error:
        raise UserError(f"{option}: {error}") from error
