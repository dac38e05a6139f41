"""`spotlight try-reward`: the scorers of a job on image files, in a process that may load what they
need."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from spotlight.cli.options import JsonOption, RewardSecretOption, SetOption


def try_reward(
    job: Annotated[Path, typer.Argument(help="Job file (YAML).")],
    images: Annotated[
        Path, typer.Option(metavar="FOLDER", help="Images (PNG, JPEG or WebP) to score.")
    ],
    prompts: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Their prompts, in the order of the images' names, as many images to each; or"
            " JSON lines that name the `images` of each prompt. Default: the job's validation"
            " prompts, from the first on.",
        ),
    ] = None,
    changes: SetOption = None,
    reward_secret: RewardSecretOption = None,
    as_json: JsonOption = False,
) -> None:
    """Score images with the rewards of a job, without its model: rewards, times, memory, and where
    a scorer raised."""
    import msgspec

    from spotlight.cli.job_files import read_job
    from spotlight.diffusion.checkpoint_names import folder_here
    from spotlight.diffusion.families.registry import changes_images
    from spotlight.permissions import Permissions
    from spotlight.preflight.scorers import check_scorers
    from spotlight.rewards.trial.settings import TrialSettings

    spec = read_job(job, changes or ())
    permissions = Permissions.of(spec).plus(Permissions.parse((), reward_secret or ()))
    check_scorers(spec, permissions)
    is_compared = any(reward.groupwise for reward in spec.measured_rewards)
    each = spec.group_size if is_compared else 1
    settings = TrialSettings(
        rewards=spec.reward_fields,
        permissions=permissions,
        images=str(images),
        prompts=spec.prompts.validation if prompts is None else str(prompts),
        each=each if prompts is None else 0,
        changes_images=changes_images(folder_here(spec.model.checkpoint)),
        as_json=as_json,
    )
    argv = [sys.executable, "-m", "spotlight.rewards.trial"]
    # This process becomes the trial: a signal to it reaches the trial, and nobody stands between.
    os.execv(sys.executable, [*argv, msgspec.json.encode(settings).decode()])
