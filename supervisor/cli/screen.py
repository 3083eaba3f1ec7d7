"""What `cmdbus ps` shows of a board: lines of at most 80 columns, names cut. Pure.

The board keeps what was last written: that its writers live is not on it, and comes from
outside.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from cmdbus.board.counters import CountersView, End
from cmdbus.board.pid_state import Presence
from cmdbus.board.seats import Role
from cmdbus.board.slots import Phase
from cmdbus.board.views import BoardView, SeatView, SlotView, SupervisorState
from cmdbus.counting import count_of
from cmdbus.supervisor.cli.output import age, cut

WIDTH = 80
_NS = 1_000_000_000
#: So much later than promised is late.
_GRACE = 1 * _NS
_SLOT = "  {:>6}  {:<8}  {:>6}  {:>7}  {:>3}  {}"
#: Where a slot's last column begins.
_INDENT = len(_SLOT.format("", "", "", "", "", ""))
_QUIET = (Phase.IDLE, Phase.RESTING)


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """One look at a board; `now` in monotonic nanoseconds."""

    view: BoardView
    now: int
    supervisor: Presence
    counters: CountersView
    #: Pids on the board whose processes are gone.
    gone: frozenset[int]

    @property
    def state(self) -> str:
        """As the supervisor says; but `dead` if it did not come to say so."""
        state = self.view.state
        if state is not SupervisorState.STOPPED and self.supervisor is Presence.GONE:
            return "dead"
        return state.name.lower() if state is not None else "unknown"

    @property
    def is_over(self) -> bool:
        return self.state in ("dead", "stopped")

    def has(self, seat: SeatView) -> bool:
        """Whether its process is still there, as far as anybody can tell."""
        return seat.pid is not None and seat.pid not in self.gone

    def to_dict(self) -> dict[str, object]:
        return {**self.view.to_dict(self.now, self.gone), "state": self.state}


def lines(look: Look, before: Look | None = None) -> Iterator[str]:
    """`before`: an earlier look, to show what happened since."""
    yield from _head(look)
    yield _steward(look)
    if before is not None:
        yield from _pace(look, before)
    for seat in look.view.with_role(Role.ALONE):
        yield ""
        yield f"alone: pid {seat.pid or '-'}, runs a command that may have killed its process"
        yield from _slots(seat, look.now)
    yield ""
    yield "WORKER      PID  STARTS  HEALTH            AGE     RSS  THREADS"
    workers = {seat.number: seat for seat in look.view.with_role(Role.WORKER)}
    for number in sorted({*workers, *range(look.view.wanted)}):
        if number in workers:
            yield from _seat(workers[number], look)
        else:
            yield f"{number:>6}        -       -  empty"
    for seat in look.view.with_role(Role.LEAVING):
        when = "-" if seat.leave_by is None else _until(seat.leave_by, look.now)
        yield f"leaving: pid {seat.pid or '-'}, which must be gone in {when}"
        yield from _slots(seat, look.now)
    for seat in look.view.with_role(Role.DEAD):
        yield _grave(seat)


def _head(look: Look) -> Iterator[str]:
    view, state = look.view, look.state
    late = not look.is_over and _late(view.due, look.now)
    frozen = look.supervisor is Presence.FROZEN and state != "stopped"
    told = f"{view.name}: {state}"
    told += ", but frozen" if frozen else ", but late" if late else ""
    if view.pid is not None:
        told += f", pid {view.pid}"
    if view.since is not None and view.this_boot:
        told += f", began {age((look.now - view.since) / _NS)} ago"
    yield cut(told, WIDTH)
    if not view.this_boot:
        yield "The machine was started anew since: this is what was last written before."
    elif state == "dead":
        yield "Its process is gone; this is what was last written. Start it again."
    elif frozen:
        yield "A signal has stopped it; what it looks after goes on: kill -CONT lets it go on."
    elif late:
        yield f"Hung or starved: it should have been back {_since(view.due, look.now)} ago."
    restarts = [f"{reason} {count}" for reason, count in view.restarts.items() if count]
    total = count_of(sum(view.restarts.values()), "restart")
    yield cut(f"{total}{': ' if restarts else ''}{', '.join(restarts)}", WIDTH)
    if view.undead:
        yield f"Killed, but not dead: {count_of(view.undead, 'process', 'es')} (disk wait?)."


def _steward(look: Look) -> str:
    stewards = look.view.with_role(Role.STEWARD)
    if not stewards or stewards[0].pid is None:
        return "steward: none"
    view, seat = look.view, stewards[0]
    if not look.has(seat):
        return f"steward: gone, pid was {seat.pid}"
    said = [f"pid {seat.pid}"]
    said.append("hears of new commands" if view.listening else "does not listen: workers poll")
    if view.suspects:
        said.append("crashers wait to run alone")
    if _late(seat.due, look.now):
        said.append(f"late by {_since(seat.due, look.now)}")
    return f"steward: {', '.join(said)}"


def _pace(look: Look, before: Look) -> Iterator[str]:
    if (look.view.pid, look.view.since) != (before.view.pid, before.view.since):
        return  # another supervisor's board
    seconds = (look.now - before.now) / _NS
    rates = []
    for end in End:
        count = _ended(look.counters, end) - _ended(before.counters, end)
        if count or end is End.COMPLETED:
            rates.append(f"{max(0, count) / seconds:.0f} {end.name.lower()}")
    yield cut(f"per second: {', '.join(rates)}", WIDTH)


def _ended(counters: CountersView, end: End) -> int:
    name = end.name.lower()
    return sum(n for (_, _, how), n in counters.commands.items() if how == name)


def _seat(seat: SeatView, look: Look) -> Iterator[str]:
    present = look.has(seat)
    health = seat.health.value if present else "empty" if seat.pid is None else "gone"
    busy = [slot for slot in seat.slots if slot.number >= 0 and slot.phase not in _QUIET]
    stuck = sum(slot.phase is Phase.STUCK for slot in busy)
    quiet = sum(slot.number >= 0 for slot in seat.slots) - len(busy)
    threads = f"{len(busy) - stuck} busy, {quiet} idle{f', {stuck} stuck' if stuck else ''}"
    yield (
        f"{seat.number:>6}  {seat.pid or '-':>7}  {seat.generation:>6}  "
        f"{health:<13}  {_since(seat.since, look.now):>6}  "
        f"{_mib(seat.rss_bytes if present else None):>6}  {threads}"
    )
    for reason in seat.levels.reasons if present else ():
        yield cut(f"      {reason}", WIDTH)
    if present and not look.is_over and _late(seat.due, look.now):
        yield f"      its main thread is late by {_since(seat.due, look.now)}"
    yield from _slots(seat, look.now)


def _grave(seat: SeatView) -> str:
    ended = seat.ended
    if ended is None:
        return "ended: a process; what it held is being handed back"
    how = f"signal {ended.signal}" if ended.signal else f"exit code {ended.code}"
    why = f", {ended.verdict.name.lower()}" if ended.verdict else ""
    return f"ended: pid {ended.pid} ({how}{why}); what it held is being handed back"


def _slots(seat: SeatView, now: int) -> Iterator[str]:
    busy = sorted(
        (slot for slot in seat.slots if slot.number >= 0 and slot.phase not in _QUIET),
        key=lambda slot: slot.number,
    )
    if busy:
        yield _SLOT.format("THREAD", "PHASE", "FOR", "DUE IN", "TRY", "COMMAND")
    for slot in busy:
        yield from _slot(slot, now)


def _slot(slot: SlotView, now: int) -> Iterator[str]:
    command = slot.command
    due = "-" if slot.due is None else _until(slot.due, now)
    name = cut(f"{command.domain}/{command.type}", WIDTH - _INDENT) if command else "-"
    phase = slot.phase.name.lower() if slot.phase is not None else "?"
    attempt = command.attempt if command else "-"
    yield _SLOT.format(slot.number, phase, _since(slot.since, now), due, attempt, name)
    if command:
        yield " " * _INDENT + str(command.command_id)


def _mib(size: int | None) -> str:
    return "-" if size is None else f"{size / 2**20:.0f}M"


def _late(due: int | None, now: int) -> bool:
    return due is not None and now > due + _GRACE


def _since(at: int | None, now: int) -> str:
    return "-" if at is None else age((now - at) / _NS)


def _until(at: int, now: int) -> str:
    return age((at - now) / _NS) if at >= now else f"-{age((now - at) / _NS)}"
