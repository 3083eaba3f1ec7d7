"""`cmdbus ps`: the processes and commands on the board. It reads nothing else, so it works while
the database is away, and when the supervisor is frozen or dead. Lines have at most 80 columns.
"""

from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

import click

from cmdbus.board.board import Board
from cmdbus.board.counters import CountersView, OutcomeLabel
from cmdbus.board.records import Phase, Role, SupervisorState, Verdict
from cmdbus.board.views import BoardView, SeatView, SlotView
from cmdbus.clock import time
from cmdbus.counting import count_of
from cmdbus.errors import BoardError
from cmdbus.proc import PidState, pid_state
from cmdbus.supervisor.cli.options import option
from cmdbus.supervisor.cli.output import age, shorten, show_json, show_lines
from cmdbus.supervisor.cli.session import ignored_options, json_option, one_line_errors
from cmdbus.supervisor.host import NameTakenError, check_free, pidfile_path
from cmdbus.supervisor.runtime import board_path, find_runtime_directory

#: Seconds between two reads with --watch.
_WATCH_SECONDS = 1.0
_WIDTH = 80
_NS = 1_000_000_000
#: Nanoseconds past a deadline before a process is called late.
_GRACE_NS = 1 * _NS
_SLOT = "  {:>6}  {:<8}  {:>6}  {:>7}  {:>3}  {}"
#: The column at which the names of commands begin.
_INDENT = len(_SLOT.format("", "", "", "", "", ""))
_QUIET = (Phase.IDLE, Phase.RESTING)
_VERDICTS = {
    Verdict.NONE: "",
    Verdict.STUCK: ", a thread was stuck",
    Verdict.HUNG: ", its main thread was overdue",
    Verdict.LATE: ", it missed its stop deadline",
    Verdict.STOPPED: ", a signal had suspended it",
    Verdict.CRITICAL: ", it was unhealthy",
}
#: Outcomes whose labels are no words for how executions end.
_ENDS = {OutcomeLabel.RETRY: "to be retried", OutcomeLabel.TROUBLE: "to troubleshooting"}


@dataclass(frozen=True, slots=True, kw_only=True)
class PsSnapshot:
    view: BoardView
    #: Monotonic nanoseconds when it was read; None if its times are of another boot.
    now: int | None
    supervisor: PidState
    counters: CountersView
    #: Pids on the board whose processes are gone.
    gone: frozenset[int]

    @property
    def state(self) -> str:
        """The state on the board; `dead` if its process is gone without having stopped."""
        state = self.view.state
        if state is not SupervisorState.STOPPED and self.supervisor is PidState.GONE:
            return "dead"
        return state.name.lower() if state is not None else "unknown"

    @property
    def is_over(self) -> bool:
        return self.state in ("dead", "stopped")

    def has(self, seat: SeatView) -> bool:
        """Whether its process still exists, as far as /proc shows."""
        return seat.pid is not None and seat.pid not in self.gone

    def is_late(self, due: int | None) -> bool:
        if due is None or self.now is None or self.is_over:
            return False
        return self.now > due + _GRACE_NS

    def since(self, at: int | None) -> str:
        return "-" if at is None or self.now is None else age((self.now - at) / _NS)

    def until(self, at: int | None) -> str:
        if at is None or self.now is None:
            return "-"
        return age((at - self.now) / _NS) if at >= self.now else f"-{self.since(at)}"

    def to_dict(self) -> dict[str, object]:
        return {**self.view.to_dict(self.now, self.gone), "state": self.state}


@click.command(
    help="""Show a supervisor's processes and what their threads run.

    STARTS counts the processes that this worker has had, RSS is its resident memory. A worker
    that chooses from a range of threads shows how many it has now, and why. A thread is
    running a command, leading (it fetches commands for its process and writes down how others
    ended), away (it waits for the database) or stuck (given up, another thread has taken its
    place). FOR is how long it has been doing this, DUE IN when it should be done at the
    latest. Ids are those of cmdbus get. Exits with 1 if the supervisor is gone.

    \b
    Examples:
      cmdbus ps
      cmdbus ps --watch --name shop
      cmdbus ps --json | jq '.seats[].slots[] | select(.command_id and .due < 0)'
    """,
)
@option("--watch", is_flag=True, help="Show it again every second, until Ctrl-C.")
@option(
    "--runtime-dir",
    has_variable=True,
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="Where its board is. Without: the first usual place.",
)
@option("--name", has_variable=True, default="cmdbus", help="The supervisor's name.")
@json_option
@ignored_options("--schema", "--dsn-file", "--dsn")
def ps(watch: bool, runtime_dir: Path | None, name: str, as_json: bool) -> None:
    with one_line_errors():
        path = board_path(find_runtime_directory(runtime_dir), name)
        if watch:
            _watch(path, as_json)
            return
        snapshot = _read(path)
        if as_json:
            show_json(snapshot.to_dict())
        else:
            show_lines(_lines(snapshot))
        if snapshot.is_over:
            raise BoardError(f"the supervisor {snapshot.view.name!r} is {snapshot.state}")


