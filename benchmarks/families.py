"""Every family of models, on tiny random checkpoints: `python -m benchmarks.families --json`.

Our sampler is compared with the pipelines of diffusers, on the same latents in float32. Then each
family runs two whole jobs, one that trains all weights and one that trains adapters: with a
reserved worker and an SP group of two spot workers, which get a notice in the middle of a rollout;
once a commit of half-denoised samples is saved, every process is killed, and the run is resumed. A
job is done if it finished with all its samples and validations, if the group was formed, and if
the family's pipeline draws with its export what our sampler draws with the trained weights, and
something else without. Of the worker processes of all these jobs, the one that loaded most models
is named.

Every loss in the box takes twenty updates of every family, which must make it smaller.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice, product
from pathlib import Path
from typing import Any, Literal, get_args

import psutil
import yaml

from benchmarks.edit_job import run_edit_job
from benchmarks.family_exports import TOLERANCE, export_difference, trained_by
from benchmarks.family_losses import Fall, fall_of
from benchmarks.report import Report
from spotlight.diffusion.families.base import Family
from spotlight.diffusion.families.registry import FAMILIES, family_of
from spotlight.jobs.losses import LOSSES
from spotlight.store.journal import NAME as JOURNAL
from spotlight.store.record_files import whole_event_lines
from spotlight_simulation.pipeline_comparison import Case, Difference, compare, small_case
from spotlight_simulation.saved_rows import saved_rows
from spotlight_simulation.tiny_families import make_flux_without_guidance, make_tiny_checkpoint

ROOT = Path(__file__).parent.parent
SPOTLIGHT = [sys.executable, "-m", "spotlight.cli"]
PATIENCE_S = 300.0
ITERATIONS = 3
STEPS = 96
"""Enough for a notice in the middle of them."""
Tuning = Literal["full", "lora"]

CASES: dict[str, list[tuple[Case, dict[str, Any]]]] = {
    "qwen-image": [
        (Case(48, 32), {}),
        (Case(40, 56, guidance=4.0), {"use_dynamic_shifting": False, "shift": 2.0}),
    ],
    "qwen-image-2.1": [
        (Case(96, 32), {}),
        (Case(32, 64, guidance=4.0), {}),
        (Case(64, 96, guidance=2.0, steps=4), {"use_dynamic_shifting": False, "shift": 2.0}),
    ],
    "sd3": [
        (Case(36, 44), {}),
        (Case(44, 36, guidance=4.5), {}),
        (Case(32, 48, guidance=4.5, steps=4), {"use_dynamic_shifting": True}),
    ],
    "flux": [(Case(36, 44), {}), (Case(44, 36, guidance=3.5), {})],
    "flux-without-guidance": [
        (Case(36, 44), {}),
        (Case(32, 48, guidance=4.0), {"use_dynamic_shifting": True}),
    ],
    "flux2-klein": [
        (Case(36, 44), {}),
        (Case(44, 36, guidance=4.0), {}),
        (Case(32, 48, guidance=2.0, steps=4), {"use_dynamic_shifting": False}),
    ],
    "wan": [
        (Case(32, 48), {}),
        (Case(48, 32, frames=5), {}),
        (Case(48, 80, frames=9, guidance=5.0, steps=4), {"flow_shift": 5.0}),
    ],
    "anyflow": [
        (Case(32, 48, steps=1), {}),
        (Case(48, 32, frames=5, steps=4), {}),
        (Case(48, 80, frames=9, guidance=3.0, steps=8), {"shift": 2.0}),
        (Case(32, 64, frames=5, steps=2), {"shift": 1.0}),
    ],
    "wan-a14b": [
        (Case(32, 48, steps=4), {}),
        (Case(48, 32, frames=5, guidance=4.0, steps=6), {}),
        (Case(48, 80, frames=9, guidance=5.0, steps=4, guidance_2=3.0), {"flow_shift": 5.0}),
    ],
    "qwen-image-edit": [(Case(64, 128, guidance=4.0), {})],
    "z-image": [
        (Case(36, 44), {}),
        (Case(44, 36, guidance=4.5), {}),
        (Case(32, 48, guidance=2.0, steps=4), {"use_dynamic_shifting": True}),
    ],
    "krea2": [
        (Case(40, 56), {}),
        (Case(56, 40, guidance=4.5), {}),
        (Case(48, 32, guidance=2.0, steps=4), {"use_dynamic_shifting": False, "shift": 2.0}),
    ],
}
"""Sizes, guidance and changes of the scheduler; sizes are odd numbers of patches too."""


def make_checkpoint(name: str, folder: Path) -> None:
    """The tiny checkpoint of a key of `CASES`."""
    if name == "flux-without-guidance":
        make_flux_without_guidance(folder)
    else:
        make_tiny_checkpoint(name, folder)


def differences(checkpoints: Path, names: Iterable[str]) -> dict[str, Difference]:
    """The largest of each of these keys of `CASES`, whose checkpoints are in a folder."""
    found: dict[str, Difference] = {}
    for name in names:
        all_of_it = [
            compare(checkpoints / name, case, scheduler) for case, scheduler in CASES[name]
        ]
        found[name] = Difference(
            max(one.latents for one in all_of_it), max(one.pixels for one in all_of_it)
        )
    return found


def job_of(checkpoint: Path, tuning: Tuning, folder: Path, *, spot_workers: int = 2) -> Path:
    """Write the job file of a family in a new folder; all spot workers are one group."""
    folder.mkdir(parents=True)
    for name, count in (("train", 16), ("validation", 2)):
        lines = "".join(f"{name} picture number {number}\n" for number in range(count))
        (folder / f"{name}.txt").write_text(lines, encoding="utf-8")
    case = small_case(family_of(checkpoint))
    job = {
        "name": folder.name,
        "model": {"checkpoint": str(checkpoint), "tuning": tuning, "lora": {"rank": 4}},
        "prompts": {
            "train": str(folder / "train.txt"),
            "validation": str(folder / "validation.txt"),
            "per_iteration": 2,
        },
        "sampler": {
            "height": case.height,
            "width": case.width,
            "frames": case.frames,
            "kind": "flow_sde",
            "steps": STEPS,
            "evaluation_steps": 4,
            "guidance": case.guidance,
            "micro_batch": 2,
            "degree": spot_workers,
        },
        "rewards": [
            {"kind": "python", "name": "bright", "python": "benchmarks.brightness:Brightness"}
        ],
        "iterations": ITERATIONS,
        "group_size": 4,
        "checkpoint_every": 1,
        "training": {"loss": "flow_grpo", "micro_batch": 2, "learning_rate": 0.003},
        "exploration": {"budget": "fixed", "candidates": 2, "preview_steps": 4},
        "validation": {"seeds": 1, "every": 1},
        "pools": {
            "reserved": {"nodes": 1, "workers": 1},
            "spot": {"nodes": 1, "workers": spot_workers},
        },
    }
    path = folder / "job.yaml"
    path.write_text(yaml.safe_dump(job), encoding="utf-8")
    return path


def run_job(checkpoint: Path, tuning: Tuning, folder: Path, *, spot_workers: int = 2) -> None:
    """A whole job with a notice, a kill of everything, and a resumption; raises `AssertionError`
    saying what is not as it should be.
    """
    run, token = folder / "run", folder / "token"
    job = job_of(checkpoint, tuning, folder, spot_workers=spot_workers)
    process = subprocess.Popen(
        [*SPOTLIGHT, "run", str(job), "--run-folder", str(run), "--operator-token", str(token)],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
    )
    try:
        _until(lambda: _in_phase(run, "rollout", 1), process)
        _spotlight("preempt", "spot-0", "--notice", "0.3", "--join", f"@{token}")
        _until(lambda: bool(_events(run, "node_lost")), process)
    finally:
        _kill(process)
    assert _is_half_done(run), "nobody saved a commit of half-denoised samples"
    _spotlight("run", "--resume", str(run))
    _check(run, spot_workers)


def models_per_process(runs: Iterable[Path]) -> int:
    """The most that one worker process loaded, by the logs of runs."""
    loads = Counter[int]()
    for log in (log for run in runs for log in (run / "logs").glob("*.log")):
        for line in log.read_text(encoding="utf-8").splitlines():
            if '"model_loaded"' in line:
                loads[json.loads(line)["process"]] += 1
    return max(loads.values(), default=0)


def _is_half_done(run: Path) -> bool:
    """Whether a commit is saved of a sample that is in the middle of its steps."""
    journal = run / JOURNAL
    saved = saved_rows({journal: journal.read_bytes()})
    rows = [row for of_job in saved.values() for row in of_job.values()]
    return any(it.commit is not None and 0 < it.commit.step < STEPS for it in rows)


def _check(run: Path, spot_workers: int) -> None:
    (ended,) = _events(run, "run_finished")
    assert ended["outcome"] == "finished", ended
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    metrics = [json.loads(line) for line in lines]
    samples = {m["iteration"]: m["samples"] for m in metrics if m["kind"] == "iteration"}
    assert samples == dict.fromkeys(range(ITERATIONS), 8), samples
    validated = {m["weights_version"] for m in metrics if m["kind"] == "validation"}
    assert validated == set(range(ITERATIONS + 1)), validated
    previews = sum(m.get("previews", 0) for m in metrics)
    assert previews > 0, "nothing was explored"
    worker_log = (run / "logs" / "spot-0-0.log").read_text(encoding="utf-8")
    assert spot_workers == 1 or "group_formed" in worker_log, "no SP group"
    pictures = list((run / "validation").rglob("*.png"))
    assert len(pictures) == 2 * 2, pictures  # of the first weights and of the last


def _spotlight(*words: str) -> None:
    done = subprocess.run(
        [*SPOTLIGHT, *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"


def _events(run: Path, name: str) -> list[dict[str, Any]]:
    found = map(json.loads, whole_event_lines(run))
    return [event for event in found if event["event"] == name]


def _in_phase(run: Path, phase: str, iteration: int) -> bool:
    phases = _events(run, "phase")
    return any(it["phase"] == phase and it["iteration"] >= iteration for it in phases)


def _until(true: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not true():
        assert process.poll() is None, f"the run ended early, with {process.returncode}"
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.02)


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End the run's first process; all below it end by themselves."""
    below = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
    process.kill()
    process.wait()
    _, alive = psutil.wait_procs(below, timeout=PATIENCE_S)
    assert not alive, alive


