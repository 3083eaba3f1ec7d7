"""What the demo prints on stdout: the outcomes of a first set of commands, as the database has
them, and how the fleet stopped.
"""

import os
import shlex
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from uuid import UUID

import psycopg

from cmdbus.board.board import Board
from cmdbus.board.records import SupervisorState
from cmdbus.board.views import BoardView
from cmdbus.clock import time
from cmdbus.counting import count_of
from cmdbus.database.statements import statement
from cmdbus.producer.bus import CommandBus
from cmdbus.producer.records import CommandRecord, Status
from cmdbus.producer.requests import SendRequest
from cmdbus.settings import Settings
from cmdbus.worker.demo.handlers import BACKOFF, DOMAIN

_QUICK, _TRANSFERS, _FLAKY = 500, 20, 12
_MAX_SLOW = 64
_SLOW_SECONDS, _DELAY_SECONDS = 0.5, 2.0
#: One transfer of this number fails at first.
_FAILING = 4
#: Seconds after which commands that have not ended are reported as they are.
_TIMEOUT_SECONDS = 60.0
_COMPLETED, _TROUBLE = Status.COMPLETED, Status.IN_TROUBLESHOOTING_QUEUE
_ENDS = {
    "completed": "completed",
    "failed": "failed by a business rule",
    "retry": "to be tried again",
    "trouble": "given to an operator",
    "interrupted": "interrupted",
    "lost": "cut off",
}
_STDOUT = 1

# Sentences of the cases.
_SPAN = "completed within {seconds:.2f} s"
_WORK = "{work:g} s of work, completed within {seconds:.2f} s"
_WRITTEN = (
    "wrote {rows} rows for {commands} commands, though {repeated} failed after writing and "
    "ran again"
)
_AGAIN = f"failed, waited {BACKOFF:g} s, and completed at the second attempt"
_FORBIDDEN = "failed for good, because a business rule forbids it ({code})"
_WRONG = "could never work ({code}): waits for an operator"
_LATE = f"ran {{late_ms:.0f}} ms after its delay of {_DELAY_SECONDS:g} s was over"
_CRASHED = "killed its process; ran again alone, killed that one, too: waits for an operator"

Records = Sequence[CommandRecord]


@dataclass(frozen=True, slots=True)
class DemoCase:
    """Commands of one type, one for each element of `data`."""

    type: str
    data: Sequence[object]
    #: Expected of each; the sentence is printed only if all end so.
    end: Status
    #: With names of _facts in braces.
    sentence: str
    delay: float | None = None


