"""Which bundles of saved steps and samples are still needed."""

from __future__ import annotations

from collections import Counter

from spotlight.policies.dispatch.rows import Row
from spotlight.types import BundleOffer, Commit


class BundleUse:
    """Counts the requests that need a bundle. What is returned as unused may be deleted."""

    def __init__(self) -> None:
        self._users: Counter[str] = Counter()

    def remember(self, commit: Commit) -> None:
        """A request that an earlier table knew needs it."""
        self._users[commit.bundle.key] += 1

    def move(self, row: Row, commit: Commit | None) -> BundleOffer | None:
        """The row goes on from this commit; returns the bundle that nobody needs since."""
        before, row.commit = row.commit, commit
        if commit is not None:
            self._users[commit.bundle.key] += 1
        return self.leave(before) if before is not None else None

    def leave(self, commit: Commit) -> BundleOffer | None:
        """One request less needs it; returns the bundle if that was the last."""
        key = commit.bundle.key
        self._users[key] -= 1
        if self._users[key] > 0:
            return None
        del self._users[key]
        return commit.bundle

    def is_used(self, bundle: BundleOffer) -> bool:
        """Whether any request needs it."""
        return bundle.key in self._users
