"""The `spotlight` command.

Heavy imports happen inside the commands, so that `--help` answers at once. A `UserError` becomes
one line on standard error and a non-zero exit code.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from spotlight.actors.runtime.logs import log_as_json_lines
from spotlight.cli import going_on
from spotlight.cli.door import nodes, revoke, token
from spotlight.cli.lines import one_line
from spotlight.cli.options import (
    JoinOption,
    MirrorOption,
    RewardSecretOption,
    SetOption,
    StoreOption,
    VersionOption,
)
from spotlight.cli.reaching import reaching
from spotlight.cli.serve_reward import serve_reward
from spotlight.errors import UserError
from spotlight.files import path_problem
from spotlight.policies.departure import LONGEST_NOTICE_S
from spotlight.process_start import outlive_notices, standard_streams
from spotlight.types import ExportedWeights, ExportFormat

app = typer.Typer(
    help="Post-train Diffusion Transformers with reinforcement learning on reserved and spot GPUs.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.add_typer(token, name="token")
app.command()(revoke)
app.command()(nodes)
app.command()(going_on.resume)
app.command()(going_on.fork)


@app.callback()
def options(version: VersionOption = False) -> None:
    """Options that need no command."""


def main() -> None:
    """Entry point of the `spotlight` command."""
    outlive_notices()
    with standard_streams("spotlight"):
        log_as_json_lines(logging.ERROR)
        try:
            app()
        except UserError as error:
            sys.stderr.write(f"spotlight: {one_line(error)}\n")
            sys.exit(error.exit_code)


@app.command()
def run(
    job: Annotated[Path | None, typer.Argument(help="Job file (YAML).")] = None,
    resume: Annotated[
        Path | None,
        typer.Option("--resume", help="Go on with the run in this folder; --set changes its job."),
    ] = None,
    run_folder: Annotated[
        Path | None,
        typer.Option("--run-folder", help="Where the run's files go; default runs/NAME-NNN."),
    ] = None,
    changes: SetOption = None,
    store: StoreOption = None,
    mirror: MirrorOption = "",
    reward_secret: RewardSecretOption = None,
    operator_token: Annotated[
        Path | None,
        typer.Option(
            help="Write a join token here by which other commands reach this run while it lasts."
        ),
    ] = None,
) -> None:
    """Run a job on this machine: starts a coordinator and local nodes, and submits to them."""
    from spotlight.cli.local import local_places, run_locally

    _check_choice(job, resume, run_folder, changes)
    places = local_places(store, mirror, reward_secret or (), operator_token)
    raise typer.Exit(run_locally(job, resume, run_folder, changes or (), places))


@app.command()
def restore(
    url: Annotated[str, typer.Argument(help="The --mirror of the run, and its name: URL/RUN.")],
    run: Annotated[Path, typer.Argument(help="Run folder to make; new or empty.")],
) -> None:
    """Bring a run back from object storage, to go on with it on this machine."""
    from spotlight.store.object_store import open_store
    from spotlight.store.restore import restore

    problem = path_problem(os.path.abspath(run))
    if problem is not None:
        raise UserError(f"the run folder {problem}")
    manifest = restore(open_store("URL", url), run.resolve())
    nbytes = sum(file.nbytes for file in manifest.files)
    typer.echo(
        f"{run.resolve()}: the run after {manifest.completed} iterations"
        f" ({len(manifest.files)} files, {nbytes:,} bytes)"
    )
    typer.echo(f"continue with: spotlight run --resume {run.resolve()}")


@app.command()
def plan(
    job: Annotated[Path, typer.Argument(help="Job file (YAML).")],
    changes: SetOption = None,
    gpu: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="Refuse what does not fit into such a GPU: h200-141g, h100-80g, a100-80g,"
            " a100-40g, l40s-48g, rtx4090-24g, ... or a size, such as 24g.",
        ),
    ] = "",
    store: StoreOption = None,
    reward_secret: RewardSecretOption = None,
) -> None:
    """Check a job for this machine and say what it would do, and how much memory it needs, without
    starting anything."""
    from rich.console import Console

    from spotlight.assets import is_builtin
    from spotlight.cli.job_files import read_job
    from spotlight.cli.local import new_run_folder
    from spotlight.cli.memory_plan import memory_table
    from spotlight.cli.plan import plan_lines
    from spotlight.cli.processes import run_in_process
    from spotlight.permissions import Permissions
    from spotlight.preflight.checks import check, check_store, settled
    from spotlight.store.memory_folder import usable_base

    spec = read_job(job, changes or ())
    folder = new_run_folder(spec, None)
    files = check(spec, run_folder=folder, permissions=Permissions.parse((), reward_secret or ()))
    base = usable_base("--store", store)
    memory = memory_table(settled(spec, files), files.checkpoint, gpu, base)
    check_store(spec, files, base)
    if not is_builtin(spec.model.checkpoint):
        code = run_in_process("spotlight.checkpoint_trial", spec.model, "the check of the model")
        if code:
            raise typer.Exit(code)
    console = Console()
    console.print(plan_lines(spec, files, folder), "", memory, sep="\n")


@app.command()
def init(
    file: Annotated[Path, typer.Argument(help="The job file to write.")] = Path("job.yaml"),
    example: Annotated[
        str, typer.Option(help="Copy this example instead; --list names them.")
    ] = "",
    only_list: Annotated[bool, typer.Option("--list", help="Only list the examples.")] = False,
) -> None:
    """Write a job file in which every field is explained, and list the examples."""
    from spotlight.cli.init import example_lines, write_job_file

    if not only_list:
        written = write_job_file(file, example)
        typer.echo(f"wrote {', '.join(map(str, written))}; try it with: spotlight plan {file}\n")
    for line in example_lines():
        typer.echo(line)


@app.command()
def submit(
    job: Annotated[Path | None, typer.Argument(help="Job file (YAML).")] = None,
    resume: Annotated[
        Path | None, typer.Option("--resume", help="Continue the run in this folder.")
    ] = None,
    run_folder: Annotated[
        Path | None, typer.Option("--run-folder", help="Run folder on the coordinator's machine.")
    ] = None,
    changes: SetOption = None,
    join: JoinOption = "",
) -> None:
    """Submit a job to a running coordinator, or have it go on with a run as `resume` does."""
    from spotlight.cli.job_files import read_job
    from spotlight.running.client import submit_job

    _check_choice(job, resume, run_folder, changes)
    if job is None:
        return going_on.resume(resume or Path(), changes, join)
    spec = read_job(job, changes or ())
    place = str(run_folder.resolve()) if run_folder else ""
    accepted = reaching(join, lambda token: submit_job(token, spec, place, resume=False))
    typer.echo(f"submitted `{spec.name}`; its files are in {accepted.run_folder}")


@app.command()
def status(
    join: JoinOption = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show the progress of the coordinator's job."""
    import msgspec
    from rich.console import Console

    from spotlight.cli.live import render
    from spotlight.running.client import get_status

    answer = reaching(join, get_status)
    if as_json:
        typer.echo(msgspec.json.encode(answer).decode())
    else:
        Console().print(render(answer))