@dataclass(slots=True)
class DemoReport:
    settings: Settings
    bus: CommandBus
    connection: psycopg.Connection
    #: Returns the supervisor's state after a moment.
    observe: Callable[[], SupervisorState]
    _ends: Counter[Status] = field(default_factory=Counter)
    #: The first command of the latest case: at the end, of the crash.
    _latest: UUID | None = None

    def print(self, log: Path | None, page: str | None) -> None:
        """Sends the commands; ends early if the supervisor stops. `page`: the address."""
        settings = self.settings
        ready = f"{settings.procs} x {settings.threads} threads are ready"
        say(f"cmdbus, the demo: {ready}{f'; its log is in {log}' if log else ''}")
        say(*([f"Its operators' page is at {page}"] if page else []), "")
        self.connection.execute(statement("demo_table", settings.schema))
        if all(self._run(act) for act in self._acts()):
            say(f"{self._ends.total():6} in all: {_counted(self._ends)}", "")
            say(*self._what_next())

    def _acts(self) -> Iterable[list[DemoCase]]:
        """The crash comes last: commands in flight in its process would run again, quarantined."""
        slow = min(self.settings.procs * self.settings.thread_range.least, _MAX_SLOW)
        transfers = [{"amount": n, "fails": n % _FAILING == 0} for n in range(_TRANSFERS)]
        timeout = f"given up after {self.settings.timeouts.thread:g} s"
        hang = f"did not return: {timeout}, and completed by another thread"
        yield [
            DemoCase("Quick", [{"n": n} for n in range(_QUICK)], _COMPLETED, _SPAN),
            DemoCase("Slow", [{"seconds": _SLOW_SECONDS}] * slow, _COMPLETED, _WORK),
            DemoCase("Transfer", transfers, _COMPLETED, _WRITTEN),
            DemoCase("Flaky", [None] * _FLAKY, _COMPLETED, _AGAIN),
            DemoCase("Overdraw", [{"amount": 1000}], Status.FAILED, _FORBIDDEN),
            DemoCase("Mistake", [{"account": "?"}], _TROUBLE, _WRONG),
            DemoCase("Later", [None], _COMPLETED, _LATE, delay=_DELAY_SECONDS),
            DemoCase("Hang", [None], _COMPLETED, hang),
        ]
        yield [DemoCase("Crash", [None], _TROUBLE, _CRASHED)]

    def _run(self, cases: list[DemoCase]) -> bool:
        """False if the supervisor stops meanwhile."""
        sent = self.bus.send_many(
            [SendRequest(DOMAIN, c.type, data, delay=c.delay) for c in cases for data in c.data]
        )
        first, ids = self.bus.get(DOMAIN, sent[0]), set(sent)
        assert first is not None
        deadline = time.monotonic() + _TIMEOUT_SECONDS
        waiting = list(cases)
        while waiting:
            late = time.monotonic() > deadline
            for case in list(waiting):
                found = self.bus.query(DOMAIN, type=case.type, since=first.created_at, limit=1000)
                records = [record for record in found if record.command_id in ids]
                if late or all(r.status.terminal or r.status is _TROUBLE for r in records):
                    waiting.remove(case)
                    self._report_case(case, records)
            if self.observe() is not SupervisorState.RUNNING:
                return False
        return True

    def _report_case(self, case: DemoCase, records: Records) -> None:
        ends = Counter(record.status for record in records)
        self._ends += ends
        sentence = _counted(ends)
        if set(ends) == {case.end}:
            self._latest = records[0].command_id
            sentence = case.sentence.format(**self._facts(records))
        say(f"{len(records):6} {case.type:9} {sentence}")

    def _facts(self, records: Records) -> dict[str, object]:
        first, began = records[0], min(record.created_at for record in records)
        ends = [record.finished_at for record in records if record.finished_at is not None]
        ids = {"command_ids": [record.command_id for record in records]}
        count = statement("demo_count", self.settings.schema)
        (written,) = self.connection.execute(count, ids).fetchall()
        return {
            "seconds": (max(ends, default=began) - began).total_seconds(),
            "work": len(records) * _SLOW_SECONDS,
            "rows": written[0],
            "commands": written[1],
            "repeated": sum(record.attempts > 1 for record in records),
            "code": first.error_code,
            "late_ms": ((first.started_at or first.due_at) - first.due_at).total_seconds() * 1000,
        }

    def _what_next(self) -> Iterable[str]:
        command, options = _command(), "".join(_options(self.settings))
        tries = {
            "what runs where": "ps",
            "what waits": "status",
            "what needs an operator": "tsq list",
            "all about one": f"get {DOMAIN} {self._latest}",
            "to see it in ps": f"send {DOMAIN} Slow '{{\"seconds\": 20}}'",
        }
        yield "It goes on until Ctrl-C. In another terminal, try:"
        for what, arguments in tries.items():
            yield f"  {what:22}  {command} {arguments}{options}"
        yield "With handlers and a database of your own (see README.md):"
        yield "  cmdbus-supervise --app MODULE:REGISTRY --dsn DSN"


def _counted(ends: Counter[Status]) -> str:
    names = {_TROUBLE: "waiting for an operator"}
    return ", ".join(
        f"{ends[status]} {names.get(status, status.value.lower().replace('_', ' '))}"
        for status in Status
        if ends[status]
    )


def _command() -> str:
    """`cmdbus` as it can be typed in another terminal, where no environment is active."""
    program = Path(sys.executable).with_name("cmdbus")
    found = "VIRTUAL_ENV" not in os.environ and shutil.which("cmdbus") == str(program)
    return "cmdbus" if found or not program.exists() else shlex.quote(str(program))


def _options(settings: Settings) -> Iterable[str]:
    if settings.name != Settings().name:
        yield f" --name {settings.name}"
    if settings.schema != Settings().schema:
        yield f" --schema {settings.schema}"
    if settings.runtime_dir is not None:
        yield f" --runtime-dir {shlex.quote(str(settings.runtime_dir))}"


def stop_text(view: BoardView | None, seconds: float) -> str:
    """`seconds`: for running commands to end; 0 cuts them off."""
    if not seconds:
        return "Stopping at once: what runs is cut off, and runs again next time."
    seats = view.seats if view is not None else ()
    running = sum(slot.command is not None for seat in seats for slot in seat.slots)
    if not running:
        return "Stopping: no command runs; waiting for the processes to exit."
    return (
        f"Stopping: waiting for {count_of(running)}, at most {seconds:g} s (Ctrl-C again: at once)."
    )


def summary(board: Board | None) -> Iterable[str]:
    ends, replaced = Counter[str](), Counter[str]()
    if board is not None:
        for (_, _, end), count in board.counters().commands.items():
            ends[end] += count
        replaced.update(board.snapshot(claims=False).restarts)
    if ends:
        counts = (f"{ends[name]} {text}" for name, text in _ENDS.items() if ends[name])
        yield f"It ran {ends.total()} executions: {', '.join(counts)}."
    if any(replaced.values()):
        reasons = (f"{count} {reason}" for reason, count in replaced.items() if count)
        yield f"It replaced processes: {', '.join(reasons)}."
    yield "Its database stays for the next time."


def say(*lines: str) -> None:
    """A closed stdout is ignored, because the fleet runs on."""
    with suppress(OSError):
        os.write(_STDOUT, "".join(f"{line}\n" for line in lines).encode())
