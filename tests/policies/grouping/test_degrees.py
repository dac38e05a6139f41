import pytest
from hypothesis import given
from hypothesis import strategies as st

from spotlight.policies.grouping.degrees import layout, possible_degrees, refusal

degrees = st.integers(1, 64)
heads = st.integers(1, 64)


@given(degrees, heads)
def test_a_layout_has_the_largest_ulysses_part_that_divides_degree_and_heads(degree, heads):
    fitting = [u for u in range(1, degree + 1) if degree % u == 0 and heads % u == 0]
    assert layout(degree, heads) == (degree // max(fitting), max(fitting))


@given(degrees, heads, st.integers(1, 80), st.none() | st.integers(1, 80), st.booleans())
def test_a_degree_is_possible_exactly_when_every_member_gets_tokens_and_heads(
    degree, heads, image, text, ring_possible
):
    def smallest_shard(tokens):
        return min(tokens // degree + (rank < tokens % degree) for rank in range(degree))

    possible = (
        smallest_shard(image) > 0
        and (text is None or smallest_shard(text) > 0)
        and (ring_possible or heads % degree == 0)
    ) or degree == 1
    limits = {"image_tokens": image, "text_tokens": text, "ring_possible": ring_possible}
    assert (refusal(degree, heads=heads, **limits) is None) == possible
    assert (degree in possible_degrees(64, heads=heads, **limits)) == possible


@pytest.mark.parametrize(
    ("change", "number"),
    [
        ({"image_tokens": 3}, "3 image tokens"),
        ({"text_tokens": 2}, "2 text tokens"),
        ({"heads": 6}, "6 attention heads"),
    ],
)
def test_a_refusal_names_the_number_that_forbids_the_degree(change, number):
    fitting = {"heads": 8, "image_tokens": 64, "text_tokens": 7, "ring_possible": False}
    assert refusal(4, **fitting) is None
    assert number in refusal(4, **{**fitting, **change})


def test_a_degree_below_one_is_refused():
    reason = refusal(0, heads=4, image_tokens=4, text_tokens=4, ring_possible=True)
    assert "degree of 0" in reason


def test_heads_alone_decide_which_degrees_there_are_without_a_ring():
    limits = {"heads": 24, "image_tokens": 1024, "text_tokens": 77}
    assert possible_degrees(8, **limits, ring_possible=False) == (1, 2, 3, 4, 6, 8)
    assert possible_degrees(8, **limits, ring_possible=True) == (1, 2, 3, 4, 5, 6, 7, 8)


def test_one_member_alone_is_always_possible():
    nothing = {"heads": 1, "image_tokens": 1, "text_tokens": 0, "ring_possible": False}
    assert possible_degrees(0, **nothing) == possible_degrees(4, **nothing) == (1,)