def trained_figures(
    report: Report, families: Mapping[str, Family], tunings: Sequence[Tuning], folder: Path
) -> None:
    """Run the jobs of families, by the names of their checkpoints in a folder, and see what they
    exported.
    """
    done, exported = Counter[str](), dict[str, float]()
    for checkpoint, tuning in product(families, tunings):
        name = f"{checkpoint} {tuning}"
        of_job = folder / f"{checkpoint}-{tuning}"
        run = run_edit_job if families[checkpoint].image_processor else run_job
        began = time.monotonic()
        try:
            run(folder / checkpoint, tuning, of_job)
            report.add({f"job_s[{name}]": round(time.monotonic() - began, 1)})
            exported[name] = export_difference(folder / checkpoint, trained_by(of_job / "run"))
            assert exported[name] <= TOLERANCE, f"the export draws {exported[name]:.2g} off"
        except AssertionError as error:
            report.note(f"{name}: {error}")
        else:
            done[checkpoint] += 1
    families_done = {name for name, count in done.items() if count == len(tunings)}
    edits = {name for name, family in families.items() if family.image_processor}
    if edits:
        report.add({"edit_done": int(edits <= families_done)})
    all_equal = len(exported) == len(families) * len(tunings)
    report.add(
        {
            "families_done": len(families_done),
            "jobs_done": done.total(),
            "exports_equal": int(all_equal and max(exported.values()) <= TOLERANCE),
            "exports_max_difference": max(exported.values(), default=math.inf),
            "models_per_process": models_per_process(folder.glob("*/run")),
        }
    )


