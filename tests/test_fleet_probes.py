"""Probes and metrics of a real fleet: what they say while processes are killed and hang."""

import http.client
import json
import os
import random
import re
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
from eventually import eventually
from fleet import Fleet, make_effects, supervised, unstarted
from prometheus_client.parser import text_string_to_metric_families
from proxy import Proxy
from psycopg.conninfo import conninfo_to_dict

from cmdbus.board.layout import CLAIM_COUNT

pytestmark = [pytest.mark.fleet, pytest.mark.timeout(90)]

HERE = "127.0.0.1:0"
#: Seconds in which a probe must have its answer.
PATIENCE = 2.0
KILLS = 20
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
    "cmdbus_process_rss_bytes",
    "cmdbus_health",
    "cmdbus_undead_processes",
    "cmdbus_oldest_snapshot_seconds",
}


def get(fleet: Fleet, path: str, timeout: float = PATIENCE) -> tuple[int, str]:
    return fleet.ask(path, timeout)


def code(fleet: Fleet, path: str) -> int:
    return get(fleet, path)[0]


def status(fleet: Fleet) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(get(fleet, "/status")[1])
    return told


def value(fleet: Fleet, name: str, **labels: str) -> float:
    page = get(fleet, "/metrics")[1]
    return sum(
        sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    )


def families(fleet: Fleet) -> Iterator[str]:
    """By the names that are on the page."""
    return (match[1] for match in re.finditer(r"(?m)^# TYPE (\S+)", get(fleet, "/metrics")[1]))


def executed(fleet: Fleet) -> int:
    """As its board shows it, whoever answers."""
    commands = fleet.board().counters().commands.items()
    return sum(count for (_, _, end), count in commands if end == "completed")


def counted(fleet: Fleet, outcome: str) -> dict[str, int]:
    commands = status(fleet)["counters"]["commands"]
    return {c["type"]: c["count"] for c in commands if c["outcome"] == outcome}


def test_a_killed_process_loses_at_most_the_counts_of_its_last_round_trip(
    dsn: str, tmp_path: Path
) -> None:
    """SIGKILL, 20 times, at random moments of a run, also of the steward."""
    dice = random.Random(11)
    make_effects(dsn)
    with supervised(dsn, tmp_path, http=HERE) as fleet:
        for kill in range(KILLS):
            enough = executed(fleet) + dice.randrange(600)
            fleet.send("Noop", 600)
            fleet.send("Debit", 60)
            fleet.send("FailOnce", 10)
            eventually(partial(beyond, fleet, enough), 20)
            steward, workers = eventually(fleet.steward), list(eventually(fleet.pids).values())
            assert steward is not None
            os.kill(steward if kill % 5 == 4 else dice.choice(workers), signal.SIGKILL)
        fleet.await_completions(670 * KILLS, 60)
        finished = "SELECT type, count(*) FROM cmdbus.finished GROUP BY type"
        completed = dict(fleet.query(finished))
        lost = KILLS * CLAIM_COUNT
        eventually(lambda: counted(fleet, "completed")["Noop"] >= completed["Noop"] - lost, 10)
        assert all(count <= completed[name] for name, count in counted(fleet, "completed").items())
        fleet.await_successors([])
        assert value(fleet, "cmdbus_process_restarts_total", reason="crashed") == KILLS


def beyond(fleet: Fleet, count: int) -> bool:
    return executed(fleet) > count


