"""The operator's side of limits: those that apps declare, the options that operators set, and the
limits that are in force."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import groupby
from operator import attrgetter
from typing import Any, NamedTuple

from cmdbus.checks import check_name
from cmdbus.integrations.callers_connection import CallersConnection
from cmdbus.limits import FIELDS, Limit, check_setting, options_set, title
from cmdbus.producer.arguments import NOT_GIVEN, check_remark
from cmdbus.producer.connections import Connections
from cmdbus.producer.refusals import Refusals

_REFUSALS = Refusals(
    "no app declares a shared limit",
    "cmdbus limit list shows those that are declared",
    {
        "concurrency": "{} is ordered, so its commands run one at a time: "
        "set --unordered (ordered=False), too",
        "burst": "{} has no rate, and a burst is about one: set the rate, too",
        "on_trouble": "{} is not ordered, and on_trouble is about the order: "
        "set --ordered (ordered=True), too",
        "unset": "nothing is set of the limit {}: cmdbus limit list (bus.limits.list()) shows "
        "what is",
    },
)


@dataclass(frozen=True, slots=True)
class DeclaredLimit:
    """What an app declares."""

    app: str
    declared_at: datetime
    limit: Limit


@dataclass(frozen=True, slots=True)
class SetLimit:
    """What operators have set."""

    #: Options of `set` with their values; for all others the latest declaration holds.
    values: dict[str, Any]
    #: The operator of the latest change.
    operator: str | None
    reason: str | None
    set_at: datetime


@dataclass(frozen=True, slots=True)
class LimitRecord:
    """A limit: by whom it is declared, what is set, and what is in force."""

    #: That of a shared limit, or "domain/type" for the limit of one type.
    name: str
    #: Types, as "domain/type", and domains, for all of their types.
    covers: list[str]
    #: None: nothing is limited.
    in_force: Limit | None
    #: The latest first, which holds.
    declared: list[DeclaredLimit]
    set: SetLimit | None


class LimitOperations:
    """`CommandBus.limits`.

    A limit is named by its domain and type or, if several types share it, by its name. Changes are
    recorded in the audit trail of each domain that the limit is for; see `domain_audit`.
    """

    def __init__(self, connections: Connections) -> None:
        self._connections = connections

    def list(self, *, connection: CallersConnection | None = None) -> list[LimitRecord]:
        """Every limit that is declared or set, by name."""
        found = self._connections.rows(connection, "read_limits", "monitor")
        rows = map(_Row._make, found)
        return [_record(name, group) for name, group in groupby(rows, key=attrgetter("name"))]

    def set(
        self,
        domain: str | None = None,
        type: str | None = None,
        *,
        name: str | None = None,
        concurrency: int | None = NOT_GIVEN,
        rate: str | None = NOT_GIVEN,
        burst: int | None = NOT_GIVEN,
        ordered: bool = NOT_GIVEN,
        on_trouble: str = NOT_GIVEN,
        fair: bool = NOT_GIVEN,
        operator: str | None = None,
        reason: str | None = None,
        connection: CallersConnection | None = None,
    ) -> None:
        """Sets those options that are given of the limit of `domain` and `type`, or `name`; they
        win over declared ones until `clear`.

        They are those of a handler: `concurrency`, `rate`, `burst` (None removes what is declared)
        and, not for shared limits, `ordered`, `on_trouble` and `fair`. Recorded with `operator` and
        `reason`. Raises InvalidOperationError for a `name` that no app declares, and for what
        contradicts the rest of the limit.
        """
        key, remark = _key(domain, type, name), check_remark(operator, reason)
        options = {"concurrency": concurrency, "rate": rate, "burst": burst}
        options |= {"ordered": ordered, "on_trouble": on_trouble, "fair": fair}
        given = {option: value for option, value in options.items() if value is not NOT_GIVEN}
        columns = check_setting(key, given)
        values = {"name": key, "given": [*columns], **remark, **columns}
        self._change(connection, "set_limit", values)

    def clear(
        self,
        domain: str | None = None,
        type: str | None = None,
        *,
        name: str | None = None,
        operator: str | None = None,
        reason: str | None = None,
        connection: CallersConnection | None = None,
    ) -> None:
        """Removes what is set of the limit of `domain` and `type`, or `name`: what apps declare
        holds again. Recorded with `operator` and `reason`. Raises InvalidOperationError if nothing
        is set."""
        values = {"name": _key(domain, type, name), **check_remark(operator, reason)}
        self._change(connection, "clear_limit", values)

    def _change(
        self, connection: CallersConnection | None, function: str, values: dict[str, Any]
    ) -> None:
        [refusal] = self._connections.row_once(connection, function, **values)
        if refusal is not None:
            raise _REFUSALS.error(refusal, values["name"], lambda: self._names(connection))

    def _names(self, connection: CallersConnection | None) -> "list_[str]":
        return [each.name for each in self.list(connection=connection) if each.declared]


# LimitOperations.list hides the type in its class.
list_ = list


def _key(domain: str | None, type: str | None, name: str | None) -> str:
    """The name in the database."""
    if name is not None and domain is None and type is None:
        return check_name("name", name)
    if name is None and domain is not None and type is not None:
        return f"{check_name('domain', domain)} {check_name('type', type)}"
    raise ValueError("a limit is named by domain and type, or by name=, if it is a shared one")


class _Row(NamedTuple):
    """Of read_limits."""

    name: str
    kind: str
    app: str
    at: datetime
    operator: str | None
    reason: str | None
    #: The types and domains that a declaration covers, or the columns that are set.
    names: list[str]
    concurrency: int | None
    starts_per_second: float | None
    burst: int | None
    ordered: bool
    on_trouble: str
    fair: bool
    per_node: bool

    @property
    def limit(self) -> Limit:
        return Limit(**{field: getattr(self, field) for field in FIELDS})


def _record(name: str, rows: Iterable[_Row]) -> LimitRecord:
    in_force, set_, declared = None, None, []
    covers = {title(name)} if " " in name else set[str]()
    for row in rows:
        match row.kind:
            case "in_force":
                in_force = row.limit
            case "declared":
                covers.update(map(title, row.names))
                declared.append(DeclaredLimit(row.app, row.at.astimezone(UTC), row.limit))
            case "set":
                options = options_set(row.limit, row.names)
                set_ = SetLimit(options, row.operator, row.reason, row.at.astimezone(UTC))
    return LimitRecord(title(name), sorted(covers), in_force, declared, set_)
