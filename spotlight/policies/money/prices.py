"""What a GPU of a node costs at a time."""

from __future__ import annotations

from spotlight.record.ledger import Price
from spotlight.types import Pool


class Prices:
    """Prices by node, pool and time."""

    currency: str = "USD"

    def of(self, node: str, pool: Pool, said: Price | None, at: float) -> Price | None:
        """The price of a GPU of a node; None if it is not known.

        Args:
            said: what the node itself says that it costs.
            at: seconds since 1970 (UTC).
        """
        return said
