"""A supervisor and its fleet for a test: real processes, seen as an operator sees them, from
outside: by the board, the log, the database and the system's processes."""

import http.client
import json
import os
import resource
import signal
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import UUID

import psutil
import psycopg
from eventually import eventually
from lab.supervisor import Supervisor
from sent_commands import SentCommands

from cmdbus.board.records import Role
from cmdbus.board.views import BoardView, SeatView

#: A ladder in which a process that hangs is found within seconds, and no busy machine looks
#: like one.
LADDER = {
    "statement-timeout": 1,
    "pool-timeout": 1,
    "visibility-timeout": 2,
    "thread-timeout": 3,
    "watchdog-timeout": 5,
}
#: The loggers by which Django tells how its tasks have ended.
_OF_TASKS = {"django.tasks", "django_tasks"}
_TESTS = Path(__file__).parent


class Fleet(Supervisor, SentCommands):
    """A supervisor of `place`, where its application is; not started yet."""

    def __init__(self, dsn: str, path: Path, options: Mapping[str, object]) -> None:
        SentCommands.__init__(self, dsn)
        self.place = path
        self.options = {**LADDER, "app": "shop:registry", "procs": 2, "threads": 4, **options}
        name = str(self.options.setdefault("name", "cmdbus"))
        log = path / f"{name}.{len(list(path.glob('*.log')))}.log"
        Supervisor.__init__(self, name, path / "run", log)
        self.program = [str(Path(sys.executable).with_name("cmdbus-supervise"))]
        #: Sessions of processes that were started; each supervisor has one.
        self._sessions: list[int] = []

    def start(self, *, stderr: int | None = None, shell: str = "") -> None:
        """`shell`: what a shell says before it becomes the supervisor, by exec "$@"."""
        program = [*self.program, *self._arguments()]
        self.process = self.launch(
            ["/bin/sh", "-c", shell, "sh", *program] if shell else program,
            cwd=self.place,
            environment={**os.environ, "CMDBUS_DSN": self.dsn, "PYTHONPATH": str(_TESTS)},
            stderr=stderr,
        )
        # Crashes are on purpose here.
        resource.prlimit(self.process.pid, resource.RLIMIT_CORE, (0, 0))
        self._sessions.append(self.process.pid)
        self.close_board()

    def _arguments(self) -> list[str]:
        options = {"runtime-dir": self.directory, "log-format": "json", **self.options}
        arguments = []
        for name, value in options.items():
            arguments += [f"--{name}"] if value is True else [f"--{name}", str(value)]
        return arguments

    def wait(self, within: float = 25.0) -> int:
        """Its exit code."""
        code = self.exit_code_within(within)
        assert code is not None, f"it has not stopped within {within:g} s"
        return code

    def stop(self, number: signal.Signals = signal.SIGTERM, within: float = 25.0) -> int:
        self.send_signal(number)
        return self.wait(within)

    # What the board shows.

    def look(self) -> BoardView:
        return self.board().snapshot()

    def workers(self, view: BoardView | None = None) -> dict[int, SeatView]:
        """By number, those that claim."""
        seats = (view or self.look()).with_role(Role.WORKER)
        return {seat.number: seat for seat in seats if seat.ready}

    def pids(self) -> dict[int, int]:
        return {number: seat.pid for number, seat in self.workers().items() if seat.pid}

    def steward(self) -> int | None:
        return next((s.pid for s in self.look().with_role(Role.STEWARD) if s.ready), None)

    def executing(self, type: str) -> list[int]:
        """The process of each of its executions that are going on now."""
        return [
            seat.pid
            for seat in self.look().seats
            for slot in seat.slots
            if seat.pid and seat.role is not Role.DEAD and slot.command
            if slot.command.type == type
        ]

    def wait_until_ready(self, procs: int | None = None, within: float = 30.0) -> dict[int, int]:
        """The pids of the workers, once they are all there."""
        wanted = procs if procs is not None else self.options["procs"]

        def ready() -> bool:
            if not self.running:
                raise RuntimeError(f"it has stopped with {self.wait()}: {self.messages()}")
            view = self._look_at_its_own()
            return (
                view is not None
                and len(self.workers(view)) == wanted
                and any(seat.ready for seat in view.with_role(Role.STEWARD))
                and (view.listening or self.options.get("wake") == "poll")
            )

        eventually(ready, within)
        return self.pids()

    def _look_at_its_own(self) -> BoardView | None:
        """And not at the board that a killed one has left. In a namespace of its own it is 1."""
        if self._board is None and not self.board_path.exists():
            return None
        view = self.look()
        if view.pid in (self.pid, 1):
            return view
        self.close_board()
        return None

    def await_successors(self, gone: Iterable[int], within: float = 30.0) -> dict[int, int]:
        """The workers' pids once all are there, and none of those that are to go."""
        old = set(gone)

        def after() -> dict[int, int]:
            seats = self.look().with_role(Role.WORKER)
            pids = {seat.number: seat.pid for seat in seats if seat.pid and seat.ready}
            whole = len(pids) == len(seats) == self.look().wanted
            return pids if whole and not old & {*pids.values()} else {}

        return eventually(after, within)

    def await_health(self, within: float = 20.0) -> None:
        """Until no worker has anything to complain of."""
        eventually(lambda: {seat.health for seat in self.workers().values()} == {"HEALTHY"}, within)

    def is_at_rest(self) -> bool:
        """All its threads wait, and senders know."""
        return self.look().armed > 0 and all(seat.parked for seat in self.workers().values())

    def succeeded(self, steward: int, *, within: float = 30.0) -> int:
        """The pid of the next steward, once it is ready."""

        def next_one() -> int:
            pid = self.steward()
            return pid if pid is not None and pid != steward else 0

        return eventually(next_one, within)

    # What it says.

    def events(self) -> list[dict[str, Any]]:
        return [event for line in self._lines() if (event := _event(line)) is not None]

    def messages(self, *, level: str | None = None) -> list[str]:
        return [e["message"] for e in self.events() if level is None or e["level"] == level]

    def logged(self, text: str) -> list[str]:
        return [message for message in self.messages() if text in message]

    def await_saying(self, text: str, count: int = 1, within: float = 30.0) -> list[str]:
        eventually(lambda: len(self.logged(text)) >= count, within)
        return self.logged(text)

    def ask(self, path: str, timeout: float = 2.0) -> tuple[int, str]:
        """The response to a probe, within a probe's timeout."""
        [text] = self.logged("probes, metrics and status are at")
        address = text.rpartition("/")[2]
        with closing(http.client.HTTPConnection(address, timeout=timeout)) as connection:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()

    def readiness(self) -> tuple[int, list[str]]:
        status, body = self.ask("/readyz")
        return status, json.loads(body)["reasons"]

    def _lines(self) -> list[str]:
        text = self.log.read_text(errors="replace")
        return text[: text.rfind("\n") + 1].splitlines()

    def start_gates(self, count: int) -> list[UUID]:
        """Commands that all run, until `open_gate`."""
        ids = self.send("Gate", count, data="open")
        eventually(lambda: len(self.executing("Gate")) == count)
        return ids

    def open_gate(self) -> None:
        (self.place / "open").touch()

    def living(self) -> list[int]:
        """Processes of the supervisor's session, zombies not counted."""
        return [pid for pid in psutil.pids() if _lives_in(self._sessions, pid)]

    def assert_nothing_left(self) -> None:
        eventually(lambda: not self.living())
        patterns = [f"{self.name}.{kind}" for kind in ("pid", "stacks", "board", "board.[0-9]*")]
        assert not [path for each in patterns for path in self.directory.glob(each)]

    def assert_sound(self, *, alone: bool = True) -> None:
        """No traceback but those of commands, and no session in the database if it was alone."""
        tracebacks = [
            event
            for event in self.events()
            if "traceback" in event and "outcome" not in event and event["logger"] not in _OF_TASKS
        ]
        assert not tracebacks, tracebacks
        others = [line for line in self._lines() if _event(line) is None]
        assert not [line for line in others if "Traceback" in line]
        self.close_buses()
        if not alone:
            return
        sessions = (
            "SELECT pid, application_name, state, left(query, 100) FROM pg_stat_activity"
            " WHERE datname = current_database() AND starts_with(application_name, 'cmdbus:')"
        )
        eventually(lambda: not self.query(sessions), 20.0)

    def end(self) -> None:
        """Kills what is left of it, by pid."""
        if self.running:
            self.send_signal(signal.SIGKILL)
            self.wait()
        for pid in self.living():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.close_board()
        self.disconnect()


