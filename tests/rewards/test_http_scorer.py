"""The scorer that asks a server, over real HTTP."""

from __future__ import annotations

import base64
import io
import socket
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest
from PIL import Image

from spotlight.errors import ScoringError
from spotlight.rewards.endpoint import Endpoint, Poster
from spotlight.rewards.http_scorer import HttpScorer
from spotlight.rewards.schema import (
    ImageFormat,
    decode_image,
    encode_image,
    image_to_score,
    read_request,
    read_rewards,
)
from spotlight.types import Prompt
from spotlight_simulation.faulty_reward_server import FAULTS, Fault, FaultyRewardServer

IMAGES = np.random.default_rng(0).integers(0, 256, (5, 24, 32, 3)).astype(np.uint8)
MEANS = [float(image.mean() / 255) for image in IMAGES]
PROMPTS = [Prompt(f"image {row}", {"tag": "noise", "row": row}) for row in range(5)]


def scorer_of(url: str, *, timeout_s: float = 5.0, attempts: int = 1, **options: Any) -> HttpScorer:
    endpoint = Endpoint(url, attempts=attempts, timeout_s=timeout_s, first_wait_s=0.01)
    return HttpScorer(Poster(endpoint), limits=(0.0, 1.0), **options)


def once(fault: Fault) -> Callable[[], Fault | None]:
    """Only the first request fails."""
    faults: list[Fault] = [fault]
    return lambda: faults.pop() if faults else None


@pytest.mark.parametrize("form", ["png", "webp"])
def test_the_rewards_are_those_of_the_server_in_the_order_of_the_images(form: ImageFormat) -> None:
    with FaultyRewardServer() as server:
        rewards = scorer_of(server.url, images_per_request=2, image_format=form).score(
            IMAGES, PROMPTS
        )
    assert rewards == MEANS
    assert len(server.requests) == 3


def test_the_server_is_told_prompt_metadata_format_and_version() -> None:
    with FaultyRewardServer() as server:
        scorer_of(server.url).score(IMAGES[:1], PROMPTS[:1])
    [(_, body)] = server.requests
    assert body["version"] == 1
    [image] = body["images"]
    assert image.pop("id").startswith("0-")
    assert image == {"prompt": "image 0", "metadata": {"tag": "noise", "row": 0}, "format": "png"}


def test_the_server_gets_the_image_that_was_to_be_changed() -> None:
    file = encode_image(IMAGES[1], "png")
    with FaultyRewardServer() as server:
        scorer_of(server.url).score(IMAGES[:1], [Prompt("make it red", image=file)])
    [(_, body)] = server.requests
    assert base64.b64decode(body["images"][0]["source"]) == file


@pytest.mark.parametrize("fault", ["error_500", "cut_connection", "hang"])
def test_a_fault_that_passes_is_not_noticed(fault: Fault) -> None:
    with FaultyRewardServer(once(fault)) as server:
        scorer = scorer_of(server.url, attempts=2, timeout_s=1.0)
        assert scorer.score(IMAGES, PROMPTS) == MEANS
    assert server.injected == {fault: 1}


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("error_500", "status 500"),
        ("hang", "no answer within 0.3 s"),
        ("null", "the model is out of memory"),
        ("nan", "cannot be read"),
        ("out_of_range", "-7.0 is not in its range"),
        ("cut_connection", "peer closed connection"),
        ("wrong_count", "rewards for 5 images"),
    ],
)
def test_a_fault_is_an_error_that_names_an_image_and_the_reason_and_never_a_reward(
    fault: Fault, reason: str
) -> None:
    with (
        FaultyRewardServer(lambda: fault) as server,
        pytest.raises(ScoringError, match=reason) as error,
    ):
        scorer_of(server.url, timeout_s=0.3).score(IMAGES, PROMPTS)
    wanted = [
        image_to_score(row, IMAGES[row], Prompt(f"image {row}"), "png").id for row in range(5)
    ]
    assert any(name in str(error.value) for name in wanted)
    assert "\n" not in str(error.value)


def test_every_kind_of_fault_is_tried_here() -> None:
    [marker] = [
        mark
        for mark in test_a_fault_is_an_error_that_names_an_image_and_the_reason_and_never_a_reward.pytestmark  # type: ignore[attr-defined]  # noqa: E501
        if mark.name == "parametrize"
    ]
    assert {fault for fault, _ in marker.args[1]} == set(FAULTS)


