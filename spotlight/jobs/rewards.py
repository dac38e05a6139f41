"""The rewards of a job: which scorers there are, what each needs, and what a failure costs.

A field's docstring ends with its unit in square brackets, where it has one.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from importlib.metadata import entry_points
from typing import Annotated, Any, Literal

import msgspec

from spotlight.jobs.clip_rewards import PUBLISHED, ClipSpec
from spotlight.jobs.fields import (
    LARGEST_REWARD,
    LONGEST_SCORING_S,
    MOST_REPEATS,
    MOST_REWARDS,
    Section,
    require,
)
from spotlight.jobs.problems import option_path, option_problem
from spotlight.jobs.remote_rewards import HttpSpec, JudgeSpec

RewardKind = Literal[
    "ocr",
    "compositional",
    "clip",
    "pickscore",
    "hpsv2",
    "hpsv3",
    "aesthetic",
    "http",
    "judge",
    "python",
]
_ANY_SHARE = (0.0, 1.0)
"""The range of a reward that says nothing of it."""
GROUP = "spotlight.rewards"
"""Entry points by which a package offers scorers."""


class RewardSpec(Section, frozen=True, kw_only=True):
    """One reward: its scorer, and its weight."""

    kind: RewardKind = "ocr"
    """The scorer: `ocr` reads the text in the image and compares it with the quoted text of the
    prompt; `compositional` checks number, colour and position of circles, squares and triangles;
    `clip`, `pickscore`, `hpsv2`, `hpsv3` and `aesthetic` are models of how well images fit their
    prompts, or please; `http` asks a server; `judge` asks a vision-language model; `python` is a
    function or a class of your own."""
    name: str = ""
    """Names the reward in metrics and reports; the kind when absent."""
    weight: Annotated[float, msgspec.Meta(ge=-LARGEST_REWARD, le=LARGEST_REWARD)] = 1.0
    """Weight of the reward among several; with 0 it is only measured."""
    weight_by_tag: Mapping[
        str, Annotated[float, msgspec.Meta(ge=-LARGEST_REWARD, le=LARGEST_REWARD)]
    ] = {}
    """The weight that advantages have instead for prompts with a `tag` in their metadata, by the
    tag. Whatever is shown, and the choice of seeds, goes by `weight`. It is for rewards that matter
    to some kinds of prompts, such as one for text, or for kinds that are to be learnt faster."""
    range: tuple[float, float] | None = _ANY_SHARE
    """The least and the greatest reward that the scorer gives, or `null` for any number; a reward
    outside counts as a failure of the scorer. It is for scorers whose rewards lie elsewhere than
    between 0 and 1; `clip`, `pickscore`, `hpsv2`, `hpsv3` and `aesthetic` have ranges of their own
    instead of that."""
    noisy: bool = False
    """Whether the scorer may give the same image another reward the next time. Where chosen
    previews are trained on, such a reward is drawn twice: once to choose by, once to train on. It
    is for judges that draw their answers."""
    limit_s: Annotated[float, msgspec.Meta(gt=0, le=LONGEST_SCORING_S)] = 600.0
    """How long the scorer may take for one batch. After that it has failed, and is created again.
    More is for large scorers. [seconds]"""
    http: HttpSpec | None = None
    """The server of `kind: http`."""
    judge: JudgeSpec | None = None
    """The model of `kind: judge`."""
    clip: ClipSpec | None = None
    """The weights of `clip`, `pickscore`, `hpsv2`, `hpsv3` or `aesthetic`; the published ones by
    default."""
    python: str = ""
    """The function or class of `kind: python`: `package.module:function`, `package.module:Class`,
    or the name of an entry point of the group `spotlight.rewards`. It must be importable on every
    machine that scores, and its package must be allowed there (`--allow-code`)."""
    options: Mapping[str, Any] = {}
    """Keyword arguments of that function or class."""
    groupwise: bool = False
    """Whether `kind: python` scores all images of a prompt group in one call, and so can compare
    them. It is for judges of pairs, and for diversity; one worker is sent all images of a group for
    it."""

    def __post_init__(self) -> None:
        self._complete()
        self._require_its_section()
        self._require_own_code()

    def _complete(self) -> None:
        """Its name and its range, where the job leaves them out."""
        msgspec.structs.force_setattr(self, "name", self.name or self.kind)
        require(
            re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]{0,31}", self.name) is not None,
            "name",
            "use letters, digits, `_` and `-` only, 32 characters at most",
        )
        published = PUBLISHED.get(self.kind)
        if published is not None and self.range == _ANY_SHARE:
            msgspec.structs.force_setattr(self, "range", published.range)
        if self.range is not None:
            low, high = self.range
            require(
                -LARGEST_REWARD <= low < high <= LARGEST_REWARD,
                "range",
                f"must be two numbers, the lower one first, within {LARGEST_REWARD:,.0f} of 0, not"
                f" {[low, high]}; or `null`",
            )

    def _require_its_section(self) -> None:
        """What belongs to its kind is there, and nothing that belongs to another one."""
        require(
            self.kind in PUBLISHED or self.clip is None,
            "clip",
            f"belongs to {', '.join(f'`{kind}`' for kind in PUBLISHED)}, but this reward's kind is"
            f" `{self.kind}`; remove it",
        )
        for field in ("http", "judge", "python"):
            given = getattr(self, field)
            require(
                self.kind == field or not given,
                field,
                f"belongs to `kind: {field}`, but this reward's kind is `{self.kind}`; remove it",
            )
            require(
                self.kind != field or bool(given),
                field,
                f"is missing; `kind: {field}` needs it",
            )
        require(
            self.judge is None or self.judge.formula == "ocr" or self.range is not None,
            "range",
            "must be two numbers with `judge.formula: rubric`: they are the worst and the best"
            " grade",
        )

    def _require_own_code(self) -> None:
        """What is said of the user's own code is of some, and can be sent."""
        require(
            self.kind == "python" or not self.groupwise,
            "groupwise",
            f"belongs to `kind: python`, but this reward's kind is `{self.kind}`; remove it",
        )
        require(
            self.kind == "python" or not self.options,
            "options",
            f"belong to `kind: python`, but this reward's kind is `{self.kind}`; remove them",
        )
        for name, value in self.options.items():
            problem = option_problem(value)
            require(not problem, option_path(name), problem)
        require(
            not self.python
            or re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*|[\w][\w.-]*", self.python) is not None,
            "python",
            "must be `package.module:function`, `package.module:Class`, or the name of an entry"
            " point of the group `spotlight.rewards`",
        )

    @property
    def limits(self) -> tuple[float, float]:
        """The least and the greatest valid reward, both included."""
        return self.range or (-LARGEST_REWARD, LARGEST_REWARD)

    def problem_with(self, value: float) -> str:
        """Why a number cannot be this reward; empty if it can."""
        low, high = self.limits
        if low <= value <= high:
            return ""
        if not math.isfinite(value):
            return f"{value} is not a valid reward"
        return f"{value:g} is outside the range [{low:g}, {high:g}] of `{self.name}`"


