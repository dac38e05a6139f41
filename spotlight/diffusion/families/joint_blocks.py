"""What the blocks keep that attend to latents and text together: those of Qwen-Image, Stable
Diffusion 3, FLUX.1 and FLUX.2 (MMDiT).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from spotlight.diffusion.activations import FLOAT32, Activations, Block, BlockBytes, Pass

JOINT_ATTENTION = (
    "attn.to_q",
    "attn.to_k",
    "attn.to_v",
    "attn.to_out.0",
    "attn.add_q_proj",
    "attn.add_k_proj",
    "attn.add_v_proj",
    "attn.to_add_out",
)
"""The layers of the attention of a block with two streams."""
_FUSED = "attn.to_qkv_mlp_proj"
"""The first layer of a `fused_block`."""


@dataclass(frozen=True)
class FeedForward:
    """The feed-forward layers of a kind of blocks."""

    names: tuple[str, str]
    """Those of latents and of text."""
    layers: tuple[str, str]
    """The names of its two layers."""
    inner: int
    """Numbers in its middle."""
    gated: bool = False
    """Whether the first layer makes twice as many, of which half are the gates of the others. In
    single blocks one layer makes them with what attention takes, as in FLUX.2."""

    @classmethod
    def of_diffusers(cls, names: tuple[str, str], width: int) -> FeedForward:
        """Its usual one, whose middle is four times as wide."""
        return cls(names, ("net.0.proj", "net.2"), 4 * width)


@dataclass(frozen=True)
class JointBlocks:
    """One kind of joint blocks."""

    step: Pass
    text: int
    """Tokens of text."""
    width: int
    heads: int
    feed_forward: FeedForward
    native_norm: bool
    """Whether queries and keys are normed by torch's own norm."""
    copies_output: bool
    """Whether what attention gives is copied before it is projected."""

    @property
    def joint(self) -> int:
        """Tokens that are attended to together."""
        return self.step.tokens + self.text

    def block(self, *, dual: bool = False, ends_text: bool = False) -> BlockBytes:
        """A block with a stream for latents and one for text.

        Args:
            dual: whether the latents have a second attention of their own.
            ends_text: whether text ends here: nothing of it is projected behind the attention.
        """
        block, width = Block(self.step), self.width
        latents_ff, text_ff = self.feed_forward.names
        self._to_attention(block, "latents", self.step.tokens, ("to_q", "to_k", "to_v"))
        self._to_attention(block, "text", self.text, ("add_q_proj", "add_k_proj", "add_v_proj"))
        self._attention(block, "joint", self.joint)
        self._from_attention(block, "latents", self.step.tokens, "to_out.0", latents_ff)
        if not ends_text:
            self._from_attention(block, "text", self.text, "to_add_out", text_ff)
        if dual:
            self._dual(block)
        return block.entered_by(self.joint, width)

    def single_block(self) -> BlockBytes:
        """A block of FLUX.1 with one stream: attention and feed-forward layer are parallel."""
        block, width, joint = Block(self.step), self.width, self.joint
        _norm(block, "stream", "before", joint, width)
        layers = ("attn.to_q", "attn.to_k", "attn.to_v", "proj_mlp")
        block.linear(layers, "stream before, modulated", joint, width)
        self._query_norms(block, "stream", joint)
        self._attention(block, "joint", joint)
        block.keep("before the function", joint, self.feed_forward.inner)
        block.linear(("proj_out",), "both results", joint, width + self.feed_forward.inner)
        block.factor("projected", joint, width)
        block.keep("modulation", 1, 3 * width)
        return block.entered_by(joint, width)

    def fused_block(self) -> BlockBytes:
        """The same of FLUX.2: one layer makes queries, keys and values, and all that the gated
        feed-forward layer begins with, as one tensor.
        """
        block, width, joint = Block(self.step), self.width, self.joint
        inner = self.feed_forward.inner
        _norm(block, "stream", "before", joint, width)
        block.linear((_FUSED,), "stream before, modulated", joint, width)
        block.keep("fused", joint, self._fused)
        self._query_norms(block, "stream", joint)
        self._attention(block, "joint", joint)
        block.forget("joint values")
        if self.step.nbytes == FLOAT32:
            for each in ("queries", "keys"):
                block.forget(f"stream {each}")
        block.keep("gates", joint, inner)
        block.linear(("attn.to_out",), "both results", joint, width + inner)
        block.factor("projected", joint, width)
        return block.entered_by(joint, width)

    def of_flux(
        self, double: int, single: Sequence[BlockBytes], channels: int, text: int
    ) -> Activations:
        """Of FLUX.1 and FLUX.2: blocks with two streams, and then with one; a layer brings latents
        of so many `channels`, and another one `text` of so many numbers, to the width.
        """
        outside = Block(self.step)
        outside.given(("x_embedder",), "latents", self.step.tokens, channels)
        outside.given(("context_embedder",), "text", self.text, text)
        return self.activations([*[self.block()] * double, *single], outside)

    def activations(self, blocks: Sequence[BlockBytes], outside: Block) -> Activations:
        """Of a transformer with these blocks, and what is kept before them (`outside`)."""
        step, ff = self.step, self.feed_forward
        _norm(outside, "end", "of all", step.tokens, self.width)
        outside.linear(("proj_out",), "end, modulated", step.tokens, self.width)
        return Activations.of(
            step,
            blocks,
            outside.nbytes,
            stream=self.joint * self.width,
            widest=self.joint * self._fused if ff.gated else step.tokens * ff.inner,
            layer=_FUSED if ff.gated else f"{ff.names[0]}.{ff.layers[0]}",
            fused=ff.gated,
        )

    @property
    def _fused(self) -> int:
        """Numbers that the first layer of a `fused_block` makes of a token."""
        return 3 * self.width + 2 * self.feed_forward.inner

    def _to_attention(
        self, block: Block, stream: str, tokens: int, layers: tuple[str, str, str]
    ) -> None:
        _norm(block, stream, "before", tokens, self.width)
        names = [f"attn.{layer}" for layer in layers]
        block.linear(names, f"{stream} before, modulated", tokens, self.width)
        self._query_norms(block, stream, tokens)
        block.keep(f"{stream} modulation", 1, 8 * self.width)

    def _query_norms(self, block: Block, stream: str, tokens: int) -> None:
        for each in ("queries", "keys"):
            block.normed(f"{stream} {each}", tokens, self.width, native=self.native_norm)

    def _attention(self, block: Block, name: str, tokens: int) -> None:
        block.attention(name, tokens, self.width, self.heads, keys=tokens)

    def _from_attention(
        self, block: Block, stream: str, tokens: int, layer: str, feed_forward: str
    ) -> None:
        width, step = self.width, self.step
        # Of one sample the rows of a stream lie together; of several they are copied out.
        whole = step.rows == 1 and not self.copies_output
        if not (whole and (step.adapters is None or step.adapters.nbytes == step.nbytes)):
            block.linear((f"attn.{layer}",), f"{stream} attended", tokens, width)
        elif step.adapters is not None and step.adapters.has(f"attn.{layer}"):
            block.keep(f"product of {layer}", tokens, step.adapters.rank)
        block.factor(f"{stream} projected", tokens, width)
        _norm(block, stream, "between", tokens, width)
        self._feed_forward(block, stream, tokens, feed_forward)
        block.factor(f"{stream} fed forward", tokens, width)

    def _feed_forward(self, block: Block, stream: str, tokens: int, name: str) -> None:
        inner, gated = self.feed_forward.inner, self.feed_forward.gated
        first, second = (f"{name}.{layer}" for layer in self.feed_forward.layers)
        block.linear((first,), f"{stream} between, modulated", tokens, self.width)
        if gated:
            block.keep(f"{stream} gates and gated", tokens, 2 * inner)
            block.keep(f"{stream} gates after the function", tokens, inner)
            block.linear((second,), f"{stream} gated", tokens, inner)
        else:
            block.mlp(stream, (first, second), tokens, inner)

    def _dual(self, block: Block) -> None:
        tokens = self.step.tokens
        layers = ("attn2.to_q", "attn2.to_k", "attn2.to_v")
        block.linear(layers, "latents before, modulated again", tokens, self.width)
        self._query_norms(block, "dual", tokens)
        self._attention(block, "dual", tokens)
        block.linear(("attn2.to_out.0",), "dual output", tokens, self.width)
        block.factor("dual projected", tokens, self.width)


def _norm(block: Block, stream: str, where: str, tokens: int, width: int) -> None:
    """A norm without weights, and a modulation behind it."""
    block.keep(f"{stream} {where}", tokens, width)
    block.factor(f"{stream} {where}, normed", tokens, width)
