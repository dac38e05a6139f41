"""The weights of a sharded model: what a rank holds of them, as one flat vector.

Only three things differ from weights that every rank has whole: autograd has summed the gradient
over the ranks already, what is judged is reduced, and what is published is gathered.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import zip_longest

import torch
from torch import Tensor

from spotlight.diffusion.model import DiffusionModel
from spotlight.training.sharding import shard
from spotlight.training.weights import FlatWeights, Rows, require_finite, share, trainable
from spotlight.transport.collectives import Group


class ShardedWeights(FlatWeights):
    """`values` [P] and `gradient` [P], float32: some rows of every parameter, one parameter after
    the other. The vectors of all ranks together hold every value once.
    """

    def __init__(self, model: DiffusionModel, group: Group, *, offloaded: bool = False) -> None:
        """Shards the model's transformer, with rank 0's weights; raises as `FlatWeights`."""
        self._group: Group = group
        self._offloaded = offloaded
        dtypes = [parameter.dtype for parameter in trainable(model).values()]
        shard(model.transformer, group)
        self._hold(trainable(model), dtypes)

    @property
    def rows(self) -> dict[str, Rows]:
        """What of each parameter this rank holds: those of `torch.chunk` along dimension 0."""
        rank, world = self._group.rank, self._group.world
        found = {}
        for name, parameter, held in zip(self.names, self._parameters, self._held, strict=True):
            length = parameter.shape[0]
            first = min(rank * -(-length // world), length)
            found[name] = Rows(tuple(parameter.shape), first, tuple(held.shape))
        return found

    def reduce_gradient(self) -> float:
        """The norm of the whole gradient; raises `TransportError`."""
        norm = torch.linalg.vector_norm(self.gradient, dtype=torch.float64)
        square = norm.square().reshape(1).to(self._device)
        self._group.all_reduce(square)
        return math.sqrt(square.item())

    def most_passes(self, passes: Sequence[int]) -> list[int]:
        """The most that any rank has, of each number; raises `TransportError`."""
        own = torch.tensor(passes, device=self._device)
        every = [torch.empty_like(own) for _ in range(self._group.world)]
        self._group.all_gather(every, own)
        most: list[int] = torch.stack(every).amax(dim=0).tolist()
        return most

    def published(self, values: Tensor) -> dict[str, Tensor]:
        """See `FlatWeights`; all ranks must call it."""
        everybody = range(self._group.world)
        return self._gathered(values, ([index for _ in everybody] for index in self._indices))

    def published_part(self, values: Tensor) -> dict[str, Tensor]:
        """See `FlatWeights`; all ranks must call it."""
        world, sizes = self._group.world, [parameter.numel() for parameter in self._parameters]
        parts = [self._indices[share(sizes, part, world)] for part in range(world)]
        return self._gathered(values, zip_longest(*parts))

    @property
    def _indices(self) -> range:
        return range(len(self.names))

    def _gathered(self, values: Tensor, turns: Iterable[Sequence[int | None]]) -> dict[str, Tensor]:
        """The parameters that this rank gets, where each rank gets one in every turn, or none."""
        others = (~values.isfinite()).sum().reshape(1).to(self._device)
        self._group.all_reduce(others)
        require_finite(int(others))
        views, found = self._views(values.detach()), {}
        for turn in turns:
            sent = [
                torch.empty(0, dtype=torch.uint8, device=self._device)
                if index is None
                else views[index].to(self._device, self._dtypes[index]).flatten().view(torch.uint8)
                for index in turn
            ]
            wanted = turn[self._group.rank]
            received = self._exchange(sent, wanted)
            if wanted is not None:
                whole = received.cpu().view(self._dtypes[wanted])
                found[self.names[wanted]] = whole.view(self._parameters[wanted].shape)
        return found

    def _exchange(self, sent: Sequence[Tensor], wanted: int | None) -> Tensor:
        """Send every rank its bytes of rows; returns all of the parameter that this one gets."""
        world = self._group.world
        coming = [0] * world
        if wanted is not None:
            shape, dtype = self._parameters[wanted].shape, self._dtypes[wanted]
            row = math.prod(shape[1:]) * dtype.itemsize
            most = -(-shape[0] // world)
            coming = [min(most, max(shape[0] - rank * most, 0)) * row for rank in range(world)]
        received = sent[0].new_empty(sum(coming))
        going = [tensor.numel() for tensor in sent]
        self._group.all_to_all(received, torch.cat(list(sent)), coming, going)
        return received
