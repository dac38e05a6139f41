"""Several members denoise together: each runs the transformer on its share of the tokens.

Invariants:
- Within `SequenceParallel.over`, every member of the group passes the same inputs and gets the same
  output, to the bit: each part of it is computed by one member, and the parts are gathered.
- Outside, and in other threads, the transformer does exactly what it did before. A thread that is
  stuck in a group that is gone never sees a newer one.
- The weights are neither moved nor copied when the degree changes.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from diffusers.models._modeling_parallel import ContextParallelInput
from diffusers.models.attention_dispatch import AttentionBackendName, _AttentionBackendRegistry
from torch import Tensor, nn
from torch.nn.functional import pad, scaled_dot_product_attention
from torch.overrides import TorchFunctionMode

from spotlight.diffusion.experts import experts_of
from spotlight.diffusion.parallel_attention import Grid, attend, shard_lengths
from spotlight.diffusion.parallel_plans import ParallelPlan, matching, plan_of
from spotlight.errors import CannotShard
from spotlight.transport.collectives import Group


class SequenceParallel:
    """Lets a live diffusers transformer run its forward passes over a group; for inference only.

    Install it once, after adapters are injected: a layer that an adapter wraps later keeps its hook
    inside.
    """

    def __init__(self, transformer: Any) -> None:
        """Raises `CannotShard` for a family that is not known."""
        experts = experts_of(transformer)
        self.transformer = transformer
        self._plan = plan_of(experts[0])
        self._thread = threading.local()
        self._attention: list[nn.Module] = []
        for expert in experts:
            self._install(expert)

    @contextmanager
    def over(self, group: Group, ring: int = 1) -> Iterator[None]:
        """This thread's forward passes within are shared out to `group`; every rank makes them with
        the same inputs, under `torch.no_grad` or `torch.inference_mode`.

        Args:
            ring: so many rows of the group are a ring, see `policies.grouping.degrees.layout`.

        Raises `CannotShard` when the layout or the attention backend does not fit, here or in the
        forward pass (gradients, too few tokens), and `TransportError` out of the forward pass when
        a member is lost.
        """
        if group.world == 1:
            yield
            return
        self._check(group.world, ring)
        shards = _Shards(Grid(group, ring), self._plan)
        self._thread.shards = shards
        try:
            with shards:
                yield
        finally:
            self._thread.shards = None

    def _check(self, world: int, ring: int) -> None:
        if self._shards is not None:
            raise CannotShard(
                "this thread already divides its forward passes; leave that context first"
            )
        if ring < 1 or world % ring:
            raise CannotShard(f"ring: {ring} does not divide the {world} members of the group")
        heads = self._plan.heads
        if heads % (world // ring):
            raise CannotShard(
                f"ring: {world} members in {ring} rows cannot share {heads} attention heads;"
                " the size of a row must divide them"
            )
        for module in self._attention:
            backend = _backend(module)
            if backend != AttentionBackendName.NATIVE:
                raise CannotShard(
                    f"attention backend {backend.value!r} of"
                    f" {type(module.processor).__name__} cannot be shared out; choose 'native' with"
                    " set_attention_backend or DIFFUSERS_ATTN_BACKEND"
                )

    def _install(self, transformer: nn.Module) -> None:
        plan = self._plan
        self._bound(transformer)
        for pattern, inputs in plan.inputs.items():
            for module in matching(transformer, pattern):
                self._cut_inputs(module, inputs)
        for pattern, outputs in plan.outputs.items():
            for module in matching(transformer, pattern):
                self._cut_outputs(module, outputs)
        for pattern, output in plan.gathers.items():
            for module in matching(transformer, pattern):
                self._gather(module, output.gather_dim)
        for pattern, streams in plan.attention.items():
            for module in matching(transformer, pattern):
                self._attention.append(module)
                self._mark(module, streams)

    @property
    def _shards(self) -> _Shards | None:
        return getattr(self._thread, "shards", None)

    def _cut_inputs(self, module: nn.Module, cuts: Mapping[str, ContextParallelInput]) -> None:
        names = list(inspect.signature(module.forward).parameters)

        def before(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            if (shards := self._shards) is None:
                return None
            values = list(args)
            for name, cut in cuts.items():
                if name in kwargs:
                    kwargs[name] = shards.cut(name, kwargs[name], cut)
                elif (place := names.index(name)) < len(values):
                    values[place] = shards.cut(name, values[place], cut)
            return tuple(values), kwargs

        if cuts:
            module.register_forward_pre_hook(before, with_kwargs=True)

    def _cut_outputs(self, module: nn.Module, cuts: Mapping[int, ContextParallelInput]) -> None:
        def after(_: nn.Module, __: Any, output: tuple[Any, ...]) -> tuple[Any, ...] | None:
            if (shards := self._shards) is None:
                return None
            return tuple(
                shards.cut(f"output {index}", tensor, cuts[index]) if index in cuts else tensor
                for index, tensor in enumerate(output)
            )

        if cuts:
            module.register_forward_hook(after)

    def _gather(self, module: nn.Module, dim: int) -> None:
        def after(_: nn.Module, __: Any, output: Tensor) -> Tensor | None:
            return None if (shards := self._shards) is None else shards.gather(output, dim)

        module.register_forward_hook(after)

    def _bound(self, transformer: nn.Module) -> None:
        """Other models, such as a text encoder, attend by themselves."""

        def before(_: nn.Module, __: Any, named: dict[str, Any]) -> None:
            if (shards := self._shards) is not None:
                shards.begin(named)

        def after(_: nn.Module, __: Any, ___: Any) -> None:
            if (shards := self._shards) is not None:
                shards.inside = False

        transformer.register_forward_pre_hook(before, with_kwargs=True)
        transformer.register_forward_hook(after)

    def _mark(self, module: nn.Module, streams: tuple[str, ...]) -> None:
        def before(_: nn.Module, __: Any) -> None:
            if (shards := self._shards) is not None:
                shards.enter(streams)

        def after(module: nn.Module, _: Any, __: Any) -> None:
            if (shards := self._shards) is not None:
                shards.leave(module)

        module.register_forward_pre_hook(before)
        module.register_forward_hook(after)


def _backend(attention: Any) -> AttentionBackendName:
    """Whose attention a module uses; processors that know no backends call torch's own."""
    registry: Any = _AttentionBackendRegistry
    backend = getattr(attention.processor, "_attention_backend", AttentionBackendName.NATIVE)
    return AttentionBackendName(backend or registry.get_active_backend()[0])


