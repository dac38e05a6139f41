"""An explorer without a job around it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from job_kit import World, job, offer

from spotlight.actors.coordinator.job.explorer import Explorer, Orders
from spotlight.policies.exploration.explored import ExplorationPlan, Explored
from spotlight.policies.exploration.reward_spread import Knowledge
from spotlight.types import Request, RequestKind, Result

NOTHING = Knowledge()


class Expedition:
    """An explorer, and what it ordered so far."""

    def __init__(
        self,
        budget: str,
        mode: str = "uniform",
        *,
        prompt_pool: int = 1,
        per_iteration: int = 2,
        groups: int = 1,
        candidates: int = 2,
        probes: int = 0,
        rewards: Sequence[Mapping[str, Any]] = ({},),
        **changes: Any,
    ) -> None:
        exploration: dict[str, Any] = {"budget": budget, "mode": mode, "prompt_pool": prompt_pool}
        exploration["probes"] = probes
        exploration["candidates"] = candidates * prompt_pool
        exploration["reuse"] = "training" in changes
        spec = job(
            exploration=exploration,
            prompts={"per_iteration": per_iteration},
            rewards=list(rewards),
            **changes,
        )
        self.explorer = Explorer(spec, groups=lambda: groups)
        self.prompts: tuple[str, ...] = ("a", "b")
        self.categories: tuple[str, ...] = ("", "")
        self.reward: Callable[[Request], float] = World.reward
        self.rewards: Callable[[Request], tuple[float, ...]] = lambda r: (self.reward(r),)
        self.now = 100.0
        self.submitted: list[Request] = []
        self.cancelled: list[RequestKind] = []
        self.outcomes: list[Explored] = []
        self.unused: tuple[str, ...] = ()

    def _note(self, orders: Orders) -> None:
        self.submitted += orders.requests
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
        **options: Any,
    ) -> None:
        plan = ExplorationPlan(
            iteration,
            iteration - 1,
            self.prompts,
            self.categories,
            window_s,
            knowledge,
            share,
        )
        self._note(self.explorer.start(plan, self.now, **options))

    def stop(self, iteration: int = 1, **options: Any) -> None:
        self._note(self.explorer.stop(iteration, self.now, **options))

    def settle(self, iteration: int = 1) -> None:
        self._note(self.explorer.settle(iteration))

    def go_on(self) -> None:
        self._note(self.explorer.go_on(self.now))

    def finish(self, previews: Sequence[Request]) -> None:
        results = [Result(r, self.rewards(r), offer(), 0) for r in previews]
        self._note(self.explorer.finished(results, self.now))

    def give_up(self, previews: Sequence[Request]) -> None:
        self._note(self.explorer.given_up(previews, self.now))

    def finish_all(self, order: Callable[[list[Request]], list[Request]] = list) -> None:
        """Finish previews until there are no new ones."""
        done: set[str] = set()
        while waiting := [r for r in self.submitted if r.id not in done]:
            for preview in order(waiting):
                done.add(preview.id)
                self.finish([preview])

    @property
    def explored(self) -> Explored:
        (explored,) = self.outcomes
        return explored
