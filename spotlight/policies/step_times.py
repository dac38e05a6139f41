"""How long a denoising step takes, learned while a job runs.

A key is measured by the median of its newest measurements, so that a slow first step after a
regroup, or a machine that stalls once, moves nothing. What is not measured is estimated:

- From other degrees of the same shape by Amdahl's law, `t(d) = t(1) * ((1 - f) / d + f)`: the share
  `f` of a step (communication, what every rank does in full) gains nothing from more members. With
  one measured degree `f` is a prior; with several, `t(1)` and `f` are fitted by least squares.
- From another resolution or micro-batch size of the same model in proportion to the pixels. That is
  kept simple on purpose: attention grows faster than that, and a small batch fills an accelerator
  badly, so estimates far from what is measured are low for larger shapes and high for smaller ones.

Pure: seconds are handed in.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Mapping
from typing import Any, NamedTuple

SERIAL_SHARE = 0.1
"""`f` before two degrees are measured. A guess: 8 members make a step 4.7 times as fast."""

_WINDOW = 15
_LARGEST = 2**31 - 1


class StepKey(NamedTuple):
    """What the time of a step depends on."""

    model: str
    """Fingerprint of the model."""
    height: int
    """The height of the image in pixels; `width` is its width."""
    width: int
    degree: int
    """Members that denoise a micro-batch together."""
    micro_batch: int
    """Samples that are denoised together."""
    frames: int = 1
    """The frames of a video; an image has one."""

    @property
    def pixels(self) -> int:
        """Of the whole micro-batch."""
        return self.height * self.width * self.frames * self.micro_batch


class StepTimes:
    """Seconds of a denoising step by model, image size, degree and micro-batch."""

    def __init__(self) -> None:
        self._recent_s: dict[StepKey, deque[float]] = {}
        """The newest measurements."""

    def measure(self, key: StepKey, seconds: float) -> None:
        """One more measurement: a step, or the mean of the steps of one micro-batch.

        Raises `ValueError` unless the seconds are finite and above 0.
        """
        if not 0 < seconds < math.inf:
            raise ValueError(f"a step takes a finite time above 0 s, not {seconds} ({key})")
        self._recent_s.setdefault(key, deque(maxlen=_WINDOW)).append(float(seconds))

    def get(self, key: StepKey) -> float | None:
        """Measured seconds; None when this very key was never measured."""
        return statistics.median(self._recent_s[key]) if key in self._recent_s else None

    def estimate(self, key: StepKey) -> float | None:
        """Seconds as measured; else from other degrees of this shape; else from the shape of this
        model whose number of pixels is nearest; None when nothing of the model is measured."""
        measured = self.get(key)
        if measured is not None:
            return measured
        shapes = {other._replace(degree=key.degree) for other in self._recent_s}
        nearest = min(
            (shape for shape in shapes if shape.model == key.model),
            key=lambda shape: (shape != key, abs(math.log(shape.pixels / key.pixels)), shape),
            default=None,
        )
        if nearest is None:
            return None
        return self._at_degree(nearest) * key.pixels / nearest.pixels

    def _at_degree(self, key: StepKey) -> float:
        """Of a shape that is measured at some degree."""
        measured = self.get(key)
        if measured is not None:
            return measured
        by_degree = {
            other.degree: statistics.median(self._recent_s[other])
            for other in sorted(self._recent_s)
            if other._replace(degree=key.degree) == key
        }
        return _amdahl(by_degree, key.degree)

    def to_dict(self) -> dict[str, Any]:
        """Everything that was learned, in plain JSON types."""
        return {
            "step_times": [
                {**key._asdict(), "recent_s": list(recent_s)}
                for key, recent_s in sorted(self._recent_s.items())
            ]
        }

    @classmethod
    def from_dict(cls, saved: object) -> StepTimes:
        """What `to_dict` gave. Raises `ValueError`, naming the entry, for anything else."""
        entries = saved.get("step_times") if isinstance(saved, dict) else None
        if not isinstance(entries, list):
            raise ValueError("step_times: expected a list of measured step times")
        loaded = cls()
        for number, entry in enumerate(entries):
            where = f"step_times[{number}]"
            if not isinstance(entry, dict):
                raise ValueError(f"{where}: expected a table, not {entry!r}")
            key, recent_s = _key(where, entry), _measurements(where, entry)
            if key in loaded._recent_s:
                raise ValueError(f"{where}: {key} is there twice")
            loaded._recent_s[key] = deque(recent_s, maxlen=_WINDOW)
        return loaded


def _amdahl(by_degree: Mapping[int, float], degree: int) -> float:
    """Seconds at `degree` by those at one or more other degrees (see the module)."""
    if len(by_degree) == 1:
        [(known, seconds)] = by_degree.items()
        return seconds * _share_of_t1(degree) / _share_of_t1(known)
    inverse = [1 / known for known in by_degree]
    seconds_of = list(by_degree.values())
    # t = a / d + b, with a = t(1) * (1 - f) and b = t(1) * f; neither can be below 0.
    slope, constant = statistics.linear_regression(inverse, seconds_of)
    if slope < 0:
        return statistics.fmean(seconds_of)
    if constant < 0:
        slope, constant = statistics.linear_regression(inverse, seconds_of, proportional=True)
    return slope / degree + constant


def _share_of_t1(degree: int) -> float:
    return (1 - SERIAL_SHARE) / degree + SERIAL_SHARE


def _key(where: str, entry: Mapping[Any, object]) -> StepKey:
    model = entry.get("model")
    if not isinstance(model, str):
        raise ValueError(f"{where}.model: expected text, not {model!r}")
    return StepKey(
        model,
        height=_positive_int(where, entry, "height"),
        width=_positive_int(where, entry, "width"),
        degree=_positive_int(where, entry, "degree"),
        micro_batch=_positive_int(where, entry, "micro_batch"),
        frames=_positive_int(where, {"frames": 1, **entry}, "frames"),
    )


def _measurements(where: str, entry: Mapping[Any, object]) -> list[float]:
    recent_s = entry.get("recent_s")
    if not isinstance(recent_s, list) or not 1 <= len(recent_s) <= _WINDOW:
        raise ValueError(f"{where}.recent_s: expected a list of 1 to {_WINDOW} times")
    for seconds in recent_s:
        if not isinstance(seconds, float) or not 0 < seconds < math.inf:
            raise ValueError(f"{where}.recent_s: expected finite times above 0, not {seconds!r}")
    return recent_s


def _positive_int(where: str, entry: Mapping[Any, object], field: str) -> int:
    value = entry.get(field)
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= _LARGEST:
        raise ValueError(
            f"{where}.{field}: expected a whole number from 1 to {_LARGEST}, not {value!r}"
        )
    return value
