"""The text format of Prometheus, version 0.0.4: families of samples with a type and a help text.

Only what is needed of it: counters and gauges with labels.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True)
class Family:
    """A metric with all its samples. The name of a counter ends in `_total`."""

    name: str
    kind: Literal["counter", "gauge"]
    help: str
    samples: list[tuple[Mapping[str, str], float]] = field(default_factory=list)

    def add(self, value: float, **labels: str) -> None:
        """One more sample."""
        self.samples.append((labels, value))


def exposition(families: Iterable[Family]) -> str:
    """The text of those that have samples."""
    lines: list[str] = []
    for family in families:
        if not family.samples:
            continue
        lines.append(f"# HELP {family.name} {_escaped(family.help)}")
        lines.append(f"# TYPE {family.name} {family.kind}")
        lines += [
            f"{family.name}{_labels(labels)} {_number(value)}" for labels, value in family.samples
        ]
    return "".join(f"{line}\n" for line in lines)


def _labels(labels: Mapping[str, str]) -> str:
    if not labels:
        return ""
    told = (f'{name}="{_escaped(text, quotes=True)}"' for name, text in labels.items())
    return f"{{{','.join(told)}}}"


def _escaped(text: str, *, quotes: bool = False) -> str:
    text = text.replace("\\", r"\\").replace("\n", r"\n")
    text = text.replace('"', r"\"") if quotes else text
    return text.encode("utf-8", "replace").decode()  # file names may hold other bytes


def _number(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return repr(float(value))
