"""Whether Weights & Biases may find a key, told without importing its package, which takes seconds
and starts a process.
"""

from __future__ import annotations

import os
from pathlib import Path


def may_log_in() -> bool:
    """False if wandb certainly has no key and needs one: none in the environment, and none of the
    files in which it looks for one is there. Whether a key is right only its server can tell.
    """
    environment = os.environ
    if environment.get("WANDB_MODE", "online") not in ("online", "run", "shared"):
        return True
    if environment.get("WANDB_API_KEY") or environment.get("WANDB_IDENTITY_TOKEN_FILE"):
        return True
    settings = environment.get("WANDB_CONFIG_DIR") or "~/.config/wandb"
    files = (
        *([environment["NETRC"]] if environment.get("NETRC") else ["~/.netrc", "~/_netrc"]),
        f"{settings}/settings",
        f"{environment.get('WANDB_DIR') or '.'}/wandb/settings",
    )
    return any(_holds_something(Path(os.path.expanduser(file))) for file in files)


def _holds_something(file: Path) -> bool:
    try:
        return file.stat().st_size > 0
    except (OSError, ValueError):
        return False
