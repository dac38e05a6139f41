"""Tiny transformers of every family, and a crew of real processes that run them as groups."""

from __future__ import annotations

import hashlib
import threading
from collections import Counter
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import torch
from diffusers import (
    AnyFlowTransformer3DModel,
    Flux2Transformer2DModel,
    FluxTransformer2DModel,
    Krea2Transformer2DModel,
    QwenImage21Transformer2DModel,
    QwenImageTransformer2DModel,
    SD3Transformer2DModel,
    WanTransformer3DModel,
    ZImageTransformer2DModel,
)
from torch import Tensor, nn

from spotlight.diffusion.experts import Experts
from spotlight.diffusion.parallel_attention import Grid, attend, shard_lengths
from spotlight.diffusion.sequence_parallel import SequenceParallel
from spotlight.errors import TransportError
from spotlight.transport.collectives import Group, listen
from spotlight_simulation.rank_groups import init_group
from tests.warm_processes import warm_processes

PATIENCE_S = 180.0
HEADS, WIDTH, TEXT_DIM = 4, 16, 24


@dataclass(frozen=True)
class Case:
    """One forward pass of one family."""

    family: str
    rows: int = 6
    columns: int = 4
    text: int = 8
    batch: int = 2
    text_mask: tuple[int, ...] | None = None
    """How many text tokens of each row of the batch are real."""
    time_per_token: bool = False


def make_transformer(family: str) -> Any:
    """A model with random weights, the same in every process."""
    torch.manual_seed(0)
    shape: dict[str, Any] = {"num_attention_heads": HEADS, "attention_head_dim": WIDTH}
    if family == "qwen":
        return QwenImageTransformer2DModel(
            **shape,
            patch_size=2,
            in_channels=16,
            out_channels=4,
            num_layers=3,
            joint_attention_dim=TEXT_DIM,
            axes_dims_rope=(4, 4, 8),
        ).eval()
    if family == "qwen21":
        return QwenImage21Transformer2DModel(
            **shape,
            in_channels=16,
            out_channels=16,
            num_layers=3,
            context_in_dim=TEXT_DIM,
            axes_dims_rope=(4, 4, 8),
        ).eval()
    if family == "z-image":
        return ZImageTransformer2DModel(
            in_channels=4,
            dim=HEADS * 24,
            n_layers=3,
            n_refiner_layers=1,
            n_heads=HEADS,
            n_kv_heads=HEADS,
            cap_feat_dim=TEXT_DIM,
            axes_dims=(8, 8, 8),
            axes_lens=(64, 32, 32),
        ).eval()
    if family == "flux":
        return FluxTransformer2DModel(
            **shape,
            patch_size=1,
            in_channels=16,
            num_layers=1,
            num_single_layers=2,
            joint_attention_dim=TEXT_DIM,
            pooled_projection_dim=TEXT_DIM,
            axes_dims_rope=(4, 4, 8),
        ).eval()
    if family == "flux2":
        return Flux2Transformer2DModel(
            **shape,
            in_channels=16,
            num_layers=1,
            num_single_layers=2,
            joint_attention_dim=TEXT_DIM,
            guidance_embeds=False,
            axes_dims_rope=(4, 4, 4, 4),
        ).eval()
    if family == "krea2":
        return Krea2Transformer2DModel(
            **shape,
            in_channels=16,
            num_layers=2,
            num_key_value_heads=2,
            intermediate_size=48,
            timestep_embed_dim=32,
            text_hidden_dim=TEXT_DIM,
            num_text_layers=3,
            text_num_attention_heads=HEADS,
            text_num_key_value_heads=HEADS,
            text_intermediate_size=48,
            num_layerwise_text_blocks=1,
            num_refiner_text_blocks=1,
            axes_dims_rope=(4, 4, 8),
        ).eval()
    if family == "sd3":
        return SD3Transformer2DModel(
            **shape,
            sample_size=16,
            in_channels=4,
            out_channels=4,
            num_layers=3,
            joint_attention_dim=TEXT_DIM,
            caption_projection_dim=HEADS * WIDTH,
            pooled_projection_dim=TEXT_DIM,
            pos_embed_max_size=16,
            dual_attention_layers=(0, 1),
            qk_norm="rms_norm",
        ).eval()
    if family == "wan-a14b":
        first, second = make_transformer("wan"), make_transformer("wan")
        for parameter in second.parameters():
            parameter.data *= 0.9
        return Experts(first, second, boundary=0.5e-3)  # which is 0.5 of a time in thousandths
    kind = AnyFlowTransformer3DModel if family == "anyflow" else WanTransformer3DModel
    return kind(
        **shape,
        in_channels=4,
        out_channels=4,
        text_dim=TEXT_DIM,
        freq_dim=32,
        ffn_dim=128,
        num_layers=2,
        rope_max_seq_len=32,
    ).eval()


