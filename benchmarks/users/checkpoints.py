"""Checkpoints as users have them: those that are sound, and those that `plan` must refuse.

What is `SOUND` passes `spotlight plan` and is loaded. What is `WRONG` is refused by `plan` in a
line that holds the words beside it. What is not finite passes `plan`, which reads headers, and is
found where it is loaded.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from functools import cache
from itertools import cycle
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from benchmarks.users.case import Figures, case, require, spotlight
from spotlight.diffusion.checkpoints import load_model
from spotlight.errors import CheckpointError
from spotlight.jobs import ModelSpec
from spotlight_simulation.tiny_families import make_tiny_checkpoint

Change = Callable[[Path], None]
"""Turns a copy of a tiny checkpoint of FLUX into what a user has."""

_LARGE = ("transformer", "text_encoder", "text_encoder_2", "vae")
_PREFIX = "model.diffusion_model."
_made = tempfile.TemporaryDirectory(prefix="spotlight-users-")


@cache
def _original() -> Path:
    folder = Path(_made.name) / "flux"
    make_tiny_checkpoint("flux", folder)
    return folder


def brought(folder: Path, change: Change | None = None) -> Path:
    """A checkpoint in `folder` that was changed."""
    checkpoint = folder / "checkpoint"
    shutil.copytree(_original(), checkpoint)
    if change is not None:
        change(checkpoint)
    return checkpoint


def weights_of(checkpoint: Path, part: str = "transformer") -> Path:
    """The file with the weights of a part."""
    [file] = (checkpoint / part).glob("*.safetensors")
    return file


def _rewrite(file: Path, change: Callable[[dict[str, Tensor]], Mapping[str, Tensor]]) -> None:
    changed = change(load_file(file))
    save_file({name: it.contiguous() for name, it in changed.items()}, file, {"format": "pt"})


def _edit(file: Path, **changes: Any) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def _renamed(part: str, prefix: str) -> Change:
    def change(checkpoint: Path) -> None:
        file = weights_of(checkpoint, part)
        _rewrite(file, lambda found: {prefix + name: it for name, it in found.items()})

    return change


def _config(part: str = "transformer", **changes: Any) -> Change:
    return lambda checkpoint: _edit(checkpoint / part / "config.json", **changes)


def _with(tensors: Mapping[str, Tensor], part: str = "transformer") -> Change:
    """Tensors in addition, or in place of those with their names."""
    return lambda checkpoint: _rewrite(weights_of(checkpoint, part), lambda it: {**it, **tensors})


def _content(content: bytes, part: str = "transformer") -> Change:
    return lambda checkpoint: _ignore(weights_of(checkpoint, part).write_bytes(content))


def _ignore(_: object) -> None:
    """A value that nobody needs."""


def _half(file: Path) -> None:
    _rewrite(file, lambda found: {name: it.half() for name, it in found.items()})


def _variants_only(checkpoint: Path) -> None:
    for part in _LARGE:
        file = weights_of(checkpoint, part)
        _half(file)
        file.rename(file.with_name(f"{file.stem}.fp16.safetensors"))


def _variants_beside(checkpoint: Path) -> None:
    for part in _LARGE:
        file = weights_of(checkpoint, part)
        copy = file.with_name(f"{file.stem}.fp16.safetensors")
        shutil.copy(file, copy)
        _half(copy)


def _shard(checkpoint: Path, variant: str = "") -> list[Path]:
    """Cut the transformer's weights into two files."""
    file = weights_of(checkpoint)
    tensors, stem = list(load_file(file).items()), f"{file.stem}{variant}"
    names = [f"{stem}-{number:05}-of-00002.safetensors" for number in (1, 2)]
    halves = dict(tensors[::2]), dict(tensors[1::2])
    for name, half in zip(names, halves, strict=True):
        save_file(half, file.with_name(name), {"format": "pt"})
    places = {key: name for name, half in zip(names, halves, strict=True) for key in half}
    index = file.with_name(f"{file.stem}.safetensors.index{variant}.json")
    index.write_text(json.dumps({"metadata": {}, "weight_map": places}))
    file.unlink()
    return [file.with_name(name) for name in names]


def _sharded_variant(checkpoint: Path) -> None:
    for shard in _shard(checkpoint, ".fp16"):
        _half(shard)


