"""Reads the files of a job, and checks the job against this machine before any process starts.

Checked are the checkpoint, sizes, SP degree, prompts and their lengths, trackers and free disk
space, and, where workers are to run on this machine, their number and the packages that they need.

Reads JSON, the headers of safetensors files and file sizes, and asks which packages are installed;
it needs no torch. Each problem is one `UserError` whose message names the field or the path and
says what to do. It says in which line of a file something is wrong, and never what stands there: a
coordinator answers with it to whoever submits the job.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Mapping, Sequence, Sized
from pathlib import Path

import msgspec

from spotlight.assets import read_prompt_lines
from spotlight.assets.prompt_lines import metadata_json
from spotlight.diffusion.activations import FLOAT32
from spotlight.diffusion.checkpoint_names import pinned
from spotlight.errors import JobError, RunFolderError, UserError
from spotlight.files import Lines
from spotlight.jobs import JobSpec, RewardSpec, SamplerSpec, WorkSpec
from spotlight.jobs.losses import loss_target
from spotlight.own_classes import require_class
from spotlight.permissions import Permissions
from spotlight.preflight.checkpoint_facts import CheckpointInfo, inspect_checkpoint
from spotlight.preflight.memory import least_store, saved_bytes
from spotlight.preflight.packages import require_packages
from spotlight.preflight.previewers import with_previewer
from spotlight.preflight.prompt_images import PromptImages, refuse_twins
from spotlight.preflight.scorers import check_scorers
from spotlight.preflight.starts import find_start
from spotlight.rewards.categories import categories
from spotlight.rewards.hpsv3_question import MARK
from spotlight.rewards.quotes import quoted_text
from spotlight.rewards.shape_prompts import shapes_asked_of
from spotlight.store.memory_folder import default_base
from spotlight.text import plain
from spotlight.trackers.building import check_trackers
from spotlight.types import QUANTISERS, Prompt

WORKER_MODULES = ("torch", "diffusers", "safetensors", "numpy", "PIL")
_MOST_VALIDATION_IMAGES = 65_536
"""Most images of a validation: twice as many as the largest sets that models are compared on."""


class JobFiles(msgspec.Struct, frozen=True, kw_only=True):
    """What the files that a job names hold: read once, and used as it was checked."""

    checkpoint: CheckpointInfo
    train: Lines[Prompt]
    validation: Lines[Prompt]
    images: Mapping[str, bytes] = {}
    """The files of images that prompts come with are named by their digests."""

    @property
    def categories(self) -> dict[str, str]:
        """Of each training prompt, by its text."""
        return categories(self.train.items)

    @property
    def prompt_digests(self) -> dict[str, str]:
        """Of the prompts, in their order and with their metadata, by the field that names them."""
        return {
            "prompts.train": _digest(self.train.items),
            "prompts.validation": _digest(self.validation.items),
        }

    @property
    def metadata(self) -> dict[str, str]:
        """What requests carry of a prompt besides its text, by that; for prompts that have some."""
        prompts = (*self.train.items, *self.validation.items)
        return {prompt.text: metadata_json(prompt) for prompt in prompts if prompt.metadata}


def _digest(prompts: Sequence[Prompt]) -> str:
    known = [{"text": prompt.text, "metadata": prompt.metadata} for prompt in prompts]
    return hashlib.sha256(msgspec.json.encode(known)).hexdigest()


def read_job_files(job: JobSpec) -> JobFiles:
    """Read the files that a job names; raises `CheckpointError` or `JobError`."""
    checkpoint = inspect_checkpoint(job.model)
    _require_trainable(checkpoint)
    checkpoint = with_previewer(checkpoint, job)
    lists = {
        "prompts.train": _prompts("prompts.train", job.prompts.train),
        "prompts.validation": _validation_prompts(job),
    }
    images = PromptImages()
    for field, lines in lists.items():
        if checkpoint.family.image_processor:
            lists[field] = images.read(field, lines)
        else:
            refuse_twins(field, lines)
    train, validation = lists.values()
    return JobFiles(checkpoint=checkpoint, train=train, validation=validation, images=images.files)


def check(
    job: JobSpec,
    *,
    run_folder: Path | None = None,
    local_workers: bool = True,
    permissions: Permissions = Permissions(),
) -> JobFiles:
    """Raise what is wrong with a job on this machine; otherwise return what its files hold.

    `run_folder` is where the run will write (the working folder when absent); `local_workers` says
    that the workers are those of the job's `pools`, on this machine: they must be enough, and their
    packages must be installed here. There they may do what the job names, and what `permissions`
    allow besides.

    Raises `CheckpointError`, `JobError`, `MissingDependency` or `RunFolderError`.
    """
    files = read_job_files(job)
    _check_size_and_degree(job.sampler, files.checkpoint)
    _check_prompts(job, files)
    _check_negative_prompt(job, files.checkpoint)
    check_trackers(job.trackers)
    if local_workers:
        _check_pools(job)
        check_packages(job, files.checkpoint, permissions)
    check_room(job, files, run_folder or Path.cwd())
    return files


def settled(job: JobSpec, files: JobFiles) -> JobSpec:
    """The job with what is left to its files: the commit that a checkpoint of the hub means now,
    the iteration of the run that it begins with, and how many tokens its prompts are padded to. So
    all its workers do the same, also when it is resumed. Raises `CheckpointError`, or `JobError` of
    `model.start`.
    """
    model = msgspec.structs.replace(job.model, checkpoint=pinned(job.model.checkpoint))
    if model.start:
        model = msgspec.structs.replace(model, start=find_start(model).name)
    previews = job.exploration.preview_checkpoint
    exploration = msgspec.structs.replace(job.exploration, preview_checkpoint=pinned(previews))
    job = msgspec.structs.replace(job, model=model, exploration=exploration)
    if job.sampler.text_tokens is not None:
        return job
    prompts = [*files.train.items, *files.validation.items]
    texts = [job.model.negative_prompt, *map(_text, prompts)]
    tokens = files.checkpoint.least_length(texts)
    sampler = msgspec.structs.replace(job.sampler, text_tokens=tokens)
    return msgspec.structs.replace(job, sampler=sampler)


def check_work(work: WorkSpec) -> CheckpointInfo:
    """Raise what is wrong with work that another program's loop has done; otherwise return what its
    checkpoint says. Raises `CheckpointError` or `JobError`.
    """
    name = work.model.checkpoint
    if name != (kept := pinned(name)):
        raise JobError(
            "model.checkpoint",
            f"`{name}` may mean another checkpoint tomorrow, or on another node; now it means"
            f" `{kept}`: name that",
        )
    if work.preview_checkpoint:
        raise JobError("preview_checkpoint", "is for jobs; leave it out")
    if work.model.start:
        raise JobError(
            "model.start", "is for jobs; publish the weights that the session is to begin with"
        )
    checkpoint = inspect_checkpoint(work.model)
    if checkpoint.family.image_processor:
        raise JobError(
            "model.checkpoint",
            "changes images, which a session does not send; run it as a job, whose prompts name"
            " their images",
        )
    _require_trainable(checkpoint)
    _check_size_and_degree(work.sampler, checkpoint)
    return checkpoint


def disk_nbytes(job: JobSpec, files: JobFiles) -> int:
    """About how many bytes a run folder grows to.

    The checkpoints that are kept, the best and a new one (which is complete before an old one
    goes), the parts that sharded ranks leave, the published weights, the exported model, and the
    validation pictures.
    """
    trained = files.checkpoint.trainable
    weights = FLOAT32 * trained
    picture = 3 * job.sampler.height * job.sampler.width * job.sampler.frames
    pictures = 3 * picture * len(set(files.validation.map(_text).items))
    best = 1 + bool(job.validation.rewards)  # and the best by what nobody trains on
    parts = 2 * job.training.sharded  # of which a checkpoint is made
    kept = job.keep_checkpoints + best + 1 + parts
    checkpoints = kept * saved_bytes(job.training) * trained
    published, exported = 2 * weights, weights
    return checkpoints + published + exported + pictures


def _require_trainable(checkpoint: CheckpointInfo) -> None:
    if checkpoint.family.any_step:
        raise JobError(
            "model.checkpoint",
            f"is of {checkpoint.family.name}, which predicts the average velocity of a whole step,"
            " while all losses train the velocity of a moment; train another, such as Wan 2.1, and"
            " name this one as `exploration.preview_checkpoint`",
        )


def _check_size_and_degree(sampler: SamplerSpec, checkpoint: CheckpointInfo) -> None:
    tokens = checkpoint.tokens(sampler.height, sampler.width, sampler.frames)
    if checkpoint.previewer is not None:
        checkpoint.previewer.tokens(sampler.height, sampler.width, sampler.frames)
    if sampler.text_tokens is not None and sampler.text_tokens not in checkpoint.text_lengths:
        possible = ", ".join(map(str, checkpoint.text_lengths))
        raise JobError(
            "sampler.text_tokens",
            f"prompts of this checkpoint cannot be padded to {sampler.text_tokens} tokens; "
            + (f"use one of {possible}" if possible else "leave it out: they have one length"),
        )
    if sampler.degree == "auto":
        return
    reason = checkpoint.refusal(sampler.degree, tokens)
    if reason is not None:
        possible = ", ".join(map(str, checkpoint.degrees(sampler.degree, tokens)))
        raise JobError("sampler.degree", f"{reason}; use `auto` or one of {possible}")


def _prompts(field: str, name: str) -> Lines[Prompt]:
    try:
        return read_prompt_lines(name)
    except JobError as error:
        raise JobError(field, error.problem) from error


def _validation_prompts(job: JobSpec) -> Lines[Prompt]:
    """Those that the job validates on, which may be some of the file's."""
    lines, wanted = _prompts("prompts.validation", job.prompts.validation), job.validation.prompts
    if wanted is None:
        return lines
    if wanted > len(lines.items):
        raise JobError(
            "validation.prompts",
            f"{wanted:,} prompts are wanted, but `prompts.validation` has only"
            f" {len(lines.items):,}; lower it or add prompts",
        )
    return lines.spread(wanted)