class _Shards(TorchFunctionMode):
    """What one thread knows of its shards, and how its attention is shared out."""

    def __init__(self, grid: Grid, plan: ParallelPlan) -> None:
        super().__init__()
        self._grid, self._plan = grid, plan
        self._rank, self._world = grid.group.rank, grid.group.world
        self._lengths: dict[str, int] = {}
        """The lengths of the whole sequences, by name."""
        self._streams: tuple[str, ...] | None = None
        """Those of the attention module that runs."""
        self._attended = 0
        self._leading = 0
        """Tokens that every member has whole before its part of a sequence."""
        self.inside = False
        """Whether the transformer runs."""

    def begin(self, named: Mapping[str, Any]) -> None:
        """The transformer begins, with these arguments."""
        self.inside = True
        leading = self._plan.leading
        self._leading = named[leading].shape[1] if leading is not None else 0

    def cut(self, name: str, tensor: Any, cut: ContextParallelInput) -> Any:
        """This rank's part of a tensor, or of each of several, remembering the whole length; others
        than expected stay as they are.
        """
        if isinstance(tensor, dict):
            return {key: self.cut(name, each, cut) for key, each in tensor.items()}
        if not isinstance(tensor, Tensor):
            return tensor
        if cut.expected_dims is not None and tensor.dim() != cut.expected_dims:
            return tensor
        if torch.is_grad_enabled():
            raise CannotShard("a shared forward pass has no gradients; run it under torch.no_grad")
        if name in self._plan.joined:
            lengths = [self._lengths[sequence] for sequence in self._plan.joined[name]]
            parts = tensor.split(lengths, cut.split_dim)
            return torch.cat([self._own(part, cut.split_dim) for part in parts], cut.split_dim)
        tokens = tensor.shape[cut.split_dim] - self._leading
        if tokens < self._world:
            raise CannotShard(
                f"{name}: {tokens} tokens leave some of {self._world} members without any; choose a"
                " lower degree"
            )
        self._lengths[name] = tokens
        lead, rest = tensor.split([self._leading, tokens], dim=cut.split_dim)
        own = self._own(rest, cut.split_dim)
        return torch.cat([lead, own], dim=cut.split_dim) if self._leading else own

    def _own(self, sequence: Tensor, dim: int) -> Tensor:
        return sequence.tensor_split(self._world, dim=dim)[self._rank]

    def gather(self, part: Tensor, dim: int) -> Tensor:
        """All image tokens, of every rank's part, and what leads them."""
        lengths = shard_lengths(self._lengths[self._plan.image], self._world)
        part = part.transpose(0, dim)
        lead, part = part[: self._leading], part[self._leading :]
        missing = lengths[0] - len(part)
        padded = pad(part, (0, 0) * (part.dim() - 1) + (0, missing)).contiguous()
        parts = [torch.empty_like(padded) for _ in lengths]
        self._grid.group.all_gather(parts, padded)
        whole = [part[:tokens] for part, tokens in zip(parts, lengths, strict=True)]
        return torch.cat([lead, *whole]).transpose(0, dim).contiguous()

    def enter(self, streams: tuple[str, ...]) -> None:
        """An attention module begins; its tokens are the shards of these sequences."""
        self._streams, self._attended = streams, 0

    def leave(self, module: nn.Module) -> None:
        """An attention module ends; raises `CannotShard` if its attention was not seen."""
        self._streams = None
        if not self._attended:
            name = type(getattr(module, "processor", module)).__name__
            raise CannotShard(
                f"attention processor {name} does not use torch's scaled_dot_product_attention, so"
                " it cannot be shared out; choose another, or a degree of 1"
            )

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Take over the transformer's `scaled_dot_product_attention`, and nothing else."""
        if func is scaled_dot_product_attention and self.inside:
            return self._attend(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))

    def _attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        if self._streams is None:
            raise CannotShard("attention outside of the modules whose tokens are known")
        self._attended += 1
        if not self._streams or key.shape[2] == self._leading > 0:
            return scaled_dot_product_attention(
                query,
                key,
                value,
                attn_mask,
                dropout_p,
                is_causal,
                scale=scale,
                enable_gqa=enable_gqa,
            )
        wholes = [self._lengths[name] for name in self._streams]
        lengths = [
            sum(parts)
            for parts in zip(*(shard_lengths(whole, self._world) for whole in wholes), strict=True)
        ]
        if self._leading:
            return self._attend_behind(lengths, query, key, value, attn_mask, scale)
        own = lengths[self._rank]
        simple = query.shape == key.shape == value.shape and query.shape[2] == own
        if not simple or dropout_p or is_causal:
            raise CannotShard(
                f"attention of {tuple(query.shape)} over {tuple(key.shape)} with dropout"
                f" {dropout_p:g} and causal {is_causal} cannot be shared out; only plain"
                f" self-attention over this member's {own} tokens can"
            )
        if attn_mask is not None and attn_mask.shape[1:] != (1, 1, own):
            raise CannotShard(
                f"attention mask of {tuple(attn_mask.shape)}: only one of keys can be shared out,"
                f" (batch, 1, 1, {own})"
            )
        return attend(self._grid, lengths, query, key, value, attn_mask, scale)

    def _attend_behind(
        self,
        lengths: list[int],
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        scale: float | None,
    ) -> Tensor:
        """Attention of this member's image tokens over all of the image, and over what leads it.

        Of the leading keys, which all have, each member gives its part, with some query for each
        whose result nobody needs: so it is attention of one sequence with itself.
        """
        own = lengths[self._rank]
        if query.shape[2] != own or key.shape[2] != self._leading + own or mask is not None:
            raise CannotShard(
                f"attention of {tuple(query.shape)} over {tuple(key.shape)} cannot be shared out;"
                f" only that of this member's {own} tokens, without a mask, over them and the"
                f" {self._leading} before them"
            )
        leads = shard_lengths(self._leading, self._world)
        first, mine = sum(leads[: self._rank]), leads[self._rank]
        kept = [*range(first, first + mine), *range(self._leading, self._leading + own)]
        key, value = key[:, :, kept], value[:, :, kept]
        query = torch.cat([key[:, :, :mine], query], dim=2)
        both = [lead + image for lead, image in zip(leads, lengths, strict=True)]
        return attend(self._grid, both, query, key, value, None, scale)[:, :, mine:]