def _watch(path: Path, as_json: bool) -> None:
    """A new supervisor makes a new board: the path is opened each time."""
    before: PsSnapshot | None = None
    with suppress(KeyboardInterrupt):
        while True:
            value: dict[str, object]
            try:
                snapshot = _read(path)
                value, lines, before = snapshot.to_dict(), [*_lines(snapshot, before)], snapshot
            except BoardError as error:
                value, lines, before = {"error": str(error)}, [str(error)], None
            if as_json:
                show_json(value)
            else:
                click.clear()
                show_lines([*lines, ""])
            time.sleep(_WATCH_SECONDS)


def _read(path: Path) -> PsSnapshot:
    try:
        with closing(Board.open(path)) as board:
            view, counters = board.snapshot(), board.counters()
    except BoardError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            raise BoardError(_missing(path)) from None
        raise
    now = time.monotonic_ns()
    gone = {
        seat.pid
        for seat in view.seats
        if seat.pid is not None
        and (not view.this_boot or pid_state(seat.pid, seat.since) is PidState.GONE)
    }
    return PsSnapshot(
        view=view,
        now=now if view.this_boot else None,
        supervisor=_presence(view, now),
        counters=counters,
        gone=frozenset(gone),
    )


def _presence(view: BoardView, now: int) -> PidState:
    if not view.this_boot or view.pid is None:
        return PidState.GONE
    # While it meets its deadline, no other process can have its id.
    on_time = view.due is not None and view.due > now
    return pid_state(view.pid, None if on_time else view.since)


def _missing(path: Path) -> str:
    try:
        check_free(pidfile_path(path.parent, path.stem), path.stem)
    except NameTakenError as taken:
        return (
            f"the supervisor {path.stem!r} (pid {taken.pid or 'unknown'}) is starting and has no "
            f"board yet: its log has the reason"
        )
    others = sorted(found.stem for found in path.parent.glob("*.board"))
    hint = (
        f"it has boards of {', '.join(others)}: choose one with --name"
        if others
        else "start cmdbus-supervise, or say where its board is with --runtime-dir"
    )
    return f"there is no board of {path.stem!r} in {path.parent}: {hint}"


def _lines(snapshot: PsSnapshot, before: PsSnapshot | None = None) -> Iterator[str]:
    """`before`: an earlier snapshot, for rates since then."""
    yield from _head(snapshot)
    yield _steward(snapshot)
    if before is not None:
        yield from _pace(snapshot, before)
    for seat in snapshot.view.with_role(Role.QUARANTINE):
        yield ""
        yield f"quarantine: pid {seat.pid or '-'}, runs a command that may have killed its process"
        yield from _slots(seat, snapshot)
    yield ""
    yield "WORKER      PID  STARTS  HEALTH            AGE     RSS  THREADS"
    workers = snapshot.view.with_role(Role.WORKER)
    for number in sorted({*range(snapshot.view.wanted), *(seat.number for seat in workers)}):
        # While a successor starts there are two.
        seats = [seat for seat in workers if seat.number == number]
        for seat in seats:
            yield from _seat(seat, snapshot)
        if not seats:
            yield f"{number:>6}        -       -  empty"
    for seat in snapshot.view.with_role(Role.STOPPING):
        why = f"must have exited in {snapshot.until(seat.stop_by)}"
        if seat.terminated and seat.stop_by is None:
            why = "got a SIGTERM that the supervisor did not send"
        yield f"stopping: pid {seat.pid or '-'}, which {why}"
        yield from _slots(seat, snapshot)
    for seat in snapshot.view.with_role(Role.DEAD):
        yield _exit(seat)


def _head(snapshot: PsSnapshot) -> Iterator[str]:
    view, state = snapshot.view, snapshot.state
    late = snapshot.is_late(view.due)
    frozen = snapshot.supervisor is PidState.STOPPED and state != "stopped"
    text = f"{view.name}: {state.replace('_', ' ')}"
    text += ", but frozen" if frozen else ", but late" if late else ""
    if view.pid is not None:
        text += f", pid {view.pid}"
    if (since := snapshot.since(view.since)) != "-":
        text += f", began {since} ago"
    yield shorten(text, _WIDTH)
    if selected := str(view.selected):
        yield shorten(selected, _WIDTH)
    if not view.this_boot:
        yield "The machine was restarted since: this is the last state before that."
    elif state == "dead":
        yield "Its process is gone; this is its last state. Start it again."
    elif frozen:
        yield "A signal has suspended it, and its processes go on: kill -CONT resumes it."
    elif late:
        yield f"Hung or starved: its last heartbeat is overdue by {snapshot.since(view.due)}."
    restarts = [f"{reason} {count}" for reason, count in view.restarts.items() if count]
    total = count_of(sum(view.restarts.values()), "restart")
    yield shorten(f"{total}{': ' if restarts else ''}{', '.join(restarts)}", _WIDTH)
    if view.undead:
        yield f"Killed, but not dead: {count_of(view.undead, 'process', 'es')} (disk wait?)."