def test_only_the_images_without_a_reward_are_named() -> None:
    # Requests of two images are sent at once; in whichever comes first, the last image has none.
    with (
        FaultyRewardServer(once("null")) as server,
        pytest.raises(ScoringError, match=r"^1 of 5 images have no reward: image [134]-\w+: the"),
    ):
        scorer_of(server.url, images_per_request=2).score(IMAGES, PROMPTS)


def test_a_server_of_another_version_is_refused_in_one_line() -> None:
    with FaultyRewardServer() as server:
        server.answer_version = 2
        with pytest.raises(ScoringError, match=r"speaks version 2 .* this is version 1") as error:
            scorer_of(server.url).score(IMAGES, PROMPTS)
    assert "\n" not in str(error.value)


def test_where_nobody_listens_the_error_says_so() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(ScoringError, match="ConnectError"):
        scorer_of(f"http://127.0.0.1:{port}").score(IMAGES, PROMPTS)


def test_the_same_image_for_the_same_prompt_has_the_same_id_each_time() -> None:
    with FaultyRewardServer() as server:
        scorer = scorer_of(server.url)
        for _ in range(2):
            scorer.score(IMAGES, PROMPTS)
    first, second = ([image["id"] for image in body["images"]] for _, body in server.requests)
    assert first == second
    assert len(set(first)) == 5


def test_images_that_are_equal_have_ids_of_their_own() -> None:
    with FaultyRewardServer() as server:
        rewards = scorer_of(server.url).score(IMAGES[[0, 0]], [PROMPTS[0]] * 2)
    assert rewards == [MEANS[0]] * 2


@pytest.mark.parametrize("form", ["png", "webp"])
def test_an_image_arrives_as_it_was_sent(form: ImageFormat) -> None:
    assert np.array_equal(decode_image(encode_image(IMAGES[0], form), form), IMAGES[0])


def test_a_damaged_file_and_one_of_another_format_are_refused() -> None:
    png = encode_image(IMAGES[0], "png")
    for data, form, why in (
        (png[:60], "png", "is a damaged png file"),
        (png, "webp", "is not a webp file"),
        (b"", "png", "is not a png file"),
    ):
        with pytest.raises(ValueError, match=why):
            decode_image(data, form)  # type: ignore[arg-type]


def test_a_small_file_that_would_unfold_to_a_huge_image_is_refused() -> None:
    buffer = io.BytesIO()
    Image.new("1", (5000, 5000)).save(buffer, format="PNG")
    with pytest.raises(ValueError, match="5000 x 5000 pixels"):
        decode_image(buffer.getvalue(), "png")


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (b'{"version": 2, "pictures": []}', "speaks version 1 .* is of version 2"),
        (b'{"version": 1, "images": []}', "has no images"),
        (b'{"version": 1}', "images"),
        (b"{}", "version"),
        (b"[]", "object"),
        (b"\xff", "utf-8|malformed"),
    ],
)
def test_a_request_that_is_none_is_refused(body: bytes, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        read_request(body)


def test_two_images_of_one_id_are_refused() -> None:
    image = image_to_score(0, IMAGES[0], Prompt("a"), "png")
    body = msgspec.json.encode({"version": 1, "images": [image, image]})
    with pytest.raises(ValueError, match="same id"):
        read_request(body)


def test_an_integer_is_a_reward_and_a_word_is_none() -> None:
    assert read_rewards(b'{"version":1,"rewards":[{"id":"a","reward":3}]}', ["a"]) == ({"a": 3}, {})
    with pytest.raises(ScoringError, match="cannot be read"):
        read_rewards(b'{"version":1,"rewards":[{"id":"a","reward":"3"}]}', ["a"])


@pytest.mark.parametrize("number", ["1e999", "NaN", "Infinity"])
def test_what_is_no_finite_number_is_no_reward(number: str) -> None:
    body = f'{{"version":1,"rewards":[{{"id":"a","reward":{number}}}]}}'.encode()
    try:
        rewards, problems = read_rewards(body, ["a"])
    except ScoringError:
        return
    assert not rewards
    assert "a" in problems


def test_rewards_for_other_images_are_refused() -> None:
    with pytest.raises(ScoringError, match="one for each id"):
        read_rewards(b'{"version":1,"rewards":[{"id":"b","reward":1}]}', ["a"])


def test_a_null_without_a_reason_is_no_reward() -> None:
    rewards, problems = read_rewards(b'{"version":1,"rewards":[{"id":"a","reward":null}]}', ["a"])
    assert rewards == {}
    assert problems == {"a": "the server gave no reward, and no reason"}
