"""The explorer: when it stops, what it chooses, what it counts."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from statistics import pvariance

import pytest
from job_kit import World, job, offer, recorder, settle
from runtime_kit import Cluster

from spotlight.actors.coordinator.explorer import Explorer
from spotlight.actors.coordinator.request_plans import preview_settings
from spotlight.actors.coordinator.step_profile import StepProfile
from spotlight.actors.protocol import (
    CancelRequests,
    Explored,
    RequestsFinished,
    RequestsGivenUp,
    StartExploration,
    StopExploration,
    SubmitRequests,
)
from spotlight.actors.runtime import Message
from spotlight.policies.dispatch.pace import Pace
from spotlight.policies.dispatch.table import RequestTable
from spotlight.policies.exploration.preview_effort import Effort
from spotlight.policies.exploration.prompt_population import Population
from spotlight.policies.exploration.reward_spread import Evidence, Knowledge
from spotlight.policies.step_times import StepTimes
from spotlight.types import Request, Result

pytestmark = pytest.mark.virtual_time

CANDIDATES = 16  # 2 groups x 4 seeds x 2 candidates


NOTHING = Knowledge()
EFFORT = Effort(preview_steps=2, prompt_pool=1)


class Expedition:
    """An explorer between a recorded dispatcher and a recorded runner."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.groups = 1
        self.categories = ("", "")
        self.reward: Callable[[Request], float] = World.reward
        self.table = RequestTable(pace=Pace(StepProfile("model", StepTimes())))

    async def open(
        self, budget: str, mode: str = "uniform", prompt_pool: int = 1, per_iteration: int = 2
    ) -> None:
        self.system = await self._cluster.system("coordinator")
        self.dispatcher = await recorder(self.system, "dispatcher")
        self.runner = await recorder(self.system, "runner")
        exploration = {"budget": budget, "mode": mode, "prompt_pool": prompt_pool}
        exploration["candidates"] = 2 * prompt_pool
        spec = job(exploration=exploration, prompts={"per_iteration": per_iteration})
        self.explorer = await self.system.spawn(
            lambda: Explorer(
                spec,
                self.dispatcher.ref,
                groups=lambda: self.groups,
                table=self.table,
            ),
            "explorer",
        )

    async def tell(self, message: Message) -> None:
        self.system.tell(self.explorer, message, sender=self.runner.ref)
        await settle()

    async def start(
        self, window_s: float = 10.0, iteration: int = 1, knowledge: Knowledge = NOTHING
    ) -> None:
        await self.tell(
            StartExploration(
                iteration,
                iteration - 1,
                ("a", "b"),
                self.categories,
                window_s,
                EFFORT,
                knowledge,
            )
        )

    def submitted(self) -> list[Request]:
        return [r for m in self.dispatcher.all(SubmitRequests) for r in m.requests]

    async def finish(self, previews: Sequence[Request]) -> None:
        results = [Result(r, self.reward(r), offer(), 0) for r in previews]
        await self.tell(RequestsFinished(tuple(results)))

    async def finish_all(self, order: Callable[[list[Request]], list[Request]] = list) -> None:
        """Finish previews until there are no new ones."""
        done: set[str] = set()
        while waiting := [r for r in self.submitted() if r.id not in done]:
            for preview in order(waiting):
                done.add(preview.id)
                await self.finish([preview])

    def explored(self) -> Explored:
        (explored,) = self.runner.all(Explored)
        return explored


@pytest.fixture
async def expedition() -> AsyncIterator[Expedition]:
    async with Cluster() as cluster:
        yield Expedition(cluster)


async def test_only_a_little_is_queued_at_a_time(expedition: Expedition) -> None:
    await expedition.open("fixed")
    await expedition.start()
    assert len(expedition.submitted()) == 8  # one batch of 4 in work and one waiting
    await expedition.finish(expedition.submitted()[:3])
    assert len(expedition.submitted()) == 11


async def test_it_says_how_many_candidates_are_still_to_come(expedition: Expedition) -> None:
    await expedition.open("window")
    await expedition.start(window_s=10.0)
    assert expedition.table.unsubmitted_previews == CANDIDATES - 8
    await expedition.finish(expedition.submitted()[:3])
    assert expedition.table.unsubmitted_previews == CANDIDATES - 11
    await asyncio.sleep(20.0)
    await expedition.finish(expedition.submitted()[3:4])
    assert expedition.table.unsubmitted_previews == 0, "there is no time for them"


async def test_nothing_is_still_to_come_once_seeds_are_chosen(expedition: Expedition) -> None:
    await expedition.open("window")
    await expedition.start(window_s=10.0)
    await expedition.tell(StopExploration(1))
    assert expedition.table.unsubmitted_previews == 0


