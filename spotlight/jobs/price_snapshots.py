"""The prices that ship with Spotlight, by name: seen once in a public catalogue, never live."""

from __future__ import annotations

import difflib
from functools import cache
from pathlib import Path

import msgspec

CURRENCY = "USD"
"""The currency of all of them."""
_FILE = Path(__file__).parent.parent / "assets" / "prices.json"
_NEAREST = 3


class Offer(msgspec.Struct, frozen=True, kw_only=True):
    """What a GPU cost for an hour, in one place."""

    name: str
    """The name has three parts or four: `provider/instance/place`."""
    gpu: str
    gpus: int
    """How many an instance has."""
    on_demand: float
    spot: float | None
    """None where there was no spot offer, or no public price of it."""
    observed: str
    """When the price was seen."""
    source: str
    note: str = ""

    def source_line(self) -> str:
        """Where the price is from, and of when."""
        return f"snapshot {self.name} ({self.observed}; not live)"


class _Offers(msgspec.Struct, frozen=True):
    offers: tuple[Offer, ...]


@cache
def offers() -> dict[str, Offer]:
    """All of them, by name."""
    table = msgspec.json.decode(_FILE.read_bytes(), type=_Offers)
    return {offer.name: offer for offer in table.offers}


def find_offer(name: str) -> Offer:
    """The offer of that name. Of a region it is that of the zone whose spot price is in the middle.
    Raises `LookupError` with the nearest names, or with how names are if none is near."""
    known = offers()
    if name in known:
        return known[name]
    zones = [offer for each, offer in known.items() if each.startswith(f"{name}/")]
    if zones and name.count("/") == 2:
        zones.sort(key=lambda offer: (offer.spot is None, offer.spot, offer.name))
        return zones[(len(zones) - 1) // 2]
    names = sorted({*known, *("/".join(each.split("/")[:3]) for each in known)})
    near = difflib.get_close_matches(name.lower(), names, n=_NEAREST)
    advice = (
        f"did you mean {' or '.join(f'`{each}`' for each in near)}?"
        if near
        else "a name is `provider/instance/place`, such as `aws/p5.48xlarge/us-east-2`"
    )
    raise LookupError(f"no snapshot `{name}` ships with Spotlight; {advice}")
