"""Real processes denoise together: is it what one process would have computed?"""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from diffusers import attention_backend
from torch import nn

from spotlight.diffusion.sequence_parallel import SequenceParallel
from spotlight.errors import CannotShard
from tests.diffusion.sequence_parallel_kit import Case, Crew, Outcome, make_inputs, make_transformer

pytestmark = pytest.mark.timeout(240)  # several processes load torch

TOLERANCE = 1e-5
"""Relative to the largest value of the output, in float32."""

FAMILIES = ("qwen", "sd3", "flux", "flux2", "wan", "anyflow", "krea2")
CASES = {
    **{f"{family}, even": Case(family) for family in FAMILIES},
    **{f"{family}, odd text": Case(family, text=7, batch=3) for family in FAMILIES},
    **{f"{family}, odd image": Case(family, rows=5, columns=3, text=5) for family in FAMILIES},
    "qwen, padded text": Case("qwen", text=7, text_mask=(7, 3)),
    "qwen, padded text in an odd image": Case("qwen", 5, 3, text=9, batch=1, text_mask=(2,)),
    "krea2, padded text": Case("krea2", rows=5, columns=3, text=7, text_mask=(7, 3)),
    **{f"qwen21, {text} of text": Case("qwen21", text=text) for text in (1, 7, 8)},
    "z-image, even": Case("z-image", rows=8, columns=8),
    "z-image, padded": Case("z-image", rows=5, columns=3, text=7),
    "wan-a14b, one sample for each": Case("wan-a14b", rows=5, columns=3, text=5),
    "wan-a14b, three samples": Case("wan-a14b", text=7, batch=3),
    "wan, a time per token": Case("wan", rows=5, columns=3, text=5, time_per_token=True),
}
LAYERS = {
    "qwen": 3,
    "qwen21": 3,
    "z-image": 3,
    "sd3": 3 + 2,
    "flux": 1 + 2,
    "flux2": 1 + 2,
    "wan": 2,
    "anyflow": 2,
    "wan-a14b": 2 + 2,
    "krea2": 2 + 1,
}
"""Attention calls whose tokens are shared out."""


@pytest.fixture(scope="module")
def crew():
    """Four processes, with a group of 2, one of 3 and one of 4."""
    processes = Crew(4)
    try:
        everyone = range(4)
        equal = processes.ask(everyone, "prepare", cases=list(CASES.values()))
        processes.equal_without_group = equal
        for world in (2, 3, 4):
            processes.form(str(world), world)
        yield processes
    finally:
        processes.close()


def share(crew: Crew, world: int, case: Case, ring: int = 1) -> Outcome:
    """Run a case in a group; what its first rank saw, if all ranks saw the same bits."""
    outcomes = crew.ask(range(world), "share", name=str(world), case=case, ring=ring)
    assert len({outcome.digest for outcome in outcomes}) == 1
    return outcomes[0]


def test_without_a_group_the_output_is_the_plain_one_to_the_bit(crew):
    assert crew.equal_without_group == [[True] * len(CASES)] * 4


@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_members_together_compute_what_one_computes_alone(crew, world, case):
    outcome = share(crew, world, case)
    assert outcome.difference <= TOLERANCE
    passes = 2 if case.family == "wan-a14b" else 1  # of two transformers, in one pass of the model
    assert outcome.collectives == {"all-to-all": 2 * LAYERS[case.family], "all-gather": passes}


@pytest.mark.parametrize(("world", "ring"), [(2, 2), (3, 3), (4, 4), (4, 2)])
@pytest.mark.parametrize(
    "name",
    [
        "sd3, odd text",
        "qwen, padded text",
        "wan, odd image",
        "krea2, padded text",
        "qwen21, 7 of text",
    ],
)
def test_a_ring_computes_what_one_computes_alone(crew, world, ring, name):
    case = CASES[name]
    outcome = share(crew, world, case, ring)
    assert outcome.difference <= TOLERANCE
    exchanges = 2 * (ring < world) + ring - 1
    assert outcome.collectives["all-to-all"] == exchanges * LAYERS[case.family]