def test_probes_are_answered_whoever_hangs_or_is_away(dsn: str, tmp_path: Path) -> None:
    """Each within the patience of who asks."""
    with ExitStack() as network:
        proxy = network.enter_context(Proxy(dsn))
        # Not alone: whether it leaves sessions cannot be asked once its database is away.
        with unstarted(proxy.dsn, tmp_path, alone=False, http=HERE, procs=1) as fleet:
            fleet.start()
            fleet.wait_until_ready()
            assert (code(fleet, "/livez"), code(fleet, "/readyz")) == (200, 200)
            fleet.send("Unknown", 3)
            eventually(lambda: value(fleet, "cmdbus_queue_depth", state="ready") == 3, 15)

            fleet.send_signal(signal.SIGSTOP)
            eventually(lambda: code(fleet, "/livez") == 503, 15)
            assert "the supervisor is late by" in get(fleet, "/livez")[1]
            fleet.send_signal(signal.SIGCONT)
            eventually(lambda: code(fleet, "/livez") == 200)

            network.close()
            eventually(lambda: code(fleet, "/readyz") == 503, 10)
            for pid in fleet.pids().values():
                os.kill(pid, signal.SIGSTOP)
            for _ in range(10):
                told = json.loads(get(fleet, "/readyz")[1])
                assert not told["ready"] and "the database is away" in told["reasons"]
                assert code(fleet, "/livez") == 200
                assert set(families(fleet)) == FAMILIES
                assert status(fleet)["seats"][0]["pid"]


def test_probes_are_answered_while_a_start_waits_for_the_database(dsn: str, tmp_path: Path) -> None:
    """It is live and not ready, and says why; the steward answers next. What answers
    is replaced."""
    with Proxy(dsn) as proxy, unstarted(proxy.dsn, tmp_path, http=HERE, procs=1) as fleet:
        socket = Path(str(conninfo_to_dict(proxy.dsn)["host"])) / ".s.PGSQL.5432"
        socket.rename(away := socket.with_name("away"))
        fleet.start()
        fleet.await_saying("trying again every 2 s")
        assert fleet.readiness() == (503, ["the database is away", "worker 0 has no process"])
        assert get(fleet, "/livez") == (200, '{"live": true, "reasons": []}\n')
        assert set(families(fleet)) == FAMILIES
        assert (status(fleet)["state"], status(fleet)["queues"]) == ("starting", None)
        oldest = min(psutil.Process(fleet.pid).children(), key=psutil.Process.create_time)
        oldest.kill()
        fleet.await_saying("not answered for the moment: the process that answers them was killed")
        assert code(fleet, "/livez") == 200
        away.rename(socket)
        fleet.wait_until_ready()
        assert fleet.readiness() == (200, [])
        assert fleet.stop() == 0
        fleet.assert_nothing_left()


def test_no_client_is_refused_while_one_steward_follows_another(dsn: str, tmp_path: Path) -> None:
    """It waits. One that is just being answered may be cut off."""
    with supervised(dsn, tmp_path, http=HERE, procs=1) as fleet:
        before = fleet.steward()
        assert before is not None
        assert refused_while(fleet, lambda: follow(fleet, before)) == 0
        assert code(fleet, "/readyz") == 200


def follow(fleet: Fleet, before: int) -> None:
    os.kill(before, signal.SIGKILL)
    fleet.succeeded(before)


def refused_while(fleet: Fleet, act: Callable[[], None]) -> int:
    """Of clients that come all the time."""
    over, answered, refused = threading.Event(), threading.Semaphore(0), 0

    def ask() -> None:
        nonlocal refused
        while not over.is_set():
            try:
                assert get(fleet, "/livez", 10)[0] == 200
                answered.release()
            except ConnectionRefusedError:
                refused += 1
            except (ConnectionError, http.client.HTTPException):
                pass

    clients = [threading.Thread(target=ask) for _ in range(3)]
    for client in clients:
        client.start()
    try:
        assert answered.acquire(timeout=10)
        act()
    finally:
        over.set()
        for client in clients:
            client.join(20)
    return refused


def test_what_keeps_it_from_listening_is_one_sentence(dsn: str, tmp_path: Path) -> None:
    """Exit code 3."""
    with supervised(dsn, tmp_path, http=HERE, procs=1) as fleet:
        [text] = fleet.said("probes, metrics and status are at")
        taken = text.rpartition("/")[2]
        with unstarted(dsn, tmp_path, alone=False, http=taken, name="second") as second:
            second.start()
            assert second.wait() == 3
            assert second.messages(level="error") == [
                f"cannot listen on {taken} (--http): the port is taken by another process"
            ]