def _linked(checkpoint: Path) -> None:
    blobs = checkpoint.parent / "blobs"
    blobs.mkdir()
    for number, part in enumerate(_LARGE):
        file = weights_of(checkpoint, part)
        file.rename(blobs / str(number))
        file.symlink_to(os.path.relpath(blobs / str(number), file.parent))


def _mixed(checkpoint: Path) -> None:
    kinds = cycle((torch.float32, torch.bfloat16, torch.float16))
    _rewrite(
        weights_of(checkpoint),
        lambda found: {name: it.to(next(kinds)) for name, it in found.items()},
    )


def _tied(checkpoint: Path) -> None:
    _rewrite(
        weights_of(checkpoint, "text_encoder_2"),
        lambda found: {**found, "encoder.embed_tokens.weight": found["shared.weight"].clone()},
    )


def _littered(checkpoint: Path) -> None:
    (checkpoint / "README.md").write_text("A model.")
    (checkpoint / "transformer" / "diffusion_pytorch_model.bin").write_bytes(b"an old one")
    (checkpoint / "transformer" / ".gitattributes").write_text("*.safetensors filter=lfs\n")
    (checkpoint / "onnx").mkdir()


SOUND: dict[str, Change] = {
    "only copies in fp16": _variants_only,
    "copies in fp16 beside the usual weights": _variants_beside,
    "weights in two shards": lambda checkpoint: _ignore(_shard(checkpoint)),
    "only a copy in fp16, in two shards": _sharded_variant,
    "links into a folder of blobs, as the hub's cache has them": _linked,
    "float32, bfloat16 and float16 in one file": _mixed,
    "a CLIP encoder with the names of older versions": _renamed("text_encoder", "text_model."),
    "a tied weight under both of its names": _tied,
    "a list of positions that older versions saved": _with(
        {"embeddings.position_ids": torch.arange(77)[None]}, "text_encoder"
    ),
    "other files beside the weights": _littered,
}


def _absent_shard(checkpoint: Path) -> None:
    _shard(checkpoint)[1].unlink()


def _shard_without_tensor(checkpoint: Path) -> None:
    shard = _shard(checkpoint)[0]
    _rewrite(shard, lambda found: dict(list(found.items())[1:]))


def _index(content: str) -> Change:
    def change(checkpoint: Path) -> None:
        file = weights_of(checkpoint)
        file.with_name(f"{file.name}.index.json").write_text(content)

    return change


def _cut_off(checkpoint: Path) -> None:
    file = weights_of(checkpoint, "text_encoder_2")
    file.write_bytes(file.read_bytes()[:-1])


def _too_long(checkpoint: Path) -> None:
    file = weights_of(checkpoint, "vae")
    file.write_bytes(file.read_bytes() + b"\0")


def _float8(checkpoint: Path) -> None:
    name = "proj_out.weight"
    _rewrite(
        weights_of(checkpoint),
        lambda found: {
            **found,
            name: (found[name] / 0.01).to(torch.float8_e4m3fn),
            f"{name}_scale": torch.tensor(0.01),
        },
    )


def _called_otherwise(checkpoint: Path) -> None:
    weights_of(checkpoint).rename(checkpoint / "transformer" / "flux1-dev.safetensors")


def _pickled(checkpoint: Path) -> None:
    file = weights_of(checkpoint)
    file.rename(file.with_suffix(".bin"))


def _dangling(checkpoint: Path) -> None:
    file = weights_of(checkpoint)
    file.unlink()
    file.symlink_to("../../blobs/0")


def _without_proj_out(checkpoint: Path) -> None:
    names = ("proj_out.weight", "proj_out.bias")
    _rewrite(
        weights_of(checkpoint),
        lambda found: {name: it for name, it in found.items() if name not in names},
    )


def _sentences_only(checkpoint: Path) -> None:
    """A tokenizer as older versions of transformers save it."""
    (checkpoint / "tokenizer_2" / "tokenizer.json").unlink()
    (checkpoint / "tokenizer_2" / "spiece.model").write_bytes(b"\x0a\x05\x0a\x03<p>")
    _edit(checkpoint / "tokenizer_2" / "tokenizer_config.json", tokenizer_class="T5Tokenizer")


def _no_tokenizer_json(checkpoint: Path) -> None:
    (checkpoint / "tokenizer" / "tokenizer.json").write_text("{")


_SINGLE = "transformer/diffusion_pytorch_model.safetensors"
_HEADER_OF_LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"

