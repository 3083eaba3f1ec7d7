"""The operator's side of circuit breakers: their states, what apps declare, and the terms that
operators set."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import groupby
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple

from cmdbus.breakers import COLUMNS, BreakerState, BreakerTerms, check_terms
from cmdbus.checks import check_name, check_whole
from cmdbus.integrations.callers_connection import CallersConnection
from cmdbus.producer.arguments import NOT_GIVEN, check_remark
from cmdbus.producer.connections import Connections
from cmdbus.producer.records import AuditEvent, filled
from cmdbus.producer.refusals import Refusals

_REFUSALS = Refusals(
    "there is no breaker",
    "cmdbus breaker list shows those that there are",
    {
        "unset": "nothing is set of the breaker {}: cmdbus breaker list (bus.breakers.list()) "
        "shows what is"
    },
)


@dataclass(frozen=True, slots=True)
class DeclaredBreaker:
    """What an app declares."""

    app: str
    declared_at: datetime
    terms: BreakerTerms
    #: Names of the exceptions that count as failures.
    counts: list[str]


@dataclass(frozen=True, slots=True)
class SetBreaker:
    """What operators have set."""

    #: Terms with their values; for all others the latest declaration holds.
    values: dict[str, Any]
    #: The operator of the latest change.
    operator: str | None
    reason: str | None
    set_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerRecord:
    """A circuit breaker as it is now."""

    name: str
    state: BreakerState
    #: When it got this state.
    changed_at: datetime
    #: When it opened, before probes that have failed since; None while it is CLOSED.
    opened_at: datetime | None
    #: Failures on record while it is CLOSED.
    failures: int
    #: The end of its cooldown, after which probes are let through; None while it is CLOSED, and if
    #: an operator keeps it open.
    retry_at: datetime | None
    #: Probes that are being made.
    probing: int
    #: The types that are bound to it, as "domain/type".
    covers: list[str]
    in_force: BreakerTerms
    #: The latest first, which holds; empty, if no app declares it any longer.
    declared: list[DeclaredBreaker]
    set: SetBreaker | None


class BreakerOperations:
    """`CommandBus.breakers`. Changes are recorded; see `audit`. Each raises InvalidOperationError
    for a name that no breaker has."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections

    def list(self, *, connection: CallersConnection | None = None) -> list[BreakerRecord]:
        """Every breaker, by name: those that apps declare, and those that no app declares any
        longer but an operator keeps open or has set terms of."""
        found = self._connections.rows(connection, "read_breakers", "monitor")
        groups = groupby(map(_Row._make, found), key=attrgetter("name"))
        return [_record(name, rows) for name, rows in groups]

    def open(
        self,
        name: str,
        *,
        operator: str | None = None,
        reason: str | None = None,
        connection: CallersConnection | None = None,
    ) -> None:
        """Opens the breaker `name`, until an operator closes or resets it: no probes are made.
        Recorded with `operator` and `reason`."""
        self._steer(connection, name, "open", operator, reason)

    def close(
        self,
        name: str,
        *,
        operator: str | None = None,
        reason: str | None = None,
        connection: CallersConnection | None = None,
    ) -> None:
        """Closes the breaker `name`: calls are made again, and failures open it again. Recorded
        with `operator` and `reason`."""
        self._steer(connection, name, "close", operator, reason)

    def reset(
        self,
        name: str,
        *,
        operator: str | None = None,
        reason: str | None = None,
        connection: CallersConnection | None = None,
    ) -> None:
        """Closes the breaker `name`, and forgets the failures on record. Recorded with `operator`
        and `reason`."""
        self._steer(connection, name, "reset", operator, reason)

    def set(
        self,
        name: str,
        *,
        failures: int = NOT_GIVEN,
        window: float | timedelta = NOT_GIVEN,
        cooldown: float | timedelta = NOT_GIVEN,
        probes: int = NOT_GIVEN,
        operator: str | None = None,
        reason: str | None = None,
        connection: CallersConnection | None = None,
    ) -> None:
        """Sets those terms that are given of the breaker `name`; they win over declared ones until
        `clear`.

        They are those of a Breaker: it opens at `failures` failures within `window`, for
        `cooldown`, and then lets `probes` calls at a time through. Times are seconds or timedeltas.
        Recorded with `operator` and `reason`.
        """
        terms = {"failures": failures, "window": window, "cooldown": cooldown, "probes": probes}
        given = {option: value for option, value in terms.items() if value is not NOT_GIVEN}
        if not given:
            raise ValueError(f"set needs at least one of {', '.join(terms)}")
        checked = check_terms(check_name("breaker", name), given)
        columns = {COLUMNS[option]: value for option, value in checked.items()}
        values = {"name": name, **check_remark(operator, reason), **columns}
        self._change(connection, "set_breaker", values)

    def clear(
        self,
        name: str,
        *,
        operator: str | None = None,
        reason: str | None = None,
        connection: CallersConnection | None = None,
    ) -> None:
        """Removes what is set of the breaker `name`: what apps declare holds again. Recorded with
        `operator` and `reason`. Raises InvalidOperationError if nothing is set."""
        values = {"name": check_name("breaker", name), **check_remark(operator, reason)}
        self._change(connection, "clear_breaker", values)

    def audit(
        self, name: str, *, connection: CallersConnection | None = None
    ) -> "list_[AuditEvent]":
        """The latest 1000 changes of the breaker `name`, oldest first: OPENED, HALF_OPENED, CLOSED,
        RESET, SET, CLEARED; the message is an operator's reason."""
        values = {"name": check_name("breaker", name)}
        found = self._connections.records(
            AuditEvent, connection, "read_breaker_audit", "operator", **values
        )
        if not found and name not in (names := self._names(connection)):
            raise _REFUSALS.unknown_error(name, names)
        return found

    def audits(
        self, latest: int = 50, *, connection: CallersConnection | None = None
    ) -> dict[str, "list_[AuditEvent]"]:
        """The `latest` so many changes of each breaker by its name, oldest first, as `audit` has
        them."""
        count = check_whole("latest", latest, 1, 1000)
        rows = self._connections.rows(connection, "read_latest_of_breakers", latest=count)
        groups = groupby(rows, key=itemgetter(0))
        return {name: [filled(AuditEvent, row[1:]) for row in group] for name, group in groups}

    def _steer(
        self,
        connection: CallersConnection | None,
        name: str,
        action: str,
        operator: str | None,
        reason: str | None,
    ) -> None:
        remark = check_remark(operator, reason)
        values = {"name": check_name("breaker", name), "action": action, **remark}
        self._change(connection, "steer_breaker", values)

    def _change(
        self, connection: CallersConnection | None, function: str, values: dict[str, Any]
    ) -> None:
        [refusal] = self._connections.row_once(connection, function, **values)
        if refusal is not None:
            raise _REFUSALS.error(refusal, values["name"], lambda: self._names(connection))

    def _names(self, connection: CallersConnection | None) -> "list_[str]":
        return [each.name for each in self.list(connection=connection)]


