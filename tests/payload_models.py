"""Models of payloads, random values of them, and how data is read as one."""

import random
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, Flag, StrEnum
from typing import Annotated, Any, Generic, Literal, NewType, NotRequired, TypedDict, TypeVar
from uuid import UUID

from cmdbus.payloads.readers import reader_of

T = TypeVar("T")
Customer = NewType("Customer", str)


class Currency(StrEnum):
    CHF = "CHF"
    EUR = "EUR"


class Rate(Enum):
    LOW = Decimal("0.5")
    NONE = None
    SINCE = date(2026, 1, 1)


class Rights(Flag):
    READ = 1
    WRITE = 2


@dataclass
class Card:
    kind: Literal["card"]
    number: str


@dataclass
class Account:
    kind: Literal["account"]
    iban: str


class Note(TypedDict):
    text: str
    on: NotRequired[date]


@dataclass(frozen=True)
class Page(Generic[T]):
    items: list[T]


@dataclass(kw_only=True)
class Order:
    id: UUID
    customer: Customer
    at: datetime
    day: date
    hour: time
    takes: timedelta
    total: Decimal
    weight: float
    signature: bytes
    currency: Currency
    rate: Rate
    rights: Rights
    paid_by: Card | Account | None
    note: Note
    pages: Page[Decimal]
    size: tuple[int, str]
    path: tuple[date, ...]
    code: int | str | list[int]
    tags: Annotated[list[str], "sorted"] = field(default_factory=list)
    by_currency: dict[Currency, Decimal] = field(default_factory=dict)
    parts: "list[Order]" = field(default_factory=list)
    extra: Any = None
    weekday: int = field(init=False)

    def __post_init__(self) -> None:
        self.weekday = self.day.weekday()


def random_order(rand: random.Random, depth: int = 2) -> Order:
    zone = rand.choice([None, UTC, timezone(timedelta(minutes=rand.randint(-800, 800)))])
    at = datetime.fromordinal(rand.randint(1, 3_000_000)) + timedelta(
        microseconds=rand.randrange(86400 * 10**6)
    )
    total = Decimal(rand.randint(-(10**30), 10**30)).scaleb(rand.randint(-40, 40))
    codes: list[int | str | list[int]] = [3, "three", [3, 3]]
    note: Note = {"text": "ä\n" * rand.randint(0, 3)}
    if rand.random() < 0.5:
        note["on"] = at.date()
    return Order(
        id=UUID(int=rand.getrandbits(128)),
        customer=Customer("Ann"),
        at=at.replace(tzinfo=zone),
        day=at.date(),
        hour=at.time().replace(tzinfo=zone),
        takes=timedelta(microseconds=rand.randint(-(10**20), 10**20) // 10 ** rand.randint(0, 20)),
        total=total,
        weight=rand.uniform(-1e9, 1e9),
        signature=rand.randbytes(rand.randint(0, 20)),
        currency=rand.choice([*Currency]),
        rate=rand.choice([*Rate]),
        rights=Rights(rand.randint(0, 3)),
        paid_by=rand.choice([None, Card("card", "42"), Account("account", "CH93")]),
        note=note,
        pages=Page([total] * rand.randint(0, 2)),
        size=(rand.getrandbits(70), "x"),
        path=(at.date(),) * rand.randint(0, 3),
        code=codes[rand.randrange(3)],
        tags=["a"] * rand.randint(0, 2),
        by_currency={Currency.CHF: total},
        parts=[random_order(rand, depth - 1) for _ in range(rand.randint(0, depth))],
        extra=[1, {"any": None}],
    )


def read(kind: Any, data: Any) -> Any:
    return reader_of(kind)(data)
