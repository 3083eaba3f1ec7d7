"""Probes and metrics of a real fleet: what they say while processes are killed and hang."""

import http.client
import json
import os
import random
import re
import signal
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil
import pytest
from eventually import eventually
from fleet import Fleet, unstarted
from prometheus_client.parser import text_string_to_metric_families
from proxy import Proxy
from psycopg.conninfo import conninfo_to_dict

from cmdbus.board.layout import CLAIM_COUNT

pytestmark = pytest.mark.fleet

HERE = "127.0.0.1:0"


def code(fleet: Fleet, path: str) -> int:
    return fleet.ask(path)[0]


def status(fleet: Fleet, timeout: float = 2.0) -> dict[str, Any]:
    status: dict[str, Any] = json.loads(fleet.ask("/status", timeout)[1])
    return status


def value(fleet: Fleet, name: str, **labels: str) -> float:
    page = fleet.ask("/metrics", 20)[1]
    return sum(
        sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    )


def families(fleet: Fleet) -> set[str]:
    """The names of all metrics on the page."""
    return set(re.findall(r"(?m)^# TYPE (\S+)", fleet.ask("/metrics")[1]))


def executed(fleet: Fleet) -> int:
    """As its board shows it, whichever process answers."""
    commands = fleet.board().counters().commands.items()
    return sum(count for (_, _, end), count in commands if end == "completed")


def counted(fleet: Fleet, outcome: str) -> dict[str, int]:
    commands = status(fleet, 20)["counters"]["commands"]
    return {c["type"]: c["count"] for c in commands if c["outcome"] == outcome}


def victim(fleet: Fleet, killed: set[int], steward: bool, dice: random.Random) -> int:
    """The steward's pid, or a worker's; 0 while the board shows only those that were killed."""
    pids = {fleet.steward()} if steward else {*fleet.pids().values()}
    living = sorted(pid for pid in pids if pid is not None and pid not in killed)
    return dice.choice(living) if living else 0


@pytest.mark.parametrize("kills", [4, pytest.param(8, marks=pytest.mark.long)])
@pytest.mark.fleet(http=HERE, procs=1)
def test_a_killed_process_loses_at_most_the_counts_of_its_last_round_trip(
    fleet: Fleet, kills: int
) -> None:
    """SIGKILL, at random moments of a run, also of the steward."""
    dice, killed = random.Random(11), set[int]()
    for kill in range(kills):
        enough = executed(fleet) + dice.randrange(600)
        fleet.send("Noop", 600)
        fleet.send("Debit", 60)
        fleet.send("FailOnce", 10)
        eventually(lambda enough=enough: executed(fleet) > enough, 20)  # type: ignore[misc]
        steward = kill % 4 == 3
        pid = eventually(lambda steward=steward: victim(fleet, killed, steward, dice), 30)  # type: ignore[misc]
        os.kill(pid, signal.SIGKILL)
        killed.add(pid)
    fleet.await_completions(670 * kills, 60)
    eventually(lambda: fleet.steward() not in {None, *killed}, 30)
    finished = "SELECT type, count(*) FROM cmdbus.finished GROUP BY type"
    completed = dict(fleet.query(finished))
    lost = kills * CLAIM_COUNT
    eventually(lambda: counted(fleet, "completed")["Noop"] >= completed["Noop"] - lost, 10)
    assert all(count <= completed[name] for name, count in counted(fleet, "completed").items())
    fleet.await_successors([])
    assert value(fleet, "cmdbus_process_restarts_total", reason="crashed") == kills