def _check_prompts(job: JobSpec, files: JobFiles) -> None:
    trained = set(files.train.map(_text).items)
    validated = files.validation.map(_text)
    shared = [index for index, prompt in enumerate(validated.items) if prompt in trained]
    if shared:
        raise JobError(
            "prompts.validation",
            f"{files.validation.place(shared[0])}: this prompt is in `prompts.train` too"
            f"{_and_more(shared)}; validate on prompts that are not trained on",
        )
    for field, wanted, what in (
        ("prompts.per_iteration", job.prompts.per_iteration, "drawn"),
        ("exploration.prompt_pool", job.explored_prompts, "explored"),
    ):
        if len(trained) < wanted:
            raise JobError(
                field,
                f"{wanted} prompts are {what} for an iteration, but `prompts.train` has only "
                f"{len(trained)}; lower it or add prompts",
            )
    images = len(files.validation.items) * job.validation.seeds
    if images > _MOST_VALIDATION_IMAGES:
        raise JobError(
            "validation.seeds",
            f"{len(files.validation.items):,} prompts x {job.validation.seeds:,} seeds are "
            f"{images:,} images in each validation, but at most {_MOST_VALIDATION_IMAGES:,} can be;"
            " lower it or shorten `prompts.validation`",
        )
    for reward in job.rewards:
        _check_scorable("prompts.train", files.train, reward)
    for reward in job.measured_rewards:
        _check_scorable("prompts.validation", files.validation, reward)
    _check_tags(job, files)
    most = job.sampler.text_tokens
    _check_lengths("prompts.train", files.train.map(_text), files.checkpoint, most)
    _check_lengths("prompts.validation", validated, files.checkpoint, most)


