"""What the checks of bridges find: by their names, changes that make a good history wrong."""

from dataclasses import replace
from typing import Any

from chaos_history import CALM, Change, add, both, change, drop, put
from fault_injection.bridging import BRIDGED, BRIDGED_REPLIES, MESSAGES, QUEUE_IN, QUEUE_OUT
from fault_injection.history import Call, Mark, Message, Row

_DONE: dict[str, Any] = dict(table="finished", status="COMPLETED", claimer=2)
_CALLS = [
    Call(name="m1", way=MESSAGES, count=2, outcome="ok", messages=[7, 8], ended=102.0),
    Call(name="m2", way="rollback", count=1, outcome="fail"),
    Call(name="m3", way=MESSAGES, count=1, outcome="unknown"),
]
_ROWS = [
    Row(
        command_id="bridged",
        type="Noop",
        domain=BRIDGED,
        call="m1",
        index=0,
        run="bridged",
        reply_to=BRIDGED_REPLIES,
        created_at=102.5,
        headers={"pgmq_msg_id": "7"},
        **_DONE,
    ),
    Row(
        command_id="answer",
        type="Reply",
        domain=BRIDGED_REPLIES,
        answers="bridged",
        headers={"pgmq_msg_id": "7"},
        **_DONE,
    ),
]
_MESSAGES = [
    Message(queue=QUEUE_IN, number=8, call="m1", index=1),
    Message(
        queue=QUEUE_OUT,
        number=1,
        answers="bridged",
        outcome="SUCCESS",
        headers={"pgmq_msg_id": "7"},
    ),
]
_RETURNED = Mark(at=105.0, what="returned", run="bridged", pid=20, command_id="bridged", attempt=1)


def bridged(history: Any) -> Any:
    """Of two messages one is a command that was answered, and one waits."""
    return replace(
        history,
        calls=[*_CALLS, *history.calls],
        rows=[*_ROWS, *history.rows],
        marks=[*history.marks, _RETURNED],
        messages=_MESSAGES,
    )


def broken(*changes: Change) -> Change:
    return both(bridged, *changes)


_NOT_ANSWERED = both(change("rows", 1, table="ready", status="PENDING"), drop("messages", 1))
_AWAY = change("recoveries", 0, kind="stop-steward", instances=["a"], began=104.0, ended=106.0)
#: Checks, and what none of them may find: a reply that waits, a message that is late because of a
#: fault, and an unknown call that is there.
KEPT_BY_BRIDGES = [
    ("replies-come-back-as-one-message", broken(_NOT_ANSWERED)),
    ("messages-move-in-time", broken(_AWAY, change("rows", 0, created_at=110.0))),
    ("messages-become-one-command", broken(add("messages", 0, call="m3", index=0))),
]
#: As BROKEN.
BROKEN_BRIDGES: dict[str, dict[str, Change]] = {
    "messages-become-one-command": {
        "it is nowhere": broken(drop("messages", 0)),
        "a part of an unknown transaction": broken(
            change("calls", 2, count=2), add("messages", 0, call="m3", index=0)
        ),
        "it is a command and still in the queue": broken(add("messages", 0, index=0)),
        "it is two commands": broken(add("rows", 0, command_id="another")),
        "its transaction was rolled back": broken(add("rows", 0, command_id="x", call="m2")),
        "it is in the queue, and was rolled back": broken(add("messages", 0, call="m2")),
    },
    "commands-have-the-numbers-of-their-messages": {
        "another number": broken(change("calls", 0, messages=[9, 8])),
    },
    "replies-come-back-as-one-message": {
        "none came": broken(drop("messages", 1)),
        "two came": broken(add("messages", 1, number=2)),
        "one came before it was settled": broken(change("rows", 1, table="ready")),
        "one of another command": broken(add("messages", 1, answers="tx")),
        "another outcome": broken(change("messages", 1, outcome="FAILED")),
        "another number": broken(change("messages", 1, headers={"pgmq_msg_id": "8"})),
    },
    "messages-move-in-time": {
        "it is late": broken(CALM, change("rows", 0, created_at=110.0)),
    },
    "bridges-were-used": {
        "no message was written": put(messages=_MESSAGES),
        "none came back": broken(drop("messages", 1)),
    },
}
