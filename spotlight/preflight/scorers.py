"""Whether the scorers of a job can be made on this machine, as far as that can be told before any
of their code runs. Needs neither numpy nor torch."""

from __future__ import annotations

from spotlight.errors import JobError, UserError
from spotlight.jobs import JobSpec, RewardSpec
from spotlight.permissions import Permissions
from spotlight.preflight.packages import require_packages
from spotlight.rewards.authorization import read_authorization
from spotlight.rewards.plugins import check_plugin

SCORER_MODULES: dict[str, tuple[str, ...]] = {
    "ocr": ("rapidocr", "onnxruntime"),
    "compositional": ("cv2",),
    "http": ("httpx2",),
    "judge": ("httpx2",),
}
"""What the extra `rewards` installs for a kind of reward."""


def check_scorers(job: JobSpec, permissions: Permissions) -> None:
    """Raise what is wrong with one of them: `JobError` that names the field, or
    `MissingDependency`."""
    for field, rewards in (
        ("rewards", job.rewards),
        ("validation.rewards", job.validation.rewards),
    ):
        for index, reward in enumerate(rewards):
            _check_scorer(f"{field}[{index}]", reward, permissions)


def _check_scorer(field: str, reward: RewardSpec, permissions: Permissions) -> None:
    needed = SCORER_MODULES.get(reward.kind, ())
    require_packages(needed, "rewards", f"`{field}.kind: {reward.kind}` needs")
    if reward.kind == "python":
        try:
            check_plugin(reward)
        except JobError as error:
            raise JobError(f"{field}.python", error.problem) from error
    endpoint = reward.http or reward.judge
    if endpoint is not None:
        try:
            secret = permissions.secret_of(endpoint)
            if secret is not None:
                read_authorization(secret.file, secret.variable)
        except UserError as error:
            raise JobError(f"{field}.{reward.kind}", str(error)) from error
