"""How many functions a reader passes who follows one command through the code."""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import psycopg
from eventually import eventually
from handlers import handling, running

from cmdbus import Command, CommandBus, Context
from cmdbus.worker.pipeline.in_flight import InFlight
from cmdbus.worker.pipeline.local_queue import LocalQueue
from cmdbus.worker.pipeline.unsettled import Unsettled

#: Where the command is handed over: to the server, the local queue, the handler, the settlement.
HANDED_OVER = {
    psycopg.Cursor.execute.__code__: "a statement",
    InFlight.take.__code__: "the claims in flight",
    LocalQueue.fill.__code__: "the local queue",
    Unsettled.add.__code__: "the outcomes to settle",
    Unsettled.settled.__code__: "settled",
}
MAX_STATIONS, MAX_MODULES = 30, 15


class Stations:
    """The functions of cmdbus on the stacks of its sender and of its worker threads, each time
    that the command is handed over."""

    def __init__(self) -> None:
        self.passed: dict[tuple[str, str], None] = {}
        self.recording = False

    def __call__(self, frame: FrameType, event: str, arg: object) -> None:
        if self.recording and event == "call" and frame.f_code in HANDED_OVER:
            self.pass_through(frame)

    def pass_through(self, frame: FrameType | None) -> None:
        name = threading.current_thread().name
        if name != "worker-housekeeping" and name.startswith(("worker-", "MainThread")):
            found = []
            while frame is not None:
                module = str(frame.f_globals.get("__name__"))
                if module.startswith("cmdbus."):
                    found.append((module, frame.f_code.co_qualname))
                frame = frame.f_back
            self.passed |= dict.fromkeys(reversed(found))


@contextmanager
def profiled(stations: Stations) -> Iterator[None]:
    threading.setprofile(stations)
    sys.setprofile(stations)
    try:
        yield
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


def test_a_command_passes_few_functions_from_its_send_to_its_completion(dsn: str) -> None:
    stations = Stations()

    def debit(command: Command, context: Context) -> None:
        stations.pass_through(sys._getframe())

    with (
        profiled(stations),
        CommandBus(dsn) as bus,
        running(dsn, handling(debit), poll_interval=60, concurrency=1),
    ):
        bus.wait("payments", bus.send("payments", "Debit"))
        stations.passed.clear()
        stations.recording = True
        id_ = bus.send("payments", "Debit")
        sys.setprofile(None)
        record = bus.wait("payments", id_)
        eventually(lambda: any("settled" in name for _, name in stations.passed))
        stations.recording = False
    assert record.status == "COMPLETED"
    modules = {module for module, _ in stations.passed}
    assert len(stations.passed) <= MAX_STATIONS, list(stations.passed)
    assert len(modules) <= MAX_MODULES, modules
