"""Many sessions that use the same lanes at the same time, as fast as they can."""

import random
import threading
from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import psycopg
import pytest
from eventually import eventually
from handlers import connect
from lane_claimer import LaneClaimer, Limit, declare
from psycopg.types.json import Jsonb
from queries import count, scalar

from cmdbus.clock import time

LIMITS = [
    Limit("payments Debit", concurrency=2),
    Limit("orders Ship", ordered=True),
    Limit("stripe", concurrency=5, covers=("payments", "orders Ship")),
]
NAMES = ["payments Debit", "payments Refund", "orders Ship", "orders Pack"]
WITHIN_S = 30


class Crowd:
    """Threads with a session each; the first error ends them all."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self.stopping = threading.Event()
        self.errors: list[BaseException] = []
        self._threads: list[threading.Thread] = []
        self._connections = ExitStack()

    def add(self, step: Callable[[], object]) -> None:
        def work() -> None:
            try:
                while not self.stopping.is_set():
                    step()
            except BaseException as error:
                self.errors.append(error)
                self.stopping.set()

        self._threads.append(threading.Thread(target=work))

    def add_claimer(self, types: list[str], seed: int) -> None:
        claimer, chance = LaneClaimer(self.dsn, types), random.Random(seed)
        self._connections.callback(lambda: claimer.connection.close())

        def step() -> None:
            claimer.claim(chance.choice([1, 3, 8]), done=tuple(claimer.held))

        self.add(step)

    def connected(self, step: Callable[[psycopg.Connection], object]) -> None:
        connection = self._connections.enter_context(connect(self.dsn))
        self.add(lambda: step(connection))

    def run(self, until: Callable[[], object], within: float) -> None:
        for thread in self._threads:
            thread.start()
        try:
            eventually(lambda: self.errors or until(), within)
        finally:
            self.stopping.set()
            for thread in self._threads:
                thread.join(WITHIN_S)
            self._connections.close()
        assert not self.errors, self.errors


def most_at_once(intervals: list[tuple[float, float]]) -> int:
    events = sorted([(end, -1) for _, end in intervals] + [(begin, 1) for begin, _ in intervals])
    most = now = 0
    for _, change in events:
        now += change
        most = max(most, now)
    return most


def check_history(connection: psycopg.Connection, commands: int) -> None:
    lanes = defaultdict[tuple[Any, ...], list[tuple[float, float]]](list)
    orders = defaultdict[str, list[int]](list)
    shared = list[tuple[float, float]]()
    for domain, type, key, begin, end, (name, number) in connection.execute(
        "SELECT domain, type, key, extract(epoch FROM claimed_at)::float8,"
        " extract(epoch FROM finished_at)::float8, data FROM cmdbus.finished ORDER BY claimed_at"
    ):
        if type != "Pack":
            shared.append((begin, end))
        lanes[domain, type, key].append((begin, end))
        if type == "Ship":
            orders[name].append(number)
    assert sum(map(len, lanes.values())) == commands
    assert most_at_once(shared) <= 5
    for (_, type, _), intervals in lanes.items():
        assert type == "Pack" or most_at_once(intervals) <= {"Debit": 2, "Ship": 1}.get(type, 5)
    for numbers in orders.values():
        assert numbers == sorted(numbers)


def send_some(sender: psycopg.Connection, keys: int, sent: Counter[str]) -> None:
    """Each with the number of those that this session has sent to its lane."""
    for _ in range(random.choice([1, 4])):
        domain, type = random.choice(NAMES).split(" ")
        key = f"k{random.randrange(keys)}"
        name = f"{sender.info.backend_pid} {domain} {type} {key}"
        sent[name] += 1
        sender.execute(
            "SELECT cmdbus.send(%s, %s, p_key => %s, p_data => %s)",
            (domain, type, key, Jsonb([name, sent[name]])),
        )


def play(dsn: str, connection: psycopg.Connection, seconds: float, keys: int) -> None:
    declare(connection, *LIMITS)
    crowd, sends_until = Crowd(dsn), time.monotonic() + seconds
    sent = Counter[str]()
    for seed, types in enumerate([NAMES, NAMES, NAMES[:2], NAMES[2:]]):
        crowd.add_claimer(types, seed)

    def send(sender: psycopg.Connection) -> None:
        if time.monotonic() > sends_until:
            crowd.stopping.wait(0.01)
        else:
            send_some(sender, keys, sent)

    def change(operator: psycopg.Connection) -> None:
        operator.execute(
            "SELECT cmdbus.set_limit('payments Debit', '{fair}', 'ann', 'r', p_fair => %s)",
            (random.random() < 0.5,),
        )
        crowd.stopping.wait(0.2)

    def retain(steward: psycopg.Connection) -> None:
        steward.execute("SELECT cmdbus.retain_lanes(100)")
        crowd.stopping.wait(0.01)

    crowd.connected(send)
    crowd.connected(send)
    crowd.connected(change)
    crowd.connected(retain)
    deadlocks = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"

    def is_drained() -> bool:
        return time.monotonic() > sends_until and not (
            count(connection, "cmdbus.ready") or count(connection, "cmdbus.limited")
        )

    crowd.run(is_drained, within=WITHIN_S + 4 * seconds)
    assert scalar(connection, deadlocks) == 0
    check_history(connection, sum(sent.values()))


@pytest.mark.parametrize("keys", [2, 1000])
def test_sessions_at_the_same_time_keep_the_limits_and_never_deadlock(
    dsn: str, connection: psycopg.Connection, keys: int
) -> None:
    play(dsn, connection, seconds=0.5, keys=keys)


@pytest.mark.long
@pytest.mark.parametrize("keys", [1, 10, 100, 10000])
def test_sessions_keep_the_limits_for_longer(
    dsn: str, connection: psycopg.Connection, keys: int
) -> None:
    play(dsn, connection, seconds=20.0, keys=keys)
