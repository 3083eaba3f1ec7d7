"""Schedules: which command is sent at which times. The values that registries declare and
operators add, and the checks of them."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import timedelta
from typing import Any, TypedDict
from zoneinfo import available_timezones

from cmdbus.checks import (
    check_key,
    check_name,
    check_options,
    check_whole,
    did_you_mean,
    seconds_of,
    shown,
)
from cmdbus.data import MAX_BYTES, encode
from cmdbus.payloads.forms import Encoder
from cmdbus.priorities import PRIORITIES, check_priority
from cmdbus.retry import MAX_ATTEMPTS
from cmdbus.ticks import Ticks, check_cron, ticks_of, zone_of

#: For ticks that are more than a minute late: one command for all that are due, one for each, or
#: none.
ONE, ALL, NONE = MISSED = ("one", "all", "none")
#: Seconds of the longest interval, and of the longest jitter.
MAX_EVERY, MAX_JITTER = 366 * 86400, 86400
_UNITS = {"d": 86400, "h": 3600, "m": 60, "min": 60, "s": 1}
_EVERY = re.compile(r"(\d{1,8}) ?(d|h|m|min|s)", re.ASCII)


class ScheduleOptions(TypedDict, total=False):
    """The options of a schedule, other than its name and its command's domain and type."""

    #: Instead of a cron line: whole seconds, a timedelta, or a text like "15m". The ticks are the
    #: multiples of it since 1970-01-01 00:00 UTC.
    every: str | float | timedelta | None
    #: The time zone in which the cron line is read, like "Europe/Zurich"; UTC by default.
    timezone: str | None
    #: For ticks that are more than a minute late, for example because no worker ran:
    #: "one" sends one command for all that are due by then, "all" one for each, at most 1,000, and
    #: "none" none for them.
    missed: str
    #: Seconds, or a timedelta: the command is due later than its tick by at most this time, which
    #: depends on name and tick only.
    jitter: float | timedelta
    #: The command's.
    data: Any
    priority: str | int
    max_attempts: int | None
    key: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    name: str
    domain: str
    type: str
    #: None: it has an interval, `every`, in seconds.
    cron: str | None = None
    every: int | None = None
    timezone: str = "UTC"
    missed: str = ONE
    #: In seconds.
    jitter: float = 0.0
    priority: int = PRIORITIES["normal"]
    max_attempts: int | None = None
    key: str | None = None
    #: JSON text.
    data: str = field(default="null", repr=False)

    @property
    def row(self) -> dict[str, Any]:
        """For the functions of the schema."""
        return {"name": self.name, "data": self.data, "terms": self.terms}

    @property
    def terms(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in TERMS}

    @property
    def times(self) -> str:
        """As an operator reads it."""
        return times_text(self.cron, self.every, self.timezone)

    @property
    def ticks(self) -> Ticks:
        return ticks_of(self.cron, self.every, self.timezone)

    def __str__(self) -> str:
        return f"{self.name}: {self.times}, {self.domain}/{self.type}"


#: The attributes of the schema's type schedule_terms.
TERMS = tuple(each.name for each in fields(Schedule) if each.name not in ("name", "data"))


def schedule_of(
    name: str,
    domain: str,
    type: str,
    cron: str | None,
    options: ScheduleOptions,
    labels: Mapping[str, int] = PRIORITIES,
    max_bytes: int = MAX_BYTES,
    where: str = "",
    encoder: Encoder | None = None,
) -> Schedule:
    """A ValueError says what is wrong, and where; `labels` are those of priorities."""
    check_options("a schedule", options, ScheduleOptions.__annotations__)
    where = where or f"the schedule {check_name('name of a schedule', name)}"
    times = _times(where, cron, options.get("every"), options.get("timezone"))
    missed = options.get("missed", ONE)
    if missed not in MISSED:
        known = ", ".join(map(repr, MISSED))
        raise ValueError(f"missed of {where} must be one of {known}, not {shown(missed)}")
    attempts = options.get("max_attempts")
    return Schedule(
        name=name,
        domain=check_name(f"domain of {where}", domain),
        type=check_name(f"type of {where}", type),
        **times,
        missed=missed,
        jitter=_jitter(where, options.get("jitter", 0)),
        priority=check_priority(options.get("priority", "normal"), labels, f"priority of {where}"),
        max_attempts=None
        if attempts is None
        else check_whole(f"max_attempts of {where}", attempts, 1, MAX_ATTEMPTS),
        key=check_key(f"key of {where}", options.get("key")),
        data=encode(
            options.get("data"), what=f"data of {where}", max_bytes=max_bytes, encoder=encoder
        ),
    )


def times_text(cron: str | None, every: int | None, timezone: str) -> str:
    """An interval as it is declared, like 15m."""
    if every is None:
        return f"{cron} {timezone}"
    unit = next(unit for unit, size in _UNITS.items() if every % size == 0)
    return f"every {every // _UNITS[unit]}{unit}"


def _times(where: str, cron: str | None, every: object, timezone: str | None) -> dict[str, Any]:
    if (cron is None) == (every is None):
        raise ValueError(f"{where} needs a cron line or every, one of them")
    if cron is None:
        if timezone is not None:
            raise ValueError(
                f"timezone of {where} is only for a cron line: every counts from "
                f"1970-01-01 00:00 UTC"
            )
        return {"every": _interval(f"every of {where}", every)}
    zone = "UTC" if timezone is None else _checked_zone(f"timezone of {where}", timezone)
    return {"cron": check_cron(f"cron of {where}", cron, zone), "timezone": zone}


def _interval(what: str, every: object) -> int:
    """In seconds."""
    if isinstance(every, str):
        found = _EVERY.fullmatch(every)
        seconds = int(found[1]) * _UNITS[found[2]] if found else None
    else:
        seconds = seconds_of(every)  # type: ignore[assignment]
    if seconds is None:
        raise ValueError(f"{what} must be like '30s', '15m', '2h' or '1d', not {shown(every)}")
    if not 1 <= seconds <= MAX_EVERY or seconds != int(seconds):  # NaN neither
        raise ValueError(
            f"{what} must be whole seconds from 1 to {MAX_EVERY // 86400} days, not {_text(every)}"
        )
    return int(seconds)


def _checked_zone(what: str, name: str) -> str:
    if isinstance(name, str):
        try:
            zone_of(name)
            return name
        except ValueError:
            pass
    zones = available_timezones()
    hint = "write it like 'Europe/Zurich'"
    if isinstance(name, str):
        places = [zone for zone in zones if "/" in zone]
        near = did_you_mean(name, places) or did_you_mean(name.title(), places)
        hint = near or hint
    if not zones:
        hint = "this system has no time zones; install the package tzdata"
    raise ValueError(f"{what} must be a name of a time zone, not {shown(name)}: {hint}")


def _jitter(where: str, jitter: object) -> float:
    seconds = seconds_of(jitter)
    if seconds is None or not 0 <= seconds <= MAX_JITTER:  # NaN neither
        raise ValueError(
            f"jitter of {where} must be seconds or a timedelta from 0 to {MAX_JITTER // 3600} "
            f"hours, not {_text(jitter)}"
        )
    return float(seconds)


def _text(time: object) -> str:
    return f"{time.total_seconds():.15g} s" if isinstance(time, timedelta) else shown(time)
