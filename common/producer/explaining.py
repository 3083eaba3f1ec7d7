"""Why a command does not run now, in one sentence."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import NamedTuple
from uuid import UUID

from cmdbus.checks import check_id
from cmdbus.counting import count_of
from cmdbus.errors import CommandNotFoundError
from cmdbus.integrations.callers_connection import CallersConnection
from cmdbus.producer.connections import Connections
from cmdbus.producer.requests import check_command
from cmdbus.retry import SUSPECT_LOSSES
from cmdbus.selection import listed

#: Waiting commands of the domain that are counted.
_MAX_COUNT = 1000


class Facts(NamedTuple):
    """What is known about a command; see explain in the schema."""

    #: The table.
    source: str
    type: str
    status: str
    error_code: str | None
    attempts: int
    losses: int
    worker: str | None
    claimed_at: datetime | None
    due_at: datetime
    #: When it finished, or came to troubleshooting.
    ended_at: datetime | None
    expires_at: datetime | None
    #: The server's time.
    present: datetime
    paused: bool
    #: Living ones, those of them that run its type, and those that also claim its priority.
    nodes: int
    handlers: int
    claimers: int
    #: Of those that its type needs; None if a living node has all of them.
    missing_tags: Sequence[str] | None
    priority: int
    #: Commands that are claimed before it, and whether there may be more.
    ahead: int | None
    many: bool | None


class ReachedLimit(NamedTuple):
    """Of a command in limited; see explain_limits in the schema."""

    #: order, places, rate or, for what waits before it, ahead.
    kind: str
    #: "domain type", or that of a shared limit.
    name: str | None
    shared: bool
    #: The command has a key.
    keyed: bool
    most: int | None
    per_node: bool
    commands: Sequence[UUID] | None
    number: int | None
    #: The table of the command that holds an ordered lane, and when it is due.
    source: str | None
    at: datetime | None


class OpenBreaker(NamedTuple):
    """One that the command's type is bound to; see find_breaker_of."""

    name: str
    state: str
    #: None: an operator keeps it open.
    retry_at: datetime | None


class BridgeOut(NamedTuple):
    """One that takes the command's type out of its domain; see find_bridge_of."""

    name: str
    queue: str
    error: str | None


class Explaining:
    """The method of CommandBus that explains."""

    _connections: Connections

    def explain(
        self, domain: str, command_id: UUID | str, *, connection: CallersConnection | None = None
    ) -> str:
        """A sentence that says why the command `command_id` of `domain` does not run now: it has
        ended, runs already, waits for an operator, for its time or for others, or cannot be
        claimed. It is about this moment, and meant for people: its words may change.

        Raises CommandNotFoundError for an unknown command.
        """
        values = {**check_command(domain, command_id), "count": _MAX_COUNT}
        rows = self._connections.rows(connection, "explain", "monitor", **values)
        if not rows:
            raise CommandNotFoundError(domain, check_id("command_id", command_id))
        facts = Facts._make(rows[0])
        breakers, bridges = [], []
        if facts.status == "PENDING":
            name = f"{domain} {facts.type}"
            found = self._connections.rows(connection, "find_breaker_of", "monitor", type=name)
            breakers = [OpenBreaker._make(row) for row in found]
            found = self._connections.rows(
                connection, "find_bridge_of", "monitor", domain=domain, type=facts.type
            )
            bridges = [BridgeOut._make(row) for row in found]
        limits = []
        if facts.source == "limited":
            found = self._connections.rows(connection, "explain_limits", "monitor", **values)
            limits = [ReachedLimit._make(row) for row in found]
        return sentence(domain, facts, limits, breakers, bridges)


def sentence(
    domain: str,
    facts: Facts,
    limits: Sequence[ReachedLimit] = (),
    breakers: Sequence[OpenBreaker] = (),
    bridges: Sequence[BridgeOut] = (),
) -> str:
    code = f" ({facts.error_code})" if facts.error_code else ""
    if facts.source == "finished":
        return f"It is {facts.status}{code} since {_time(facts.ended_at)}."
    if facts.source == "troubleshooting":
        return (
            f"It waits for an operator in the troubleshooting queue{code} since "
            f"{_time(facts.ended_at)}: cmdbus tsq retries, cancels or completes it."
        )
    if facts.status == "IN_PROGRESS":
        worker = f" by worker {facts.worker}" if facts.worker else ""
        return f"It is in progress, claimed{worker} at {_time(facts.claimed_at)}."
    expires_at = facts.expires_at if facts.claimed_at is None else None
    if expires_at is not None and expires_at <= facts.present:
        then = "a node is about to cancel it" if facts.nodes else "no living node can cancel it"
        return f"It expired at {_time(expires_at)}, and {then}."
    reasons = ", and ".join(_reasons(domain, facts, limits, breakers, bridges))
    end = f"; it expires at {_time(expires_at)}" if expires_at else ""
    return f"It waits: {reasons}{end}."


