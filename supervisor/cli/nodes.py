"""`cmdbus nodes`: what all nodes have published, on this machine and on others."""

from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING

import click

from cmdbus.counting import count_of
from cmdbus.supervisor.cli.output import Shown, ago
from cmdbus.supervisor.cli.session import with_bus

if TYPE_CHECKING:
    from cmdbus.producer.bus import CommandBus
    from cmdbus.producer.node_records import NodeExit, NodeRecord, NodeSeat

_MIB = 2**20


@click.command(
    help="""Show every node: its processes, what their threads run, and the last kills.

    A node is a supervisor with its processes, on any machine, or a program's own Worker. It
    publishes its state once a minute; `cmdbus ps` shows one of this machine as it is now.

    \b
    Examples:
      cmdbus nodes
      cmdbus nodes --stacks
      cmdbus nodes --json | jq '.nodes[] | select(.gone | not) | {name, host, memory}'
    """,
)
@click.option("--stacks", "with_stacks", is_flag=True, help="With the stacks of exited processes.")
@with_bus
def nodes(bus: "CommandBus", with_stacks: bool) -> Shown:
    found = bus.fleet()
    stacks = {node.node: bus.stacks(node.node) for node in found if with_stacks and node.exits}
    lines = chain.from_iterable(_lines(node, stacks.get(node.node, {})) for node in found)
    value = {"nodes": found, **({"stacks": stacks} if with_stacks else {})}
    return value, lines if found else ["no node has run within a day"]


def _lines(node: "NodeRecord", stacks: dict[int, str]) -> Iterator[str]:
    state = "stopped" if node.stopped else "gone" if node.gone else node.state or "unknown"
    facts = [
        f"pid {node.pid}",
        f"{node.memory // _MIB} MiB",
        *([f"cmdbus {node.version}"] if node.version else []),
        *(f"{n} {reason}" for reason, n in node.restarts.items()),
    ]
    published = ago(node.published_at)
    yield f"{node.name} on {node.host}: {state}, {', '.join(facts)}, published {published}"
    if not node.gone:
        for seat in node.seats:
            yield from _seat_lines(f"worker {seat.seat}", seat)
        if node.quarantine is not None:
            yield from _seat_lines("quarantine", node.quarantine)
    for each in node.exits:
        yield from _exit_lines(each, stacks.get(each.number, ""))


def _seat_lines(name: str, seat: "NodeSeat") -> Iterator[str]:
    if seat.pid is None:
        yield f"  {name}  no process"
        return
    busy = [slot for slot in seat.slots if slot.command_id is not None]
    count = count_of(len(seat.slots), "thread")
    memory = f", {seat.memory // _MIB} MiB" if seat.memory else ""
    yield f"  {name}  pid {seat.pid}, {seat.health}{memory}, {len(busy)} of {count} run"
    for reason in seat.reasons:
        yield f"    {reason}"
    for slot in busy:
        since = f", began {ago(slot.since)}" if slot.since else ""
        due = f", due {ago(slot.due)}" if slot.due else ""
        phase = ", stuck" if slot.phase == "stuck" else ""
        yield f"    {slot.domain}/{slot.type} {slot.command_id}{since}{due}{phase}"


def _exit_lines(each: "NodeExit", stack: str) -> Iterator[str]:
    ran = ", ".join(
        f"{command.domain}/{command.type} {command.command_id}{' (charged)' * command.charged}"
        for command in each.commands
    )
    name = f"worker {each.seat}" if each.role == "worker" else each.role
    yield (
        f"  {ago(each.at)}: {name}, pid {each.pid}, {each.reason}{f'; it ran {ran}' if ran else ''}"
    )
    for line in stack.splitlines():
        yield f"    {line}"