@contextmanager
def supervised(dsn: str, path: Path, **options: Any) -> Iterator[Fleet]:
    """One that runs and is ready."""
    with unstarted(dsn, path, **options) as fleet:
        fleet.start()
        fleet.wait_until_ready()
        yield fleet


@contextmanager
def unstarted(dsn: str, path: Path, *, alone: bool = True, **options: Any) -> Iterator[Fleet]:
    """`options` are the supervisor's, with underscores; `alone`: on its database.

    A test that has not stopped it finds that it stops well.
    """
    named = {name.replace("_", "-"): value for name, value in options.items()}
    fleet = Fleet(dsn, path, named)
    if not (path / "shop.py").exists():
        write_app(path, "from fleet_app import registry as registry")
    try:
        yield fleet
        if fleet.running:
            assert fleet.stop() == 0
            fleet.assert_nothing_left()
        fleet.assert_sound(alone=alone)
    finally:
        with suppress(OSError):
            print(fleet.log.read_text(errors="replace")[-20_000:])  # shown if the test fails
        fleet.end()


def await_rest(*fleets: Fleet) -> None:
    eventually(lambda: all(fleet.is_at_rest() for fleet in fleets))


def write_app(path: Path, text: str) -> None:
    (path / "shop.py").write_text(text + "\n")


def make_effects(dsn: str) -> None:
    """The table of the application's own; without a key, so that a second effect lands too."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS effect (command_id uuid, attempt int)")


def kill(pids: int | Iterable[int], number: signal.Signals = signal.SIGKILL) -> None:
    for pid in [pids] if isinstance(pids, int) else pids:
        os.kill(pid, number)


def _event(line: str) -> dict[str, Any] | None:
    try:
        event = json.loads(line)
    except ValueError:
        return None
    return event if isinstance(event, dict) else None


def _lives_in(sessions: list[int], pid: int) -> bool:
    with suppress(OSError, psutil.NoSuchProcess):
        return os.getsid(pid) in sessions and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False
