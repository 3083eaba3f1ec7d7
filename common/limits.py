"""Limits: how many commands run at once, how many start in a time, and in which order. The values
that handlers and registries declare, and the sentences about them. Pure."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from cmdbus.checks import check_flag, check_whole, did_you_mean, shown

#: Seconds of each unit of a rate.
_UNITS = {
    **dict.fromkeys(("s", "sec", "second"), 1),
    **dict.fromkeys(("min", "minute"), 60),
    **dict.fromkeys(("h", "hour"), 3600),
    **dict.fromkeys(("d", "day"), 86400),
}
#: The units in which a rate is shown, the first that makes it a whole number.
_SHOWN_UNITS = ("s", "min", "h", "day")
_RATE = re.compile(r"(\d{1,9}(?:\.\d{1,6})?) ?/ ?([a-z]+)", re.ASCII)
#: The options that an operator can set, and those that are not for limits of several types.
_OPTIONS = ("concurrency", "rate", "burst", "ordered", "on_trouble", "fair")
_OF_TYPES = _OPTIONS[3:]
_ON_TROUBLE, _PER = ("block", "skip"), ("fleet", "node")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """One rule; that of a handler counts by key."""

    #: Commands that may run at once; None: any number.
    concurrency: int | None = None
    #: None: any number.
    starts_per_second: float | None = None
    #: Commands that may start at once; None: what the rate allows in a second, at least 1.
    burst: int | None = None
    #: One at a time, in the order of sending.
    ordered: bool = False
    #: What the others of an ordered key do while one is in troubleshooting: "block" or "skip".
    on_trouble: str = "block"
    #: Keys take turns.
    fair: bool = False
    #: It holds for each node, not for all of them together.
    per_node: bool = False

    def __str__(self) -> str:
        parts = [self._order if self.ordered else ""]
        if self.concurrency is not None and not self.ordered:
            parts.append(f"{self.concurrency} at once")
        if self.starts_per_second is not None:
            burst = "" if self.burst is None else f" with a burst of {self.burst}"
            parts.append(f"{rate_text(self.starts_per_second)}{burst}")
        parts += ["fair"] * self.fair + ["on each node"] * self.per_node
        return ", ".join(filter(None, parts)) or "no limit"

    @property
    def terms(self) -> dict[str, Any]:
        """Its options, as they are declared."""
        values = asdict(self)
        starts, per_node = values.pop("starts_per_second"), values.pop("per_node")
        rate = None if starts is None else rate_text(starts)
        return {**values, "rate": rate, "per": _PER[per_node]}

    @property
    def _order(self) -> str:
        return f"in order ({self.on_trouble} on trouble)"


#: The columns of a limit in the schema.
FIELDS = tuple(field.name for field in fields(Limit))


@dataclass(frozen=True, slots=True)
class Declaration:
    """What an app declares under a name: 'domain type' for a handler's own limit."""

    name: str
    limit: Limit
    #: Of a shared limit: types, as 'domain type', and domains, for all of their types.
    covers: tuple[str, ...] = ()

    @classmethod
    def of(cls, name: str, row: Mapping[str, Any]) -> "Declaration":
        """From the columns of limit_declared."""
        values = dict(row)
        covers = tuple(values.pop("covers"))
        return cls(name, Limit(**values), covers)

    @property
    def row(self) -> dict[str, Any]:
        return {"name": self.name, "covers": self.covers, **asdict(self.limit)}

    @property
    def what(self) -> str:
        """The limit and what it is for."""
        if " " in self.name:
            return f"{self.limit}, by key"
        covers = ", ".join(map(title, self.covers))
        return f"{self.limit}, for {covers or 'no type'}"

    def __str__(self) -> str:
        return f"{title(self.name)}: {self.what}"


def title(name: str) -> str:
    """A limit's name as commands' types are shown."""
    return name.replace(" ", "/")


def handler_limit(
    where: str,
    *,
    concurrency: int | None = None,
    rate: str | None = None,
    burst: int | None = None,
    ordered: bool = False,
    on_trouble: str | None = None,
    fair: bool = False,
) -> Limit | None:
    """The handler's own limit; None if nothing is limited. `where` begins each sentence about what
    is wrong."""
    check_flag(f"ordered of {where}", ordered)
    check_flag(f"fair of {where}", fair)
    starts = _checked(where, concurrency, rate, burst)
    if ordered:
        _check_ordered(where, 1 if concurrency is None else concurrency)
    if on_trouble is not None:
        _check_choice(f"on_trouble of {where}", on_trouble, _ON_TROUBLE)
        if not ordered:
            raise ValueError(f"on_trouble of {where} needs ordered=True: it is about the order")
    if concurrency is None and starts is None and not ordered and not fair:
        return None
    return Limit(
        concurrency=concurrency,
        starts_per_second=starts,
        burst=burst,
        ordered=ordered,
        on_trouble=on_trouble or "block",
        fair=fair,
    )


