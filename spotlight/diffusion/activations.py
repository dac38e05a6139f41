"""How many bytes a forward pass keeps for its backward pass, counted without torch.

Autograd keeps, each once, the tensors that the gradients of an operation need: the input of a
linear layer whose weights are trained, the input of a norm or of an activation function, both
factors of a product that both change, and what attention in one kernel takes and gives. A family
lists the tensors of its blocks (`Block`), by which this counts them for any size, batch, tuning and
dtype. `python -m benchmarks.memory` compares with what torch keeps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

FLOAT32 = 4
"""Bytes of a number."""
_WORKING = {"full": 2.5, "adapters": 7, "adapters in another dtype": 11}
"""How many tensors of the width of the transformer a backward pass has besides what is kept: 0 to
7, 5 to 11, and 9 to 15, in the families here (measured on CPUs and on the meta device)."""
_SAMPLING = 15
"""The same of a pass without gradients: 13 to 17."""


@dataclass(frozen=True)
class Adapters:
    """Low-rank adapters beside frozen layers."""

    targets: tuple[str, ...]
    """Ends of the names of the layers that have one."""
    rank: int
    nbytes: int = FLOAT32
    """Bytes of one of their numbers; they compute in this dtype."""

    def has(self, layer: str) -> bool:
        """Whether the layer of this name has one."""
        return any(f".{layer}".endswith(f".{target}") for target in self.targets)


@dataclass(frozen=True)
class Pass:
    """One forward pass."""

    rows: int
    """Samples in it."""
    tokens: int
    """Tokens of the latents of one sample."""
    nbytes: int
    """Bytes of a number in the dtype that the transformer computes in."""
    adapters: Adapters | None = None
    """None: all weights are trained."""
    text_tokens: int | None = None
    """Tokens that prompts are padded to, where the family has a choice."""


class Block:
    """The tensors that one block keeps, by the name of each."""

    def __init__(self, step: Pass) -> None:
        self._step = step
        self._kept: dict[str, int] = {}

    @property
    def nbytes(self) -> int:
        """Of all of them."""
        return sum(self._kept.values())

    def keep(self, name: str, tokens: int, width: int, *, nbytes: int | None = None) -> None:
        """A tensor [rows, tokens, width] in the transformer's dtype, or in one of `nbytes`."""
        size = self._step.rows * tokens * width * (nbytes or self._step.nbytes)
        self._kept[name] = size

    def keep_float32(self, name: str, tokens: int, width: int) -> None:
        """A tensor that is computed with in float32: a copy, unless it is float32 already."""
        cast = name if self._step.nbytes == FLOAT32 else f"{name}, float32"
        self.keep(cast, tokens, width, nbytes=FLOAT32)

    def forget(self, name: str) -> None:
        """A tensor of this name is kept elsewhere."""
        self._kept.pop(name, None)

    def factor(self, name: str, tokens: int, width: int, *, nbytes: int | None = None) -> None:
        """A tensor that is multiplied by something which changes only where all weights do."""
        if self._step.adapters is None:
            self.keep(name, tokens, width, nbytes=nbytes)

    def linear(self, layers: Sequence[str], source: str, tokens: int, width: int) -> None:
        """Layers with the same input `source`, of `width`; adapters that compute in another dtype
        have a copy of it each, and keep their low-rank product.
        """
        adapters = self._step.adapters
        if adapters is None:
            self.keep(source, tokens, width)
            return
        for layer in filter(adapters.has, layers):
            if adapters.nbytes == self._step.nbytes:
                self.keep(source, tokens, width)
            else:
                self.keep(f"{source} for {layer}", tokens, width, nbytes=adapters.nbytes)
            self.keep(f"product of {layer}", tokens, adapters.rank, nbytes=adapters.nbytes)

    def given(self, layers: Sequence[str], name: str, tokens: int, width: int) -> None:
        """Layers with an input that is given in float32: what they keep is a copy in their dtype,
        where that is another.
        """
        self.linear(layers, name, tokens, width)
        if self._step.nbytes == FLOAT32:
            self.forget(name)

    def normed(self, name: str, tokens: int, width: int, *, native: bool) -> None:
        """The root mean square of queries or keys: that of torch (`native`) computes in float32
        throughout; that of diffusers squares in float32 and scales in the transformer's dtype.
        """
        self.keep_float32(name, tokens, width)
        if native:
            if self._step.adapters is None:
                self.keep(f"{name} normed", tokens, width, nbytes=FLOAT32)
        else:
            self.keep(name, tokens, width)
            self.factor(f"{name} normed", tokens, width)

    def attention(self, name: str, tokens: int, width: int, heads: int, *, keys: int) -> None:
        """One kernel: queries and output of `tokens`, keys and values of `keys`, and a sum for each
        query and head.
        """
        for tensor in ("queries", "output"):
            self.keep(f"{name} {tensor}", tokens, width)
        for tensor in ("keys", "values"):
            self.keep(f"{name} {tensor}", keys, width)
        self.keep(f"{name} sums", tokens, heads, nbytes=FLOAT32)

    def mlp(self, stream: str, layers: tuple[str, str], tokens: int, inner: int) -> None:
        """The second half of a feed-forward layer: a function of `inner` numbers, and the layer
        behind it. The first layer is a `linear`.
        """
        self.keep(f"{stream} before the function", tokens, inner)
        self.linear(layers[1:], f"{stream} after the function", tokens, inner)

    def gated(self, stream: str, layers: Sequence[str], tokens: int, inner: int) -> None:
        """The second half of a gated feed-forward layer: a function of `inner` gates, their
        products with as many numbers, and the layers behind these. The first half is a `linear`.
        """
        for tensor in ("gates", "gates after the function", "numbers"):
            self.keep(f"{stream}{tensor}", tokens, inner)
        self.linear(layers, f"{stream}gated numbers", tokens, inner)

    def entered_by(self, tokens: int, width: int) -> BlockBytes:
        """What it keeps, and what it begins with: one tensor [rows, tokens, width]."""
        return BlockBytes(self._step.rows * tokens * width * self._step.nbytes, self.nbytes)


