"""Breakers in fleets, whose processes call a system that counts the calls."""

import socket
import socketserver
import struct
import threading
import time
from collections.abc import Iterator
from itertools import pairwise

import pytest
from eventually import eventually, stays
from fleet import Fleet, kill, write_app

from cmdbus import CommandBus

pytestmark = pytest.mark.fleet(started=False, procs=2, threads=4, poll_interval=600)

APP = """
import socket, struct, time
from cmdbus import Breaker, HandlerRegistry, RetryPolicy, TransientCommandError

registry = HandlerRegistry()
registry.breaker(Breaker("side", failures=5, cooldown={cooldown}, probes={probes}))
later = RetryPolicy(max_attempts=50, backoff=(0.5,))

def ask():
    began = time.time()
    with socket.create_connection(("127.0.0.1", {port})) as side:
        side.sendall(struct.pack("d", began))
        if side.recv(1) != b"+":
            raise TransientCommandError("DOWN", "it is down")

@registry.handler("shop", "Charge", breaker="side", retry=later, timeout=60)
def charge(command, context):
    ask()

@registry.handler("shop", "Ask", retry=later, timeout=60)
def ask_inside(command, context):
    with context.breaker("side"):
        ask()
"""


class Side(socketserver.ThreadingTCPServer):
    """The other side: it counts, and fails until it is healed."""

    daemon_threads = True
    request_queue_size = 256

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Call)
        self.answer = b"-"
        self.answers = threading.Event()
        self.answers.set()
        #: When calls that have come began, and times of good answers.
        self.calls: list[float] = []
        self.good: list[float] = []


class _Call(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        side = self.server
        assert isinstance(side, Side)
        [began] = struct.unpack("d", self.request.recv(8, socket.MSG_WAITALL))
        side.calls.append(began)
        side.answers.wait(30)
        if side.answer == b"+":
            side.good.append(time.time())
        self.request.sendall(side.answer)


@pytest.fixture
def side() -> Iterator[Side]:
    with Side() as side:
        thread = threading.Thread(target=side.serve_forever, args=(0.02,))
        thread.start()
        yield side
        side.answers.set()
        side.shutdown()
        thread.join()


def start(fleet: Fleet, side: Side, cooldown: float = 1.0, probes: int = 1) -> None:
    port = side.server_address[1]
    write_app(fleet.place, APP.format(port=port, cooldown=cooldown, probes=probes))
    fleet.start()
    fleet.wait_until_ready()


def state(fleet: Fleet) -> str:
    return str(fleet.query("SELECT state FROM cmdbus.breaker")[0][0])


def openings(fleet: Fleet) -> list[float]:
    query = (
        "SELECT extract(epoch FROM at)::float8 FROM cmdbus.breaker_event"
        " WHERE kind = 'OPENED' ORDER BY id"
    )
    return [at for (at,) in fleet.query(query)]


@pytest.mark.long
@pytest.mark.timeout(240)
@pytest.mark.fleet(procs=4, threads=16)
@pytest.mark.parametrize(("probes", "cooldowns"), [(1, 8), (3, 8)])
def test_at_most_so_many_calls_reach_a_broken_side_in_a_cooldown_and_all_do_once_it_is_healed(
    fleet: Fleet, side: Side, probes: int, cooldowns: int
) -> None:
    """Calls that began before each process had heard of an opening are left out."""
    start(fleet, side, probes=probes)
    ids = fleet.send("Charge", 200) + fleet.send("Ask", 100)
    eventually(lambda: len(openings(fleet)) > cooldowns, 60)
    opened = openings(fleet)
    for began, ended in pairwise(opened):
        calls = [at for at in side.calls if began + 0.25 <= at < ended]
        assert len(calls) <= probes, (calls, began, ended)
    side.answer = b"+"
    eventually(lambda: state(fleet) == "CLOSED")
    fleet.await_all_completed(ids)
    first, *_ = side.good
    assert sorted(side.good)[min(20, len(side.good) - 1)] - first < 1.0


@pytest.mark.long
def test_a_killed_process_gives_the_place_of_its_probe_back(fleet: Fleet, side: Side) -> None:
    start(fleet, side)
    fleet.send("Charge", 10)
    eventually(lambda: state(fleet) == "OPEN" and not fleet.executing("Charge"))
    made = len(side.calls)
    side.answers.clear()
    eventually(lambda: len(side.calls) == made + 1)
    stays(lambda: len(side.calls) == made + 1, 0.3)
    kill(fleet.executing("Charge"))
    eventually(lambda: len(side.calls) == made + 2, 5.0)
    side.answer = b"+"
    side.answers.set()
    eventually(lambda: state(fleet) == "CLOSED")


@pytest.mark.long
@pytest.mark.fleet(procs=1)
def test_a_suspect_is_the_probe_if_nothing_else_waits(fleet: Fleet, side: Side) -> None:
    """It runs in quarantine, once the cooldown has ended: no poll comes in between."""
    start(fleet, side, cooldown=3.0)
    fleet.send("Ask", 10)
    eventually(lambda: state(fleet) == "OPEN")
    side.answer = b"+"
    [suspect] = fleet.send("Charge")
    fleet.query("DELETE FROM cmdbus.scheduled")
    fleet.query("UPDATE cmdbus.ready SET losses = 2 WHERE command_id = %s", suspect)
    fleet.await_completed([suspect])
    eventually(lambda: state(fleet) == "CLOSED")


@pytest.mark.long
@pytest.mark.fleet(procs=1, wake="poll", poll_interval=0.2)
def test_without_notifications_states_are_read_at_the_poll_interval(
    fleet: Fleet, side: Side
) -> None:
    start(fleet, side)
    side.answer = b"+"
    fleet.await_completed(fleet.send("Charge"))
    with CommandBus(fleet.dsn) as bus:
        bus.breakers.open("side")
        stays(lambda: state(fleet) == "OPEN", 1.0)
        made, ids = len(side.calls), fleet.send("Charge", 10)
        stays(lambda: len(side.calls) == made, 1.0)
        bus.breakers.close("side")
    fleet.await_completed(ids)