def make_inputs(case: Case) -> dict[str, Any]:
    """Random inputs, the same in every process."""
    random = torch.Generator().manual_seed(1)

    def noise(*shape: int) -> Tensor:
        return torch.randn(shape, generator=random)

    tokens = case.rows * case.columns
    if case.family == "z-image":
        return {
            "x": list(noise(case.batch, 4, 1, 2 * case.rows, 2 * case.columns)),
            "t": torch.linspace(0.2, 0.9, case.batch),
            "cap_feats": list(noise(case.batch, case.text, TEXT_DIM)),
            "return_dict": False,
        }
    inputs: dict[str, Any] = {
        "encoder_hidden_states": noise(case.batch, case.text, TEXT_DIM),
        "timestep": torch.linspace(0.2, 0.9, case.batch),
        "return_dict": False,
    }
    if case.family == "qwen":
        inputs["hidden_states"] = noise(case.batch, tokens, 16)
        inputs["img_shapes"] = [[(1, case.rows, case.columns)]] * case.batch
        if case.text_mask:
            real = torch.tensor(case.text_mask)[:, None]
            inputs["encoder_hidden_states_mask"] = torch.arange(case.text)[None] < real
    elif case.family == "qwen21":
        inputs["hidden_states"] = noise(case.batch, tokens, 16)
        inputs["img_shapes"] = [[(1, case.rows, case.columns)]] * case.batch
        places = torch.arange(case.text + tokens // 4) >= case.text
        inputs["img_mask"] = places.expand(case.batch, -1)
    elif case.family == "flux":
        inputs["hidden_states"] = noise(case.batch, tokens, 16)
        inputs["pooled_projections"] = noise(case.batch, TEXT_DIM)
        inputs["txt_ids"] = torch.zeros(case.text, 3)
        places = torch.cartesian_prod(torch.arange(case.rows), torch.arange(case.columns))
        inputs["img_ids"] = nn.functional.pad(places, (1, 0)).float()
    elif case.family == "flux2":
        inputs["hidden_states"] = noise(case.batch, tokens, 16)
        inputs["txt_ids"] = nn.functional.pad(torch.arange(case.text)[None, :, None], (3, 0))
        places = torch.cartesian_prod(torch.arange(case.rows), torch.arange(case.columns))
        inputs["img_ids"] = nn.functional.pad(places, (1, 1))[None]
    elif case.family == "krea2":
        inputs["hidden_states"] = noise(case.batch, tokens, 16)
        inputs["encoder_hidden_states"] = noise(case.batch, case.text, 3, TEXT_DIM)
        places = torch.cartesian_prod(torch.arange(case.rows), torch.arange(case.columns))
        inputs["position_ids"] = nn.functional.pad(places, (1, 0, case.text, 0)).float()
        if case.text_mask:
            real = torch.tensor(case.text_mask)[:, None]
            inputs["encoder_attention_mask"] = torch.arange(case.text)[None] < real
    elif case.family == "anyflow":
        inputs["hidden_states"] = noise(case.batch, 2, 4, 2 * case.rows, 2 * case.columns)
        inputs["timestep"] = 1000 * inputs["timestep"][:, None].expand(-1, 2)
        inputs["r_timestep"] = inputs["timestep"] / 2
    elif case.family == "sd3":
        inputs["hidden_states"] = noise(case.batch, 4, 2 * case.rows, 2 * case.columns)
        inputs["pooled_projections"] = noise(case.batch, TEXT_DIM)
    else:
        inputs["hidden_states"] = noise(case.batch, 4, 1, 2 * case.rows, 2 * case.columns)
        if case.time_per_token:
            inputs["timestep"] = noise(case.batch, tokens).abs()
    return inputs


@dataclass(frozen=True)
class Outcome:
    """What one rank saw of a shared forward pass."""

    difference: float
    """Largest difference from the output of one process, relative to its largest value."""
    digest: str
    """Of the output's bits."""
    collectives: dict[str, int]


class Worker:
    """What a process of the crew can be asked to do; lives in the child."""

    def __init__(self) -> None:
        self._listener: Any = None
        self._groups: dict[str, Group] = {}
        self._models: dict[str, SequenceParallel] = {}
        self._plain: dict[Case, Tensor] = {}
        self._stuck: threading.Thread | None = None
        self._waiting = threading.Event()
        self._error: Exception | None = None

    def listen(self) -> int:
        self._listener = listen("127.0.0.1")
        return self._listener.getsockname()[1]

    def join(self, name: str, rank: int, world: int, port: int) -> None:
        listener, self._listener = self._listener, None
        self._groups[name] = init_group(
            rank, world, port=port, timeout_s=PATIENCE_S, listener=listener
        )

    def prepare(self, cases: list[Case]) -> list[bool]:
        """Run each case in this process alone: is it the same with hooks, to the bit?"""
        for case in cases:
            self._plain[case] = self._run(make_transformer(case.family), case)
        for case in cases:
            if case.family not in self._models:
                self._models[case.family] = SequenceParallel(make_transformer(case.family))
        return [
            bool(torch.equal(self._plain[case], self._run(self._model(case).transformer, case)))
            for case in cases
        ]

    def share(self, name: str, case: Case, ring: int = 1) -> Outcome:
        """Run a case over a group."""
        group = self._groups[name]
        counts: Counter[str] = Counter()

        def counting(what: str, start: Any) -> None:
            counts[what] += 1
            self._waiting.set()
            Group._run(group, what, start)

        group._run = counting  # type: ignore[method-assign]
        try:
            with self._model(case).over(group, ring):
                output = self._run(self._model(case).transformer, case)
        finally:
            del group._run
        plain = self._plain[case]
        return Outcome(
            difference=float((output - plain).abs().max() / plain.abs().max()),
            digest=hashlib.sha256(output.numpy().tobytes()).hexdigest(),
            collectives=dict(counts),
        )

    def get_stuck(self, name: str, case: Case) -> None:
        """Begin a shared forward pass in a thread, and leave it in its first collective."""

        def run() -> None:
            try:
                self.share(name, case)
            except TransportError as error:
                self._error = error

        self._waiting.clear()
        self._stuck = threading.Thread(target=run, daemon=True)
        self._stuck.start()
        assert self._waiting.wait(PATIENCE_S)

    def abandon(self, name: str) -> bool:
        """Give a group up; says whether the thread was still in it."""
        assert self._stuck is not None
        stuck = self._stuck.is_alive()
        self._groups.pop(name).abandon()
        return stuck

    def close(self, name: str) -> None:
        self._groups.pop(name).close()

    def unstuck(self) -> str:
        """The error of the thread, once it has ended."""
        assert self._stuck is not None
        self._stuck.join(PATIENCE_S)
        return f"{type(self._error).__name__}: {self._error}"

    def attend(self, name: str, ring: int, dead: list[list[int]]) -> float:
        """Largest difference of attention over a group from that in one process, where `dead`
        lists the masked keys for each row of the batch.
        """
        group = self._groups[name]
        random = torch.Generator().manual_seed(2)
        query, key, value = (torch.randn(len(dead), HEADS, 10, 8, generator=random) for _ in "qkv")
        mask = torch.ones(len(dead), 1, 1, 10, dtype=torch.bool)
        for row, keys in enumerate(dead):
            mask[row, ..., keys] = False
        whole = nn.functional.scaled_dot_product_attention(query, key, value, mask)
        lengths = shard_lengths(10, group.world)
        own = [tensor.split(lengths, 2)[group.rank] for tensor in (query, key, value, whole)]
        own_mask = mask.split(lengths, 3)[group.rank]
        part = attend(Grid(group, ring), lengths, *own[:3], own_mask, None)
        return float((part - own[3]).abs().max())

    def _model(self, case: Case) -> SequenceParallel:
        return self._models[case.family]

    @staticmethod
    @torch.no_grad()
    def _run(transformer: Any, case: Case) -> Tensor:
        output: Tensor | list[Tensor] = transformer(**make_inputs(case))[0]
        return output if isinstance(output, Tensor) else torch.stack(output)


def work(orders: Connection) -> None:
    """Do what the crew's owner asks."""
    torch.set_num_threads(1)
    worker = Worker()
    while True:
        task, arguments = orders.recv()
        try:
            orders.send((getattr(worker, task)(**arguments), None))
        except Exception as error:  # for whoever asked
            orders.send((None, f"{task}: {type(error).__name__}: {error}"))


class Crew:
    """Real processes that form groups, and have so many seconds for each task."""

    def __init__(self, size: int, patience_s: float = PATIENCE_S) -> None:
        self._patience_s = patience_s
        context = warm_processes()
        self._workers = []
        for _ in range(size):
            ours, theirs = context.Pipe()
            process = context.Process(target=work, args=(theirs,), daemon=True)
            process.start()
            theirs.close()
            self._workers.append((process, ours))

    def ask(self, ranks: range, task: str, **arguments: Any) -> list[Any]:
        """Have all these processes do a task at the same time; their answers."""
        return self.ask_each(ranks, task, [arguments] * len(ranks))

    def ask_each(self, ranks: range, task: str, arguments: list[dict[str, Any]]) -> list[Any]:
        """As `ask`, with arguments for each."""
        pipes = [self._workers[rank][1] for rank in ranks]
        for pipe, own in zip(pipes, arguments, strict=True):
            pipe.send((task, own))
        answers = []
        for rank, pipe in zip(ranks, pipes, strict=True):
            assert pipe.poll(self._patience_s), f"process {rank} did not answer {task}"
            answers.append(pipe.recv())
        errors = [error for _, error in answers if error]
        assert not errors, errors
        return [answer for answer, _ in answers]

    def form(self, name: str, world: int) -> range:
        """Make the first processes a group; their ranks."""
        port = self.ask(range(1), "listen")[0]
        ranks = range(world)
        self.ask_each(
            ranks,
            "join",
            [{"name": name, "rank": rank, "world": world, "port": port} for rank in ranks],
        )
        return ranks

    def close(self) -> None:
        """End all processes."""
        for process, pipe in self._workers:
            process.kill()
            process.join()
            process.close()
            pipe.close()
