from spotlight.assets import read_metadata, read_prompts
from spotlight.assets.geneval import PromptMetadata, Requirement, by_prompt
from spotlight.rewards.categories import categories


def test_the_length_of_the_text_is_the_category_of_a_prompt_for_ocr() -> None:
    prompts = ['a sign that says "Open Now"', 'the number "1234"', 'the number "9876"']
    found = categories(prompts, {})
    assert [found[prompt] for prompt in prompts] == ["7 letters", "4 letters", "4 letters"]


def test_the_tag_of_the_metadata_is_the_category_of_a_prompt() -> None:
    circles = (Requirement(name="circle", count=3),)
    metadata = PromptMetadata(tag="counting", include=circles, prompt="3 circles")
    assert categories(["3 circles"], {"3 circles": metadata}) == {"3 circles": "counting"}


def test_the_prompts_that_ship_have_more_than_one_category() -> None:
    train = "builtin:compositional-tiny/train"
    metadata = by_prompt([read_metadata(train)])
    assert len(set(categories(read_prompts(train), metadata).values())) > 2
