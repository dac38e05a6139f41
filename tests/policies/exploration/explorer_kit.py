"""An explorer with nothing around it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from spotlight.policies.exploration.explored import ExplorationPlan, Explored
from spotlight.policies.exploration.explorer import Explorer, Orders, Preview
from spotlight.policies.exploration.planners import derived_seed
from spotlight.policies.exploration.reward_spread import Knowledge
from spotlight.policies.exploration.settings import ExplorationSettings

NOTHING = Knowledge()
KEEP = 4


def reward_of(preview: Preview) -> float:
    """In [0, 1), a function of the preview alone."""
    return derived_seed("reward", preview.iteration, preview.group, preview.seed) % 1000 / 1000


def settings(budget: str = "window", planner: str = "uniform", **changes: Any) -> Any:
    """Two groups of four, with twice as many previews."""
    usual: dict[str, Any] = {
        "seed": 0,
        "keep": KEEP,
        "trained": 2,
        "candidates": 2 * KEEP,
        "limits": ((0.0, 1.0),),
        "weights": (1.0,),
        "micro_batch": 4,
    }
    return ExplorationSettings(budget=budget, planner=planner, **(usual | changes))


class Expedition:
    """An explorer, and what it ordered so far."""

    def __init__(
        self,
        budget: str,
        planner: str = "uniform",
        *,
        prompts: Sequence[str] = ("a", "b"),
        groups: int = 1,
        **changes: Any,
    ) -> None:
        self.explorer = Explorer(settings(budget, planner, **changes))
        self.prompts = tuple(prompts)
        self.categories: tuple[str, ...] = ("",) * len(prompts)
        self.reward: Callable[[Preview], float] = reward_of
        self.rewards: Callable[[Preview], tuple[float, ...]] = lambda one: (self.reward(one),)
        self.now = 100.0
        self.submitted: list[Preview] = []
        self.cancelled = 0
        self.outcomes: list[Explored] = []
        self.unused: tuple[Preview, ...] = ()
        self._groups = groups

    def _note(self, orders: Orders) -> None:
        self.submitted += orders.previews
        self.cancelled += orders.cancel
        if orders.explored is not None:
            self.outcomes.append(orders.explored)
            self.unused = orders.unused

    def start(
        self,
        window_s: float = 10.0,
        iteration: int = 1,
        knowledge: Knowledge = NOTHING,
        share: float = 1.0,
        least: int = 0,
        **options: Any,
    ) -> None:
        plan = ExplorationPlan(
            iteration, self.prompts, self.categories, window_s, knowledge, share, least
        )
        self._note(self.explorer.start(plan, self.now, self._groups, **options))

    def stop(self, iteration: int = 1, **options: Any) -> None:
        self._note(self.explorer.stop(iteration, self.now, self._groups, **options))

    def settle(self, iteration: int = 1) -> None:
        self._note(self.explorer.settle(iteration))

    def go_on(self) -> None:
        self._note(self.explorer.go_on(self.now, self._groups))

    def finish(self, previews: Sequence[Preview]) -> None:
        for preview in previews:
            self.explorer.finished(preview, self.rewards(preview), self.now)
        self.go_on()

    def give_up(self, previews: Sequence[Preview]) -> None:
        for preview in previews:
            self.explorer.given_up(preview)
        self.go_on()

    def finish_all(self, order: Callable[[list[Preview]], list[Preview]] = list) -> None:
        """Finish previews until there are no new ones."""
        done: set[Preview] = set()
        while waiting := [one for one in self.submitted if one not in done]:
            for preview in order(waiting):
                done.add(preview)
                self.finish([preview])

    @property
    def explored(self) -> Explored:
        (explored,) = self.outcomes
        return explored
