"""The ticks of a schedule: the times at which it sends a command.

Cron lines are read by cronsim, of the extra `cmdbus[cron]`: it follows Debian's cron where clocks
change, is a third as long as croniter and needs no other package. (With croniter a daily 02:30 runs
twice on a day that has it twice, and its author gave it up in 2025 before others took it over.) Of
a line whose minutes and hours do not begin with `*`, a time that the clocks skip is at the first
moment after that, and one that occurs twice is at its first occurrence. Any other line, or one with
a field for seconds, has a tick at each moment whose local time it matches. Only where clocks move
by half an hour (Australia/Lord_Howe) cronsim then leaves out a tick on those two days.
"""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple, Protocol
from uuid import UUID, uuid5
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cmdbus.checks import shown
from cmdbus.errors import CronMissingError

if TYPE_CHECKING:
    from cronsim import CronSim

_NAMESPACE = UUID("c3a7b0de-5d0c-4b5e-9d3f-7f6f2f1f8a11")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
#: Ticks that are read at once: a year of a cron line of each minute takes seconds.
MAX_READ = 20_000
#: Ticks for which missed="all" sends commands.
MAX_ALL = 1000
#: A tick that is later than this is missed. The restart of a steward takes less.
GRACE = timedelta(minutes=1)
MISSING = "cron lines are read by cronsim, which is not installed: pip install cronsim"
#: Names that cron has for some lines.
_NAMED = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}


class Ticks(Protocol):
    def after(self, moment: datetime) -> Iterator[datetime]:
        """Those later than this one, in UTC, the earliest first."""

    def skip(self, first: datetime, now: datetime) -> tuple[datetime, int]:
        """A later tick in place of `first`, and how many are left out with it: at least MAX_ALL up
        to `now` are kept."""


class Interval:
    def __init__(self, seconds: int) -> None:
        self._length = timedelta(seconds=seconds)

    def after(self, moment: datetime) -> Iterator[datetime]:
        count = (moment - _EPOCH) // self._length
        while True:
            count += 1
            yield _EPOCH + count * self._length

    def skip(self, first: datetime, now: datetime) -> tuple[datetime, int]:
        count = max(0, (now - first) // self._length + 1 - MAX_ALL)
        return first + count * self._length, count


class CronLine:
    def __init__(self, line: str, zone: str) -> None:
        self._line, self._zone = line, zone_of(zone)

    def after(self, moment: datetime) -> Iterator[datetime]:
        """Compared in UTC, as Python compares times of one zone by their clock."""
        latest = moment
        for found in _parsed(self._line, moment.astimezone(self._zone)):
            tick = found.astimezone(UTC)
            if tick > latest:  # The clock shows an hour twice when it is set back.
                latest = tick
                yield tick

    def skip(self, first: datetime, now: datetime) -> tuple[datetime, int]:
        return first, 0


class TickPlan(NamedTuple):
    """What becomes of ticks up to now."""

    #: Those for which commands are sent, the earliest first.
    sent: list[datetime]
    left_out: int
    #: The first of the others; None if there is none in 50 years.
    next_tick: datetime | None


def plan_ticks(ticks: Ticks, first: datetime, now: datetime, missed: str) -> TickPlan:
    """What becomes of `first` and those after it, up to `now`, by the option `missed`. Of very
    many the earliest are left out first, and the next tick is not later than now."""
    begin, left_out = ticks.skip(first, now)
    due: list[datetime] = []
    next_tick = None
    for tick in chain([begin], ticks.after(begin)):
        if tick > now:
            next_tick = tick
            break
        if len(due) > MAX_READ:
            return TickPlan([], left_out + len(due) - MAX_ALL, due[-MAX_ALL])
        due.append(tick)
    sent = _to_send(due, now, missed)
    return TickPlan(sent, left_out + len(due) - len(sent), next_tick)


def _to_send(due: list[datetime], now: datetime, missed: str) -> list[datetime]:
    if missed == "all":
        return due[-MAX_ALL:]
    in_time = [tick for tick in due if now - tick <= GRACE]
    if missed == "none" or len(in_time) == len(due):
        return in_time
    return due[-1:]


def command_id(schema: str, name: str, tick: datetime) -> UUID:
    """That of the command which a schedule sends at a tick, whatever node does it."""
    return uuid5(_NAMESPACE, f"{schema} {name} {tick.astimezone(UTC).isoformat()}")


def due_time(tick: datetime, id_: UUID, jitter: float) -> datetime:
    """That of the command: up to `jitter` seconds later, the same on all nodes."""
    return tick + timedelta(seconds=jitter * (id_.int >> 96) / 2**32)


def ticks_of(cron: str | None, every: int | None, timezone: str) -> Ticks:
    """A CronMissingError or another ValueError says why a cron line cannot be read here."""
    if cron is None:
        assert every is not None
        return Interval(every)
    cron_type()
    return CronLine(cron, timezone)


@lru_cache(maxsize=256)
def zone_of(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ValueError(f"there is no time zone {name!r} on this system") from None


def cron_type() -> "type[CronSim]":
    """Imported only where there are cron lines."""
    try:
        from cronsim import CronSim
    except ImportError:
        raise CronMissingError(MISSING) from None
    return CronSim


def check_cron(what: str, line: str, zone: str) -> str:
    """A line that has ticks."""
    if not isinstance(line, str):
        raise ValueError(f"{what} must be a text like '0 3 * * *', not {shown(line)}")
    if line.startswith("@"):
        fields = _NAMED.get(line.strip(), "0 3 * * *")
        raise ValueError(f"{what} must be fields, not {shown(line)}: write it like {fields!r}")
    try:
        cron_type()
    except CronMissingError as error:
        raise CronMissingError(f"{what}: {error}") from None
    line = " ".join(line.split())
    try:
        if next(CronLine(line, zone).after(datetime.now(UTC)), None) is None:
            raise ValueError(_NEVER)
    except ValueError as error:
        raise ValueError(f"{what} cannot be {shown(line)}: {error}") from None
    return line


_NEVER = "it never matches, as no month that it names has such a day"


def _parsed(line: str, begin: datetime) -> "CronSim":
    from cronsim import CronSim, CronSimError

    try:
        return CronSim(line, begin)
    except CronSimError as error:
        raise ValueError(_reason(line, str(error))) from None


def _reason(line: str, refused: str) -> str:
    """cronsim calls a day that no month has a bad day, like one that there is not."""
    from cronsim import CronSim, CronSimError

    fields = line.split()
    try:
        for column in (-2, -3):  # month and day
            others = [*fields]
            others[column] = "*"
            CronSim(" ".join(others), _EPOCH)
    except (CronSimError, IndexError):
        reason = refused[:1].lower() + refused[1:]
        return f"{reason}; its fields are minute, hour, day, month and weekday, like '0 3 * * *'"
    return _NEVER
