"""What a study of staleness found: the rewards as they were given, and figures made of them.

Imports no torch. The figures are a function of the rewards and the study's seed alone.
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import msgspec

from benchmarks.staleness.rank_fidelity import RankFidelity, rank_fidelity
from spotlight.errors import RunFolderError
from spotlight.store.run_folder import replace_file

FORMAT = 1
SHUFFLES = 16
"""How often every prompt's rewards are shuffled, for the control: one alone is off by chance as
much as any row."""
RESULTS = Path("studies") / "staleness.json"
"""The path of the results inside the run folder."""

Treatment = Literal["rollout", "repeat", "preview"]
"""`rollout`: as samples are denoised. `repeat`: the same again, with other noise where the sampler
adds noise, else in other batches. `preview`: as exploration denoises candidates.
"""

Rewards = tuple[tuple[float, ...], ...]
"""One row per prompt, one reward per seed."""


class Scoring(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All seeds of all prompts, scored with one version of the weights."""

    treatment: Treatment
    lag: int
    """Iterations before the newest weights."""
    steps: int
    """Denoising steps of each sample."""
    rewards: Rewards


class Comparison(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A scoring against `rollout` with the newest weights."""

    treatment: Treatment | Literal["shuffled"]
    """`shuffled`: the rewards of the least lag, permuted among the seeds of each prompt, several
    times; its fidelity counts every permutation as a prompt.
    """
    lag: int
    reward: float
    """The mean of the rewards."""
    fidelity: RankFidelity


class StalenessRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What `staleness.json` holds."""

    format: int = FORMAT
    job: str
    checkpoint: str
    """The checkpoint from which training went on; empty for the job's initial weights."""
    completed: int
    """Iterations trained up to there."""
    trained: int
    """Iterations trained since."""
    sampler: str
    stochastic: bool
    """Whether the sampler adds noise."""
    keep: int
    """Seeds of a prompt that are kept: the job's group size."""
    seed: int
    prompts: tuple[str, ...]
    seeds: tuple[tuple[int, ...], ...]
    scorings: tuple[Scoring, ...]
    comparisons: tuple[Comparison, ...]


def compare(
    scorings: Sequence[Scoring], *, keep: int, seeds: Sequence[Sequence[int]], seed: int
) -> tuple[Comparison, ...]:
    """Every scoring against `rollout` at lag 0, which must be among them, and the control."""
    reference = next(s for s in scorings if (s.treatment, s.lag) == ("rollout", 0)).rewards

    def against(
        treatment: Treatment | Literal["shuffled"], lag: int, rewards: Rewards
    ) -> Comparison:
        # A generator of its own: more lags do not change the figures of the others.
        rng = random.Random(f"{seed}/{treatment}/{lag}")
        times = SHUFFLES if treatment == "shuffled" else 1
        if treatment == "shuffled":
            rewards = tuple(tuple(rng.sample(row, len(row))) for row in rewards * times)
        return Comparison(
            treatment=treatment,
            lag=lag,
            reward=sum(map(sum, rewards)) / sum(map(len, rewards)),
            fidelity=rank_fidelity(
                rewards, reference * times, keep=keep, seeds=tuple(seeds) * times, rng=rng
            ),
        )

    compared = [against(s.treatment, s.lag, s.rewards) for s in scorings]
    nearest = min((s for s in scorings if s.treatment == "rollout" and s.lag), key=lambda s: s.lag)
    return (*compared, against("shuffled", nearest.lag, nearest.rewards))


def make_results_folder(run: Path) -> None:
    """Make `studies/` in a run folder, before hours of work; raises `RunFolderError`."""
    folder = (run / RESULTS).parent
    with _explaining(folder):
        folder.mkdir(exist_ok=True)
        if not os.access(folder, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(folder))


def write_record(run: Path, record: StalenessRecord) -> None:
    """Write `RESULTS` into a run folder at once; raises `RunFolderError`."""
    data = msgspec.json.format(msgspec.json.encode(record), indent=1)
    write_result(run / RESULTS, data + b"\n")


def write_result(path: Path, data: bytes) -> None:
    """Write a file of `studies/` at once; raises `RunFolderError`."""
    with _explaining(path):
        replace_file(path, data)


@contextmanager
def _explaining(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise RunFolderError(
            f"{path}: {error.strerror}; the results of a study need a run folder that can be"
            " written"
        ) from error


def read_record(run: Path) -> StalenessRecord:
    """What `write_record` wrote; raises `RunFolderError` when it is not there or not as it was."""
    path = run / RESULTS
    try:
        return msgspec.json.decode(path.read_bytes(), type=StalenessRecord)
    except OSError as error:
        raise RunFolderError(f"{path}: cannot be read ({error.strerror})") from error
    except msgspec.DecodeError as error:
        raise RunFolderError(f"{path}: {error}; make the study again") from error