def _check_tags(job: JobSpec, files: JobFiles) -> None:
    """A weight for a tag that no prompt has would be without effect, and where all weights are 0
    for all prompts there is nothing to learn."""
    said = (prompt.metadata.get("tag") for prompt in files.train.items)
    tags = {tag if isinstance(tag, str) else "" for tag in said}  # "" for prompts without one
    advice = "name one that is there" if any(tags) else "give prompts as JSON lines with a `tag`"
    for index, reward in enumerate(job.rewards):
        for tag in sorted(reward.weight_by_tag.keys() - tags):
            raise JobError(
                f"rewards[{index}].weight_by_tag",
                f"no prompt of `prompts.train` has the tag `{plain(tag)}`; {advice}",
            )
    if not any(one.weight_by_tag.get(tag, one.weight) for one in job.rewards for tag in tags):
        index = next(index for index, one in enumerate(job.rewards) if one.weight_by_tag)
        raise JobError(
            f"rewards[{index}].weight_by_tag",
            "all rewards weigh 0 for every prompt of `prompts.train`, so there is nothing to learn;"
            " give one of them another weight",
        )


def _text(prompt: Prompt) -> str:
    return prompt.text


def _check_scorable(field: str, lines: Lines[Prompt], reward: RewardSpec) -> None:
    """The OCR reward compares with the first text in quotes, the compositional one with the
    metadata of the prompt; without that they cannot score. HPSv3 reads no prompt that has marks of
    its own.
    """
    if reward.kind == "ocr" or (reward.judge and reward.judge.formula == "ocr"):
        silent = [index for index, each in enumerate(lines.items) if not quoted_text(each.text)]
        if silent:
            raise JobError(
                field,
                f"{lines.place(silent[0])}: this prompt has no text in quotes for the"
                f" `{reward.kind}` reward to look for{_and_more(silent)}; add it, as in"
                ' `a sign that says "OPEN"`',
            )
    if reward.kind == "hpsv3":
        marked = [index for index, each in enumerate(lines.items) if MARK in each.text]
        if marked:
            raise JobError(
                field,
                f"{lines.place(marked[0])}: this prompt has `{MARK}`, with which the own marks of"
                f" the model of `hpsv3` begin{_and_more(marked)}; write it in another way",
            )
    if reward.kind == "compositional":
        for index, prompt in enumerate(lines.items):
            try:
                shapes_asked_of(prompt)
            except ValueError as error:
                raise JobError(field, f"{lines.place(index)}: {error}") from error


