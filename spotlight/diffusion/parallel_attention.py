"""Attention whose tokens are shared out to the members of a group: Ulysses, ring, and both.

The group is a grid of rows; the members of a row have neighbouring ranks. A row trades tokens for
heads in one exchange, after which a member has all tokens of its row for some of the heads, and
trades back in another. Between rows, keys and values go round, and the results for parts of the
keys are joined by the weight of each part, its log-sum-exp (Ring Attention, Liu et al. 2023).

Sums run in an order that depends on the grid, so degrees agree closely with each other, not to the
bit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention

from spotlight.errors import CannotShard
from spotlight.transport.collectives import Group

Shape = tuple[int, ...]


def shard_lengths(tokens: int, world: int) -> list[int]:
    """How many of the tokens each rank has, as `Tensor.tensor_split` cuts them."""
    return [tokens // world + (rank < tokens % world) for rank in range(world)]


@dataclass(frozen=True)
class Grid:
    """A group laid out as `ring` rows; the size of a row is the Ulysses part."""

    group: Group
    ring: int

    @property
    def ulysses(self) -> int:
        """Members of a row."""
        return self.group.world // self.ring

    def row(self, number: int) -> range:
        """The ranks in a row; rows are counted round."""
        first = number % self.ring * self.ulysses
        return range(first, first + self.ulysses)

    @property
    def own_row(self) -> int:
        """The number of this member's row."""
        return self.group.rank // self.ulysses

    def exchange(
        self, outgoing: Mapping[int, Sequence[Tensor]], shapes: Mapping[int, Sequence[Shape]]
    ) -> dict[int, list[Tensor]]:
        """Send tensors to some ranks and return those that come from some, all of one dtype; one
        collective. `shapes` are those of what comes, by rank. Raises `TransportError`.
        """
        ranks = range(self.group.world)
        packed = torch.cat(
            [tensor.reshape(-1) for rank in ranks for tensor in outgoing.get(rank, ())]
        )
        sent = [sum(tensor.numel() for tensor in outgoing.get(rank, ())) for rank in ranks]
        sizes = {rank: [math.prod(shape) for shape in shapes.get(rank, ())] for rank in ranks}
        received = packed.new_empty(sum(map(sum, sizes.values())))
        self.group.all_to_all(received, packed, [sum(sizes[rank]) for rank in ranks], sent)
        parts = iter(torch.split(received, [size for rank in ranks for size in sizes[rank]]))
        return {
            rank: [next(parts).view(shape) for shape in shapes[rank]]
            for rank in ranks
            if rank in shapes
        }


def attend(
    grid: Grid,
    lengths: Sequence[int],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    scale: float | None,
) -> Tensor:
    """This member's tokens of the attention over all tokens of the group.

    Args:
        lengths: tokens of each rank.
        query, key, value: [B, heads, lengths[rank], D] of this member.
        mask: [B or 1, 1, 1, lengths[rank]] of this member's keys, boolean (true takes part) or
            added to the scores; all ranks have one, or none has.

    Returns [B, heads, lengths[rank], D]. Two exchanges if a row has several members, and one fewer
    than there are rows. Raises `CannotShard` where a ring is not possible, and `TransportError`.
    """
    packed = [query, key, value, *_as_tokens(mask, query)]
    if grid.ulysses > 1:
        packed = _trade_tokens(grid, lengths, packed)
    query, *keys = packed
    if grid.ring > 1:
        result = _go_round(grid, lengths, query, keys, scale)
    else:
        result = scaled_dot_product_attention(
            query, keys[0], keys[1], attn_mask=_as_mask(keys), scale=scale
        )
    return _trade_back(grid, lengths, result) if grid.ulysses > 1 else result


def _as_tokens(mask: Tensor | None, query: Tensor) -> list[Tensor]:
    """The mask as numbers to add, [B, 1, tokens, 1], so that it travels like keys; or nothing."""
    if mask is None:
        return []
    if mask.dtype == torch.bool:
        mask = torch.zeros_like(mask, dtype=query.dtype).masked_fill(~mask, -math.inf)
    return [mask.to(query.dtype).expand(len(query), 1, 1, -1).transpose(2, 3)]


def _as_mask(keys: list[Tensor]) -> Tensor | None:
    """The mask of (keys, values, perhaps a mask as tokens), as attention wants it."""
    return keys[2].transpose(2, 3) if len(keys) > 2 else None