def loss_figures(falls: Mapping[str, Fall]) -> dict[str, Any]:
    """Of what became of losses, by the names of family and loss: the fraction that was finite after
    an update, and the fraction that fell; the others are named.
    """
    kinds = {
        "losses_finite": [name for name, fall in falls.items() if fall.is_finite],
        "losses_falling": [name for name, fall in falls.items() if fall.falls],
    }
    figures: dict[str, Any] = {name: len(good) / len(falls) for name, good in kinds.items()}
    for kind, good in kinds.items():
        figures[f"{kind}_not"] = [name for name in falls if name not in good]
    return figures


def main() -> None:
    """Print the largest differences, the families whose jobs are done, and the losses that fall."""
    report = Report("families", __doc__, minutes=15)
    quick = report.begin().quick
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["XDG_CACHE_HOME"] = str(folder / "cache")  # what other runs left is not measured
        families = {family.name: family for family in FAMILIES.values() if not family.any_step}
        families["wan-a14b"] = families["wan"]  # of two transformers
        if quick:
            families = dict(islice(families.items(), 1))
        names = [*families] if quick else [*CASES]
        for each in names:
            make_checkpoint(each, folder / each)
        found = differences(folder, names)
        report.add(
            {
                "latents_max_difference": max(one.latents for one in found.values()),
                "pixels_max_difference": max(one.pixels for one in found.values()),
            }
        )
        report.add({f"latents_difference[{family}]": one.latents for family, one in found.items()})
        tunings: tuple[Tuning, ...] = ("lora",) if quick else get_args(Tuning)
        report.add(
            loss_figures(
                {
                    f"{family} {loss}": fall_of(folder / family, loss)
                    for family, loss in product(families, LOSSES)
                }
            )
        )
        trained_figures(report, families, tunings, folder)
    report.finish()


if __name__ == "__main__":
    main()
