"""Publishes the weights of another program's model: checks them, packs them, and serves them to
nodes."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Literal

from spotlight.actors.protocol.down import WeightsOffer
from spotlight.errors import WeightsRefused
from spotlight.transport.tensors import BundleStore

if TYPE_CHECKING:
    from torch import Tensor

Kind = Literal["full", "lora"]
_PREFIX = "transformer."


_WIDEST = 8
"""Bytes of a number."""
_HEADER_PER_TENSOR = 1024
_LARGEST_METADATA = 1024 * 1024


class Publications:
    """The versions that are published, and their bundles in this program's store.

    Args:
        kind: what the session trains.
    """

    def __init__(self, store: BundleStore, kind: Kind) -> None:
        self._store = store
        self.shapes: Mapping[str, tuple[int, ...]] = {}
        """The shapes of the tensors that a publication has, by name; the coordinator says so."""
        self._kind = kind
        self.offers: dict[int, WeightsOffer] = {}
        """The publications that are kept, by version."""

    @property
    def newest(self) -> int:
        """-1 before the first."""
        return max(self.offers, default=-1)

    @property
    def largest(self) -> int:
        """Bytes that a safetensors file with all tensors has at most, whatever their types."""
        values = sum(math.prod(shape) for shape in self.shapes.values())
        return _WIDEST * values + _HEADER_PER_TENSOR * len(self.shapes) + _LARGEST_METADATA

    def require(self, version: int, kind: Kind, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The weights by the names that workers know; raises `WeightsRefused` if they, or their
        version, cannot be published.
        """
        if kind != self._kind:
            raise WeightsRefused(
                f"kind: the session's model.tuning is `{self._kind}`, so `{kind}` weights do not"
                " fit; begin the session with that tuning"
            )
        if version <= self.newest:
            raise WeightsRefused(
                f"version: {version} is not above {self.newest}, which is published; versions only"
                " grow"
            )
        named = {self._known_name(name): tensor for name, tensor in weights.items()}
        self._require_names(named)
        for name, shape in self.shapes.items():
            if tuple(named[name].shape) != shape:
                raise WeightsRefused(
                    f"weights: {name} has shape {tuple(named[name].shape)}, but the model's is"
                    f" {shape}"
                )
            if not named[name].is_floating_point():
                raise WeightsRefused(
                    f"weights: {name} is {named[name].dtype}, which is not a float type"
                )
            if not bool(named[name].isfinite().all()):
                raise WeightsRefused(
                    f"weights: {name} has values that are NaN or infinite; nobody shall denoise"
                    " with them"
                )
        return {name: named[name] for name in self.shapes}

    def pack(self, version: int, weights: dict[str, Tensor]) -> WeightsOffer:
        """In a thread: serve these to nodes."""
        from spotlight.transport.tensors.bundles import pack

        return WeightsOffer(version, (self._store.put(_key(version), pack(weights)),))

    def keep(self, versions: Collection[int]) -> None:
        """Drop all others."""
        for version in [each for each in self.offers if each not in versions]:
            del self.offers[version]
            self._store.delete(_key(version))

    def _require_names(self, named: Mapping[str, Tensor]) -> None:
        missing = [name for name in self.shapes if name not in named]
        unknown = [name for name in named if name not in self.shapes]
        for what, names in (("lack", missing), ("hold", unknown)):
            if names:
                more = f" and {len(names) - 1} more" if len(names) > 1 else ""
                raise WeightsRefused(
                    f"weights: they {what} {names[0]}{more}, and are not those of this model"
                    f" ({len(self.shapes)} tensors, such as {next(iter(self.shapes))})"
                )

    def _known_name(self, name: str) -> str:
        """By which workers know a tensor: also from a pipeline's state, and from one of peft's that
        leaves the adapter's name out. Of two transformers, each has its prefix.
        """
        if name.endswith((".lora_A.weight", ".lora_B.weight")):
            name = f"{name.removesuffix('.weight')}.default.weight"
        return name if name in self.shapes else name.removeprefix(_PREFIX)


def _key(version: int) -> str:
    return f"weights/{version:06d}"