# BreakerOperations.list hides the type in its class.
list_ = list


class _Row(NamedTuple):
    """Of read_breakers."""

    name: str
    kind: str
    app: str
    at: datetime
    operator: str | None
    reason: str | None
    counts: list_[str]
    covers: list_[str]
    failures: int
    window: float
    cooldown: float
    probes: int
    state: str
    on_record: int
    retry_at: datetime | None
    probing: int
    opened_at: datetime | None

    @property
    def terms(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in COLUMNS}


def _record(name: str, rows: Iterable[_Row]) -> BreakerRecord:
    current, set_, declared = None, None, []
    for row in rows:
        at = row.at.astimezone(UTC)
        match row.kind:
            case "in_force":
                current = row
            case "declared":
                terms = BreakerTerms(**row.terms)
                declared.append(DeclaredBreaker(row.app, at, terms, row.counts))
            case "set":
                values = {name: value for name, value in row.terms.items() if value is not None}
                set_ = SetBreaker(values, row.operator, row.reason, at)
    assert current is not None
    return BreakerRecord(
        name=name,
        state=BreakerState(current.state),
        changed_at=current.at.astimezone(UTC),
        opened_at=current.opened_at and current.opened_at.astimezone(UTC),
        failures=current.on_record,
        retry_at=current.retry_at and current.retry_at.astimezone(UTC),
        probing=current.probing,
        covers=[each.replace(" ", "/") for each in current.covers],
        in_force=BreakerTerms(**current.terms),
        declared=declared,
        set=set_,
    )