def scorer_target(name: str) -> str | None:
    """`module:name` of a scorer of the user's own by the name that a job gives it; None when there
    is none."""
    if ":" in name:
        return name
    found = {f"{entry.module}:{entry.attr}" for entry in entry_points(group=GROUP, name=name)}
    return found.pop() if len(found) == 1 else None


class ScoringSpec(Section, frozen=True, kw_only=True):
    """What happens when a scorer fails, or when all rewards are equal."""

    attempts: Annotated[int, msgspec.Meta(ge=1, le=MOST_REPEATS)] = 3
    """How often a batch is scored before its failure counts. More are for scorers that fail now and
    then. [tries]"""
    on_failure: Literal["drop_group", "stop"] = "drop_group"
    """What happens to prompt groups that could not be scored: they are dropped, or the job stops. A
    failure never becomes a reward of 0. `stop` is for those who would rather mend the scorer than
    train on fewer prompts."""
    flat_iterations: Annotated[int, msgspec.Meta(ge=1, le=MOST_REPEATS)] = 5
    """The job stops after this many iterations in a row in which all rewards were equal, because
    there is nothing to learn from. More are for rewards that the untrained model hardly ever gets.
    [iterations]"""


def require_rewards(field: str, rewards: Sequence[RewardSpec], taken: Sequence[str] = ()) -> None:
    """Refuse rewards of a list that share a name or bear one that is `taken`, too many of them, and
    weights by which there is no mean."""
    require(len(rewards) <= MOST_REWARDS, field, f"name at most {MOST_REWARDS}")
    total = math.fsum(reward.weight for reward in rewards)
    require(
        not rewards or total > 0,
        f"{field}[0].weight",
        f"the weights of all rewards sum to {total:g}, but must sum to more than 0",
    )
    names = list(taken)
    for index, reward in enumerate(rewards):
        require(
            reward.name not in names,
            f"{field}[{index}].name",
            f"another reward is called `{reward.name}` already; give each a `name` of its own",
        )
        names.append(reward.name)