def _reasons(
    domain: str,
    facts: Facts,
    limits: Sequence[ReachedLimit],
    breakers: Sequence[OpenBreaker],
    bridges: Sequence[BridgeOut],
) -> Iterator[str]:
    """At least one."""
    if facts.source == "scheduled":
        yield _due(facts)
    cannot = list(_hindrances(domain, facts))
    cannot += map(_kept, breakers)
    cannot += [_unmoved(bridge, bridge.error) for bridge in bridges if bridge.error]
    cannot += [_reached(limit) for limit in limits if limit.kind != "ahead" or limit.number]
    yield from cannot
    if facts.source != "scheduled" and not cannot:
        yield _turn(facts, f"bridge {bridges[0].name} moves" if bridges else "a free thread claims")


def _due(facts: Facts) -> str:
    what = f"its next attempt (after {facts.error_code})" if facts.error_code else "it"
    if facts.due_at > facts.present:
        return f"{what} is due at {_time(facts.due_at)}"
    return f"{what} is due since {_time(facts.due_at)} and comes into the queue next"


def _hindrances(domain: str, facts: Facts) -> Iterator[str]:
    if facts.paused:
        yield f"domain {domain} is paused"
    if not facts.nodes:
        yield "no node is alive"
    elif not facts.handlers and facts.missing_tags:
        yield f"no living node has {listed(facts.missing_tags)}, which {domain}/{facts.type} needs"
    elif not facts.handlers:
        yield f"no living node handles {domain}/{facts.type}"
    elif not facts.claimers:
        yield f"no living node claims priority {facts.priority} of {domain}/{facts.type}"
    elif facts.source == "ready" and facts.losses >= SUSPECT_LOSSES:
        lost = count_of(facts.losses, "process", "es")
        yield f"it runs next in a process of its own, because {lost} ended while it ran"


def _reached(limit: ReachedLimit) -> str:
    whose = f"limit {limit.name}" if limit.shared else (limit.name or "").replace(" ", "/")
    match limit.kind:
        case "order":
            [holder] = limit.commands or []
            if limit.source == "scheduled":
                state = f"is due again at {_time(limit.at)}"
            elif limit.source == "troubleshooting":
                state = "waits in the troubleshooting queue"
            else:
                state = "is in progress"
            order = "its key" if limit.keyed else "its commands"
            return f"{whose} keeps the order of {order}, in which {holder} {state}"
        case "places":
            commands = ", ".join(map(str, limit.commands or []))
            more = (limit.number or 0) - len(limit.commands or [])
            commands += f" and {more} more" if more else ""
            scope = " on each node" if limit.per_node else " of its key" if limit.keyed else ""
            return f"{whose} lets {limit.most} run at once{scope}, and these do: {commands}"
        case "rate":
            return f"the rate of {whose} lets the next one start at {_time(limit.at)}"
    number = limit.number or 0
    many = f"{number} or more commands" if number == _MAX_COUNT else count_of(number)
    whose = "its type and key" if limit.keyed else "its type"
    return f"{many} of {whose} {'waits' if number == 1 else 'wait'} before it"


def _kept(breaker: OpenBreaker) -> str:
    if breaker.state == "HALF_OPEN":
        return f"the breaker {breaker.name} is half-open, and lets only its probes through"
    if breaker.retry_at is None:
        return f"the breaker {breaker.name} is open until an operator closes it"
    probes = f"lets probes through from {_time(breaker.retry_at)} on"
    return f"the breaker {breaker.name} is open, and {probes}"


def _unmoved(bridge: BridgeOut, error: str) -> str:
    return f"bridge {bridge.name} cannot move it into the queue {bridge.queue!r}: {error}"


def _turn(facts: Facts, claims: str) -> str:
    if not facts.ahead:
        return f"it is the next one that {claims}"
    count = f"{facts.ahead} or more commands" if facts.many else count_of(facts.ahead)
    return f"{count} of its domain {'is' if facts.ahead == 1 else 'are'} claimed before it"


def _time(time: datetime | None) -> str:
    assert time is not None
    return time.astimezone(UTC).isoformat(sep=" ", timespec="seconds")