def shared_limit(
    name: str,
    *,
    concurrency: int | None = None,
    rate: str | None = None,
    burst: int | None = None,
    per: str = "fleet",
) -> Limit:
    where = f"the limit {name}"
    starts = _checked(where, concurrency, rate, burst)
    _check_choice(f"per of {where}", per, _PER)
    if concurrency is None and starts is None:
        raise ValueError(f"{where} limits nothing: give it concurrency, a rate, or both")
    return Limit(
        concurrency=concurrency, starts_per_second=starts, burst=burst, per_node=per == "node"
    )


def _checked(
    where: str, concurrency: int | None, rate: str | None, burst: int | None
) -> float | None:
    """The rate, in starts a second."""
    if concurrency is not None:
        check_whole(f"concurrency of {where}", concurrency, 1)
    if burst is not None:
        check_whole(f"burst of {where}", burst, 1)
        if rate is None:
            raise ValueError(f"burst of {where} needs a rate: it is how many may start at once")
    return None if rate is None else starts_per_second(f"rate of {where}", rate)


def _check_ordered(where: str, concurrency: object) -> None:
    if concurrency != 1:
        raise ValueError(
            f"concurrency of {where} must be 1 or left out, not {concurrency}: ordered commands "
            f"run one at a time"
        )


def check_setting(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The columns of the limit `name` that an operator sets with these options; None takes a limit
    away."""
    where = title(name)
    if not options:
        raise ValueError(f"set needs at least one of {', '.join(_OPTIONS)}")
    for option, value in options.items():
        what = f"{option} of {where}"
        if option in _OF_TYPES and " " not in name:
            raise ValueError(f"{what} cannot be set: that is only for limits of one type")
        if option in ("ordered", "fair"):
            check_flag(what, value)
        elif option == "on_trouble":
            _check_choice(what, value, _ON_TROUBLE)
        elif option != "rate" and value is not None:
            check_whole(what, value, 1)
    if options.get("ordered"):
        _check_ordered(where, options.get("concurrency", 1))
    columns = dict(options)
    if "rate" in columns:
        rate = columns.pop("rate")
        starts = None if rate is None else starts_per_second(f"rate of {where}", rate)
        columns["starts_per_second"] = starts
    return columns


def options_set(limit: Limit, columns: Iterable[str]) -> dict[str, Any]:
    """The options that an operator has set, as `check_setting` takes them."""
    terms = limit.terms
    names = {"rate" if column == "starts_per_second" else column for column in columns}
    return {name: terms[name] for name in _OPTIONS if name in names}


def _check_choice(what: str, value: object, choices: tuple[str, str]) -> None:
    if value not in choices:
        raise ValueError(f"{what} must be {' or '.join(map(repr, choices))}, not {shown(value)}")


def starts_per_second(what: str, rate: str) -> float:
    found = _RATE.fullmatch(rate) if isinstance(rate, str) else None
    if not found or found[2] not in _UNITS:
        raise ValueError(
            f"{what} must be a number and s, min, h or day, like '100/min', not {shown(rate)}"
        )
    if not float(found[1]):
        raise ValueError(
            f"{what} must be more than 0, not {shown(rate)}: to start nothing, pause the domain"
        )
    return float(found[1]) / _UNITS[found[2]]


def rate_text(starts: float) -> str:
    """As a rate is declared: 100/min."""
    for unit in _SHOWN_UNITS:
        number = starts * _UNITS[unit]
        if round(number) and abs(number - round(number)) < 1e-9 * number:
            return f"{round(number)}/{unit}"
    return f"{starts:.6g}/s" if starts >= 1 else f"{starts * 86400:.6g}/day"


def check_declared(uses: Mapping[str, Iterable[str]], declared: Iterable[str]) -> None:
    """`uses`: names of shared limits by the type that has them."""
    names = set(declared)
    for type_, used in uses.items():
        for name in used:
            if name not in names:
                question = did_you_mean(name, names) or "declare it with registry.limit(...)"
                raise ValueError(
                    f"the handler of {title(type_)} has the limit {name!r}, which its registry "
                    f"does not declare: {question}"
                )
