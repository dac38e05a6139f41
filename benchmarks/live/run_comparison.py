"""Whether two runs of a job came to the same: checkpoint, exported model and figures, bit by bit.

Reads safetensors files itself, so that whoever compares need not load torch.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from spotlight.record.run_metrics import MEASURED_BESIDE

_OF_THE_MOMENT = frozenset({"at", "samples_restored"}) | MEASURED_BESIDE
"""Figures that may differ between runs that came to the same, besides times."""


def differences(
    expected: Path, found: Path, iterations: int, *, beside: Collection[str] = ()
) -> list[str]:
    """How the run folder `found` differs from `expected`, a line for each difference. Times may,
    and the figures that are named `beside`."""
    return [
        *_tensor_differences("checkpoint", _checkpoint(expected), _checkpoint(found)),
        *_export_differences(expected / "export", found / "export"),
        *_figure_differences(expected, found, iterations, beside),
    ]


def tensors(path: Path) -> dict[str, str]:
    """What identifies each tensor of a safetensors file: type, shape, and a hash of its bytes."""
    data = path.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    header: dict[str, Any] = json.loads(data[8:start])
    header.pop("__metadata__", None)
    return {name: _fingerprint(data, start, entry) for name, entry in header.items()}


def _fingerprint(data: bytes, start: int, entry: Mapping[str, Any]) -> str:
    first, end = entry["data_offsets"]
    digest = hashlib.sha256(data[start + first : start + end]).hexdigest()
    return f"{entry['dtype']} {entry['shape']} {digest}"


def _checkpoint(run: Path) -> dict[str, str]:
    files = sorted((run / "checkpoints").glob("*.safetensors"))
    return tensors(files[-1]) if files else {}


def _tensor_differences(
    what: str, expected: Mapping[str, str], found: Mapping[str, str]
) -> list[str]:
    names = sorted(expected.keys() | found.keys())
    other = [name for name in names if expected.get(name) != found.get(name)]
    if not names:
        return [f"{what}: there is none"]
    return [f"{what}: {len(other)} of {len(names)} tensors differ: {other[:3]}"] if other else []


def _export_differences(expected: Path, found: Path) -> list[str]:
    lists = [sorted(file.name for file in folder.glob("*")) for folder in (expected, found)]
    if lists[0] != lists[1]:
        return [f"export: {lists[1]} instead of {lists[0]}"]
    problems = []
    for name in lists[0]:
        if name.endswith(".safetensors"):
            problems += _tensor_differences(name, tensors(expected / name), tensors(found / name))
        elif (expected / name).read_bytes() != (found / name).read_bytes():
            problems.append(f"export: {name} differs")
    return problems


def _figure_differences(
    expected: Path, found: Path, iterations: int, beside: Collection[str]
) -> list[str]:
    before, after = _figures(expected, "iteration"), _figures(found, "iteration")
    order = [line["iteration"] for line in after]
    if order != list(range(iterations)):
        return [f"metrics.jsonl: iterations {order}"]
    problems = [
        f"metrics.jsonl: {key} of iteration {new['iteration']} is {new.get(key)}, not {old[key]}"
        for old, new in zip(before, after, strict=True)
        for key in old
        if key not in beside and new.get(key) != old[key]
    ]
    validations = [
        sorted((line["weights_version"], line["score"]) for line in _figures(run, "validation"))
        for run in (expected, found)
    ]
    if validations[0] != validations[1]:
        problems.append(f"metrics.jsonl: validation {validations[1]}, not {validations[0]}")
    return problems


def _figures(run: Path, kind: str) -> list[dict[str, Any]]:
    """Of one kind, without times, speeds, and what a restart found there."""
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [
        {
            key: value
            for key, value in line.items()
            if not key.endswith("_s") and key not in _OF_THE_MOMENT
        }
        for line in lines
        if line["kind"] == kind
    ]
