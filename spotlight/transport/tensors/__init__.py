"""How tensors move: bundles of bytes by key, offered by their holder, pulled by whoever needs them.

Nothing here imports torch; `spotlight.transport.tensors.bundles` turns bytes and files into tensors
and back on workers.
"""

from spotlight.transport.tensors.artifact_store import ArtifactStore
from spotlight.transport.tensors.client import fetch, upload
from spotlight.transport.tensors.data_port import DataPort
from spotlight.transport.tensors.keys import content_key
from spotlight.transport.tensors.offers import own_file
from spotlight.transport.tensors.store import BundleStore

__all__ = [
    "ArtifactStore",
    "BundleStore",
    "DataPort",
    "content_key",
    "fetch",
    "own_file",
    "upload",
]
