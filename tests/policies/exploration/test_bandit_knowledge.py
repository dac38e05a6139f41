"""What the bandit learnt of a prompt in earlier iterations counts in later ones, and fades."""

from __future__ import annotations

from bandit_kit import alike, explore, normal, planner

from spotlight.policies.exploration.bandit import BanditPlanner
from spotlight.policies.exploration.reward_spread import (
    FADING,
    POPULATION_FADING,
    Evidence,
    Knowledge,
    Population,
)


def knowledge_of(stds: dict[str, float], count: float = 50.0) -> dict[str, Evidence]:
    return {name: Evidence(count, count * std * std) for name, std in stds.items()}


def adaptive_share(plan: BanditPlanner, group: int) -> float:
    """The share of a group in what is planned before any score came, after the floor."""
    groups = len(plan.choose())
    plan.next_chunk(4 * groups)
    planned = plan.next_chunk(6 * groups)
    return sum(candidate.group == group for candidate in planned) / len(planned)


def test_what_a_prompt_taught_is_used_when_it_is_met_again():
    prompts = knowledge_of({"prompt 0": 2.0, "prompt 1": 0.2, "prompt 2": 0.2, "prompt 3": 0.2})
    known = Knowledge(prompts, {"": alike(1.0, differing=2.0)})
    assert adaptive_share(planner(knowledge=known), 0) > 0.5


def test_a_prompt_never_met_is_taken_to_be_like_its_category():
    shares = []
    for wide in ("a", "b"):
        categories = {name: alike(2.0 if name == wide else 0.2) for name in "ab"}
        shares.append(
            sum(
                adaptive_share(
                    planner(
                        categories=["a", "b", "b", "b"],
                        knowledge=Knowledge({}, categories),
                        job_seed=seed,
                    ),
                    0,
                )
                for seed in range(5)
            )
            / 5
        )
    assert shares[0] > 0.5 > 0.25 > shares[1]


def test_a_category_never_met_is_taken_to_be_like_all_the_others():
    known = Knowledge({}, {"b": alike(0.3)})
    share = 0.0
    for seed in range(20):
        plan = planner(groups=2, categories=["new", "b"], knowledge=known, job_seed=seed)
        share += adaptive_share(plan, 0) / 20
    assert 0.35 < share < 0.65


def test_a_few_scores_of_its_own_outweigh_the_category():
    categories = {"a": alike(0.1, differing=2.0), "b": alike(1.0, differing=2.0)}
    plan = planner(2, categories=["a", "b"], knowledge=Knowledge({}, categories), keep=8)
    issued = explore(plan, normal([1.0, 0.1]))
    assert issued[0] > issued[1]


def test_old_evidence_fades_whenever_its_prompt_or_category_is_met():
    before = Knowledge(
        {"prompt 0": Evidence(10, 5), "elsewhere": Evidence(4, 4)},
        {"": Population(100, 50), "other": Population(7, 7)},
    )
    after = before.after(planner(knowledge=before).learnt())
    assert after.prompts["prompt 0"] == Evidence(10 * FADING, 5 * FADING)
    assert after.prompts["elsewhere"] == Evidence(4, 4)
    assert after.categories == {
        "": Population(100 * POPULATION_FADING, 50 * POPULATION_FADING),
        "other": Population(7, 7),
    }


def test_evidence_stays_bounded_over_many_visits():
    known = Knowledge()
    for iteration in range(30):
        plan = planner(iteration=iteration, knowledge=known)
        explore(plan, normal([1.0] * 4))
        known = known.after(plan.learnt())
    assert all(evidence.count <= 31 / (1 - FADING) for evidence in known.prompts.values())


def test_a_prompt_whose_spread_changed_is_believed_within_a_few_visits():
    known = Knowledge(knowledge_of({"prompt 0": 1.0}), {"": alike(1.0)})
    for iteration in range(5):
        plan = planner(iteration=iteration, knowledge=known)
        explore(plan, normal([0.1, 1.0, 1.0, 1.0]))
        known = known.after(plan.learnt())
    evidence = known.prompts["prompt 0"]
    assert evidence.total / evidence.count < 0.5


def test_one_prompt_in_several_groups_adds_up_its_evidence():
    plan = planner(prompts=["same", "same"])
    explore(plan, normal([0.2, 0.4]))
    assert plan.learnt().prompts["same"].count == 24 - 2
