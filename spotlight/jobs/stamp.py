"""What a run folder's `config.yaml` says of itself beside the job: who wrote it, and of which run.

Any job file may have this section, so that the file of a run can be given as a job.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from spotlight import __version__
from spotlight.errors import JobError

KEY = "spotlight"
"""Its key in the file, which is no field of a job."""


class Stamp(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The section `spotlight` of a file."""

    version: str = ""
    """The version of Spotlight that wrote the file; empty where none is named, as 0.1.0 named
    none."""
    run: str = ""
    """The identity of the run, which its journal has too; empty in a file that is of no run."""

    def explain(self, error: JobError) -> JobError:
        """The same error, saying which other version wrote what this one cannot read."""
        if self.version in ("", __version__):
            return error
        return JobError(
            error.path,
            f"{error.problem} (Spotlight {self.version} wrote this, and reads it; this is"
            f" {__version__})",
        )


def stamp_of(data: Mapping[str, Any]) -> Stamp:
    """What a file's plain data say of the file; raises `JobError`."""
    try:
        return msgspec.convert(data.get(KEY, {}), Stamp)
    except msgspec.ValidationError as error:
        raise JobError(KEY, f"is written by Spotlight itself ({error}); remove it") from error
