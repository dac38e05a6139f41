"""Whether the scorers of a job can be made on this machine, as far as that can be told before any
of their code runs. Needs neither numpy nor torch."""

from __future__ import annotations

import math
from pathlib import Path

from spotlight.diffusion.checkpoint_files import read_header
from spotlight.diffusion.hub import CONFIG, require_shown
from spotlight.errors import CheckpointError, JobError, MissingDependency, ScoringError, UserError
from spotlight.jobs import JobSpec, RewardSpec
from spotlight.jobs.clip_rewards import PUBLISHED, ClipSpec
from spotlight.jobs.hub_names import HubName
from spotlight.permissions import Permissions
from spotlight.preflight.packages import require_packages
from spotlight.rewards.authorization import read_authorization
from spotlight.rewards.hpsv3_question import hpsv3_question
from spotlight.rewards.hub_models import require_plain, weights_in
from spotlight.rewards.plugins import check_plugin
from spotlight.types import Prompt

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
    for field, reward in job.reward_fields.items():
        _check_scorer(field, reward, permissions)


def _check_scorer(field: str, reward: RewardSpec, permissions: Permissions) -> None:
    needed = SCORER_MODULES.get(reward.kind, ())
    require_packages(needed, "rewards", f"`{field}.kind: {reward.kind}` needs")
    if reward.kind in PUBLISHED:
        _check_clip(field, reward)
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


def _check_clip(field: str, reward: RewardSpec) -> None:
    needed = ("torch", "transformers", "safetensors")
    require_packages(needed, "worker", f"`{field}.kind: {reward.kind}` needs")
    if reward.kind == "hpsv3":
        _check_question(field)
    names = (reward.clip or ClipSpec()).of(reward.kind)
    files = PUBLISHED[reward.kind].file or CONFIG, CONFIG
    for part, name, file in zip(("checkpoint", "processor"), names, files, strict=True):
        part_field, on_hub = f"{field}.clip.{part}", HubName.parse(name)
        if on_hub is not None:
            try:
                require_shown(on_hub, file)
            except CheckpointError as error:
                problem = str(error).removeprefix("model.checkpoint: ")
                raise JobError(part_field, problem) from error
        elif file == CONFIG and not list(Path(name).glob(f"*{CONFIG}")):
            raise JobError(
                part_field,
                f"{name} is no folder in the layout of transformers: it has no config.json; give"
                " one, or a name of the hub, such as `hf:ORGANISATION/NAME`",
            )
    _check_weights(f"{field}.clip.checkpoint", reward)


def _check_question(field: str) -> None:
    try:
        hpsv3_question(Prompt(""))
    except MissingDependency as error:
        raise MissingDependency(f"{field}.kind: {error}") from error
    except ScoringError as error:
        raise JobError(f"{field}.kind", str(error)) from error


def _check_weights(field: str, reward: RewardSpec) -> None:
    """Those that are in a folder."""
    try:
        require_plain(_weights_in_folder(reward))
    except ValueError as error:
        raise JobError(field, str(error)) from error
    if not scorer_parameters(reward):
        file = PUBLISHED[reward.kind].file or "*.safetensors"
        raise JobError(field, f"its folder holds no weights ({file}); copy the whole model")


def scorer_parameters(reward: RewardSpec) -> int:
    """How many numbers a scorer that is a model of ours keeps on its device; 0 for others, of which
    nobody knows it."""
    if reward.kind not in PUBLISHED:
        return 0
    checkpoint, _ = (reward.clip or ClipSpec()).of(reward.kind)
    if HubName.parse(checkpoint) is not None:
        return PUBLISHED[reward.kind].parameters
    headers = map(read_header, _weights_in_folder(reward))
    tensors = (tensor for header in headers for tensor in header.tensors.values())
    return sum(math.prod(tensor.shape) for tensor in tensors)


def _weights_in_folder(reward: RewardSpec) -> list[Path]:
    """The files of its weights; none where they are on the hub."""
    checkpoint, _ = (reward.clip or ClipSpec()).of(reward.kind)
    if HubName.parse(checkpoint) is not None:
        return []
    folder, file = Path(checkpoint), PUBLISHED[reward.kind].file
    return sorted(folder.glob(file)) if file else weights_in(folder)


def scorer_bytes(reward: RewardSpec) -> int:
    """How many bytes these numbers take."""
    published = PUBLISHED.get(reward.kind)
    return 0 if published is None else published.number_bytes * scorer_parameters(reward)
