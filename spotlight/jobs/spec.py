"""JobSpec: what a user may ask for.

Every field is typed and validated when the job is loaded, before any process starts. An error names
the path of the field (`sampler.steps`), what is wrong and what to do. This module imports neither
torch nor diffusers; whether the checkpoint and the scorer are really there is checked by
`spotlight.preflight.checks`.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal

import msgspec

from spotlight.jobs.fields import (
    MOST_ITERATIONS,
    MOST_PREVIEWS,
    MOST_SAMPLES,
    MOST_WORKERS,
    Section,
    Threads,
    require,
)
from spotlight.jobs.losses import LOSSES, misfit
from spotlight.jobs.prices import PricesSpec
from spotlight.jobs.rewards import RewardSpec, ScoringSpec, require_rewards
from spotlight.jobs.sampling import SamplerSpec
from spotlight.jobs.sections import (
    BudgetSpec,
    ExplorationSpec,
    ModelSpec,
    PoolsSpec,
    PromptsSpec,
    ValidationSpec,
)
from spotlight.jobs.trackers import TrackerSpec, require_distinct_trackers
from spotlight.jobs.training import TrainingSpec
from spotlight.policies.training_parts import can_be_divided
from spotlight.types import RequestKind

_COMPARES = "an advantage compares samples of one prompt"


class WorkSpec(Section, frozen=True, kw_only=True):
    """What workers must know to denoise and score, for a job or for another program's loop."""

    model: ModelSpec
    """The model that denoises."""
    sampler: SamplerSpec
    """How; a request may take other steps."""
    rewards: tuple[RewardSpec, ...] = ()
    """What scores; empty: nothing is scored."""
    measured_rewards: tuple[RewardSpec, ...] = ()
    """What validation images are scored by: the same, and perhaps others behind."""
    drawn_again: tuple[RewardSpec, ...] = ()
    """Rewards that previews get once more, behind the others: those to train on must have had no
    say in the choice."""
    threads: Threads = 1
    """CPU threads that each worker computes with. [threads]"""
    preview_checkpoint: str = ""
    """The checkpoint of the model that makes previews instead; empty for none."""

    def __post_init__(self) -> None:
        require_rewards("rewards", self.rewards)

    @property
    def preview_model(self) -> ModelSpec | None:
        """The model that makes previews instead, as it is loaded; None if the trained one does."""
        if not self.preview_checkpoint:
            return None
        return ModelSpec(checkpoint=self.preview_checkpoint, attention=self.model.attention)

    def rewards_of(self, kind: RequestKind) -> tuple[RewardSpec, ...]:
        """What the images of a kind of request are scored by, in the order of their rewards."""
        match kind:
            case "evaluation":
                return self.measured_rewards
            case "preview":
                return (*self.rewards, *self.drawn_again)
            case "rollout" | "random":
                return self.rewards
            case "gradient":
                return ()


