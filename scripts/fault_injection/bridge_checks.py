"""The invariants of bridges: each message becomes one command, and each reply one message. Pure."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence

from fault_injection.bridging import BRIDGED, BRIDGED_REPLIES, MESSAGES, QUEUE_IN, QUEUE_OUT
from fault_injection.grouping import named
from fault_injection.history import Call, History, Message, Row
from fault_injection.time_checks import a_steward_kept_away

#: The header that a bridge adds: the number of the message.
_NUMBER = "pgmq_msg_id"
#: Seconds within which a message becomes a command: it may be invisible for 2 s.
_MOVED_S = 6.0
#: The outcomes of replies, by the status of their commands.
_OUTCOMES = {"COMPLETED": "SUCCESS", "FAILED": "FAILED", "CANCELED": "CANCELED"}


def messages_become_one_command(history: History) -> Iterator[str]:
    """Or are still in the queue; those of an unknown transaction all, or none."""
    there = _sent(history)
    calls = {call.name: call for call in history.calls if call.way == MESSAGES}
    for name, call in calls.items():
        found = Counter(index for index, _ in there.get(name, ()))
        for index, count in found.items():
            if count > 1:
                yield f"message {index} of call {name} is there {count} times"
        if call.outcome == "ok" or found:
            for index in set(range(call.count)) - found.keys():
                yield f"message {index} of call {name} is nowhere"
    for row in history.rows:
        if row.domain == BRIDGED and row.call not in calls:
            yield f"{named(row)} is of a message that was never committed"
    for message in _in(history, QUEUE_IN):
        if message.call not in calls:
            yield f"message {message.number} was never committed"


def commands_have_the_numbers_of_their_messages(history: History) -> Iterator[str]:
    there = _sent(history)
    for call in history.calls:
        numbers = dict(there.get(call.name, ()))
        for index, number in enumerate(call.messages):
            if numbers.get(index, str(number)) != str(number):
                yield (
                    f"message {index} of call {call.name} has the number {number}, and its "
                    f"command {numbers[index]}"
                )


def _sent(history: History) -> Mapping[str, list[tuple[int | None, str | None]]]:
    """By call: the index of each message and its number, as a command or still in the queue."""
    found: dict[str, list[tuple[int | None, str | None]]] = defaultdict(list)
    for row in history.rows:
        if row.domain == BRIDGED:
            found[row.call or ""].append((row.index, row.headers.get(_NUMBER)))
    for message in _in(history, QUEUE_IN):
        found[message.call or ""].append((message.index, str(message.number)))
    return found


def replies_come_back_as_one_message(history: History) -> Iterator[str]:
    """With the outcome and the number of the message that was the command; none of anything else.
    A reply that has not ended is no message yet."""
    waiting = {
        row.answers
        for row in history.rows
        if row.domain == BRIDGED_REPLIES and row.table != "finished"
    }
    messages: dict[str | None, list[Message]] = defaultdict(list)
    for message in _in(history, QUEUE_OUT):
        messages[message.answers].append(message)
    for row in history.rows:
        if row.domain != BRIDGED:
            continue
        found = messages.pop(row.command_id, [])
        wanted = int(row.table == "finished" and row.command_id not in waiting)
        if len(found) != wanted:
            yield f"{named(row)} is {row.status}, and {len(found)} messages came back"
        for message in found:
            yield from _differences(row, message)
    for id_, unknown in messages.items():
        yield f"{len(unknown)} messages came back of {id_}, which is no command of the bridge"


def _differences(row: Row, message: Message) -> Iterator[str]:
    if message.outcome != _OUTCOMES.get(row.status):
        yield f"{named(row)} is {row.status}, and its message says {message.outcome}"
    number = row.headers.get(_NUMBER)
    if message.headers.get(_NUMBER) != number:
        yield (
            f"{named(row)} was message {number}, and its reply names {message.headers.get(_NUMBER)}"
        )


def messages_move_in_time(history: History) -> Iterator[str]:
    """While no steward is kept away: one that is may have the bridge locked."""
    calls = {call.name: call for call in history.calls if _is_accepted(call)}
    for row in history.rows:
        call = calls.get(row.call or "")
        if call is None or row.created_at <= call.ended + _MOVED_S:
            continue
        if not a_steward_kept_away(history, call.ended, row.created_at):
            late = row.created_at - call.ended
            yield f"{named(row)} was made {late:.1f} s after its message was committed"


def bridges_were_used(history: History) -> Iterator[str]:
    """A check of nothing finds nothing."""
    if history.messages is None:
        return
    if not any(_is_accepted(call) for call in history.calls):
        yield "no message was written"
    elif not _in(history, QUEUE_OUT):
        yield "no message came back"


def _is_accepted(call: Call) -> bool:
    return call.way == MESSAGES and call.outcome == "ok"


def _in(history: History, queue: str) -> Sequence[Message]:
    return [message for message in history.messages or () if message.queue == queue]
