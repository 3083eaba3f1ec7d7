"""`cmdbus ps`: what runs where, for how long. It reads only the board, so it works while the
database is away, and when the supervisor is frozen or dead.
"""

from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path

import click

from cmdbus.board.board import Board
from cmdbus.board.views import BoardView
from cmdbus.clock import time
from cmdbus.errors import BoardError
from cmdbus.proc import PidState, pid_state
from cmdbus.supervisor.cli.output import show_json, show_lines
from cmdbus.supervisor.cli.screen import PsSnapshot, lines
from cmdbus.supervisor.cli.session import (
    board_options,
    ignored_options,
    json_option,
    one_line_errors,
)
from cmdbus.supervisor.host import NameTakenError, check_free, pidfile_path
from cmdbus.supervisor.runtime import board_path, find_runtime_directory

#: Seconds between two reads with --watch.
_WATCH_SECONDS = 1.0


@click.command(
    help="""Show a supervisor's processes and what their threads run.

    STARTS counts the processes that this worker has had, RSS is its resident memory. A
    thread is running a command, leading (it fetches commands for its process and writes down
    how others ended), away (it waits for the database) or stuck (given up, another thread
    has taken its place). FOR is how long it has been doing this, DUE IN when it should be
    done at the latest. Ids are those of cmdbus get. Exits with 1 if the supervisor is gone.

    \b
    Examples:
      cmdbus ps
      cmdbus ps --watch --name shop
      cmdbus ps --json | jq '.seats[].slots[] | select(.command_id and .due < 0)'
    """,
)
@click.option("--watch", is_flag=True, help="Show it again every second, until Ctrl-C.")
@board_options
@json_option
@ignored_options("--dsn", "--dsn-file", "--schema")
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
            show_lines(lines(snapshot))
        if snapshot.is_over:
            raise BoardError(f"the supervisor {snapshot.view.name!r} is {snapshot.state}")


def _watch(path: Path, as_json: bool) -> None:
    """A new supervisor makes a new board: the path is opened each time."""
    before: PsSnapshot | None = None
    try:
        while True:
            try:
                snapshot = _read(path)
            except BoardError as error:
                before = None
                _draw([str(error)], {"error": str(error)} if as_json else None)
            else:
                _draw(lines(snapshot, before), snapshot.to_dict() if as_json else None)
                before = snapshot
            time.sleep(_WATCH_SECONDS)
    except KeyboardInterrupt:
        return


def _draw(text: Iterable[str], value: dict[str, object] | None) -> None:
    if value is not None:
        show_json(value)
        return
    click.clear()
    show_lines([*text, ""])


def _read(path: Path) -> PsSnapshot:
    if not path.exists():
        raise BoardError(_missing(path))
    with closing(Board.open(path)) as board:
        view, counters = board.snapshot(), board.counters()
    now = time.monotonic_ns()
    return PsSnapshot(
        view=view,
        now=now if view.this_boot else None,
        supervisor=_presence(view, now),
        counters=counters,
        gone=frozenset(_gone(view)),
    )


def _gone(view: BoardView) -> Iterator[int]:
    for seat in view.seats:
        if seat.pid is None:
            continue
        if not view.this_boot or pid_state(seat.pid, seat.since) is PidState.GONE:
            yield seat.pid


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
            f"board yet: its log says what it waits for"
        )
    others = sorted(found.stem for found in path.parent.glob("*.board"))
    hint = (
        f"it has boards of {', '.join(others)}: choose one with --name"
        if others
        else "start cmdbus-supervise, or say where its board is with --runtime-dir"
    )
    return f"there is no board of {path.stem!r} in {path.parent}: {hint}"
