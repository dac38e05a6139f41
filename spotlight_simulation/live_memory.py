"""How much memory torch's tensors take, as torch itself has them: on the meta device, where tensors
have shapes and lifetimes but no content, and on a CPU, by its allocator.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveMemory(TorchDispatchMode):
    """Within it, counts the bytes of all tensors that are made and not gone again."""

    def __init__(self, there: Iterable[Tensor] = ()) -> None:
        """`there` were made before, and are not counted."""
        super().__init__()  # type: ignore[no-untyped-call]  # torch says nothing of it
        self.now = 0
        self.most = 0
        self._there = [tensor.untyped_storage() for tensor in there]
        self._known = {storage._cdata for storage in self._there}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        for made in tree_leaves(result):
            if isinstance(made, Tensor):
                self._count(made.untyped_storage())
        return result

    def _count(self, storage: torch.UntypedStorage) -> None:
        key, nbytes = storage._cdata, storage.nbytes()
        if key not in self._known:
            self._known.add(key)
            self.now += nbytes
            self.most = max(self.most, self.now)
            weakref.finalize(storage, self._gone, key, nbytes)

    def _gone(self, key: int, nbytes: int) -> None:
        self._known.discard(key)
        self.now -= nbytes


@contextmanager
def saved_bytes(there: Iterable[Tensor] = ()) -> Iterator[Callable[[], int]]:
    """Bytes of the tensors that autograd saves within, each once, but for those in `there`."""
    known = {tensor.untyped_storage()._cdata for tensor in there}
    storages: dict[int, torch.UntypedStorage] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in known:
            storages[storage._cdata] = storage
        return tensor

    def unpack(tensor: Tensor) -> Tensor:
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        yield lambda: sum(storage.nbytes() for storage in storages.values())


@contextmanager
def attention_in_one_kernel() -> Iterator[None]:
    """Attention of the meta device is computed in parts, as no accelerator does it; within, it is
    the one kernel that CPUs have, which keeps what those of GPUs keep.
    """
    plain = functional.scaled_dot_product_attention

    def attention(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            attn_mask = attn_mask.new_zeros(attn_mask.shape, dtype=query.dtype)
        kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        output: Tensor = kernel(
            query, key, value, dropout_p, is_causal, attn_mask=attn_mask, scale=scale
        )[0]
        return output

    functional.scaled_dot_product_attention = attention
    try:
        yield
    finally:
        functional.scaled_dot_product_attention = plain


def most_allocated(work: Callable[[], object]) -> int:
    """Bytes that a CPU's allocator has given out at most while `work` was done, beyond what it had
    given out before.
    """
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
    ) as profile:
        work()
    now = most = 0
    records = [
        event for event in profile.profiler.kineto_results.events() if event.name() == "[memory]"
    ]
    for event in sorted(records, key=lambda event: event.start_ns()):
        now += event.nbytes()
        most = max(most, now)
    return most