def _check_lengths(
    field: str, lines: Lines[str], checkpoint: CheckpointInfo, most: int | None
) -> None:
    """A prompt that is longer than what is read would lose its group in the middle of a run."""
    too_long = checkpoint.too_long(lines.items, most)
    if too_long:
        index, tokens = next(iter(too_long.items()))
        raise JobError(
            field,
            f"{lines.place(index)}: this prompt has {tokens} tokens, but"
            f" {_reader(checkpoint, most)}{_and_more(too_long)}; shorten it",
        )


def _check_negative_prompt(job: JobSpec, checkpoint: CheckpointInfo) -> None:
    most = job.sampler.text_tokens
    for tokens in checkpoint.too_long([job.model.negative_prompt], most).values():
        raise JobError(
            "model.negative_prompt",
            f"has {tokens} tokens, but {_reader(checkpoint, most)}; shorten it",
        )


def _reader(checkpoint: CheckpointInfo, most: int | None) -> str:
    if most is not None:
        return f"`sampler.text_tokens` is {most}"
    return f"the checkpoint's text encoder reads at most {checkpoint.most_tokens}"


def _and_more(found: Sized) -> str:
    return f" (and {len(found) - 1} more)" if len(found) > 1 else ""


def _check_pools(job: JobSpec) -> None:
    """Nobody else joins whom the trainer ranks could wait for."""
    ranks, reserved = job.training.ranks, job.pools.reserved
    if ranks > reserved.nodes * reserved.workers:
        raise JobError(
            "training.ranks",
            f"{ranks} trainer ranks need as many reserved workers, but `pools.reserved` has only"
            f" {reserved.nodes * reserved.workers}; raise its `nodes` or `workers`",
        )


def check_packages(
    job: JobSpec, checkpoint: CheckpointInfo, permissions: Permissions = Permissions()
) -> None:
    """Raise `MissingDependency` unless workers of the job can run on this machine."""
    needed = list(WORKER_MODULES)
    if job.model.tuning == "lora":
        needed.append("peft")
    if job.model.quantize != "none":
        who = f"`model.quantize: {job.model.quantize}` needs"
        require_packages([QUANTISERS[job.model.quantize]], "quantize", who)
    if checkpoint.needs_transformers:
        needed.append("transformers")
    require_packages(needed, "worker", "workers on this machine need")
    require_class("training.loss", str(loss_target(job.training.loss)), {"terms": 3, "evaluate": 2})
    check_scorers(job, Permissions.of(job).plus(permissions))


def check_store(job: JobSpec, files: JobFiles, base: Path | None) -> None:
    """Raise `UserError` if a node of this machine has no room for weights and states of training in
    the folder of its store; None for the default. A trainer would wait for it.
    """
    folder = base or default_base()
    free = shutil.disk_usage(folder).free
    needed = least_store(job, files.checkpoint)
    if needed > free:
        raise UserError(
            f"{folder}: the weights and states of training that nodes keep there need at least"
            f" {needed / 1e6:.1f} MB, but only {free / 1e6:.1f} MB are free; free some space or"
            " name another folder with --store"
        )


def check_room(job: JobSpec, files: JobFiles, run_folder: Path) -> None:
    """Raise `RunFolderError` if the disk of a run folder has no room for the run."""
    places = (run_folder, *run_folder.absolute().parents)
    try:
        free = shutil.disk_usage(next(path for path in places if path.exists())).free
    except OSError as error:
        raise RunFolderError(
            f"{run_folder}: {error.strerror}; choose another run folder"
        ) from error
    needed = disk_nbytes(job, files)
    if needed > free:
        raise RunFolderError(
            f"{run_folder}: the run needs about {needed / 1e9:.1f} GB, but only "
            f"{free / 1e9:.1f} GB are free; free some space or choose another run folder"
        )
