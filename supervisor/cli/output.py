"""How the operator's command prints: one JSON object, or text for a person at a terminal.

Text from elsewhere is shown without what a terminal would obey; where a line is printed, it
stays one line.
"""

import json
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, assert_never
from uuid import UUID

import click

from cmdbus.breakers import BreakerState
from cmdbus.counting import count_of
from cmdbus.printable import one_line

if TYPE_CHECKING:
    from cmdbus.producer.breakers import BreakerRecord
    from cmdbus.producer.found_commands import FoundCommand
    from cmdbus.producer.process_records import ProcessRecord
    from cmdbus.producer.records import CommandRecord

L = TypeVar("L", "CommandRecord", "FoundCommand", "ProcessRecord")
C = TypeVar("C", "CommandRecord", "FoundCommand")
R = TypeVar("R")


class Remark(Protocol):
    """Of the latest change."""

    @property
    def operator(self) -> str | None: ...
    @property
    def reason(self) -> str | None: ...


class Named(Protocol):
    @property
    def name(self) -> str: ...


N = TypeVar("N", bound=Named)

#: The result of a command: the value for --json, and the lines for people.
Shown = tuple[object, Iterable[str]]
#: Units of more than a second, and their letters.
UNITS = ((86400, "d"), (3600, "h"), (60, "m"))


def show_lines(lines: Iterable[str]) -> None:
    if shown := [one_line(line) for line in lines]:
        _write("\n".join(shown))


def show_json(value: object) -> None:
    _write(json.dumps(value, default=_plain))


def _write(text: str) -> None:
    try:
        click.echo(text)
    except BrokenPipeError:  # the reader has seen enough: click ends the program
        raise
    except OSError as error:
        raise click.ClickException(f"the output cannot be written: {error.strerror}") from None


def data_text(value: object) -> str:
    return json.dumps(value, default=_plain, ensure_ascii=False)


def table(
    head: Sequence[str], rows: Iterable[Sequence[object]], *, left: Container[int]
) -> list[str]:
    """Lines with aligned columns, those of `left` to the left. The first column keeps its
    indentation."""
    cells = [list(head), *([str(cell) for cell in row] for row in rows)]
    widths = [max(len(row[n]) for row in cells) for n in range(len(head))]
    return [
        "  ".join(
            cell.ljust(width) if n in left else cell.rjust(width)
            for n, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in cells
    ]


def page(
    found: Sequence[R],
    limit: int,
    offset: int,
    lines_of: Callable[[Sequence[R]], list[str]],
    noun: str = "command",
    plural: str = "s",
) -> Shown:
    """`found` has one more than is shown if there are more. The noun gets the ending `plural`."""
    shown, more = found[:limit], len(found) > limit
    lines = lines_of(shown) if shown else []
    nouns = noun + plural
    if more:
        count = count_of(limit, noun, plural)
        lines.append(f"{count} shown, and there are more: --limit and --offset")
    elif not shown:
        lines.append(f"no more {nouns}" if offset else f"no {noun} meets these conditions")
    return {nouns: shown, "more": more}, lines


def command_rows(records: Sequence[C]) -> list[str]:
    return list_rows(records, lambda r: r.command_id, lambda r: r.error_code)


def list_rows(
    records: Sequence[L], id_of: Callable[[L], UUID], detail_of: Callable[[L], str | None]
) -> list[str]:
    """A line for each record; what `detail_of` returns is its end, if it is not None."""
    width = max(len(record.status) for record in records)

    def row(record: L) -> str:
        line = f"{id_of(record)}  {record.status.value:<{width}}  {ago(record.created_at):>9}"
        detail = detail_of(record)
        end = f"  {detail}" if detail is not None else ""
        return f"{line}  {record.domain}/{record.type}{end}"

    return list(map(row, records))


def one_named(
    records: Sequence[N], name: str, lines_of: Callable[[N], Iterable[str]], none: str
) -> Shown:
    """The record of this name; None, and the line `none`, if there is none."""
    for record in records:
        if record.name == name:
            return record, lines_of(record)
    return None, [none]


def remark_text(remark: Remark, at: datetime) -> str:
    """By whom something was changed, when and why."""
    by = f"by {remark.operator}, " if remark.operator else ""
    reason = f": {remark.reason}" if remark.reason else ""
    return f"{by}{ago(at)}{reason}"


def fact_lines(facts: Iterable[tuple[str, object]]) -> Iterator[str]:
    """Those that are known, below the line that they are about."""
    known = [(name, value) for name, value in facts if value is not None]
    width = max(len(name) for name, _ in known)
    for name, value in known:
        yield f"  {name:<{width}}  {value}"


def age(seconds: float) -> str:
    """Short, of two digits or a little more: 350ms, 2.5s, 42s, 7m, 3h, 12d."""
    if seconds < 0.9995:
        return f"{max(0, seconds) * 1000:.0f}ms"
    if seconds < 10:
        return f"{seconds:.1f}s"
    for unit, letter in UNITS:
        if seconds >= 2 * unit:
            return f"{seconds / unit:.0f}{letter}"
    return f"{seconds:.0f}s"


def audit_lines(audit: Sequence[object]) -> Iterator[str]:
    if audit:
        yield from ("", "audit")
    for event in audit:
        yield from (f"  {line}" for line in str(event).split("\n"))


def ago(time: datetime) -> str:
    """Or, of a time to come, how soon."""
    seconds = (datetime.now(UTC) - time).total_seconds()
    return f"{age(seconds)} ago" if seconds >= 0 else f"in {age(-seconds)}"


def state_text(breaker: "BreakerRecord") -> str:
    """The state of a breaker, and what comes next."""
    opened = timestamp(breaker.opened_at or breaker.changed_at)
    match breaker.state:
        case BreakerState.CLOSED:
            return f"CLOSED, failures on record: {breaker.failures}"
        case BreakerState.HALF_OPEN:
            return f"HALF_OPEN, not closed since {opened}, probes that run: {breaker.probing}"
        case BreakerState.OPEN:
            return f"OPEN since {opened}, {_end_of_cooldown(breaker)}"
        case never:
            assert_never(never)


def _end_of_cooldown(breaker: "BreakerRecord") -> str:
    if breaker.retry_at is None:
        return f"until an operator closes it: cmdbus breaker close {breaker.name}"
    if breaker.retry_at <= datetime.now(UTC):
        return "the next call is a probe"
    return f"probes from {timestamp(breaker.retry_at)} on"


def when(time: datetime | None) -> str | None:
    return None if time is None else f"{timestamp(time)}  ({ago(time)})"


def timestamp(time: datetime) -> str:
    return time.isoformat(sep=" ", timespec="milliseconds")


def shorten(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 1]}…"


def _plain(value: Any) -> object:
    match value:
        case UUID():
            return str(value)
        case datetime():
            return value.isoformat()
        case timedelta():
            return value.total_seconds()
    return asdict(value)  # a record
