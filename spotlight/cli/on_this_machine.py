"""The commands that need no coordinator: a job from its file to its run on this machine."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from spotlight.cli.live_page import wanted_page
from spotlight.cli.options import (
    MirrorOption,
    PricesOption,
    RewardSecretOption,
    SetOption,
    StoreOption,
    WebCertificateOption,
    WebKeyOption,
    WebOption,
    WebPlainOption,
)
from spotlight.errors import UserError
from spotlight.files import path_problem


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
    prices: PricesOption = None,
) -> None:
    """Check a job for this machine and say what it would do, and how much memory it needs, without
    starting anything."""
    from rich.console import Console

    from spotlight.assets import is_builtin
    from spotlight.cli.job_files import operator_prices, read_job
    from spotlight.cli.local import new_run_folder
    from spotlight.cli.memory_plan import memory_table
    from spotlight.cli.plan import plan_lines
    from spotlight.cli.processes import run_in_process
    from spotlight.permissions import Permissions
    from spotlight.preflight.budget_checks import check_money
    from spotlight.preflight.checks import check, check_store, settled
    from spotlight.store.memory_folder import usable_base

    spec = read_job(job, changes or ())
    folder = new_run_folder(spec, None)
    files = check(spec, run_folder=folder, permissions=Permissions.parse((), reward_secret or ()))
    costs = check_money(spec, operator_prices(prices))
    base = usable_base("--store", store)
    images = sum(map(len, files.images.values()))
    memory = memory_table(settled(spec, files), files.checkpoint, gpu, base, images=images)
    check_store(spec, files, base)
    for model in filter(None, (spec.model, spec.work.preview_model)):
        if is_builtin(model.checkpoint):
            continue
        code = run_in_process("spotlight.checkpoint_trial", model, "the check of the model")
        if code:
            raise typer.Exit(code)
    console = Console()
    console.print(plan_lines(spec, files, folder, costs), "", memory, sep="\n")


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
    prices: PricesOption = None,
    operator_token: Annotated[
        Path | None,
        typer.Option(
            help="Write a join token here by which other commands reach this run while it lasts."
        ),
    ] = None,
    web: WebOption = "",
    web_certificate: WebCertificateOption = None,
    web_key: WebKeyOption = None,
    web_plain: WebPlainOption = False,
) -> None:
    """Run a job on this machine: starts a coordinator and local nodes, and submits to them."""
    from spotlight.cli.local import local_places, run_locally

    _check_choice(job, resume, run_folder)
    places = local_places(store, mirror, reward_secret or (), operator_token, prices)
    page = wanted_page(web, web_certificate, web_key, plain=web_plain)
    raise typer.Exit(run_locally(job, resume, run_folder, changes or (), places, page))


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


def _check_choice(job: Path | None, resume: Path | None, run_folder: Path | None) -> None:
    """Raise `UserError` unless either a job or a run to go on with is given, and what fits it."""
    from spotlight.cli.job_files import check_folder

    if (job is None) == (resume is None):
        raise UserError("give either a job file or --resume RUN")
    if resume is not None and run_folder is not None:
        raise UserError(
            "--run-folder: a run that is resumed stays in its folder; leave it out, or give a job"
            " file instead of --resume"
        )
    check_folder("--resume", resume)
    check_folder("--run-folder", run_folder)
