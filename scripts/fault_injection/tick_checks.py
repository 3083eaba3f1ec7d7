"""The invariants of schedules: each tick sends one command, in time. Pure."""

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

from fault_injection.history import History
from fault_injection.time_checks import stewards_kept_away

#: Seconds within which a tick is sent while a steward lives.
_SENT_S = 2.0
_READY = "the fleet is ready"


def ticks_are_sent_once(history: History) -> Iterator[str]:
    rows = {row.command_id for row in history.rows}
    for (name, at), count in Counter((tick.schedule, tick.at) for tick in history.ticks).items():
        if count > 1:
            yield f"schedule {name} has sent {count} commands at {at:.0f}"
    for tick in history.ticks:
        if tick.command_id not in rows:
            yield f"{tick.command_id} of schedule {tick.schedule} is nowhere"


def no_tick_is_missing(history: History) -> Iterator[str]:
    """From the first one on, whatever lived: missed ticks are sent later."""
    for name, seconds in history.limits.schedules.items():
        times = sorted({tick.at for tick in history.ticks if tick.schedule == name})
        if not times:
            yield f"schedule {name} has sent nothing"
        for before, after in pairwise(times):
            if after > before + seconds:
                yield f"schedule {name} has sent nothing from {before:.0f} to {after:.0f}"
        if times and times[-1] < history.paused_at - seconds - _SENT_S:
            yield f"schedule {name} has sent nothing since {times[-1]:.0f}"


def ticks_are_in_time(history: History) -> Iterator[str]:
    """Once an instance is ready."""
    ready = [line.at for line in history.lines if line.message.startswith(_READY)]
    for tick in history.ticks:
        if tick.at < min(ready, default=0.0) or tick.sent_at <= tick.at + _SENT_S:
            continue
        if not stewards_kept_away(history, tick.at, tick.sent_at):
            late = tick.sent_at - tick.at
            yield f"{tick.command_id} of schedule {tick.schedule} was sent {late:.1f} s late"