@pytest.mark.parametrize("ring", [1, 2, 4])
def test_keys_that_are_all_masked_have_no_weight(crew, ring):
    dead = [[], [0, 1, 2], [0, 1, 2, 3, 4, 5, 6], list(range(10))]
    differences = crew.ask(range(4), "attend", name="4", ring=ring, dead=dead)
    assert max(differences) <= TOLERANCE


def test_the_degree_of_a_live_model_changes_from_one_pass_to_the_next(crew):
    case = CASES["qwen, odd text"]
    again = [share(crew, world, case).digest for world in (4, 2, 4, 2)]
    assert again[:2] == again[2:]
    assert crew.ask(range(4), "prepare", cases=[case]) == [[True]] * 4


def test_a_thread_in_an_abandoned_group_sees_nothing_of_the_new_one(crew):
    case = CASES["qwen, even"]
    crew.form("old", 4)
    crew.ask(range(2), "get_stuck", name="old", case=case)  # the others never come
    assert crew.ask(range(2), "abandon", name="old") == [True, True]
    expected = share(crew, 2, case)
    crew.ask(range(2, 4), "close", name="old")
    errors = crew.ask(range(2), "unstuck")
    assert all(error.startswith("TransportError") for error in errors)
    assert share(crew, 2, case) == expected


def over_nobody(
    family: str, world: int = 2, ring: int = 1, grad: bool = False, change=None
) -> None:
    """A forward pass that must be refused before anything is sent."""
    transformer = make_transformer(family)
    if change:
        change(transformer)
    parallel = SequenceParallel(transformer)
    inputs = make_inputs(Case(family, text=3))
    with torch.set_grad_enabled(grad), parallel.over(SimpleNamespace(rank=0, world=world), ring):
        parallel.transformer(**inputs)


def test_a_family_that_is_not_known_is_refused():
    with pytest.raises(CannotShard, match="Linear"):
        SequenceParallel(nn.Linear(2, 2))


def test_gradients_are_refused():
    with pytest.raises(CannotShard, match="no_grad"):
        over_nobody("qwen", grad=True)


def test_more_members_than_text_tokens_are_refused():
    with pytest.raises(CannotShard, match="encoder_hidden_states: 3 tokens"):
        over_nobody("sd3", world=4)


def test_heads_that_a_row_does_not_divide_are_refused():
    with pytest.raises(CannotShard, match="4 attention heads"):
        over_nobody("flux", world=3)


def test_a_ring_that_does_not_divide_the_group_is_refused():
    with pytest.raises(CannotShard, match="ring: 3"):
        over_nobody("flux", world=4, ring=3)


def test_another_attention_backend_is_refused_by_name():
    def choose(transformer):
        transformer.blocks[1].attn1.processor._attention_backend = "_native_math"

    reason = r"'_native_math'.*set_attention_backend"
    with pytest.raises(CannotShard, match=reason):
        over_nobody("wan", change=choose)
    with attention_backend("_native_math"), pytest.raises(CannotShard, match=reason):
        over_nobody("wan")


def test_attention_that_is_not_torchs_own_is_refused():
    class Own:
        def __call__(self, attn, hidden_states, encoder_hidden_states, **_):
            return hidden_states, encoder_hidden_states

    with pytest.raises(CannotShard, match="Own"):
        over_nobody("sd3", change=lambda transformer: transformer.set_attn_processor(Own()))


def test_a_thread_is_in_one_group_at_a_time_and_free_again_after_an_error():
    parallel = SequenceParallel(make_transformer("qwen"))
    inputs = make_inputs(Case("qwen"))
    nobody = SimpleNamespace(rank=0, world=2)
    with torch.no_grad():
        plain = parallel.transformer(**inputs)[0]
        refused = pytest.raises(CannotShard, match="leave that context first")
        with parallel.over(nobody), refused, parallel.over(nobody):
            pass
        with pytest.raises(AttributeError), parallel.over(nobody):
            parallel.transformer(**inputs)
        assert torch.equal(plain, parallel.transformer(**inputs)[0])
