"""YAML as plain data: what is no data, or stands for far more than it is, is one line."""

from __future__ import annotations

from typing import Any

import pytest

from spotlight.jobs.plain_yaml import PlainYAMLError, read_yaml

BOMB = "a0: &a0 [x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12)
)


@pytest.mark.parametrize(
    ("text", "data"),
    [
        ("a: [1, 2.5, true, null, x]", {"a": [1, 2.5, True, None, "x"]}),
        ("a: 1e-4", {"a": 1e-4}),
        ("a: &x {b: 1}\nc: *x", {"a": {"b": 1}, "c": {"b": 1}}),
        ("a: &x {b: 1}\nc: {<<: *x, d: 2}", {"a": {"b": 1}, "c": {"b": 1, "d": 2}}),
        ("", None),
    ],
)
def test_plain_data_is_read(text: str, data: Any) -> None:
    assert read_yaml(text) == data


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[" * 100_000, "at line 1: it is nested more than 20 deep"),
        ("{a: " * 100_000, "at line 1: it is nested more than 20 deep"),
        (BOMB, "at line 5: it has more than 10000 values"),
        ("- a\n" * 10_001, "at line 10001: it has more than 10000 values"),
        ("a: &a [*a]", "at line 1: an alias stands inside what it stands for"),
        ("&a\nb: *a", "at line 2: an alias stands inside what it stands for"),
        ("a: *b", "at line 1: found undefined alias 'b'"),
        ("\na: 2001-99-99", "at line 2: this is not a value of type `timestamp`"),
        ("a: !!timestamp x", "at line 1: this is not a value of type `timestamp`"),
        ("a: !!bool x", "at line 1: this is not a value of type `bool`"),
        ("a: !!int ''", "at line 1: this is not a value of type `int`"),
        ("a: !!float ''", "at line 1: this is not a value of type `float`"),
        (f"a: {'9' * 5000}", "at line 1: this is not a value of type `int`"),
        ("a: 1\na: 2", "at line 2: key `a` is given twice"),
        ("? [a]\n: b", "at line 1: found unhashable key"),
        ("a: !!python/object/apply:os.system [x]", "at line 1: could not determine a constructor"),
        ("a: \x00", "unacceptable character"),
        ('\na: "\\ud800"', "at line 2: this text has half of a character"),
        ('"\\udfff": 1', "at line 1: this text has half of a character"),
    ],
    ids=lambda value: value[:20],
)
def test_what_is_no_plain_data_is_refused_with_its_line(text: str, problem: str) -> None:
    with pytest.raises(PlainYAMLError) as caught:
        read_yaml(text)
    assert str(caught.value).startswith("is not valid YAML")
    assert problem in str(caught.value) and "\n" not in str(caught.value)
