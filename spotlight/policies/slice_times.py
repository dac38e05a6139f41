"""How long the gradients of slices take, as ranks and workers have said: what a plan of spot time
rests on."""

from __future__ import annotations

from dataclasses import dataclass

_SMOOTHING = 0.3
_USUAL_BYTES_PER_S = 125e6
"""A link of 1 Gbit/s: what is counted on before anything has come over it."""


@dataclass
class SliceTimes:
    """The latest measurements, smoothed; None before the first."""

    rank_slice_s: float | None = None
    """Seconds of a slice on a rank."""
    fetch_bytes_per_s: float | None = None
    """How fast gradients come to the ranks."""
    gradient_bytes: int = 0
    """Bytes of a gradient."""
    weights_bytes: int = 0
    """Bytes of the weights that a worker needs for an update."""
    is_old: bool = False
    """Whether the speed of the link was measured long ago: the next measurement replaces it."""

    def taken(
        self, *, own: int, own_s: float, fetched_bytes: int, fetch_s: float, updates: int = 1
    ) -> None:
        """A rank has trained on so many updates: it computed its `own` slices in so many seconds,
        and fetched so many bytes of gradients of others. What had not come was given up at the end
        of each update."""
        if own and own_s > 0:
            self.rank_slice_s = _smooth(self.rank_slice_s, own_s / own)
        if fetched_bytes and fetch_s > 0:
            before = None if self.is_old else self.fetch_bytes_per_s
            self.fetch_bytes_per_s, self.is_old = _smooth(before, fetched_bytes / fetch_s), False
        elif fetch_s > 0:
            self.not_there(self.gradient_bytes, fetch_s / updates)

    def not_there(self, nbytes: int, after_s: float) -> None:
        """So many bytes had not come after so many seconds: the link is slower than that. Nobody
        knows by how much; half of it is taken."""
        if nbytes > 0 and after_s > 0:
            most = nbytes / after_s / 2
            if self.is_old or most < self.bytes_per_s:
                self.fetch_bytes_per_s, self.is_old = most, False

    @property
    def bytes_per_s(self) -> float:
        """How fast they come, or are taken to come."""
        return self.fetch_bytes_per_s or _USUAL_BYTES_PER_S


def _smooth(before: float | None, now: float) -> float:
    return now if before is None else before + _SMOOTHING * (now - before)