async def test_previews_name_the_weights_and_settings_of_the_iteration(
    expedition: Expedition,
) -> None:
    await expedition.open("fixed")
    await expedition.start()
    for preview in expedition.submitted():
        assert (preview.kind, preview.iteration, preview.weights_version) == ("preview", 1, 0)
        assert preview.settings == preview_settings(job(), 1, EFFORT.preview_steps)
    assert [r.prompt for r in expedition.submitted()[:4]] == ["a", "b", "a", "b"]


async def test_a_window_budget_submits_nothing_after_its_deadline(expedition: Expedition) -> None:
    await expedition.open("window")
    await expedition.start(window_s=10.0)
    await asyncio.sleep(9.0)
    await expedition.finish(expedition.submitted()[:2])
    assert len(expedition.submitted()) == 10
    await asyncio.sleep(2.0)
    await expedition.finish(expedition.submitted()[2:5])
    assert len(expedition.submitted()) == 10


async def test_without_a_prediction_nothing_is_previewed(expedition: Expedition) -> None:
    await expedition.open("window")
    await expedition.start(window_s=0.0)
    await expedition.tell(StopExploration(1))
    assert expedition.submitted() == []
    assert [len(seeds) for seeds in expedition.explored().seeds] == [4, 4]
    assert expedition.explored().preview_rewards == ((None,) * 4,) * 2


async def test_a_window_budget_chooses_at_once_and_counts_what_it_dropped(
    expedition: Expedition,
) -> None:
    await expedition.open("window")
    await expedition.start()
    await expedition.finish(expedition.submitted()[:5])
    await expedition.tell(StopExploration(1))
    explored = expedition.explored()
    assert (explored.previews, explored.late) == (5, 8)
    assert expedition.dispatcher.all(CancelRequests) == [CancelRequests("preview")]


async def test_what_comes_after_the_choice_changes_nothing(expedition: Expedition) -> None:
    await expedition.open("window")
    await expedition.start()
    await expedition.tell(StopExploration(1))
    await expedition.finish(expedition.submitted())
    await expedition.tell(StopExploration(1))
    assert expedition.explored().previews == 0


async def test_the_stop_of_another_iteration_changes_nothing(expedition: Expedition) -> None:
    await expedition.open("window")
    await expedition.start(iteration=2)
    await expedition.tell(StopExploration(1))
    assert expedition.runner.inbox == []


async def test_a_fixed_budget_is_finished_first(expedition: Expedition) -> None:
    await expedition.open("fixed")
    await expedition.start(window_s=0.0)
    await expedition.tell(StopExploration(1))
    assert expedition.runner.inbox == []
    await expedition.finish_all()
    explored = expedition.explored()
    assert (explored.previews, explored.late) == (CANDIDATES, 0)
    assert expedition.dispatcher.all(CancelRequests) == []


async def test_a_fixed_budget_that_is_spent_waits_for_the_stop(expedition: Expedition) -> None:
    await expedition.open("fixed")
    await expedition.start()
    await expedition.finish_all()
    assert expedition.runner.inbox == []
    await expedition.tell(StopExploration(1))
    assert expedition.explored().previews == CANDIDATES


async def test_previews_that_are_given_up_do_not_hold_up_a_fixed_budget(
    expedition: Expedition,
) -> None:
    await expedition.open("fixed")
    await expedition.start()
    await expedition.tell(StopExploration(1))
    await expedition.tell(RequestsGivenUp(tuple(expedition.submitted()[:8]), "no luck"))
    await expedition.finish(expedition.submitted()[8:])
    explored = expedition.explored()
    assert explored.previews == CANDIDATES - 8
    failed = {r.seed for r in expedition.submitted()[:8]}
    scored = [
        seed
        for seeds, rewards in zip(explored.seeds, explored.preview_rewards, strict=True)
        for seed, reward in zip(seeds, rewards, strict=True)
        if reward is not None
    ]
    assert scored and not failed & set(scored)


@pytest.mark.parametrize("mode", ["random", "uniform", "bandit"])
@pytest.mark.parametrize("groups", [1, 3])
async def test_neither_order_nor_place_of_previews_changes_the_choice_of_a_fixed_budget(
    groups: int, mode: str
) -> None:
    choices = []
    for order in (list, lambda waiting: waiting[::-1], lambda w: sorted(w, key=lambda r: r.seed)):
        async with Cluster() as cluster:
            expedition = Expedition(cluster)
            expedition.groups = groups
            await expedition.open("fixed", mode)
            await expedition.start()
            await expedition.tell(StopExploration(1))
            await expedition.finish_all(order)
            explored = expedition.explored()
            found = explored.knowledge, explored.contrast_at_random
            choices.append((explored.seeds, explored.preview_rewards, *found))
    assert choices[0] == choices[1] == choices[2]


