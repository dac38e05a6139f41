"""How tensors move: bundles of bytes by key, offered by their holder, pulled by whoever needs them.

Nothing here imports torch; `spotlight.transport.tensors.bundles` turns bytes into tensors and back
on workers.
"""

from spotlight.transport.tensors.store import (
    ArtifactStore,
    BundleOffer,
    BundleStore,
    StoreEndpoint,
    fetch,
    upload,
)

__all__ = ["ArtifactStore", "BundleOffer", "BundleStore", "StoreEndpoint", "fetch", "upload"]