@dataclass(frozen=True)
class BlockBytes:
    """Of one block."""

    enters: int
    """Bytes of what it begins with, and all that it keeps where it is computed twice."""
    kept: int
    """Bytes that it keeps for its backward pass."""


@dataclass(frozen=True)
class Activations:
    """Bytes of one pass of a transformer."""

    blocks: tuple[BlockBytes, ...]
    """What each block keeps, in the order of the forward pass."""
    outside: int
    """Bytes that are kept outside the blocks."""
    working: int
    """Bytes that a training pass needs besides, about, for what lives a moment only."""
    sampling: int
    """Bytes that a pass without gradients needs, about."""

    @classmethod
    def of(
        cls,
        step: Pass,
        blocks: Sequence[BlockBytes],
        outside: int,
        *,
        stream: int,
        widest: int,
        layer: str,
        fused: bool = False,
    ) -> Activations:
        """What blocks and `outside` keep, and about what a pass needs besides.

        Args:
            stream: numbers of one tensor that goes through the blocks, of one sample.
            widest: numbers in the middle of a feed-forward layer, of one sample.
            layer: the layer that makes them.
            fused: whether it makes what attention takes with them; then they are there beside their
                parts, and so are their gradients.
        """
        rows, adapters, adapted = step.rows, step.adapters, 0
        casts = adapters is not None and adapters.nbytes != step.nbytes
        if adapters is not None and adapters.has(layer):
            # The adapter's output beside the layer's, and their sum where that is cast.
            adapted = adapters.nbytes + (step.nbytes if casts else 0)
        kind = "full" if adapters is None else "adapters"
        moving, joined = rows * stream * step.nbytes, rows * widest if fused else 0
        precise = adapters.nbytes if adapters is not None and adapted else step.nbytes
        return cls(
            tuple(blocks),
            outside,
            working=round(moving * _WORKING[f"{kind} in another dtype" if casts else kind])
            + joined * precise,
            sampling=moving * _SAMPLING + rows * widest * adapted + joined * step.nbytes,
        )

    @property
    def kept(self) -> int:
        """For the backward pass, by all blocks."""
        return self.outside + sum(block.kept for block in self.blocks)

    @property
    def entered(self) -> int:
        """What is kept instead where blocks are computed twice."""
        return self.outside + sum(block.enters for block in self.blocks)

    def peak(self, *, checkpointing: bool, passes: int = 1) -> int:
        """The most at any time of a step with so many passes before one backward pass. With
        `checkpointing` the backward pass of a block finds what the blocks before it begin with,
        and computes what it keeps itself.
        """
        if not checkpointing:
            return passes * self.kept + self.working
        entered = self.outside
        most = 0
        for block in self.blocks:
            entered += block.enters
            most = max(most, entered + block.kept)
        return (passes - 1) * self.entered + most + self.working