async def test_contrast_at_random_is_that_of_all_prompts_of_a_pool() -> None:
    """Those that are trained on contrast more by chance, too."""
    found = []
    for pool in (1, 2):
        async with Cluster() as cluster:
            expedition = Expedition(cluster)
            expedition.reward = lambda request: 0.5 if request.prompt == "a" else request.seed % 2
            await expedition.open("fixed", prompt_pool=pool, per_iteration=2 // pool)
            await expedition.start()
            await expedition.tell(StopExploration(1))
            await expedition.finish_all()
            found.append(expedition.explored())
    assert [len([group for group in one.seeds if group]) for one in found] == [2, 1]
    assert found[0].contrast_at_random == found[1].contrast_at_random > 0


async def test_any_are_kept_when_seeds_are_chosen_at_random() -> None:
    kept = []
    for mode in ("uniform", "random"):
        async with Cluster() as cluster:
            expedition = Expedition(cluster)
            await expedition.open("fixed", mode)
            await expedition.start()
            await expedition.tell(StopExploration(1))
            await expedition.finish_all()
            explored = expedition.explored()
            assert explored.previews == CANDIDATES
            kept.append(explored.preview_rewards)
    best, any_of_them = ([pvariance([r or 0.0 for r in group]) for group in each] for each in kept)
    assert all(one > other for one, other in zip(best, any_of_them, strict=True))


# --- a planner that learns ---


SPREAD = Knowledge({"a": Evidence(200.0, 200 * 0.09), "b": Evidence(200.0, 0.02)}, {})


async def test_prompts_known_to_spread_more_are_previewed_more(expedition: Expedition) -> None:
    await expedition.open("fixed", "bandit")
    await expedition.start(knowledge=SPREAD)
    await expedition.finish_all()
    asked = Counter(request.prompt for request in expedition.submitted())
    assert asked["a"] > asked["b"] >= 4
    assert asked.total() == CANDIDATES


async def test_a_prompt_never_met_is_taken_to_be_like_its_category(expedition: Expedition) -> None:
    wide, narrow = Population(20, 20 * 0.09, 20 * 0.09**2), Population(20, 20 * 1e-4, 20 * 1e-8)
    known = Knowledge({}, {"wide": wide, "narrow": narrow})
    expedition.categories = ("narrow", "wide")
    expedition.reward = lambda request: 0.5
    await expedition.open("fixed", "bandit")
    await expedition.start(knowledge=known)
    first = expedition.submitted()
    await expedition.finish(first)
    asked = Counter(request.prompt for request in expedition.submitted()[len(first) :])
    assert asked["b"] > asked["a"]


async def test_what_was_learned_is_handed_on(expedition: Expedition) -> None:
    await expedition.open("window", "bandit")
    await expedition.start(knowledge=SPREAD)
    await expedition.finish(expedition.submitted()[:6])
    await expedition.tell(StopExploration(1))
    knowledge = expedition.explored().knowledge
    assert set(knowledge.prompts) == {"a", "b"}
    assert knowledge.prompts["b"].total > SPREAD.prompts["b"].total


async def test_a_planner_that_does_not_learn_has_nothing_to_hand_on(expedition: Expedition) -> None:
    await expedition.open("window")
    await expedition.start(knowledge=SPREAD)
    await expedition.tell(StopExploration(1))
    assert expedition.explored().knowledge == NOTHING


async def test_rewards_that_are_all_the_same_hold_up_nothing(expedition: Expedition) -> None:
    expedition.reward = lambda request: 0.5
    await expedition.open("fixed", "bandit")
    await expedition.start()
    await expedition.tell(StopExploration(1))
    await expedition.finish_all()
    assert expedition.explored().preview_rewards == ((0.5,) * 4,) * 2


async def test_another_candidate_takes_the_place_of_one_that_is_given_up(
    expedition: Expedition,
) -> None:
    await expedition.open("window", "bandit")
    await expedition.start()
    lost = expedition.submitted()[0]
    await expedition.tell(RequestsGivenUp((lost,), "no luck"))
    await expedition.finish(expedition.submitted()[1:])
    await expedition.tell(StopExploration(1))
    explored = expedition.explored()
    assert lost.seed not in explored.seeds[lost.group]
    assert all(reward is not None for group in explored.preview_rewards for reward in group)
