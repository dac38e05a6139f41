"""Shards a transformer over trainer ranks with FSDP2 of torch.

Every rank holds some rows of every parameter, in float32. A block's parameters are gathered for its
forward and for its backward pass, in the dtype that the model computes in, and dropped behind it;
its gradients are summed in float32, and each rank keeps those of its rows. Modules within a block
that compute in another dtype, such as norms that stay in float32, are gathered by themselves.

All ranks must run the same passes in the same order. What goes wrong between them is the
`TransportError` of their group, in the time that the group allows, wherever in a pass it happens.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import Any

import torch
import torch.distributed
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from spotlight.diffusion.experts import Experts, experts_of
from spotlight.transport.collectives import Group

_distributed: Any = torch.distributed
"""What is used of it here has no complete type stubs."""
_c10d = _distributed.distributed_c10d


@torch.no_grad()
def shard(transformer: nn.Module, group: Group) -> None:
    """Leave this rank its rows of every parameter, of rank 0's values; raises `TransportError`.

    Blocks are the members of the transformer's lists of modules. One after the other is made
    float32 and sharded, so that no more than one is whole in float32 at any time.
    """
    device = next(transformer.parameters()).device
    mesh = _mesh(device.type, group.rank, group.world)
    for expert in experts_of(transformer):
        told = _most_common_dtype(expert.parameters())
        for module in (*_blocks(expert), expert):
            for unit, dtype in list(_units(module)):
                _shard(unit, group, mesh, dtype)
        _tell_dtype(expert, told)
    if isinstance(transformer, Experts):
        transformer.both = True


def _blocks(transformer: nn.Module) -> Iterator[nn.Module]:
    for child in transformer.children():
        if isinstance(child, nn.ModuleList):
            yield from child


def _units(
    module: nn.Module, around: torch.dtype | None = None
) -> Iterator[tuple[nn.Module, torch.dtype]]:
    """The module, unless it computes in the dtype of the unit `around` it, behind those within it
    that compute in another; and the dtype of each.

    A parameter that is in no other module decides, since it cannot be gathered elsewhere.
    """
    whole = _whole(module)
    if not whole:
        return
    dtypes, direct = {it.dtype for it in whole}, list(module.parameters(recurse=False))
    keeps = not direct and around in dtypes
    own = around if keeps and around is not None else _most_common_dtype(direct or whole)
    for child in module.children():
        yield from _units(child, own)
    if own != around:
        yield module, own


def _whole(module: nn.Module) -> list[nn.Parameter]:
    """Its parameters that are not sharded yet."""
    return [it for it in module.parameters() if not isinstance(it, DTensor)]


def _most_common_dtype(parameters: Iterable[nn.Parameter]) -> torch.dtype:
    return Counter(it.dtype for it in parameters).most_common(1)[0][0]


def _tell_dtype(transformer: nn.Module, dtype: torch.dtype) -> None:
    """Who asks a transformer of diffusers for its dtype means what it computes in, and not what is
    sharded."""
    kind = type(transformer)
    if hasattr(kind, "dtype"):
        told = {"dtype": property(lambda _: dtype)}
        transformer.__class__ = type(kind.__name__, (kind,), told)


def _shard(module: nn.Module, group: Group, mesh: DeviceMesh, dtype: torch.dtype) -> None:
    whole = _whole(module)
    assert {it.dtype for it in whole} == {dtype}, "the parameters of one module have two dtypes"
    for parameter in whole:
        group.broadcast(parameter.data)
        parameter.data = parameter.data.float()
    fully_shard(
        module,
        mesh=mesh,
        # Between passes other weights are installed, and a root that stays whole would miss them.
        reshard_after_forward=True,
        mp_policy=MixedPrecisionPolicy(
            param_dtype=dtype,
            reduce_dtype=torch.float32,
            cast_forward_inputs=False,  # a forward pass casts them itself, as on one rank
        ),
    )
    assert isinstance(module, FSDPModule)
    given: Any = module  # the types of what it is given are private
    given.set_custom_all_gather(_AllGather(group))
    given.set_custom_reduce_scatter(_ReduceScatter(group))
    module.set_gradient_divide_factor(1.0)  # the losses of all ranks add up to their mean
    module.set_force_sum_reduction_for_comms(True)


@cache
def _mesh(device: str, rank: int, world: int) -> DeviceMesh:
    """Only says how many ranks there are and which this one is: its group moves nothing, so it
    serves all groups of this size, one after the other.
    """
    name = f"spotlight-{device}-{rank}-of-{world}"
    nobody = _c10d.ProcessGroup(_distributed.HashStore(), rank, world)
    nobody._set_group_name(name)
    _c10d._register_process_group(name, nobody)
    mesh = DeviceMesh(device, torch.arange(world, dtype=torch.int), _init_backend=False, _rank=rank)
    inside: Any = mesh
    inside._dim_group_names = [name]
    inside._pg_registry[name] = nobody  # which is remembered for as long as somebody holds it
    return mesh


class _Collective:
    """One that FSDP2 is given in place of torch's own, which knows no groups but its own."""

    def __init__(self, group: Group) -> None:
        self._group = group

    def allocate(self, size: Sequence[Any], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.empty(*size, dtype=dtype, device=device)


class _AllGather(_Collective):
    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: object, async_op: bool = False
    ) -> None:
        self._group.all_gather_into(output_tensor, input_tensor)


class _ReduceScatter(_Collective):
    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: object,
        op: object,
        async_op: bool = False,
    ) -> None:
        """`op` is always the sum."""
        self._group.reduce_scatter(output_tensor, input_tensor)
