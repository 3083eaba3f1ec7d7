"""`cmdbus bridge`: bridges between queues of PGMQ and domains."""

from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING, Any

import click

from cmdbus.counting import count_of
from cmdbus.supervisor.cli.options import audit_options, option
from cmdbus.supervisor.cli.output import Shown, ago, fact_lines, one_named, remark_text
from cmdbus.supervisor.cli.session import add_change, with_bus

if TYPE_CHECKING:
    from cmdbus.producer.bridges import BridgeRecord
    from cmdbus.producer.bus import CommandBus


@click.group(help="Show and change the bridges between queues of PGMQ and domains.")
def bridge() -> None:
    pass


@bridge.command(
    "list",
    help="""Show every bridge: what it has moved, and why it moves nothing.

    \b
    Examples:
      cmdbus bridge list
      cmdbus bridge list --json | jq '.bridges[] | {name, moved, error}'
    """,
)
@with_bus
def list_(bus: "CommandBus") -> Shown:
    found = bus.bridges.list()
    lines = chain.from_iterable(map(_lines, found))
    return {"bridges": found}, lines if found else ["there is no bridge"]


@bridge.command(
    help="""Add a bridge between a queue of PGMQ and a domain.

    Inwards each message of QUEUE becomes a command of DOMAIN and TYPE; outwards each
    command of DOMAIN, or of TYPE alone, becomes a message. Fleets move them, each once.

    \b
    Examples:
      cmdbus bridge add orders shop PlaceOrder --reply-to shop.answers
      cmdbus bridge add answers shop.answers --direction out --batch-size 500
    """,
)
@click.argument("queue")
@click.argument("domain")
@click.argument("type_", metavar="[TYPE]", required=False)
@option(
    "--direction",
    type=click.Choice(["in", "out"]),
    default="in",
    help="in: messages become commands; out: commands become messages.",
)
@option("--bridge-name", metavar="NAME", help="Without it QUEUE-in or QUEUE-out.")
@option("--reply-to", metavar="DOMAIN", help="Inwards: the domain that gets the replies.")
@option(
    "--batch-size",
    type=click.IntRange(1, 1000),
    default=100,
    metavar="N",
    help="What one move takes at most.",
)
@audit_options
@with_bus
def add(
    bus: "CommandBus",
    queue: str,
    domain: str,
    type_: str | None,
    bridge_name: str | None,
    **more: Any,
) -> Shown:
    return _changed(bus, bus.bridges.add(queue, domain, type_, name=bridge_name, **more))


def _changed(bus: "CommandBus", name: str) -> Shown:
    return one_named(bus.bridges.list(), name, _lines, f"{name}: no bridge")


add_change(
    bridge,
    "remove",
    lambda bus: bus.bridges.remove,
    _changed,
    """Remove a bridge; what it has not moved stays where it is.

    \b
    Examples:
      cmdbus bridge remove orders-in --reason "its producer sends commands now"
      cmdbus bridge remove answers-out --operator ann
    """,
)


def _lines(record: "BridgeRecord") -> Iterator[str]:
    domain = f"domain {record.domain}" if record.type is None else f"{record.domain}/{record.type}"
    ends = [f"queue {record.queue}", domain]
    way = " -> ".join(ends if record.direction == "in" else reversed(ends))
    yield f"{record.name}  {way}"
    last = "" if record.moved_at is None else f", {ago(record.moved_at)}"
    since = "" if record.failed_at is None else f" (since {ago(record.failed_at)})"
    yield from fact_lines(
        [
            ("moved", f"{record.moved}{last}"),
            ("refused", _refused(record)),
            ("error", record.error and f"{record.error}{since}"),
            ("replies", record.reply_to and f"to {record.reply_to}"),
            ("batch size", record.batch_size),
            ("added", remark_text(record, record.added_at)),
        ]
    )


def _refused(record: "BridgeRecord") -> str | None:
    if not record.refused:
        return None
    what = "message" if record.direction == "in" else "command"
    return f"{count_of(record.refused, what)}, in the troubleshooting queue or resolved"