def _trade_tokens(grid: Grid, lengths: Sequence[int], tensors: list[Tensor]) -> list[Tensor]:
    """From this member's tokens and all heads to the row's tokens and this member's heads; what has
    one head only, every member gets.
    """
    row = grid.row(grid.own_row)
    by_heads = [
        tensor.chunk(len(row), dim=1) if tensor.shape[1] > 1 else [tensor] * len(row)
        for tensor in tensors
    ]
    outgoing = dict(zip(row, zip(*by_heads, strict=True), strict=True))
    shapes = {
        rank: [(*part.shape[:2], lengths[rank], part.shape[3]) for part in outgoing[rank]]
        for rank in row
    }
    received = grid.exchange(outgoing, shapes)
    return [torch.cat(parts, dim=2) for parts in zip(*received.values(), strict=True)]


def _trade_back(grid: Grid, lengths: Sequence[int], result: Tensor) -> Tensor:
    """From the row's tokens and this member's heads to this member's tokens and all heads."""
    row = grid.row(grid.own_row)
    parts = torch.split(result, [lengths[rank] for rank in row], dim=2)
    own: Shape = (*result.shape[:2], lengths[grid.group.rank], result.shape[3])
    received = grid.exchange(
        {rank: [part] for rank, part in zip(row, parts, strict=True)}, {rank: [own] for rank in row}
    )
    return torch.cat([part for parts in received.values() for part in parts], dim=1)


def _go_round(
    grid: Grid, lengths: Sequence[int], query: Tensor, keys: list[Tensor], scale: float | None
) -> Tensor:
    """Attention over the keys of all rows, which pass by one after the other."""
    rank, world = grid.group.rank, grid.group.world
    after, before = (rank + grid.ulysses) % world, (rank - grid.ulysses) % world
    result, weight = _part(query, keys, scale)
    for turn in range(1, grid.ring):
        tokens = sum(lengths[rank] for rank in grid.row(grid.own_row - turn))
        shapes = [(*tensor.shape[:2], tokens, tensor.shape[3]) for tensor in keys]
        keys = grid.exchange({after: keys}, {before: shapes})[before]
        other, other_weight = _part(query, keys, scale)
        total = torch.logaddexp(weight, other_weight)
        finite = total.masked_fill(total == -math.inf, 0.0)  # no key so far: no weight, not NaN
        result = (weight - finite).exp() * result + (other_weight - finite).exp() * other
        weight = total
    return result.to(query.dtype)


def _part(query: Tensor, keys: list[Tensor], scale: float | None) -> tuple[Tensor, Tensor]:
    """Attention over some keys, and the log-sum-exp of their scores [B, heads, tokens, 1]; both
    float32, or float64 for float64.
    """
    mask = _as_mask(keys)
    result, weight = _kernel(query, keys[0], keys[1], mask, scale)
    exact = torch.promote_types(query.dtype, torch.float32)
    result = result.to(exact)
    weight = weight[..., : query.shape[2], None].to(exact)  # some kernels pad it
    if mask is not None:
        masked = (mask == -math.inf).all(dim=-1, keepdim=True)  # kernels disagree on what is then
        result = result.masked_fill(masked, 0.0)
        weight = weight.masked_fill(masked, -math.inf)
    return result, weight


def _kernel(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float | None
) -> tuple[Tensor, Tensor]:
    """(attention, log-sum-exp) by the kernel for this device and dtype."""
    query, key, value = query.contiguous(), key.contiguous(), value.contiguous()
    device, half = query.device.type, query.dtype in (torch.float16, torch.bfloat16)
    aten = torch.ops.aten
    if device == "cpu":
        cpu = aten._scaled_dot_product_flash_attention_for_cpu(
            query, key, value, attn_mask=mask, scale=scale
        )
        return cpu[0], cpu[1]
    if device != "cuda" or query.dtype == torch.float64 or query.shape[-1] % 8:
        raise CannotShard(
            f"ring attention: no kernel on {device} tells the log-sum-exp for {query.dtype} with"
            f" {query.shape[-1]} channels per head; choose a degree that divides the heads"
        )
    if half and mask is None:
        flash = aten._scaled_dot_product_flash_attention(query, key, value, scale=scale)
        return flash[0], flash[1]
    if mask is not None:  # the kernel wants rows that begin at multiples of 16 elements
        tokens = key.shape[2]
        mask = pad(mask, (0, -tokens % 16))[..., :tokens]
        mask = mask.expand(*query.shape[:3], tokens)
    efficient = aten._scaled_dot_product_efficient_attention(
        query, key, value, mask, True, scale=scale
    )
    return efficient[0], efficient[1]