def _steward(snapshot: PsSnapshot) -> str:
    stewards = snapshot.view.with_role(Role.STEWARD)
    if not stewards or stewards[0].pid is None:
        return "steward: none"
    view, seat = snapshot.view, stewards[0]
    if not snapshot.has(seat):
        return f"steward: gone, pid was {seat.pid}"
    text = [f"pid {seat.pid}"]
    text.append("listens for commands" if view.listening else "does not listen: workers poll")
    if view.suspects:
        text.append("suspects wait for quarantine")
    if snapshot.is_late(seat.due):
        text.append(f"late by {snapshot.since(seat.due)}")
    return f"steward: {', '.join(text)}"


def _pace(snapshot: PsSnapshot, before: PsSnapshot) -> Iterator[str]:
    is_same = (snapshot.view.pid, snapshot.view.since) == (before.view.pid, before.view.since)
    if snapshot.now is None or before.now is None or not is_same:
        return  # another supervisor's board
    seconds = (snapshot.now - before.now) / _NS
    rates = []
    for end in OutcomeLabel:
        count = _ended(snapshot.counters, end) - _ended(before.counters, end)
        if count or end is OutcomeLabel.COMPLETED:
            text = _ENDS.get(end, end.name.lower())
            rates.append(f"{max(0, count) / seconds:.0f} {text}")
    yield shorten(f"per second: {', '.join(rates)}", _WIDTH)


def _ended(counters: CountersView, end: OutcomeLabel) -> int:
    name = end.name.lower()
    return sum(n for (_, _, how), n in counters.commands.items() if how == name)


def _seat(seat: SeatView, snapshot: PsSnapshot) -> Iterator[str]:
    present = snapshot.has(seat)
    health = seat.health.value if present else "empty" if seat.pid is None else "gone"
    rss = f"{seat.rss_bytes / 2**20:.0f}M" if present and seat.rss_bytes is not None else "-"
    busy = _busy(seat)
    stuck = sum(slot.phase is Phase.STUCK for slot in busy)
    quiet = sum(slot.number >= 0 for slot in seat.slots) - len(busy)
    threads = f"{len(busy) - stuck} busy, {quiet} idle{f', {stuck} stuck' if stuck else ''}"
    yield (
        f"{seat.number:>6}  {seat.pid or '-':>7}  {seat.generation:>6}  "
        f"{health:<13}  {snapshot.since(seat.since):>6}  {rss:>6}  {threads}"
    )
    if present and seat.threads is not None and seat.threads.is_range:
        numbers = f"{seat.threads.now} of {seat.threads.least}:{seat.threads.most}"
        yield shorten(f"      threads {numbers}: {seat.threads.sentence}", _WIDTH)
    for reason in seat.levels.reasons if present else ():
        yield shorten(f"      {reason}", _WIDTH)
    if present and snapshot.is_late(seat.due):
        yield f"      its main thread is late by {snapshot.since(seat.due)}"
    yield from _slots(seat, snapshot)


def _exit(seat: SeatView) -> str:
    exit_record = seat.exit
    if exit_record is None:
        return "ended: a process; its claims are being released"
    how = f"signal {exit_record.signal}" if exit_record.signal else f"exit code {exit_record.code}"
    why = _VERDICTS[exit_record.verdict]
    return f"ended: pid {exit_record.pid} ({how}{why}); its claims are being released"


def _busy(seat: SeatView) -> list[SlotView]:
    slots = [slot for slot in seat.slots if slot.number >= 0 and slot.phase not in _QUIET]
    return sorted(slots, key=lambda slot: slot.number)


def _slots(seat: SeatView, snapshot: PsSnapshot) -> Iterator[str]:
    if busy := _busy(seat):
        yield _SLOT.format("THREAD", "PHASE", "FOR", "DUE IN", "TRY", "COMMAND")
    for slot in busy:
        command = slot.command
        name = shorten(f"{command.domain}/{command.type}", _WIDTH - _INDENT) if command else "-"
        phase = slot.phase.name.lower() if slot.phase is not None else "?"
        times = snapshot.since(slot.since), snapshot.until(slot.due)
        yield _SLOT.format(slot.number, phase, *times, command.attempt if command else "-", name)
        if command:
            yield " " * _INDENT + str(command.command_id)
