"""The operator's side of bridges between queues of PGMQ and domains."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from cmdbus.checks import check_name, check_queue, check_whole, shown
from cmdbus.errors import CmdbusError, InvalidOperationError
from cmdbus.integrations.callers_connection import CallersConnection
from cmdbus.producer.arguments import check_remark
from cmdbus.producer.connections import Connections
from cmdbus.producer.refusals import Refusals
from cmdbus.queue_problems import queue_error

_REFUSALS = Refusals("there is no bridge", "cmdbus bridge list shows those that there are", {})
_MAX_BATCH = 1000
IN, OUT = "in", "out"


@dataclass(frozen=True, slots=True, kw_only=True)
class BridgeRecord:
    """A bridge, and what it has moved; times in UTC."""

    name: str
    queue: str
    #: "in": messages of the queue become commands of the domain; "out": commands become messages.
    direction: str
    domain: str
    #: None: all types, of a bridge out of the domain.
    type: str | None
    #: The domain that gets the replies, of a bridge into a domain.
    reply_to: str | None
    #: Messages or commands that one move takes at most.
    batch_size: int
    #: How many were moved since the bridge is there, and how many have come to the troubleshooting
    #: queue instead.
    moved: int
    refused: int
    moved_at: datetime | None
    #: Why nothing moves, and since when.
    error: str | None
    failed_at: datetime | None
    #: The operator that added it, the reason, and the time.
    operator: str | None
    reason: str | None
    added_at: datetime


class BridgeOperations:
    """`CommandBus.bridges`.

    A bridge moves the messages of a queue of PGMQ into commands of a domain, or commands of a
    domain into messages. Stewards of fleets, and standalone workers, move them, each exactly once.
    Changes are recorded in the audit trail of the domain, see `domain_audit`, with `operator` and
    `reason`.
    """

    def __init__(self, connections: Connections) -> None:
        self._connections = connections

    def list(self, *, connection: CallersConnection | None = None) -> list[BridgeRecord]:
        """Every bridge, by name."""
        return self._connections.records(BridgeRecord, connection, "read_bridges", "monitor")

    def add(
        self,
        queue: str,
        domain: str,
        type: str | None = None,
        *,
        direction: str = IN,
        name: str | None = None,
        reply_to: str | None = None,
        batch_size: int = 100,
        operator: str | None = None,
        reason: str | None = None,
        connection: CallersConnection | None = None,
    ) -> str:
        """Adds a bridge, and returns its name: `name` or, without one, that of the queue with "-in"
        or "-out".

        With `direction` "in" each message of `queue` becomes a command of `domain` and `type`,
        whose replies go to the domain `reply_to`. With "out" each command of `domain`, or of
        `type` alone, becomes a message and is completed with that. One move takes at most
        `batch_size` of them, from 1 to 1,000.

        Raises SchemaError without PGMQ, QueueNotFoundError for a queue that does not exist,
        MissingRightError if the role of the session may not do itself what the bridge is to do, and
        InvalidOperationError for a name that another bridge has, for a queue that has one in this
        direction, and if other bridges would move each message, or the reply to it, back.
        """
        check_queue(queue)
        given = _checked(direction, type, reply_to)
        if name is None:
            name = _name_of(queue, direction)
        values = {
            "name": check_name("name of a bridge", name),
            "queue": queue,
            "domain": check_name("domain", domain),
            **given,
            "batch_size": check_whole("batch_size", batch_size, 1, _MAX_BATCH),
            **check_remark(operator, reason),
        }
        refusal, subject, database = self._connections.row_once(connection, "add_bridge", **values)
        if refusal is not None:
            raise _refused(refusal, subject, database, values)
        return str(values["name"])

    def remove(
        self,
        name: str,
        *,
        operator: str | None = None,
        reason: str | None = None,
        connection: CallersConnection | None = None,
    ) -> None:
        """Removes a bridge; waits for a move that is under way. What it has not moved stays where
        it is. A name that no bridge has is an InvalidOperationError."""
        values = {"name": check_name("name of a bridge", name), **check_remark(operator, reason)}
        [refusal] = self._connections.row_once(connection, "remove_bridge", **values)
        if refusal is not None:
            names = [record.name for record in self.list(connection=connection)]
            raise _REFUSALS.unknown_error(name, names)


def _name_of(queue: str, direction: str) -> str:
    name = f"{queue}-{direction}"
    try:
        return check_name("name of a bridge", name)
    except ValueError:
        raise ValueError(f"{shown(name)} cannot be the name of a bridge: give it a name") from None


def _checked(direction: str, type_: str | None, reply_to: str | None) -> dict[str, object]:
    if direction not in (IN, OUT):
        raise ValueError(
            f"direction must be 'in' (messages become commands) or 'out' (commands become "
            f"messages), not {shown(direction)}"
        )
    if direction == IN and type_ is None:
        raise ValueError("a bridge into a domain needs the type of its commands")
    if direction == OUT and reply_to is not None:
        raise ValueError("reply_to is for bridges into a domain: a message gets no reply")
    return {
        "direction": direction,
        "type": None if type_ is None else check_name("type", type_),
        "reply_to": None if reply_to is None else check_name("reply_to", reply_to),
    }


def _refused(refusal: str, subject: str, database: str, values: dict[str, Any]) -> CmdbusError:
    queue, direction = values["queue"].lower(), values["direction"]
    match refusal:
        case "name":
            return InvalidOperationError(
                f"there is a bridge {subject!r} already: remove it first, or give this one another "
                f"name"
            )
        case "queue":
            return InvalidOperationError(
                f"bridge {subject!r} has the queue {queue!r} in the direction {direction!r} "
                f"already: a queue has one bridge in each direction, so remove that one first"
            )
        case "loop":
            return InvalidOperationError(
                f"bridge {subject!r} would move each message back: it leads from "
                f"{_way(queue, values, direction == OUT)}"
            )
        case "reply_loop":
            return InvalidOperationError(
                f"with bridge {subject!r} the reply to each message of the queue {queue!r} would "
                f"be a message of that queue, and have a reply itself: let replies go to another "
                f"queue"
            )
        case "circle":
            return InvalidOperationError(
                f"with bridge {values['name']!r} each message, or the reply to it, would come back "
                f"without end: {subject}"
            )
    return queue_error(refusal, queue, direction, subject, database)


def _way(queue: str, values: dict[str, Any], leads_in: bool) -> str:
    ends = [f"the queue {queue!r}", f"the domain {values['domain']!r}"]
    return " into ".join(ends if leads_in else reversed(ends))
