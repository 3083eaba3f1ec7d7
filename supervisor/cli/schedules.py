"""`cmdbus schedule`: commands that are sent at certain times."""

from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import chain
from typing import TYPE_CHECKING, Any

import click

from cmdbus.counting import count_of
from cmdbus.supervisor.cli.options import audit_options, option, time_option
from cmdbus.supervisor.cli.output import Shown, ago, fact_lines, one_named, remark_text
from cmdbus.supervisor.cli.parameters import data, priority, span
from cmdbus.supervisor.cli.session import UsageProblem, add_change, named_argument, with_bus

if TYPE_CHECKING:
    from cmdbus.producer.bus import CommandBus
    from cmdbus.producer.schedules import ScheduleRecord


@click.group(help="Show and change the schedules, which send commands at certain times.")
def schedule() -> None:
    pass


@schedule.command(
    "list",
    help="""Show every schedule: its times, its next tick, its latest one, and who has it.

    \b
    Examples:
      cmdbus schedule list
      cmdbus schedule list --json | jq '.schedules[] | {name, next_tick}'
    """,
)
@with_bus
def list_(bus: "CommandBus") -> Shown:
    found = bus.schedules.list()
    lines = chain.from_iterable(map(_lines, found))
    return {"schedules": found}, lines if found else ["there is no schedule"]


@schedule.command(
    help="""Add a schedule, or replace one; its ticks count from now on.

    It overrides the one of this name that an app declares, until `remove`. A line of
    --cron has five fields (minute, hour, day, month, weekday), and needs cronsim;
    --every counts from 1970-01-01 00:00 UTC.

    \b
    Examples:
      cmdbus schedule add nightly reports Build --cron "0 3 * * *" --timezone Europe/Zurich
      cmdbus schedule add sync mail Fetch --every 15m --data '{"box": 1}' --missed none
    """,
)
@named_argument
@click.argument("domain")
@click.argument("type_", metavar="TYPE")
@option("--cron", metavar="LINE", help='Like "0 3 * * *".')
@option("--timezone", metavar="ZONE", help="Of the cron line, like Europe/Zurich; UTC without it.")
@time_option("--every", help="Instead of a cron line: like 30s, 15m, 2h, 1d.")
@option(
    "--missed",
    default="one",
    metavar="WHAT",
    help="Commands for ticks that are more than a minute late: one, all, none.",
)
@time_option("--jitter", parse=span, help="Due up to so much later: seconds, or like 30s, 5m.")
@option("--data", "data_", metavar="DATA|-|@FILE", parse=data, help="JSON, as for `cmdbus send`.")
@option("--priority", parse=priority, default="normal", help="high, normal, low or 0-10.")
@option("--max-attempts", type=int, metavar="N", help="Executions until an operator decides.")
@option("--key", metavar="TEXT", help="For limits that count by it.")
@audit_options
@with_bus
def add(bus: "CommandBus", named: str, domain: str, type_: str, **more: Any) -> Shown:
    if (more["cron"] is None) == (more["every"] is None):
        raise UsageProblem("give --cron LINE or --every TIME, one of them")
    more["data"], jitter = more.pop("data_"), more.pop("jitter")
    bus.schedules.add(named, domain, type_, jitter=jitter or 0, **more)
    return _changed(bus, named)


@schedule.command(
    help="""Send the command of a schedule now, and print its id; its ticks stay as they are.

    \b
    Examples:
      cmdbus schedule run nightly --reason "last night's had the wrong data"
      cmdbus schedule run sync --json | jq -r .command_id
    """,
)
@named_argument
@audit_options
@with_bus
def run(bus: "CommandBus", named: str, **remark: Any) -> Shown:
    id_ = bus.schedules.run(named, **remark)
    return {"name": named, "command_id": id_}, [str(id_)]


@schedule.command(
    "next",
    help="""Show the next ticks of a schedule, in its time zone and in UTC.

    \b
    Examples:
      cmdbus schedule next nightly
      cmdbus schedule next nightly --count 10 --json | jq -r .ticks[]
    """,
)
@named_argument
@option("--count", type=click.IntRange(1, 1000), default=5, metavar="N", help="How many.")
@with_bus
def next_(bus: "CommandBus", named: str, count: int) -> Shown:
    ticks = bus.schedules.next(named, count)
    lines = [f"{_shown(tick)}  {_shown(tick.astimezone(UTC))}  {ago(tick)}" for tick in ticks]
    return {"name": named, "ticks": ticks}, lines or [f"{named}: no tick in the next 50 years"]


def _changed(bus: "CommandBus", name: str) -> Shown:
    return one_named(bus.schedules.list(), name, _lines, f"{name}: no schedule")


add_change(
    schedule,
    "remove",
    lambda bus: bus.schedules.remove,
    _changed,
    """Remove an added schedule; if an app declares one of this name, that holds again.

    One that only apps declare is removed if no living node runs its type.

    \b
    Examples:
      cmdbus schedule remove sync --reason "the box is closed"
      cmdbus schedule remove nightly --operator ann
    """,
)
add_change(
    schedule,
    "pause",
    lambda bus: bus.schedules.pause,
    _changed,
    """Pause a schedule: it misses its ticks until `resume`.

    \b
    Examples:
      cmdbus schedule pause nightly --reason "the warehouse moves"
      cmdbus schedule pause sync --operator ann
    """,
)
add_change(
    schedule,
    "resume",
    lambda bus: bus.schedules.resume,
    _changed,
    """Go on with the next tick of a schedule that was paused.

    \b
    Examples:
      cmdbus schedule resume nightly --reason "the warehouse is back"
      cmdbus schedule resume sync --operator ann
    """,
)


def _lines(record: "ScheduleRecord") -> Iterator[str]:
    paused = ", paused" if record.paused else ""
    yield f"{record.name}  {record.times}  {record.domain}/{record.type}{paused}"
    options = {"missed": record.missed, "jitter": record.jitter and f"{record.jitter:g}s"}
    yield from fact_lines(
        [
            ("next", record.next_tick and f"{_shown(record.next_tick)}  ({ago(record.next_tick)})"),
            (
                "latest",
                record.last_tick and f"{_shown(record.last_tick)}  {record.last_command_id}",
            ),
            ("options", ", ".join(f"{name} {value}" for name, value in options.items() if value)),
            ("left out", _left_out(record)),
            ("error", record.last_error),
            ("added", _added(record)),
            ("declared", _declared(record)),
            ("handled", None if record.handled else "by no living node"),
        ]
    )


def _left_out(record: "ScheduleRecord") -> str | None:
    if record.left_out_at is None:
        return None
    return f"{count_of(record.left_out, 'tick')}, {ago(record.left_out_at)}"


def _declared(record: "ScheduleRecord") -> str | None:
    if not record.declared_by:
        return None
    latest, *others = record.declared_by
    in_force = " (in force)" if others and record.added is None else ""
    return f"by {', '.join([latest + in_force, *others])}"


def _added(record: "ScheduleRecord") -> str | None:
    return None if record.added is None else remark_text(record.added, record.added.added_at)


def _shown(time: datetime) -> str:
    return time.isoformat(sep=" ", timespec="seconds")
