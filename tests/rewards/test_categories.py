from spotlight.assets import read_prompt_lines
from spotlight.rewards.categories import categories
from spotlight.types import Prompt


def test_the_length_of_the_text_is_the_category_of_a_prompt_for_ocr() -> None:
    prompts = ['a sign that says "Open Now"', 'the number "1234"', 'the number "9876"']
    found = categories(map(Prompt, prompts))
    assert [found[prompt] for prompt in prompts] == ["7 letters", "4 letters", "4 letters"]


def test_the_tag_of_the_metadata_is_the_category_of_a_prompt() -> None:
    assert categories([Prompt("3 circles", {"tag": "counting"})]) == {"3 circles": "counting"}


def test_a_tag_that_is_no_text_is_no_category() -> None:
    assert categories([Prompt("3 circles", {"tag": [3]})]) == {"3 circles": "0 letters"}


def test_the_prompts_that_ship_have_more_than_one_category() -> None:
    train = read_prompt_lines("builtin:compositional-tiny/train")
    assert len(set(categories(train.items).values())) > 2