WRONG: dict[str, tuple[Change, tuple[str, ...]]] = {
    "a transformer whose names have a prefix": (
        _renamed("transformer", _PREFIX),
        (_SINGLE, f"holds `{_PREFIX}", "FluxTransformer2DModel", f"without the prefix `{_PREFIX}`"),
    ),
    "a VAE whose names have a prefix": (
        _renamed("vae", "first_stage_model."),
        ("vae/diffusion_pytorch_model.safetensors", "without the prefix `first_stage_model.`"),
    ),
    "a text encoder whose names have a prefix": (
        _renamed("text_encoder_2", "t5xxl."),
        ("text_encoder_2/model.safetensors", "without the prefix `t5xxl.`"),
    ),
    "a shard that is missing": (
        _absent_shard,
        ("diffusion_pytorch_model-00002-of-00002.safetensors is missing",),
    ),
    "a shard that lacks a tensor of the index": (
        _shard_without_tensor,
        ("transformer lack ", "copy the whole checkpoint again"),
    ),
    "an index that names a file elsewhere": (
        _index(json.dumps({"weight_map": {"proj_out.weight": "../../weights.safetensors"}})),
        ("a file that", "index.json names is missing"),
    ),
    "an index that is no JSON": (_index("{"), ("index.json is not what it should be",)),
    "an index without files": (_index("{}"), ("index.json names no files",)),
    "weights of another shape": (
        _with({"proj_out.weight": torch.zeros(8, 32)}),
        (_SINGLE, "holds `proj_out.weight` of shape [8, 32]", "asks for [16, 32]"),
    ),
    "weights that are cut off": (_cut_off, ("text_encoder_2/model.safetensors is cut off",)),
    "weights with something behind them": (_too_long, ("vae/", "but its header says")),
    "weights of no length": (_content(b""), (_SINGLE, "is not a safetensors file")),
    "a pointer of Git LFS": (_content(_HEADER_OF_LFS), (_SINGLE, "git lfs pull")),
    "a configuration of fewer blocks than the weights have": (
        _config(num_single_layers=0),
        ("config.json", "num_single_layers"),
    ),
    "a configuration of fewer blocks in the text encoder": (
        _config("text_encoder", num_hidden_layers=1),
        ("text_encoder/model.safetensors", "layers.1.", "which no CLIPTextModel"),
    ),
    "a configuration of more blocks than the weights have": (
        _config(num_layers=2),
        ("transformer lack transformer_blocks.1.", "more"),
    ),
    "a configuration of another width": (
        _config(num_attention_heads=4),
        (_SINGLE, "of shape", "asks for"),
    ),
    "a configuration of another class": (
        _config(_class_name="SD3Transformer2DModel"),
        ("transformer/config.json is not of a FluxTransformer2DModel",),
    ),
    "a text encoder of another class": (
        _config("text_encoder", architectures=["CLIPModel"]),
        ("text_encoder/config.json is not of a CLIPTextModel",),
    ),
    "an index of another pipeline": (
        lambda checkpoint: _edit(checkpoint / "model_index.json", _class_name="FluxFillPipeline"),
        ("model_index.json is of another pipeline than FluxPipeline",),
    ),
    "float8 weights with their scales": (
        _float8,
        (_SINGLE, "`proj_out.weight` in `F8_E4M3`", "scales would be ignored"),
    ),
    "weights of four bits in bytes": (
        _with({"proj_out.weight": torch.zeros(256, 1, dtype=torch.uint8)}),
        (_SINGLE, "`proj_out.weight` in `U8`", "quantised"),
    ),
    "a configuration of quantised weights": (
        _config(quantization_config={"quant_method": "bitsandbytes"}),
        ("transformer/config.json is of quantised weights",),
    ),
    "weights in a file of another name": (
        _called_otherwise,
        ("transformer holds no diffusion_pytorch_model.safetensors", "renaming"),
    ),
    "pickled weights": (_pickled, ("transformer holds pickled weights", "save_pretrained")),
    "a link to nowhere": (_dangling, (_SINGLE, "is missing")),
    "tensors that are missing": (_without_proj_out, ("lack proj_out.bias and 1 more",)),
    "adapters among the weights": (
        _with({"proj_out.lora_A.weight": torch.zeros(4, 32)}),
        (_SINGLE, "holds `proj_out.lora_A.weight`, which no FluxTransformer2DModel"),
    ),
    "a tokenizer that cannot be converted": (
        _sentences_only,
        ("tokenizer_2 holds no tokenizer.json", "sentencepiece"),
    ),
    "a tokenizer that is damaged": (_no_tokenizer_json, ("checkpoint/tokenizer cannot be loaded",)),
}