@app.command()
def cancel(join: JoinOption = "") -> None:
    """End the coordinator's job; it can be resumed from its run folder."""
    from spotlight.running.client import cancel_job

    before = reaching(join, cancel_job)
    if not before.job or before.outcome:
        raise UserError("no job is running")
    typer.echo(f"cancelled `{before.job}`; resume it with --resume {before.run_folder}")


@app.command()
def preempt(
    node: Annotated[str, typer.Argument(help="Name of the node.")],
    notice: Annotated[
        float,
        typer.Option(
            min=0.0,
            max=LONGEST_NOTICE_S,
            help="Seconds until the node would be taken away; at most a day.",
        ),
    ] = 30.0,
    cancel: Annotated[bool, typer.Option("--cancel", help="Withdraw the notice.")] = False,
    join: JoinOption = "",
) -> None:
    """Give a node notice, as its cloud would: it gives its work back and leaves the job."""
    from spotlight.running.client import preempt_node

    reaching(join, lambda token: preempt_node(token, node, notice, cancel=cancel))
    typer.echo(f"{node}: " + ("notice withdrawn" if cancel else f"notice of {notice:g} s given"))


@app.command()
def export(
    run: Annotated[Path, typer.Argument(help="Run folder of a run, finished or not.")],
    weights: Annotated[
        ExportedWeights,
        typer.Option(
            help="best: the averaged weights with the best validation; checked: those that are best"
            " by validation.rewards; ema: those of the newest checkpoint; newest: its weights as"
            " trained."
        ),
    ] = "best",
    format: Annotated[
        ExportFormat,
        typer.Option(
            help="Who loads it: diffusers, (adapters only) peft, or as a whole pipeline both"
            " diffusers and `model.checkpoint` of a job."
        ),
    ] = "diffusers",
    to: Annotated[Path | None, typer.Option(help="A new folder; default RUN/exports/....")] = None,
) -> None:
    """Write the weights of a run in a format that others load."""
    from spotlight.cli.processes import run_in_process
    from spotlight.exports.plan import plan_export
    from spotlight.preflight.checks import WORKER_MODULES, require_packages

    plan = plan_export(
        run.resolve(), weights=weights, format=format, folder=to.resolve() if to else None
    )
    require_packages(WORKER_MODULES, "worker", "an export needs")
    code = run_in_process("spotlight.exports.process", plan, "the export")
    if code:
        raise typer.Exit(code)
    score = "" if plan.score is None else f", validation {plan.score:.3f}"
    typer.echo(f"weights after {plan.iteration} iterations{score}: {plan.folder}")


@app.command()
def report(
    run: Annotated[Path, typer.Argument(help="Run folder.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
) -> None:
    """Write report.html of a run, or print its figures."""
    from spotlight.report.metrics import read_run, summarise
    from spotlight.report.rendering import write_report

    if as_json:
        typer.echo(json.dumps(summarise(read_run(run))))
    else:
        typer.echo(str(write_report(run)))


app.command()(serve_reward)


@app.command()
def chaos(
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds to run.")] = 200,
    first: Annotated[int, typer.Option(min=0, help="The first seed.")] = 0,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Run only this seed and print its history.")
    ] = None,
    processes: Annotated[int, typer.Option(min=1, help="Seeds that run at once.")] = 2,
) -> None:
    """Run simulated jobs, and sessions of programs with their own loop, with faults and check the
    invariants; exit 1 if one is violated."""
    try:
        from spotlight_simulation.command import replay, try_many
    except ModuleNotFoundError as error:
        raise UserError(
            f"chaos: {error.name} is missing; pip install 'spotlight-rl[simulation]'"
        ) from error

    raise typer.Exit(replay(seed) if seed is not None else try_many(first, seeds, processes))


def _check_choice(
    job: Path | None, resume: Path | None, run_folder: Path | None, changes: list[str] | None
) -> None:
    if (job is None) == (resume is None):
        raise UserError("give either a job file or --resume RUN")
    if resume is not None and run_folder is not None:
        raise UserError(
            "--run-folder: a run that is resumed stays in its folder; leave it out, or give a job"
            " file instead of --resume"
        )
    for option, folder in (("--resume", resume), ("--run-folder", run_folder)):
        problem = path_problem(os.path.abspath(folder)) if folder is not None else None
        if problem is not None:
            raise UserError(f"{option}: {problem}")
