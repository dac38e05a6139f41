"""How many descriptors this process may have open.

Every connection that a stranger makes takes one, and without any left a journal cannot be written:
what listens on a port bounds its connections by this.
"""

from __future__ import annotations

import resource

_ENOUGH = 65_536
"""Some systems allow a thousand million, and programs that we start may go through them all."""


def limit() -> int:
    """How many may be open at once."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _ENOUGH if soft == resource.RLIM_INFINITY else soft


def raise_limit() -> None:
    """Have as many as the system lets us: shells and service managers give 256 to 1,024, for the
    sake of programs that call `select`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _ENOUGH if hard == resource.RLIM_INFINITY else min(hard, _ENOUGH)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