class JobSpec(Section, frozen=True, kw_only=True):
    """One post-training run."""

    name: str
    """Names the run folder; letters, digits, `.`, `_` and `-`."""
    model: ModelSpec
    """The model to post-train."""
    prompts: PromptsSpec
    """What to draw."""
    sampler: SamplerSpec
    """How to denoise."""
    seed: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)] = 0
    """Seed of every random choice of the run. Others are for telling luck from skill."""
    iterations: Annotated[int, msgspec.Meta(ge=1, le=MOST_ITERATIONS)] = 40
    """Number of iterations, each of which rolls out, scores and trains. [iterations]"""
    group_size: Annotated[int, msgspec.Meta(ge=2, extra={"hint": _COMPARES})] = 8
    """Samples per prompt group: the seeds that are kept and trained on. [samples]"""
    checkpoint_every: Annotated[int, msgspec.Meta(ge=1, le=MOST_ITERATIONS)] = 5
    """Iterations between checkpoints; weights that are validated are always saved. More are for
    large models, whose checkpoints take long. [iterations]"""
    keep_checkpoints: Annotated[int, msgspec.Meta(ge=1, le=MOST_ITERATIONS)] = 1
    """How many of the latest checkpoints are kept; the one with the best validation is always kept.
    [checkpoints]"""
    threads: Threads = 1
    """CPU threads that each worker computes with. The job sets this, because other numbers may
    round differently: runs with equal bits need equal threads everywhere. More are for workers
    without a GPU. [threads]"""
    rewards: tuple[RewardSpec, ...] = (RewardSpec(),)
    """How images are scored: by one reward, or by several, each normalised by itself before they
    are summed."""
    scoring: ScoringSpec = ScoringSpec()
    """What happens when a scorer fails, or when all rewards are equal."""
    training: TrainingSpec = TrainingSpec()
    """How the weights are updated."""
    exploration: ExplorationSpec = ExplorationSpec()
    """What spot workers do while reserved workers train."""
    validation: ValidationSpec = ValidationSpec()
    """How progress is measured."""
    pools: PoolsSpec = PoolsSpec()
    """What `spotlight run` starts on this machine."""
    trackers: tuple[TrackerSpec, ...] = ()
    """Who is told of the run's metrics, besides the run folder."""
    prices: PricesSpec = PricesSpec()
    """What GPUs cost."""
    budget: BudgetSpec = BudgetSpec()
    """What the run may cost."""

    def __post_init__(self) -> None:
        require(
            re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", self.name) is not None,
            "name",
            "use letters, digits, `.`, `_` and `-` only, 64 characters at most",
        )
        self._require_rewards()
        require_distinct_trackers(self.trackers)
        pools = (self.pools.reserved, self.pools.spot)
        workers = sum(pool.nodes * pool.workers for pool in pools)
        require(
            workers <= MOST_WORKERS,
            "pools",
            f"{workers:,} workers are more than one machine starts ({MOST_WORKERS:,})",
        )
        self._require_sizes()
        require(
            self.preview_steps <= self.sampler.steps or self.exploration.mode == "none",
            "exploration.preview_steps",
            f"must be at most `sampler.steps` ({self.sampler.steps}), not {self.preview_steps}: a"
            " preview should be cheap",
        )
        require(
            self.preview_steps < self.sampler.steps or not self.exploration.preview_checkpoint,
            "exploration.preview_steps",
            f"must be below `sampler.steps` ({self.sampler.steps}) with"
            f" `exploration.preview_checkpoint`, not {self.preview_steps}; 1 to 8 are usual",
        )
        require(
            self.preview_steps < self.sampler.steps or self.exploration.preview_solver is None,
            "exploration.preview_solver",
            "needs previews of fewer steps than a rollout (`exploration.preview_steps` below"
            f" {self.sampler.steps}), which are no samples; or leave it out",
        )
        self._require_reusable_previews()
        self._require_training()

    def _require_sizes(self) -> None:
        samples = self.samples_per_iteration
        require(
            samples <= MOST_SAMPLES,
            "group_size",
            f"{self.prompts.per_iteration:,} prompts x {self.group_size:,} are {samples:,} samples"
            f" in an iteration, but at most {MOST_SAMPLES:,} are possible; lower it or"
            " `prompts.per_iteration`",
        )
        previews = samples * self.exploration.candidates
        require(
            previews <= MOST_PREVIEWS,
            "exploration.candidates",
            f"{previews:,} previews in an iteration are more than can be ({MOST_PREVIEWS:,});"
            " lower it",
        )

    def _require_training(self) -> None:
        samples = self.samples_per_iteration
        require(
            samples % (self.training.updates_per_iteration * self.training.ranks) == 0,
            "training.updates_per_iteration",
            f"{samples} samples cannot be divided evenly among "
            f"{self.training.updates_per_iteration} updates and {self.training.ranks} ranks",
        )
        require(
            not self.training.sharded or self.model.tuning == "full",
            "training.sharded",
            "needs `model.tuning: full`: adapters are small enough for every rank; leave it out",
        )
        require(
            not self.training.cpu_offload or self.model.tuning == "full",
            "training.cpu_offload",
            "needs `model.tuning: full`: adapters are small enough for the accelerator; leave it"
            " out",
        )
        require(
            not self.training.cpu_offload or self.training.sharded or self.training.ranks == 1,
            "training.cpu_offload",
            f"needs `training.sharded: true` with {self.training.ranks} ranks: each would keep all"
            " of it in host memory otherwise",
        )
        updates = self.iterations * self.training.updates_per_iteration
        require(
            self.training.warmup_updates < updates,
            "training.warmup_updates",
            f"must be below the {updates:,} updates of the job, not"
            f" {self.training.warmup_updates:,}: it would end before the full learning rate",
        )
        if self.training.loss == "diffusion_nft":
            require(
                self.training.updates_per_iteration > 1 or self.training.rollout_decay > 0,
                "training.rollout_decay",
                "must be above 0 with 1 update per iteration: DiffusionNFT would train only where"
                " it equals its old policy, where nothing holds it back, and unlearn to a reward"
                " of 0 within some 20 iterations; use 0.1, or 2 for"
                " `training.updates_per_iteration`",
            )
            require(
                self.training.updates_per_iteration > 1 or self.training.rollout_decay_after == 0,
                "training.rollout_decay_after",
                "must be 0 with 1 update per iteration: until then DiffusionNFT would train only"
                " where it equals its old policy, and unlearn",
            )
        if self.training.loss in LOSSES:
            facts = LOSSES[self.training.loss]
            problem = misfit(self.training.loss, facts.samplers, self.sampler, self.training)
            if problem is not None:
                require(False, *problem)

    def _require_reusable_previews(self) -> None:
        if not self.trains_on_older:
            return
        finishes = self.exploration.finish == "previous"
        reusing = [
            name
            for name, facts in LOSSES.items()
            if facts.reuses and (not finishes or "ode" in facts.samplers)
        ]
        field = "finish" if finishes else "reuse"
        require(
            self.training.loss in reusing,
            f"exploration.{field}",
            f"needs a `training.loss` that can train on samples of older weights"
            f" ({', '.join(f'`{name}`' for name in reusing)}), not `{self.training.loss}`",
        )
        if finishes:
            return self._require_cheap_previews()
        require(
            self.exploration.preview_steps in (None, self.sampler.steps),
            "exploration.preview_steps",
            f"must be {self.sampler.steps} as `sampler.steps`, or absent, with"
            f" `exploration.reuse`, not {self.exploration.preview_steps}: the previews are the"
            " samples",
        )

    def _require_cheap_previews(self) -> None:
        require(
            self.preview_steps < self.sampler.steps,
            "exploration.preview_steps",
            f"must be below `sampler.steps` ({self.sampler.steps}) with `exploration.finish:"
            " previous`; previews with all steps are trained on as they are with"
            " `exploration.reuse: true`",
        )
        require(
            self.sampler.kind == "ode",
            "exploration.finish",
            f"must be `newest` with `sampler.kind: {self.sampler.kind}`: previews of fewer steps"
            " are made without noise, and say next to nothing of samples that are made with it",
        )

    def _require_rewards(self) -> None:
        require(bool(self.rewards), "rewards", "name at least one, such as `- kind: ocr`")
        require_rewards("rewards", self.rewards)
        trained = [reward.name for reward in self.rewards]
        require_rewards("validation.rewards", self.validation.rewards, trained)
        for index, reward in enumerate(self.validation.rewards):
            require(
                not reward.weight_by_tag,
                f"validation.rewards[{index}].weight_by_tag",
                "is for advantages, which these rewards have no part in; remove it",
            )
        self._require_groups()

    def _require_groups(self) -> None:
        """A reward that compares images needs some, at whatever it scores."""
        compared = next((reward.name for reward in self.measured_rewards if reward.groupwise), "")
        require(
            not compared or self.validation.seeds > 1,
            "validation.seeds",
            f"must be at least 2: `{compared}` compares the images of a prompt",
        )
        if not self.compares:
            return
        require(
            self.exploration.mode != "bandit",
            "exploration.mode",
            f"must be `uniform`, `random` or `none` with `{compared}`, which compares previews of a"
            " prompt: a bandit asks for one at a time",
        )
        if self.exploration.reuse:
            field, wanted = "reuse", "false"
        elif self.exploration.finish == "previous":
            field, wanted = "finish", "`newest`"
        else:
            field = "weights"
            wanted = f"`previous`, or `preview_steps` below {self.sampler.steps},"
        require(
            not self.trains_on_previews,
            f"exploration.{field}",
            f"must be {wanted} with `{compared}`, which compares previews with others than the kept"
            " ones: these rewards cannot be trained on",
        )

    @property
    def work(self) -> WorkSpec:
        """What workers must know to denoise and score."""
        return WorkSpec(
            model=self.model,
            sampler=self.sampler,
            rewards=self.rewards,
            measured_rewards=self.measured_rewards,
            drawn_again=tuple(
                reward for reward in self.rewards if reward.noisy and self.trains_on_previews
            ),
            threads=self.threads,
            preview_checkpoint=self.exploration.preview_checkpoint,
        )

    @property
    def degree(self) -> Literal["auto"] | int:
        """SP degree: 1 where `auto` would let it depend on time which bits a repeatable run has."""
        degree = self.sampler.degree
        return 1 if degree == "auto" and self.exploration.budget == "fixed" else degree

    @property
    def measured_rewards(self) -> tuple[RewardSpec, ...]:
        """The rewards of a validation image: those that are trained on, then the others."""
        return (*self.rewards, *self.validation.rewards)

    @property
    def reward_fields(self) -> dict[str, RewardSpec]:
        """The same rewards, by the fields that they stand in."""
        places = {f"rewards[{at}]": one for at, one in enumerate(self.rewards)}
        others = {f"validation.rewards[{at}]": o for at, o in enumerate(self.validation.rewards)}
        return places | others

    @property
    def compares(self) -> bool:
        """Whether a reward that is trained on compares the images of a prompt group."""
        return any(reward.groupwise for reward in self.rewards)

    @property
    def reward_weights(self) -> tuple[float, ...]:
        """Of the rewards that are trained on."""
        return tuple(reward.weight for reward in self.rewards)

    @property
    def noisy_rewards(self) -> tuple[bool, ...]:
        """Whether each of the rewards that are trained on is noisy."""
        return tuple(reward.noisy for reward in self.rewards)

    @property
    def trains_on_previews(self) -> bool:
        """Whether the chosen previews may be the samples: because the job says so, because cheap
        ones may turn out to be of no use, or because they are made with the very weights, settings
        and steps of a rollout."""
        exploration = self.exploration
        explores_anew = exploration.mode != "none" and exploration.weights == "fresh"
        are_samples = explores_anew and self.preview_steps == self.sampler.steps
        return self.trains_on_older or are_samples

    @property
    def trains_on_older(self) -> bool:
        """Whether samples may be made with the weights of the iteration before."""
        return self.exploration.reuse or self.exploration.finish == "previous"

    @property
    def trained_on(self) -> tuple[RequestKind, ...]:
        """The kinds of requests whose samples may be trained on."""
        return ("rollout", "preview") if self.trains_on_previews else ("rollout",)

    @property
    def preview_steps(self) -> int:
        """Denoising steps of a preview."""
        return self.exploration.preview_steps or self.sampler.steps

    @property
    def explored_prompts(self) -> int:
        """Prompt groups of one iteration from which exploration chooses those to train on."""
        pool = 1 if self.exploration.mode == "none" else self.exploration.prompt_pool
        return pool * self.prompts.per_iteration

    @property
    def divides_training(self) -> bool:
        """Whether an iteration whose samples are previews is trained in two parts, and those of the
        later one are chosen while the first is trained."""
        explores = self.exploration.reuse and self.exploration.budget == "window"
        prompts, updates = self.prompts.per_iteration, self.training.updates_per_iteration
        return explores and can_be_divided(prompts, updates)

    @property
    def samples_per_iteration(self) -> int:
        """Prompt groups times group size."""
        return self.prompts.per_iteration * self.group_size
