"""Typed payloads as values: what is sent is read again as an equal value, and what does not fit a
type is refused with its place."""

import math
import random
from dataclasses import InitVar, dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, Literal
from uuid import UUID, uuid4

import pydantic
import pytest
from payload_models import Account, Card, Order, Page, Rights, T, random_order, read

from cmdbus.data import MAX_DEPTH, decode, encode
from cmdbus.payloads.durations import duration_of, duration_text
from cmdbus.payloads.mismatch import Mismatch, UnreadableTypeError
from cmdbus.payloads.readers import reader_of


@dataclass
class Debit:
    amount: int
    note: str | None = None

    def __post_init__(self) -> None:
        if self.amount < 0:
            raise ValueError("amount is negative")


@dataclass
class Transfer:
    lines: list[Debit]
    method: Card | Account | str = "cash"


@dataclass
class Upset:
    """Its constructor fails in ways that its author did not think of."""

    by: str

    def __post_init__(self) -> None:
        raise {"a type": TypeError("unsupported"), "a key": KeyError("x")}.get(
            self.by, MemoryError()
        )


class UpsetToo(pydantic.BaseModel):
    by: str

    @pydantic.field_validator("by")
    @classmethod
    def divide(cls, by: str) -> str:
        return by * (1 // len(by))


class Line(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(strict=True, extra="forbid")
    amount: Decimal = pydantic.Field(alias="theAmount")
    when: datetime

    @pydantic.computed_field  # type: ignore[prop-decorator]  # as pydantic documents it
    @property
    def double(self) -> Decimal:
        return self.amount * 2


@pydantic.dataclasses.dataclass
class Paid:
    line: Line
    by: UUID


def test_random_values_of_a_type_survive_the_way() -> None:
    rand, reader = random.Random(7), reader_of(Order)
    for _ in range(100):
        order = random_order(rand)
        assert reader(decode(encode(order))) == order


@pytest.mark.parametrize(
    ("value", "form"),
    [
        (datetime(2026, 1, 2, 3, 4, 5, 6), "2026-01-02T03:04:05.000006"),
        (date(2026, 1, 2), "2026-01-02"),
        (time(3, 4), "03:04:00"),
        (timedelta(days=1, seconds=2.5), "P1DT2.5S"),
        (Decimal("1.50"), "1.50"),
        (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (b"\0\xff", "AP8="),
        (Rights.READ, 1),
        (Card("card", "42"), {"kind": "card", "number": "42"}),
        (Line(theAmount=Decimal(1), when=datetime(2026, 1, 2)),
         {"theAmount": "1", "when": "2026-01-02T00:00:00"}),
        ({"a": [UUID(int=0), {"b": (Rights.WRITE,)}]},
         {"a": ["00000000-0000-0000-0000-000000000000", {"b": [2]}]}),
    ],
)  # fmt: skip
def test_values_that_json_lacks_have_documented_forms(value: Any, form: Any) -> None:
    assert decode(encode(value)) == form


def test_models_of_pydantic_are_read_under_their_aliases_and_by_the_rules_for_json() -> None:
    line = Line(theAmount=Decimal("1.5"), when=datetime(2026, 1, 2))
    assert read(Line, decode(encode(line))) == line
    paid = Paid(line, uuid4())
    assert read(Paid, decode(encode(paid))) == paid
    assert read(Page[Line], decode(encode(Page([line])))) == Page([line])


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        ({"x": Debit(math.nan)}, r"data\.x\.amount is nan: JSON has no such number"),  # type: ignore[arg-type]
        (Debit(1, note="\0"), r"data\.note contains a NUL"),
        ([Decimal("NaN")], r"data\[0\] is nan"),
        ([Decimal("sNaN")], r"data\[0\] is nan"),
        (Transfer([Debit(1, {1})]), r"data\.lines\[0\]\.note is of type set"),  # type: ignore[arg-type]
        ([date.min, {1: 2}], r"data\[1\] has the key 1: JSON keys are strings"),
        (Page([b"x" * 800_000]), "data has 1066682 bytes as JSON"),
    ],
)  # fmt: skip
def test_what_has_no_form_is_refused_with_its_place(value: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        encode(value)


def test_a_value_that_contains_itself_is_refused() -> None:
    page: Page[Any] = Page([])
    page.items.extend([page, page])
    with pytest.raises(ValueError, match=f"data is nested deeper than {MAX_DEPTH} levels"):
        encode(page)


def test_an_encoder_gives_the_forms_of_other_types_and_only_of_these() -> None:
    def encoder(value: object) -> object:
        if isinstance(value, range):
            return {"from": Decimal(value.start), "to": value.stop}
        raise TypeError

    data = {"r": range(3), "d": date(2026, 1, 2)}
    assert encode(data, encoder=encoder) == '{"r":{"from":"0","to":3},"d":"2026-01-02"}'
    with pytest.raises(ValueError, match=r"data\[0\] is of type set"):
        encode([{1}], encoder=encoder)
    with pytest.raises(ValueError, match="nested deeper"):
        encode(range(1), encoder=lambda value: [value])


@pytest.mark.parametrize(
    ("kind", "data", "sentence"),
    [
        (Debit, [], "data must be an object, and is a list"),
        (Debit, {}, "data.amount is missing"),
        (Debit, {"amount": "5"}, "data.amount must be a whole number, and is text"),
        (Debit, {"amount": True}, "data.amount must be a whole number, and is true"),
        (Debit, {"amount": 5.0}, "must be a whole number, and is a number with a decimal point"),
        (Debit, {"amount": -1}, "data is not valid for Debit: amount is negative"),
        (list[Upset], [{"by": "a type"}], "data[0] is not valid for Upset: TypeError: unsupported"),
        (Upset, {"by": "a key"}, "data is not valid for Upset: KeyError: 'x'"),
        (UpsetToo, {"by": ""}, "data is not valid for UpsetToo: ZeroDivisionError: "),
        (Debit, {"amount": 1, "note": 3}, "data.note must be text, and is a number"),
        (Transfer, {"lines": [{"amount": 1}, {"amount": None}]},
         "data.lines[1].amount must be a whole number, and is null"),
        (Transfer, {"lines": [], "method": {}}, "data.method.kind is missing"),
        (Transfer, {"lines": [], "method": {"kind": "cash"}},
         "data.method.kind must be one of 'card', 'account'"),
        (Transfer, {"lines": [], "method": {"kind": "card"}}, "data.method.number is missing"),
        (Transfer, {"lines": [], "method": 3},
         "data.method must be Card or Account or str, and is a number"),
        (dict[str, list[date]], {"a": ["x"]},
         "data.a[0] must be a date in ISO 8601, and is another text"),
        (int | list[Debit], [{"amount": 1}, {"amount": None}],
         "data[1].amount must be a whole number, and is null"),
        (list[int] | list[bool], ["x"], "data must be list[int] or list[bool], and is a list"),
        (datetime, "2026-01-02", "data must be a date with a time"),
        (timedelta, "P", "data must be a duration in ISO 8601"),
        (UUID, "1", "data must be a UUID as text, and is another text"),
        (bytes, "ä", "data must be bytes as base64"),
        (Decimal, "NaN", "data must be a decimal number as text, and is another text"),
        (float, 10**400, "data must be a number that fits a float"),
        (Rights, 8, "data must be a combination of Rights's members"),
        (Literal[1], True, "data must be 1"),
        (tuple[int, str], [1], "data must be a list of 2, and has 1"),
        (tuple[int, *tuple[str, ...]], [], "data must be a list of 1 or more, and has 0"),
        (tuple[int, *tuple[str, ...]], [1, "a", 2], "data[2] must be text, and is a number"),
        (Line, {"theAmount": "x", "when": "2026-01-02T00:00:00"}, "data.theAmount does not fit: "),
        (Page[Line], {"items": [{"amount": "1"}]}, "data.items[0].theAmount does not fit: "),
    ],
)  # fmt: skip
def test_data_that_does_not_fit_is_refused_with_the_field_and_without_the_value(
    kind: Any, data: Any, sentence: str
) -> None:
    with pytest.raises(Mismatch) as refused:
        read(kind, data)
    assert sentence in str(refused.value)


def test_unknown_fields_are_ignored_and_missing_ones_have_their_defaults() -> None:
    """So senders may be deployed before workers, and after them."""
    assert read(Debit, {"amount": 1, "of tomorrow": 2}) == Debit(1)
    assert read(Transfer, {"lines": []}) == Transfer([])


def test_numbers_of_other_languages_are_read_as_decimals_and_floats() -> None:
    assert read(list[Decimal], [1, 0.1, "2.50"]) == [Decimal(1), Decimal("0.1"), Decimal("2.50")]
    assert type(read(float, 3)) is float
    assert read(float | int, 3) == 3
    assert read(date | datetime, "2026-01-02") == date(2026, 1, 2)
    assert read(datetime | date, "2026-01-02") == date(2026, 1, 2)


@pytest.mark.parametrize("text", ["", "P", "PT", "P1DT", "1D", "P-1D", "P1Y", "PT0.1234567S"])
def test_only_exact_durations_are_durations(text: str) -> None:
    with pytest.raises(ValueError, match="not a duration"):
        duration_of(text)


def test_durations_of_others_are_read() -> None:
    assert duration_of("P2W") == timedelta(weeks=2)
    assert duration_of("-PT1H30M") == -timedelta(minutes=90)
    for duration in (timedelta(), timedelta.min, timedelta.max, timedelta(microseconds=-1)):
        assert duration_of(duration_text(duration)) == duration


class Odd(Enum):
    PAIR = (1, 2)


@dataclass
class Derived:
    amount: int
    factor: InitVar[int]


@dataclass
class Bag:
    names: set[str]


class NotAModel:
    pass


@pytest.mark.parametrize(
    ("kind", "sentence"),
    [
        (NotAModel, "NotAModel is not read from JSON: use a dataclass, a TypedDict"),
        (Bag, r"Bag.names: set\[str\] is not read from JSON, which has no sets: use a list"),
        (dict[int, str], "whose keys are text"),
        (Debit | Transfer, "Debit | Transfer is not read from JSON, as nothing tells the objects"),
        (Card | dict[str, int], "nothing tells the objects apart"),
        (Odd, r"Odd.PAIR.* is not read from JSON: values of an Enum"),
        (Page, "Page.items: .*T stands for any type: name one in brackets"),
        (list[T], "stands for any type"),  # type: ignore[valid-type]
        (Derived, "its constructor must take its fields, and factor is only in one"),
    ],
)  # fmt: skip
def test_types_that_cannot_be_read_are_refused_before_there_is_data(
    kind: Any, sentence: str
) -> None:
    with pytest.raises(UnreadableTypeError, match=sentence):
        reader_of(kind)


def test_a_process_without_memory_has_not_found_that_data_does_not_fit() -> None:
    with pytest.raises(MemoryError):
        read(Upset, {"by": "memory"})
