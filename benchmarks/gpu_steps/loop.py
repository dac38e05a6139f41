"""Step 6: the whole loop with a Qwen-Image transformer of a quarter of its depth: three iterations
with LoRA and exploration at 512 px, and where each second goes."""

from __future__ import annotations

import json
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import torch
import yaml
from diffusers import FlowMatchEulerDiscreteScheduler

from benchmarks.families import ROOT, SPOTLIGHT
from benchmarks.gpu_steps.site import Site
from benchmarks.gpu_steps.size import SMALL, random_transformer
from benchmarks.report import Figure
from spotlight.diffusion.text import TokenTextEncoder
from spotlight.diffusion.vocabulary import TokenVocabulary
from spotlight.report.metrics import read_run, summarise

_LIMIT_S = 570.0
_PATCH = 16
_COLOURS = 3
_CHANNELS = _COLOURS * _PATCH**2
_QUARTER = {"num_layers": 15}
_FEW: dict[str, Any] = {
    "steps": 4,
    "evaluation_steps": 2,
    "group_size": 4,
    "pixels": 32,
    "rank": 4,
}
_MANY: dict[str, Any] = {
    "steps": 10,
    "evaluation_steps": 10,
    "group_size": 8,
    "pixels": 512,
    "rank": 64,
}


def measure(site: Site) -> dict[str, Figure]:
    """See the module's docstring."""
    sizes = _FEW if site.quick else _MANY
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _save_checkpoint(site, folder / "checkpoint")
        job = _write_job(folder, sizes)
        done = subprocess.run(
            [*SPOTLIGHT, "run", str(job), "--run-folder", str(folder / "run")],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=_LIMIT_S,
            check=False,
        )
        if done.returncode:
            raise SystemExit((done.stdout + done.stderr)[-1000:])
        summary = summarise(read_run(folder / "run"))
        lines = (folder / "run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    seconds = [it for it in map(json.loads, lines) if it["kind"] == "iteration"][-1]
    figures: dict[str, Figure] = {
        f"last_iteration_{key}": value
        for key, value in seconds.items()
        if key.endswith("_s") and "_per_" not in key and isinstance(value, int | float)
    }
    return figures | {
        "images_per_s": summary["images_per_s"],
        "previews": summary["previews"],
        "run_seconds": summary["run_seconds"],
    }


def _save_checkpoint(site: Site, folder: Path) -> None:
    """In pixel space, as there is no VAE to be had."""
    sizes = SMALL if site.quick else _QUARTER
    shape = {"patch_size": _PATCH, "in_channels": _CHANNELS, "out_channels": _COLOURS}
    transformer = random_transformer(site, **sizes, **shape)
    transformer.to(torch.bfloat16).save_pretrained(folder / "transformer")
    dim = transformer.config.joint_attention_dim
    del transformer
    vocabulary = TokenVocabulary(("picture", "number"), "0123456789", 64, dim)
    generator = torch.Generator().manual_seed(0)
    encoder = TokenTextEncoder(
        vocabulary,
        torch.randn(vocabulary.size, dim, generator=generator),
        torch.randn(vocabulary.length, dim, generator=generator),
    )
    encoder.save(folder / "text_encoder")
    scheduler: Any = FlowMatchEulerDiscreteScheduler()
    scheduler.save_pretrained(folder / "scheduler")
    index = {
        "_class_name": "QwenImagePipeline",
        "scheduler": ["diffusers", "FlowMatchEulerDiscreteScheduler"],
        "text_encoder": ["spotlight", "TokenTextEncoder"],
        "tokenizer": [None, None],
        "transformer": ["diffusers", "QwenImageTransformer2DModel"],
        "vae": [None, None],
    }
    (folder / "model_index.json").write_text(json.dumps(index), encoding="utf-8")


def _write_job(folder: Path, sizes: dict[str, Any]) -> Path:
    for name, count in (("train", 16), ("validation", 2)):
        words = "picture number" if name == "train" else "number"
        lines = "".join(f"{words} {number}\n" for number in range(count))
        (folder / f"{name}.txt").write_text(lines, encoding="utf-8")
    job = {
        "name": "quarter",
        "model": {
            "checkpoint": str(folder / "checkpoint"),
            "tuning": "lora",
            "lora": {"rank": sizes["rank"]},
        },
        "prompts": {
            "train": str(folder / "train.txt"),
            "validation": str(folder / "validation.txt"),
            "per_iteration": 2,
        },
        "sampler": {
            "height": sizes["pixels"],
            "width": sizes["pixels"],
            "steps": sizes["steps"],
            "evaluation_steps": sizes["evaluation_steps"],
            "micro_batch": 4,
        },
        "rewards": [
            {"kind": "python", "name": "bright", "python": "benchmarks.brightness:Brightness"}
        ],
        "iterations": 3,
        "group_size": sizes["group_size"],
        "training": {"micro_batch": 1, "activation_checkpointing": True},
        "validation": {"seeds": 1, "every": 3},
        "pools": {"reserved": {"nodes": 1, "workers": 1}, "spot": {"nodes": 1, "workers": 1}},
    }
    path = folder / "job.yaml"
    path.write_text(yaml.safe_dump(job), encoding="utf-8")
    return path
