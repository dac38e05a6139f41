"""How tensors move: bundles of bytes by key, offered by their holder, pulled by whoever needs them.

Nothing here imports torch; `spotlight.transport.tensors.bundles` turns bytes and files into tensors
and back on workers.
"""

from spotlight.transport.tensors.offers import BundleOffer, StoreEndpoint, content_key, own_file
from spotlight.transport.tensors.store import ArtifactStore, BundleStore, fetch, upload

__all__ = [
    "ArtifactStore",
    "BundleOffer",
    "BundleStore",
    "StoreEndpoint",
    "content_key",
    "fetch",
    "own_file",
    "upload",
]
