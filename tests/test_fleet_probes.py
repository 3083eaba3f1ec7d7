"""Probes and metrics of a real fleet: what they say while processes are killed and hang."""

import http.client
import json
import os
import random
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import LiteralString

import psycopg
import pytest
from eventually import eventually
from prometheus_client.parser import text_string_to_metric_families
from proxy import Proxy
from supervised import Fleet, fleet

from cmdbus import CommandBus, SendRequest

pytestmark = [pytest.mark.db, pytest.mark.process, pytest.mark.timeout(90)]

APP = """
import time
from cmdbus import HandlerRegistry, RetryPolicy

registry = HandlerRegistry()
registry.register("payments", "Debit", lambda command, context: None)
registry.register("payments", "Slow", lambda command, context: time.sleep(0.01))

@registry.handler("orders", "Place", retry=RetryPolicy(max_attempts=9, backoff=(0.01,)))
def place(command, context):
    context.connection.execute("SELECT 1")
    if command.data == 1 and context.attempt == 1:
        raise ValueError("once")
"""
KILLS = 20
COMPLETED: LiteralString = """
    SELECT domain, type, count(*) FROM cmdbus.finished WHERE status = 'COMPLETED' GROUP BY 1, 2
"""
RETRIED: LiteralString = """
    SELECT e.domain, f.type, count(*) FROM cmdbus.event e JOIN cmdbus.finished f
    USING (domain, command_id) WHERE e.kind = 'FAILED' GROUP BY 1, 2
"""
FAMILIES = {
    "cmdbus_commands_total",
    "cmdbus_batches_processed_total",
    "cmdbus_empty_receives_total",
    "cmdbus_notification_wakeups_total",
    "cmdbus_wakeups_total",
    "cmdbus_claim_failures_total",
    "cmdbus_lost_leases_total",
    "cmdbus_dequeue_latency_seconds",
    "cmdbus_handler_duration_seconds",
    "cmdbus_queue_depth",
    "cmdbus_slots",
    "cmdbus_process_restarts_total",
    "cmdbus_health",
}


def value(fleet: Fleet, name: str, **labels: str) -> float:
    page = fleet.get("/metrics")[1]
    return sum(
        sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    )


def test_counters_equal_the_rows_however_often_processes_are_killed(
    dsn: str, tmp_path: Path
) -> None:
    """M022, M105, H16: SIGKILL, 20 times, at random moments of a run, also of the steward."""
    dice = random.Random(11)
    arguments = ("--procs", "2", "--threads", "4")
    with fleet(dsn, tmp_path, APP, *arguments) as node, CommandBus(dsn) as bus:
        for kill in range(KILLS):
            enough = executed(node) + dice.randrange(600)
            bus.send_many(
                [SendRequest("payments", "Debit", None) for _ in range(600)]
                + [SendRequest("payments", "Slow", None) for _ in range(10)]
                + [SendRequest("orders", "Place", number % 2) for number in range(60)]
            )
            eventually(partial(beyond, node, enough), 20)
            workers, steward = eventually(node.workers, 10), eventually(node.steward, 10)
            os.kill(steward if kill % 5 == 4 else dice.choice(workers), signal.SIGKILL)
        with psycopg.connect(dsn, autocommit=True) as connection:
            eventually(lambda: left(connection) == 0, 60)
            completed = rows(connection, COMPLETED)
            assert sum(completed.values()) == KILLS * 670
            eventually(lambda: counted(node, "completed") == completed, 10)
            assert counted(node, "retry") == rows(connection, RETRIED)
        assert value(node, "cmdbus_process_restarts_total", reason="crashed") == KILLS


def test_probes_are_answered_whoever_hangs_or_is_away(dsn: str, tmp_path: Path) -> None:
    """M105, M106, R44, R47: each answer within the client's two seconds."""
    ladder: tuple[str, ...]
    ladder = ("--statement-timeout", "1", "--visibility-timeout", "2", "--pool-timeout", "2")
    ladder += ("--thread-timeout", "2.5", "--watchdog-timeout", "3", "--drain-timeout", "1")
    with ExitStack() as network, CommandBus(dsn) as bus:
        proxy = network.enter_context(Proxy(dsn))
        with fleet(proxy.dsn, tmp_path, APP, "--procs", "1", *ladder) as node:
            bus.send_many([SendRequest("unknown", "Type", None) for _ in range(3)])
            queue = {"domain": "unknown", "state": "ready"}
            eventually(lambda: value(node, "cmdbus_queue_depth", **queue) == 3, 15)

            assert refused_while(node, lambda: kill_steward(node)) == 0

            node.process.send_signal(signal.SIGSTOP)
            eventually(lambda: node.get("/livez", 2)[0] == 503, 10)
            assert "the supervisor is late by" in node.get("/livez", 2)[1]
            node.process.send_signal(signal.SIGCONT)
            eventually(lambda: node.get("/livez", 2)[0] == 200, 10)

            network.close()
            eventually(lambda: node.get("/readyz", 2)[0] == 503, 10)
            for pid in node.workers():
                os.kill(pid, signal.SIGSTOP)
            for _ in range(5):
                status, told = node.get("/readyz", 2)
                assert (status, node.get("/livez", 2)[0]) == (503, 200)
                assert "the database is away" in json.loads(told)["reasons"]
                assert set(families(node)) >= FAMILIES
                assert node.status()["steward"]["pid"]


def families(node: Fleet) -> Iterator[str]:
    """By the names that are on the page."""
    for line in node.get("/metrics", 2)[1].splitlines():
        if line.startswith("# TYPE "):
            yield line.split()[2]


def kill_steward(node: Fleet) -> None:
    before = eventually(node.steward)
    os.kill(before, signal.SIGKILL)
    eventually(lambda: node.steward() not in (0, before), 10)


def refused_while(node: Fleet, act: Callable[[], None]) -> int:
    """How many were not let in, of clients that come all the time. One that is being
    answered may be cut off."""
    over, refused = threading.Event(), 0

    def ask() -> None:
        nonlocal refused
        while not over.is_set():
            try:
                assert node.get("/livez")[0] == 200
            except ConnectionRefusedError:
                refused += 1
            except (ConnectionError, http.client.HTTPException):
                pass

    clients = [threading.Thread(target=ask) for _ in range(3)]
    for client in clients:
        client.start()
    try:
        act()
    finally:
        over.set()
        for client in clients:
            client.join(20)
    return refused


def beyond(node: Fleet, count: float) -> bool:
    return executed(node) > count


def executed(node: Fleet) -> float:
    return value(node, "cmdbus_commands_total", outcome="completed")


def counted(node: Fleet, outcome: str) -> dict[tuple[str, str], float]:
    commands = node.status()["counters"]["commands"]
    return {(c["domain"], c["type"]): c["count"] for c in commands if c["outcome"] == outcome}


def left(connection: psycopg.Connection) -> int:
    row = connection.execute(
        "SELECT (SELECT count(*) FROM cmdbus.ready) + (SELECT count(*) FROM cmdbus.scheduled)"
    ).fetchone()
    assert row is not None
    return int(row[0])


def rows(connection: psycopg.Connection, query: LiteralString) -> dict[tuple[str, str], float]:
    return {(domain, type): count for domain, type, count in connection.execute(query)}
