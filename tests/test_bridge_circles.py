"""Bridges by which messages would come back without end are refused, and no others."""

import psycopg
import pytest
from pgmq_queues import create_queues
from pgmq_queues import pgmq_dsn as pgmq_dsn

from cmdbus import CommandBus, InvalidOperationError

IN_A, OUT_B = ("a", "x", "T"), ("b", "x")
IN_B, OUT_A = ("b", "y", "U"), ("a", "y")
#: Bridges by which each message comes back, whatever is added last.
CIRCLES: dict[str, list[tuple[str, ...]]] = {
    "all types": [IN_A, OUT_B, IN_B, OUT_A],
    "one type": [IN_A, ("b", "x", "T", "out"), IN_B, ("a", "y", "U", "out")],
    "by replies": [
        ("a", "x", "T", "r"),
        ("b", "r"),
        ("b", "y", "Reply", "s"),
        ("a", "s", "Reply", "out"),
    ],
    "over a third queue": [IN_A, OUT_B, IN_B, ("c", "y"), ("c", "z", "V"), ("a", "z")],
}
#: Bridges from which messages get out, or that take others.
LINES: dict[str, list[tuple[str, ...]]] = {
    "it ends": [IN_A, OUT_B, IN_B, ("c", "y")],
    "another type out": [IN_A, ("b", "x", "Other", "out"), IN_B, OUT_A],
    "another type in": [("a", "x", "Other"), ("b", "x", "T", "out"), IN_B, OUT_A],
    "another type than replies": [("a", "x", "T", "r"), ("b", "r", "T", "out"), IN_B, OUT_A],
    "no replies": [("a", "x", "T"), ("b", "r"), IN_B, OUT_A],
}


@pytest.fixture(autouse=True)
def queues(pgmq_dsn: str, connection: psycopg.Connection) -> None:
    create_queues(connection, "a", "b", "c")


def add(bus: CommandBus, queue: str, domain: str, type: str | None = None, more: str = "") -> str:
    """`more`: "out", or the domain of the replies; without a type it leads out."""
    if type is None or more == "out":
        return bus.bridges.add(queue, domain, type, direction="out")
    return bus.bridges.add(queue, domain, type, reply_to=more or None)


@pytest.mark.parametrize("circle", CIRCLES.values(), ids=CIRCLES)
def test_bridges_that_lead_in_a_circle_are_refused(
    bus: CommandBus, circle: list[tuple[str, ...]]
) -> None:
    for last in range(len(circle)):
        names = [add(bus, *each) for each in circle[last + 1 :] + circle[:last]]
        with pytest.raises(InvalidOperationError) as refused:
            add(bus, *circle[last])
        name = f"{circle[last][0]}-{'in' if last % 2 == 0 else 'out'}"
        assert str(refused.value) == (
            f"with bridge {name!r} each message, or the reply to it, would come back without end: "
            f"{' -> '.join([name, *names, name])}"
        )
        assert sorted(names) == [record.name for record in bus.bridges.list()]
        for each in names:
            bus.bridges.remove(each)


@pytest.mark.parametrize("line", LINES.values(), ids=LINES)
def test_bridges_from_which_messages_get_out_are_added(
    bus: CommandBus, line: list[tuple[str, ...]]
) -> None:
    for last in range(len(line)):
        names = [add(bus, *each) for each in line[last:] + line[:last]]
        for each in names:
            bus.bridges.remove(each)
