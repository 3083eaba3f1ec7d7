"""Data: what is taken survives the way unchanged, the rest is refused with its place."""

import json
import math
import pickle
from collections.abc import Callable
from dataclasses import FrozenInstanceError, replace
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import pytest

from cmdbus import Command, Undecodable
from cmdbus.command import received
from cmdbus.data import MAX_DEPTH, decode, encode
from cmdbus.headers import Headers


def nested(depth: int, wrap: Callable[[object], object]) -> object:
    value: object = 1
    for _ in range(depth):
        value = wrap(value)
    return value


@pytest.mark.parametrize(
    "value",
    [
        None, True, 0, -1, 10**4000, 1e23, 5e-324, 1.7976931348623157e308, 0.1, "", "ä€𝄞",
        "\\u0000 is text", "\\ud800", "\x01\t\n\r\x7f\u2028", [], {}, [[[]]], {"": {"a": [1, "b"]}},
        "7" * 5000,
        nested(MAX_DEPTH, lambda v: [v]),
    ],
)  # fmt: skip
def test_values_survive_the_way(value: object) -> None:
    back = decode(encode(value))
    assert back == value
    assert type(back) is type(value)


def test_tuples_become_lists_and_subclasses_what_they_are() -> None:
    assert decode(encode({"a": (1, (2,))})) == {"a": [1, [2]]}


loop: list[object] = []
loop.append(loop)


class Weird:
    def __repr__(self) -> str:
        raise RuntimeError("no repr")


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        (math.nan, "data is nan: JSON has no such number"),
        ({"a": [1, math.inf]}, r"data\.a\[1\] is inf"),
        ({"a": {"b": "x\0y"}}, r"data\.a\.b contains a NUL character"),
        ({"\0": 1}, "data has a key that contains a NUL"),
        (["\ud800"], r"data\[0\] contains half of a surrogate pair"),
        ({"\udfff": 1}, "data has a key that contains half of a surrogate"),
        ({1: 2}, "data has the key 1: JSON keys are strings"),
        ({"a": {None: 2}}, r"data\.a has the key None"),
        ({"when": complex(1, 1)}, r"data\.when is of type complex: JSON has no such thing"),
        ({"s": {1}}, r"data\.s is of type set"),
        ([Weird()], r"data\[0\] is of type Weird"),
        ({"n": 10**4300}, r"data\.n has more than 4300 digits"),
        (nested(MAX_DEPTH + 1, lambda v: [v]), "is nested deeper than 200 levels"),
        (nested(100_000, lambda v: {"k": v}), "is nested deeper than 200 levels"),
        (loop, "is nested deeper than 200 levels"),
        ("x" * 1_048_575, r"data has 1048577 bytes as JSON: at most 1048576 are taken"),
        ("ä" * 600_000, r"data has 1200002 bytes as JSON"),
    ],
)
def test_what_cannot_be_held_is_refused_with_its_place(value: object, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence) as refused:
        encode(value)
    assert len(str(refused.value)) < 400


def test_results_are_checked_by_the_same_rules_under_their_own_name() -> None:
    with pytest.raises(ValueError, match=r"result\.a is nan"):
        encode({"a": math.nan}, what="result")


@pytest.mark.parametrize(
    "text", ["[" * 100_000 + "]" * 100_000, "9" * 5000, "1e5000", '{"a": -1e999}', "nonsense", ""]
)
def test_what_others_wrote_and_this_python_cannot_decode_is_a_value(text: str) -> None:
    """One row must not keep the others of its claim from running."""
    found = decode(text)
    assert isinstance(found, Undecodable)
    assert found.text == text
    assert found.reason


def test_everything_that_is_taken_is_valid_json_for_others() -> None:
    assert json.loads(encode({"a": ["ä", 1.5, None]})) == {"a": ["ä", 1.5, None]}


def test_a_received_command_equals_one_that_was_made_and_is_as_frozen() -> None:
    values: dict[str, Any] = {
        "domain": "payments",
        "type": "Debit",
        "command_id": uuid4(),
        "data": "x",
        "priority": 5,
        "correlation_id": uuid4(),
        "reply_to": None,
        "created_at": datetime.now(UTC),
        "headers": Headers({"tenant": "acme"}),
    }
    one, other = received(*values.values()), Command(**values)
    assert (type(one), one, hash(one), repr(one)) == (Command, other, hash(other), repr(other))
    assert replace(one, data="y").data == "y" and pickle.loads(pickle.dumps(one)) == other
    with pytest.raises(FrozenInstanceError):
        one.data = "y"  # type: ignore[misc]