def test_probes_are_answered_whoever_hangs_or_is_away(dsn: str, tmp_path: Path) -> None:
    """Each within the timeout of its client."""
    with ExitStack() as network:
        proxy = network.enter_context(Proxy(dsn))
        # Not alone: whether it leaves sessions cannot be asked once its database is away.
        with unstarted(proxy.dsn, tmp_path, alone=False, http=HERE, procs=1) as fleet:
            fleet.start()
            fleet.wait_until_ready()
            assert (code(fleet, "/livez"), code(fleet, "/readyz")) == (200, 200)
            fleet.send("Unknown", 3)
            eventually(lambda: value(fleet, "cmdbus_queue_depth", state="ready") == 3, 15)
            all_families = families(fleet)

            fleet.send_signal(signal.SIGSTOP)
            eventually(lambda: code(fleet, "/livez") == 503, 15)
            assert "the supervisor is late by" in fleet.ask("/livez")[1]
            fleet.send_signal(signal.SIGCONT)
            eventually(lambda: code(fleet, "/livez") == 200)

            network.close()
            eventually(lambda: "the database is away" in fleet.readiness()[1], 10)
            for pid in fleet.pids().values():
                os.kill(pid, signal.SIGSTOP)
            for _ in range(10):
                status_code, reasons = fleet.readiness()
                assert status_code == 503 and "the database is away" in reasons
                assert code(fleet, "/livez") == 200
                assert families(fleet) == all_families
                assert status(fleet)["seats"][0]["pid"]
            fleet.end()


def test_probes_are_answered_while_a_start_waits_for_the_database(dsn: str, tmp_path: Path) -> None:
    """It is live and not ready, and says why; the steward answers next. What answers
    is replaced."""
    with Proxy(dsn) as proxy, unstarted(proxy.dsn, tmp_path, http=HERE, procs=1) as fleet:
        socket = Path(str(conninfo_to_dict(proxy.dsn)["host"])) / ".s.PGSQL.5432"
        socket.rename(away := socket.with_name("away"))
        fleet.start()
        fleet.await_saying("trying again every 2 s")
        assert fleet.readiness() == (503, ["the database is away", "worker 0 has no process"])
        assert fleet.ask("/livez") == (200, '{"live": true, "reasons": []}\n')
        all_families = families(fleet)
        assert (status(fleet)["state"], status(fleet)["queues"]) == ("starting", None)
        oldest = min(psutil.Process(fleet.pid).children(), key=psutil.Process.create_time)
        oldest.kill()
        fleet.await_saying("not answered for the moment: the process that answers them was killed")
        assert code(fleet, "/livez") == 200
        away.rename(socket)
        fleet.wait_until_ready()
        assert fleet.readiness() == (200, [])
        assert families(fleet) == all_families


@pytest.mark.fleet(http=HERE, procs=1)
def test_no_client_is_refused_while_one_steward_follows_another(fleet: Fleet) -> None:
    """It waits. One that is just being answered may be cut off."""
    before = fleet.steward()
    assert before is not None
    over, answered = threading.Event(), threading.Semaphore(0)
    refusals: list[Exception] = []

    def ask() -> None:
        while not over.is_set():
            try:
                assert fleet.ask("/livez", 10)[0] == 200
                answered.release()
            except ConnectionRefusedError as error:
                refusals.append(error)
            except (ConnectionError, http.client.HTTPException):
                pass

    clients = [threading.Thread(target=ask) for _ in range(3)]
    for client in clients:
        client.start()
    try:
        assert answered.acquire(timeout=10)
        os.kill(before, signal.SIGKILL)
        fleet.succeeded(before)
    finally:
        over.set()
        for client in clients:
            client.join(20)
    assert not refusals
    assert code(fleet, "/readyz") == 200


@pytest.mark.fleet(http=HERE, procs=1)
def test_what_keeps_it_from_listening_is_one_sentence(
    fleet: Fleet, dsn: str, tmp_path: Path
) -> None:
    [text] = fleet.logged("probes, metrics and status are at")
    taken = text.rpartition("/")[2]
    with unstarted(dsn, tmp_path, alone=False, http=taken, name="second") as second:
        second.start()
        assert second.wait() == 3
        assert second.messages(level="error") == [
            f"cannot listen on {taken} (--http): the port is taken by another process"
        ]
