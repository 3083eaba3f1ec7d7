"""Records of a history by what they belong to, for the checks. Pure."""

from collections import defaultdict
from collections.abc import Iterable, Mapping

from fault_injection.history import History, Mark, Move, Row
from fault_injection.selecting import LAST, TAGGED

#: The tables of commands that have ended, or wait for an operator.
SETTLED = ("finished", "troubleshooting")


def by_call(rows: Iterable[Row]) -> Mapping[str, list[Row]]:
    found: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        if row.call is not None:
            found[row.call].append(row)
    return found


def by_command(moves: Iterable[Move]) -> Mapping[str, list[Move]]:
    found: dict[str, list[Move]] = defaultdict(list)
    for move in moves:
        found[move.command_id].append(move)
    return found


def moved_into_lanes(moves: Iterable[Move]) -> set[int]:
    """The numbers of the moves out of ready to where commands wait at a limit."""
    found = set()
    left: dict[tuple[str, int], int] = {}
    for move in moves:
        if move.what == "ready-":
            left[move.command_id, move.xid] = move.number
        elif move.what == "limited+" and (move.command_id, move.xid) in left:
            found.add(left.pop((move.command_id, move.xid)))
    return found


def entries(marks: Iterable[Mark]) -> list[Mark]:
    return sorted((mark for mark in marks if mark.what == "enter"), key=lambda mark: mark.at)


def is_of_process(row: Row) -> bool:
    """Sent for a process: by its steps, or to itself."""
    return row.process is not None or row.type.startswith("process:")


def is_reserved(row: Row) -> bool:
    """Only one instance claims it."""
    return row.type == TAGGED or row.priority == LAST


def completed_by_operators(history: History) -> set[str]:
    return {event.command_id for event in history.events if event.kind == "OPERATOR_COMPLETE"}


def pid_of(worker: str) -> int:
    """0 if it is no process, but a bridge."""
    number = worker.rpartition(":")[2]
    return int(number) if number.isdigit() else 0


def named(row: Row) -> str:
    return f"{row.type} {row.command_id} (call {row.call})"
