"""What keeps a role from moving messages of a queue of PGMQ, in words that say what to do. Pure."""

from cmdbus.errors import CmdbusError, MissingRightError, QueueNotFoundError, SchemaError

#: Rights of a role on the table of a queue, by the direction of its bridge.
_RIGHTS = {"in": "DELETE, SELECT, UPDATE", "out": "INSERT, SELECT"}


def queue_error(problem: str, queue: str, direction: str, role: str, database: str) -> CmdbusError:
    """`problem` is what the schema's function queue_problem returns, for this role."""
    match problem:
        case "no_pgmq":
            return pgmq_missing(database)
        case "old_pgmq":
            return SchemaError(
                f"the PGMQ of database {database!r} has no headers of messages, as versions from "
                f"1.5 on have: ALTER EXTENSION pgmq UPDATE"
            )
        case "no_queue":
            return QueueNotFoundError(queue)
    to = f"TO {quoted(role)}"
    if problem == "no_notify_right":
        return MissingRightError(
            f"role {role!r} may not notify of messages in the queue {queue!r}: "
            f"{grant_of_notifications(role)}"
        )
    move = "take messages off" if direction == "in" else "send messages to"
    return MissingRightError(
        f"role {role!r} may not {move} the queue {queue!r}: GRANT USAGE ON SCHEMA pgmq {to}; "
        f"GRANT {_RIGHTS[direction]} ON pgmq.{quoted(f'q_{queue}')} {to}"
    )


def pgmq_missing(database: str) -> SchemaError:
    return SchemaError(f"PGMQ is not installed in database {database!r}: CREATE EXTENSION pgmq")


def grant_of_notifications(role: str) -> str:
    """What a role needs besides to send to a queue with pgmq.enable_notify_insert."""
    return f"GRANT SELECT, UPDATE ON pgmq.notify_insert_throttle TO {quoted(role)}"


def quoted(identifier: str) -> str:
    return '"' + identifier.replace('"', '""') + '"'
