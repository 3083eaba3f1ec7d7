"""Starts transfers between accounts, kills what runs them, decides as an operator, and judges the
result: by the balances, the processes and what the handlers wrote."""

import os
import random
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from uuid import UUID

import psycopg
from lab.instances import Instance

from cmdbus import CommandBus, InvalidOperationError, Status
from cmdbus.producer.records import TroubleRecord
from loads.progress import Progress, Sample
from loads.transfer import TransferState

ACCOUNTS, BALANCE = 100, 10_000
CLOSED = 5
TABLES = (
    "CREATE TABLE account (id int PRIMARY KEY, balance bigint NOT NULL,"
    " reserved bigint NOT NULL DEFAULT 0, closed boolean NOT NULL);"
    f" INSERT INTO account SELECT n, {BALANCE}, 0, n <= {CLOSED}"
    f" FROM generate_series(1, {ACCOUNTS}) n;"
    " CREATE TABLE movement (command_id uuid PRIMARY KEY, process_id uuid, type text)"
)
#: Transfers that are not over, at most: so few that most are over before their deadlines.
_IN_FLIGHT, _AT_ONCE = 400, 50
#: Seconds between two looks, and without any progress until the load gives up.
_LOOK_S, _PAUSE_S, _PATIENCE_S = 0.5, 0.05, 90.0
#: Shares of transfers whose notice needs an operator or takes too long, and of those that an
#: operator cancels.
_UNREADABLE, _SLOW, _CANCELED = 0.01, 0.003, 0.01

_UNFINISHED = "SELECT count(*) FROM cmdbus.managed_process WHERE finished_at IS NULL"
_MISSING = (
    "SELECT count(*) FROM unnest(%s::uuid[]) s (id) WHERE NOT EXISTS ("
    "SELECT FROM cmdbus.managed_process p WHERE p.process_id = s.id AND p.finished_at IS NOT NULL)"
)
#: Accounts whose balance is not what the completed transfers make of it, and reservations left.
_WRONG = """
SELECT count(*) FROM account a WHERE a.reserved <> 0 OR a.balance <> %(balance)s + coalesce((
    SELECT sum((p.state ->> 'amount')::bigint * CASE a.id
        WHEN (p.state ->> 'target')::int THEN 1 ELSE -1 END)
    FROM cmdbus.process p WHERE p.status = 'COMPLETED'
        AND a.id IN ((p.state ->> 'target')::int, (p.state ->> 'source')::int)), 0)"""
#: Steps that a process has sent twice, or commands whose effects do not fit their outcomes; an
#: operator may complete a command that has none.
_TWICE = """
SELECT (SELECT count(*) FROM (SELECT FROM cmdbus.process_step WHERE undoes IS NULL
                              GROUP BY process_id, step HAVING count(*) > 1) t)
    + (SELECT count(*) FROM cmdbus.process_step s LEFT JOIN movement m USING (command_id)
       WHERE (m.command_id IS NULL) = (s.outcome = 'SUCCESS') AND s.type <> 'Notify')
    + (SELECT count(*) FROM movement m JOIN cmdbus.process_step s USING (command_id)
       WHERE s.outcome <> 'SUCCESS')"""
