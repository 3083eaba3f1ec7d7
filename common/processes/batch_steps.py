"""Steps of several commands: a batch, whose end sends a command to the process's domain."""

from collections.abc import Sequence
from operator import attrgetter
from uuid import UUID

from cmdbus.data import encode
from cmdbus.database.pool import Connection
from cmdbus.forwarding import default_headers
from cmdbus.headers import decode_headers, encode_with_defaults
from cmdbus.producer.ids import new_call, new_id
from cmdbus.producer.requests import SELDOM, Outgoing
from cmdbus.producer.store import Store
from cmdbus.reply import Reply

#: The type of the command that says that a batch is over.
BATCH = "process:batch"
#: Commands that were not completed, in a reply.
_MAX_FAILURES = 100
_OUTCOMES = {
    "COMPLETED": "SUCCESS",
    "COMPLETED_WITH_FAILURES": "FAILED",
    "CANCELED": "CANCELED",
}


def create_batch(
    store: Store,
    connection: Connection,
    commands: Sequence[Outgoing],
    *,
    domain: str,
    process_id: UUID,
    name: str,
) -> tuple[UUID, UUID | None]:
    """Sends these commands for a process, whatever the limits of their domains. Returns the id of
    their batch and, if one of theirs is taken, that."""
    own = [command for command in commands if command.own]
    if own:
        domains, ids = [each.domain for each in own], [each.command_id for each in own]
        values = {"domains": domains, "command_ids": ids, "call": new_call()}
        taken = store.rows(connection, "identify", **values, brought=True)
        if taken:
            return taken[0][1], taken[0][1]
    batch_id = new_id()
    sent = [command._replace(correlation_id=process_id, reply_to=None) for command in commands]
    seldom = [column for column in SELDOM.values() if any(map(attrgetter(column), sent))]
    store.copy(connection, sent, store.value(connection, "read_now"), batch_id, seldom)
    store.value(
        connection,
        "create_batch",
        batch_id=batch_id,
        domain=domain,
        name=name,
        data=encode({"process_id": str(process_id)}),
        total=len(sent),
        on_complete=_after(domain, process_id),
        on_cancel=_after(domain, process_id),
    )
    return batch_id, None


def reply_of(store: Store, connection: Connection, batch_id: UUID) -> Reply | None:
    """The reply of a batch; None while it is not over, CANCELED if it is gone."""
    values = {"batch_id": batch_id, "count": _MAX_FAILURES}
    found = store.rows(connection, "read_awaited_batch", **values)
    if not found:
        return gone(batch_id)
    if found[0][0] not in _OUTCOMES:
        return None
    status, total, completed, failed, canceled, failures = found[0]
    result = {
        "batch_id": str(batch_id),
        "total": total,
        "completed": completed,
        "failed": failed,
        "canceled": canceled,
        "failures": failures,
    }
    return Reply(command_id=batch_id, type=BATCH, outcome=_OUTCOMES[status], result=result)


def gone(id_: UUID) -> Reply:
    """In place of the reply of a command or batch whose history is removed."""
    result = {"code": "GONE", "message": "its history is gone", "details": None}
    return Reply(command_id=id_, type="", outcome="CANCELED", result=result)


def _after(domain: str, process_id: UUID) -> str:
    """As the schema's create_batch reads it."""
    command = {
        "domain": domain,
        "type": BATCH,
        "data": {"process_id": str(process_id)},
        "command_id": str(new_id()),
        "own": False,
        "priority": 5,
    }
    if headers := decode_headers(encode_with_defaults(None, default_headers())):
        command["headers"] = headers
    return encode(command)
