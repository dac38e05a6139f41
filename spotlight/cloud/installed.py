"""Notice sources of other packages: classes named by entry points of the group `spotlight.notices`.

Whoever installs such a package on a node has it run there, so nothing else allows it.
"""

from __future__ import annotations

from importlib.metadata import entry_points

from spotlight.cloud.notices import NoticeSource
from spotlight.errors import UserError

GROUP = "spotlight.notices"


def installed_sources() -> list[NoticeSource]:
    """One of each class, made without arguments. Raises `UserError` that names the entry point."""
    sources: list[NoticeSource] = []
    for entry in sorted(entry_points(group=GROUP), key=lambda entry: entry.name):
        try:
            source = entry.load()()
        except Exception as error:  # whatever is wrong with another package, its name is said
            raise UserError(
                f"the notice source `{entry.name}` ({entry.value}) cannot be made: {error!r}; mend"
                " or uninstall its package"
            ) from error
        missing = [each for each in ("name", "poll_s", "read") if not hasattr(source, each)]
        if missing:
            raise UserError(
                f"the notice source `{entry.name}` ({entry.value}) has no `{missing[0]}`; it needs"
                " `name`, `poll_s` and `read`, or uninstall its package"
            )
        sources.append(source)
    return sources
