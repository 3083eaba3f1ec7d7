"""What views are asked, and how their values are written."""

from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum
from typing import Any, NamedTuple
from uuid import UUID

import pytest

from cmdbus.web.json_values import encode
from cmdbus.web.query import BadQuery, Query, parse

ID = UUID("0190b3c4-0000-7000-8000-000000000001")


def query(path: str = "view", text: str = "") -> Query:
    return parse(path, text)[1]


def test_parameters_are_read_by_their_kind() -> None:
    found = query("view/mail/a b", f"t=%C3%A9&n=-3&at=2026-01-01T00:00:00Z&c=up&id={ID}&none=")
    assert found.parts == ("mail", "a b")
    assert (found.part(0, "a domain"), found.text("t"), found.whole("n", 0, -9, 9)) == (
        "mail",
        "é",
        -3,
    )
    assert found.time("at") == datetime(2026, 1, 1, tzinfo=UTC)
    assert (found.choice("c", "up", "down"), found.uuid("id")) == ("up", ID)
    assert found.text("none") is None and found.whole("none", 7, 0, 9) == 7
    found.check()
    absent = query()
    assert absent.text("t") is None and absent.time("at") is None
    assert absent.uuid("id") is None and absent.choice("c", "up") is None
    assert absent.choice("c", "up", default="up") == "up"
    assert query(f"view/{ID}").uuid_part(0, "an id") == ID


@pytest.mark.parametrize(
    ("text", "read", "sentence"),
    [
        ("t=" + "x" * 11, lambda q: q.text("t", most=10), "t has more than 10 characters"),
        ("t=a%00", lambda q: q.text("t"), "t has a NUL character"),
        ("n=1.5", lambda q: q.whole("n", 0, 0, 9), "n must be a whole number from 0 to 9"),
        ("n=%D9%A3", lambda q: q.whole("n", 0, 0, 9), "n must be a whole number"),
        ("n=" + "9" * 5000, lambda q: q.whole("n", 0, 0, 9), "n must be a whole number"),
        ("at=noon", lambda q: q.time("at"), "at must be a time with its offset"),
        ("c=left", lambda q: q.choice("c", "up", "down"), "c must be one of up, down"),
        ("id=1", lambda q: q.uuid("id"), "id must be an id"),
        ("", lambda q: q.part(0, "the domain"), "the path lacks the domain"),
        ("", lambda q: q.uuid_part(0, "the id"), "the path lacks the id"),
    ],
)
def test_a_malformed_parameter_is_named(text: str, read: Any, sentence: str) -> None:
    with pytest.raises(BadQuery) as caught:
        read(query(text=text))
    assert str(caught.value).startswith(sentence)


@pytest.mark.parametrize("text", ["a=1&a=2", "&".join(f"a{n}=1" for n in range(41)), "a" * 9000])
def test_too_much_is_refused(text: str) -> None:
    with pytest.raises(BadQuery):
        query(text=text)


class Colour(Enum):
    RED = "red"


class Level(IntEnum):
    HIGH = 2


class Pair(NamedTuple):
    one: int
    two: object


@dataclass(frozen=True)
class Point:
    x: float
    at: datetime


def test_each_kind_of_value_has_a_form() -> None:
    zone = timezone(timedelta(hours=1))
    value = {
        Colour.RED: [Colour.RED, Level.HIGH, True, None],
        ID: {"b", "a"},
        1: Pair(1, Decimal("1.5")),
        "point": Point(float("inf"), datetime(2026, 1, 1, 1, tzinfo=zone)),
    }
    assert encode(value) == (
        '{"red":["red",2,true,null],"' + str(ID) + '":["a","b"],"1":{"one":1,"two":1.5},'
        '"point":{"x":null,"at":"2026-01-01T00:00:00+00:00"}}'
    )
    for unknown in (date(2026, 1, 1), b"bytes", Point, object()):
        with pytest.raises(TypeError):
            encode([unknown])
