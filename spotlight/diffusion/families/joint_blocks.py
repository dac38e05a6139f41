"""What the blocks keep that attend to latents and text together: those of Qwen-Image, Stable
Diffusion 3 and FLUX (MMDiT).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from spotlight.diffusion.activations import Activations, Block, BlockBytes, Pass

EXPANSION = 4
"""How many times as wide the middle of a feed-forward layer is."""


@dataclass(frozen=True)
class JointBlocks:
    """One kind of joint blocks."""

    step: Pass
    text: int
    """Tokens of text."""
    width: int
    heads: int
    feed_forward: tuple[str, str]
    """Names of the feed-forward layers of latents and text."""
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
        latents_ff, text_ff = self.feed_forward
        self._to_attention(block, "latents", self.step.tokens, ("to_q", "to_k", "to_v"))
        self._to_attention(block, "text", self.text, ("add_q_proj", "add_k_proj", "add_v_proj"))
        self._attention(block, "joint", self.joint)
        self._from_attention(block, "latents", self.step.tokens, "to_out.0", latents_ff)
        if not ends_text:
            self._from_attention(block, "text", self.text, "to_add_out", text_ff)
        if dual:
            self._dual(block)
        return BlockBytes(self.step.rows * self.joint * width * self.step.nbytes, block.nbytes)

    def single_block(self) -> BlockBytes:
        """A block of FLUX with one stream, whose attention and feed-forward layer are parallel."""
        block, width, joint = Block(self.step), self.width, self.joint
        _norm(block, "stream", "before", joint, width)
        layers = ("attn.to_q", "attn.to_k", "attn.to_v", "proj_mlp")
        block.linear(layers, "stream before, modulated", joint, width)
        self._query_norms(block, "stream", joint)
        self._attention(block, "joint", joint)
        block.keep("before the function", joint, EXPANSION * width)
        block.linear(("proj_out",), "both results", joint, (1 + EXPANSION) * width)
        block.factor("projected", joint, width)
        block.keep("modulation", 1, 3 * width)
        return BlockBytes(self.step.rows * joint * width * self.step.nbytes, block.nbytes)

    def activations(self, blocks: Sequence[BlockBytes], outside: Block) -> Activations:
        """Of a transformer with these blocks, and what is kept before them (`outside`)."""
        step, inner = self.step, EXPANSION * self.width
        _norm(outside, "end", "of all", step.tokens, self.width)
        outside.linear(("proj_out",), "end, modulated", step.tokens, self.width)
        return Activations.of(
            step,
            blocks,
            outside.nbytes,
            stream=self.joint * self.width,
            widest=step.tokens * inner,
            layer=f"{self.feed_forward[0]}.net.0.proj",
        )

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
        layers = (f"{feed_forward}.net.0.proj", f"{feed_forward}.net.2")
        block.linear(layers[:1], f"{stream} between, modulated", tokens, width)
        block.mlp(stream, layers, tokens, EXPANSION * width)
        block.factor(f"{stream} fed forward", tokens, width)

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
