"""The value of an `Authorization` header that a file or an environment variable holds, so that no
job file and no command line does. Imports no numpy, so that a job can be checked without it.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from spotlight.errors import UnreadableFile, UserError
from spotlight.files import read_text

LARGEST_FILE = 64 * 1024
"""Most bytes of the file of a secret."""


def read_authorization(file: str | None, variable: str | None) -> str | None:
    """What is in the file or in the environment variable, such as `Bearer TOKEN`; None if neither
    is named.

    Raises `UserError` naming the one that is missing, or that holds no such value; never what it
    holds.
    """
    if file is not None:
        try:
            source, value = file, read_text(Path(file), most=LARGEST_FILE).strip()
        except UnreadableFile as error:
            raise UserError(
                f"{error}; it should hold the value of an Authorization header"
            ) from error
    elif variable is not None:
        source, value = f"the environment variable {variable}", os.environ.get(variable, "").strip()
    else:
        return None
    if not re.fullmatch(r"[!-~]+( [!-~]+)*", value):
        raise UserError(
            f"{source} must hold the value of an Authorization header, such as `Bearer TOKEN`, in"
            " one line of plain characters"
        )
    return value
