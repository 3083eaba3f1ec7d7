"""Sends to many supervisors, kills their workers now and then, and waits until all has ended."""

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

import psycopg
from lab.instances import Instance

from cmdbus import CommandBus, SendRequest
from cmdbus.errors import CmdbusError
from loads.progress import Progress, Sample
from loads.workloads import DOMAIN, WORKLOADS, Part, types_of

_AT_ONCE = 1_000
#: Between two looks: at the instances and the server, and at whether all is done.
_LOOK_S, _DONE_S = 0.5, 0.1
_READY_WITHIN_S = 120.0
#: Seconds without any progress after which the commands that have not ended count as lost.
_PATIENCE_S = 60.0

_ABOUT = (
    "SELECT coalesce(sum(n_tup_ins), 0)::bigint, (SELECT count(*) FROM pg_stat_activity"
    " WHERE datname = current_database() AND backend_type = 'client backend')"
    " FROM pg_stat_user_tables WHERE schemaname = 'cmdbus'"
    r" AND relname ~ '^(finished|troubleshooting)'"
)
_LEFT = "SELECT EXISTS (SELECT FROM cmdbus.ready) OR EXISTS (SELECT FROM cmdbus.scheduled)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    instances: int
    procs: int
    threads: int
    commands: int
    workload: str
    rate: float | None
    kill_every: float | None

    @property
    def parts(self) -> tuple[Part, ...]:
        return WORKLOADS[self.workload]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What was seen while it ran; the rest is in the tables."""

    sent: Sequence[tuple[UUID, str]]
    kills: int
    restarts: int
    connections: int


def wait_until_ready(instances: Sequence[Instance]) -> None:
    deadline = time.monotonic() + _READY_WITHIN_S
    while not all(instance.is_ready for instance in instances):
        check(instances)
        if time.monotonic() > deadline:
            raise CmdbusError(f"not all instances were ready within {_READY_WITHIN_S:.0f} s")
        time.sleep(_DONE_S)


def check(instances: Sequence[Instance]) -> None:
    for instance in instances:
        if instance.code is not None:
            raise CmdbusError(
                f"{instance.name} has ended with code {instance.code}:\n{instance.last_output()}"
            )


class Load:
    """Sends, looks and kills, each when it is its time, until everything has ended."""

    def __init__(
        self,
        plan: Plan,
        bus: CommandBus,
        connection: psycopg.Connection,
        instances: Sequence[Instance],
        progress: Progress,
    ) -> None:
        self._plan = plan
        self._bus = bus
        self._connection = connection
        self._instances = instances
        self._progress = progress
        self._types = types_of(plan.parts, plan.commands)
        self._sent: list[tuple[UUID, str]] = []
        self._kills = self._restarts = self._connections = 0
        self._moved = (0, 0)
        self._given_up = False
        self._moved_at = self._began = time.monotonic()

    def run(self) -> Run:
        self._began = self._moved_at = time.monotonic()
        look_at = 0.0
        kill_at = self._began + (self._plan.kill_every or float("inf"))
        while True:
            now = time.monotonic()
            self._send(now)
            if now >= kill_at:
                self._kill()
                kill_at += self._plan.kill_every or 0.0
            if now >= look_at:
                look_at = now + _LOOK_S
                self._look(now)
            if self._is_done(now):
                self._look(now, last=not self._given_up)
                return Run(
                    sent=self._sent,
                    kills=self._kills,
                    restarts=self._restarts,
                    connections=self._connections,
                )
            if len(self._sent) == self._plan.commands or self._plan.rate:
                time.sleep(_DONE_S if self._plan.rate is None else _DONE_S / 5)

    def _send(self, now: float) -> None:
        rate = self._plan.rate
        due = self._plan.commands if rate is None else int((now - self._began) * rate) + 1
        types = self._types[len(self._sent) : min(due, len(self._sent) + _AT_ONCE)]
        ids = self._bus.send_many([SendRequest(DOMAIN, type_) for type_ in types])
        self._sent += zip(ids, types, strict=True)

    def _kill(self) -> None:
        workers = [(i, pid) for i in self._instances for pid in i.workers()]
        if workers:
            instance, pid = random.choice(workers)
            instance.kill(pid)
            self._kills += 1

    def _look(self, now: float, *, last: bool = False) -> None:
        check(self._instances)
        ended, connections = self._connection.execute(_ABOUT).fetchall()[0]
        views = [instance.look() for instance in self._instances]
        self._restarts = sum(sum(view.restarts.values()) for view in views if view is not None)
        self._connections = max(self._connections, connections)
        sent = len(self._sent)
        if (sent, ended) != self._moved:
            self._moved, self._moved_at = (sent, ended), now
        self._progress.show(
            Sample(
                sent=sent,
                # What is counted lags behind.
                ended=sent if last else min(ended, sent),
                restarts=self._restarts,
                connections=connections,
            ),
            last=last,
        )

    def _is_done(self, now: float) -> bool:
        if len(self._sent) < self._plan.commands:
            return False
        if now > self._moved_at + _PATIENCE_S:
            self._progress.say(f"nothing has moved for {_PATIENCE_S:.0f} s: giving up")
            self._given_up = True
            return True
        return not self._connection.execute(_LEFT).fetchall()[0][0]