_ENDS = "SELECT status, count(*) FROM cmdbus.process GROUP BY 1 ORDER BY 2 DESC"
_SPEED = (
    "SELECT count(*) / nullif(extract(epoch FROM max(finished_at) - min(created_at)), 0)::float8"
    " FROM cmdbus.managed_process"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferVerdict:
    started: int
    #: Not terminal at the end.
    lost: int
    wrong_accounts: int
    #: The difference of the sum of all balances.
    money: int
    #: Steps that were done twice, or not as their outcome says.
    twice: int
    kills: int
    rate: float
    ends: dict[str, int]

    @property
    def ok(self) -> bool:
        wrong = self.lost or self.wrong_accounts or self.money or self.twice
        return not (wrong or self.ends.get("FAILED"))

    def figures(self) -> dict[str, object]:
        return {**asdict(self), "rate": round(self.rate, 1)}


class TransferLoad:
    def __init__(
        self,
        count: int,
        kill_every: float | None,
        bus: CommandBus,
        connection: psycopg.Connection,
        instances: Sequence[Instance],
        progress: Progress,
    ) -> None:
        self._count, self._kill_every = count, kill_every
        self._bus, self._connection = bus, connection
        self._instances, self._progress = instances, progress
        self._random = random.Random(count)
        self._started: list[UUID] = []
        self._kills = 0

    def run(self) -> TransferVerdict:
        moved, moved_at, look_at = (-1, -1), time.monotonic(), 0.0
        kill_at = time.monotonic() + (self._kill_every or float("inf"))
        while True:
            now = time.monotonic()
            left = self._left()
            self._start(min(_AT_ONCE, _IN_FLIGHT - left, self._count - len(self._started)))
            if now >= kill_at:
                self._kill()
                kill_at = now + (self._kill_every or 0.0)
            if now >= look_at:
                look_at = now + _LOOK_S
                self._operate()
                self._restart()
                self._show(left)
            if (len(self._started), left) != moved:
                moved, moved_at = (len(self._started), left), now
            if (len(self._started) == self._count and not left) or now > moved_at + _PATIENCE_S:
                self._show(left, last=True)
                return self._verdict()
            time.sleep(_PAUSE_S)

    def _left(self) -> int:
        return int(self._connection.execute(_UNFINISHED).fetchall()[0][0])

    def _start(self, count: int) -> None:
        for _ in range(max(0, count)):
            source, target = self._random.sample(range(1, ACCOUNTS + 1), 2)
            chance = self._random.random()
            memo = "unreadable" if chance < _UNREADABLE else "slow" if chance > 1 - _SLOW else ""
            # A few are more than any account has.
            amount = self._random.choice((1, 10, 100, 100, BALANCE * ACCOUNTS))
            state = TransferState(source, target, amount, memo)
            self._started.append(self._bus.start_process("transfers", "Transfer", state))
            if self._random.random() < _CANCELED:
                with suppress(InvalidOperationError):
                    chosen = self._random.choice(self._started[-_IN_FLIGHT:])
                    self._bus.cancel_process(chosen, operator="load", reason="by chance")

    def _operate(self) -> None:
        """Decides about what is in troubleshooting: notices at random, and all else runs again."""
        for record in self._bus.troubleshooting.list(limit=100):
            with suppress(InvalidOperationError):
                self._decide(record)

    def _decide(self, record: TroubleRecord) -> None:
        queue, key = self._bus.troubleshooting, (record.domain, record.command_id)
        chance = self._random.random() if record.error_code == "UNREADABLE" else 1.0
        if chance < 0.4:
            queue.complete(*key, operator="load", result={"status": Status.COMPLETED})
        elif chance < 0.8:
            queue.cancel(*key, operator="load", reason="not readable")
        else:
            queue.retry(*key, operator="load")

    def _kill(self) -> None:
        """A worker, a steward or a supervisor."""
        running = [instance for instance in self._instances if instance.running]
        if not running:
            return
        instance = self._random.choice(running)
        pids: list[int | None] = [self._random.choice(instance.workers() or [None])]
        pids += [instance.steward_now(), instance.pid]
        [pid] = self._random.choices(pids, weights=(6, 2, 1))
        if pid == instance.pid:
            os.kill(pid, signal.SIGKILL)
            instance.exit_code_within(10)
        elif pid is not None:
            instance.kill(pid)
        self._kills += pid is not None

    def _restart(self) -> None:
        for instance in self._instances:
            if not instance.running:
                instance.start()

    def _show(self, left: int, *, last: bool = False) -> None:
        started = len(self._started)
        sample = Sample(sent=started, ended=started - left, restarts=self._kills, connections=0)
        self._progress.show(sample, last=last)

    def _verdict(self) -> TransferVerdict:
        def ask(query: str, *values: object) -> int:
            return int(self._connection.execute(query.encode(), values or None).fetchall()[0][0])

        wrong = self._connection.execute(_WRONG, {"balance": BALANCE}).fetchall()[0][0]
        rate = self._connection.execute(_SPEED).fetchall()[0][0]
        return TransferVerdict(
            started=len(self._started),
            lost=ask(_MISSING, self._started),
            wrong_accounts=wrong,
            money=ask("SELECT sum(balance) FROM account") - ACCOUNTS * BALANCE,
            twice=ask(_TWICE),
            kills=self._kills,
            rate=rate or 0.0,
            ends=dict(self._connection.execute(_ENDS).fetchall()),
        )