_NAN, _INFINITE = float("nan"), float("inf")


def _spoilt(part: str, name: str, value: float) -> Change:
    def change(checkpoint: Path) -> None:
        def spoil(found: dict[str, Tensor]) -> dict[str, Tensor]:
            found[name].view(-1)[-1] = value
            return found

        _rewrite(weights_of(checkpoint, part), spoil)

    return change


_ENCODED = "encoder.final_layer_norm.weight"
NOT_FINITE: dict[str, tuple[Change, tuple[str, ...]]] = {
    "a transformer with a value that is no number": (
        _spoilt("transformer", "proj_out.weight", _NAN),
        (_SINGLE, "`proj_out.weight`", "NaN or infinite"),
    ),
    "a VAE with a value that is infinite": (
        _spoilt("vae", "decoder.conv_in.weight", _INFINITE),
        ("vae/diffusion_pytorch_model.safetensors", "`decoder.conv_in.weight`"),
    ),
    "a text encoder with a value that is no number": (
        _spoilt("text_encoder_2", _ENCODED, _NAN),
        ("text_encoder_2/model.safetensors", f"`{_ENCODED}`"),
    ),
}

_JOB = """\
name: brought
model: {{checkpoint: {checkpoint}}}
prompts: {{train: train.txt, validation: validation.txt, per_iteration: 2}}
sampler: {{height: 32, width: 48}}
exploration: {{mode: none}}
"""


def _planned(checkpoint: Path | str, folder: Path, code: int, *words: str) -> None:
    """What `spotlight plan` must say."""
    (folder / "train.txt").write_text('a "cat"\na "dog"\n')
    (folder / "validation.txt").write_text('a "bird"\n')
    (folder / "job.yaml").write_text(_JOB.format(checkpoint=checkpoint))
    spotlight(["plan", "job.yaml"], folder).says(code, *words)


def loaded(checkpoint: Path) -> str:
    """Load a model as a worker does; what it says if that fails, or nothing."""
    try:
        load_model(ModelSpec(checkpoint=str(checkpoint)), device="cpu")
    except CheckpointError as error:
        return str(error)
    return ""


def _is_sound(change: Change) -> Callable[[Path], Figures]:
    def check(folder: Path) -> Figures:
        checkpoint = brought(folder, change)
        _planned(checkpoint, folder, 0, "flux from")
        require(loaded(checkpoint) == "", loaded(checkpoint))
        return {}

    return check


def _is_refused(change: Change, words: tuple[str, ...]) -> Callable[[Path], Figures]:
    def check(folder: Path) -> Figures:
        _planned(brought(folder, change), folder, 2, "model.checkpoint: ", *words)
        return {}

    return check


def _is_found(change: Change, words: tuple[str, ...]) -> Callable[[Path], Figures]:
    def check(folder: Path) -> Figures:
        said = loaded(brought(folder, change))
        require(all(word in said for word in words), said or "it is loaded")
        return {}

    return check


def _is_hinted(name: str, hint: str) -> Callable[[Path], Figures]:
    def check(folder: Path) -> Figures:
        _planned(name, folder, 2, "model.checkpoint: ", "is not a folder", f"write `{hint}`")
        return {}

    return check


NOT_ON_DISK = {
    "Qwen/Qwen-Image": "hf:Qwen/Qwen-Image@main",
    "Qwen/Qwen-Image@v1.0": "hf:Qwen/Qwen-Image@v1.0",
    "https://huggingface.co/black-forest-labs/FLUX.1-dev/tree/main": (
        "hf:black-forest-labs/FLUX.1-dev@main"
    ),
}
"""Names of checkpoints on the hub, as users write them, and as a job must."""

for _name, _change in SOUND.items():
    case(_name)(_is_sound(_change))
for _name, (_change, _words) in WRONG.items():
    case(_name)(_is_refused(_change, _words))
for _name, (_change, _words) in NOT_FINITE.items():
    case(_name)(_is_found(_change, _words))
for _name, _hint in NOT_ON_DISK.items():
    case(f"the name {_name}", quick=_name == "Qwen/Qwen-Image")(_is_hinted(_name, _hint))
