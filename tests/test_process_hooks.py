"""Functions that an application has called once in each worker process."""

import asyncio
import logging
import re
import signal
import threading
from pathlib import Path

import pytest
from eventually import eventually
from fleet import Fleet, kill, write_app
from handlers import do_nothing, handling, running

from cmdbus import CommandBus, HandlerRegistry
from cmdbus.errors import AppError
from cmdbus.worker import Worker

#: Each process writes what it does into a file of its own.
TRACES = """
import os, sys
from pathlib import Path
from fleet_app import registry as registry

def note(what):
    with Path(f"trace.{os.getpid()}").open("a") as trace:
        trace.write(what + " ")

registry.on_start(lambda: note("first"))
registry.on_start(lambda: note("second"))

@registry.handler("shop", "Note")
def handle(command, context):
    note("command")

registry.on_stop(lambda: note("closed"))
registry.on_stop(lambda: note("stopped"))
"""
NO_SERVICE = """
from fleet_app import registry as registry

@registry.on_start
def open_client():
    raise ConnectionError("no such service")
"""
#: In the first process that creates the file.
FAILS_ONCE = """
from pathlib import Path
from fleet_app import registry as registry

@registry.on_start
def open_client():
    try:
        Path("failed").touch(exist_ok=False)
    except FileExistsError:
        return
    raise ConnectionError("no such service")
"""


def test_hooks_run_in_order_and_those_of_the_stop_in_reverse(dsn: str, bus: CommandBus) -> None:
    registry, seen = handling(lambda command, context: seen.append("command")), list[str]()
    registry.on_start(lambda: seen.append("open 1"))
    registry.on_start(lambda: seen.append("open 2"))
    registry.on_stop(lambda: seen.append("close 1"))
    registry.on_stop(lambda: seen.append("close 2"))
    with running(dsn, registry):
        bus.wait("payments", bus.send("payments", "Debit"), 10)
    assert seen == ["open 1", "open 2", "command", "close 2", "close 1"]


def test_a_worker_whose_start_fails_runs_no_command_and_nothing_of_the_stop(
    dsn: str, bus: CommandBus
) -> None:
    registry, seen = handling(lambda command, context: seen.append("command")), list[str]()

    @registry.on_start
    def open_client() -> None:
        raise ConnectionError("no such service")

    registry.on_start(lambda: seen.append("second"))
    registry.on_stop(lambda: seen.append("stop"))
    bus.send("payments", "Debit")
    with pytest.raises(AppError, match="open_client failed:") as e:
        Worker(dsn, registry).run()
    assert str(e.value).endswith("ConnectionError: no such service")
    assert "hook()" not in str(e.value)
    assert isinstance(e.value.__cause__, ConnectionError)
    assert seen == []


def test_an_error_of_a_stop_is_logged_and_the_next_function_is_called(
    dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    registry, seen = handling(do_nothing), list[str]()
    registry.on_stop(lambda: seen.append("last"))

    @registry.on_stop
    def close_client() -> None:
        raise SystemExit("too late")

    with running(dsn, registry):
        pass
    assert seen == ["last"]
    [record] = [r for r in caplog.records if r.levelno == logging.ERROR]
    assert "close_client failed: the stop goes on" in record.message and record.exc_info


def test_functions_that_cannot_be_called_without_arguments_are_refused() -> None:
    registry = HandlerRegistry()
    with pytest.raises(ValueError, match=r"the on_start function is called with \(\): missing"):
        registry.on_start(lambda needed: needed)  # type: ignore[type-var]
    with pytest.raises(ValueError, match="sleep, is async"):
        registry.on_stop(asyncio.sleep)  # type: ignore[type-var]
    with pytest.raises(ValueError, match="the on_stop function must be callable, not 'close'"):
        registry.on_stop("close")  # type: ignore[type-var]


def pids_of(fleet: Fleet, pattern: str) -> list[int]:
    return [int(pid) for message in fleet.messages() for pid in re.findall(pattern, message)]


def traces(place: Path) -> dict[int, str]:
    """By process."""
    return {int(file.suffix[1:]): file.read_text() for file in place.glob("trace.*")}


@pytest.mark.fleet(started=False, procs=1)
def test_each_worker_process_starts_once_and_stops_once(fleet: Fleet, tmp_path: Path) -> None:
    """At a reload and at a stop, also in quarantine; not the steward, nor one that is killed."""
    write_app(tmp_path, TRACES)
    fleet.start()
    first = fleet.wait_until_ready()
    kill(first[0])
    second = fleet.await_successors([first[0]])
    fleet.await_completed(fleet.send("Note", 20))
    fleet.send_signal(signal.SIGHUP)
    third = fleet.await_successors(second.values())
    fleet.send("Abort")
    fleet.await_saying("the commands of quarantine, pid")
    assert fleet.stop() == 0
    killed = {first[0], *pids_of(fleet, r"worker \d, pid (\d+), was killed by SIGABRT")}
    [alone] = pids_of(fleet, r"quarantine, pid (\d+), was killed by SIGABRT")
    seen = {pid: trace.replace("command ", "") for pid, trace in traces(tmp_path).items()}
    whole = "first second stopped closed "
    for pid in {*first.values(), *second.values(), *third.values()}:
        assert seen.pop(pid) == ("first second " if pid in killed else whole)
    assert seen.pop(alone) == "first second "
    assert set(seen.values()) == {whole}


@pytest.mark.fleet(procs=1)
def test_a_reload_whose_start_fails_leaves_the_fleet_as_it_is(fleet: Fleet, tmp_path: Path) -> None:
    pids = fleet.pids()
    write_app(tmp_path, NO_SERVICE)
    fleet.send_signal(signal.SIGHUP)
    fleet.await_saying("the new application cannot start: the fleet keeps the old one")
    [message] = fleet.logged("code 3: the on_start function shop.open_client failed:\nTraceback")
    assert message.endswith("ConnectionError: no such service")
    assert fleet.pids() == pids


@pytest.mark.fleet(started=False)
def test_a_start_that_fails_in_each_worker_ends_the_fleet_with_one_traceback(
    fleet: Fleet, tmp_path: Path
) -> None:
    """As an application does that cannot be imported."""
    write_app(tmp_path, NO_SERVICE)
    fleet.start()
    assert fleet.wait() == 3
    [message] = fleet.logged("no such service")
    assert "exited with code 3: the on_start function shop.open_client failed:" in message
    assert message.count("Traceback") == 1
    assert fleet.logged("exited with code 3: the same reason as before")
    assert fleet.logged("no worker can start: giving up")


@pytest.mark.long
@pytest.mark.fleet(started=False)
def test_a_start_that_fails_in_some_workers_is_tried_again(fleet: Fleet, tmp_path: Path) -> None:
    write_app(tmp_path, FAILS_ONCE)
    fleet.start()
    fleet.wait_until_ready()
    assert fleet.logged("exited with code 3: the on_start function")


@pytest.mark.long
@pytest.mark.fleet(started=False, procs=1, drain_timeout=1)
def test_a_stop_that_takes_too_long_is_ended_at_its_deadline(fleet: Fleet, tmp_path: Path) -> None:
    app = "import time\nfrom fleet_app import registry\nregistry.on_stop(lambda: time.sleep(60))"
    write_app(tmp_path, app)
    fleet.start()
    fleet.wait_until_ready()
    assert fleet.stop() == 0
    assert fleet.logged("is killed: ")


def test_a_stop_during_the_start_is_not_lost(dsn: str) -> None:
    registry, entered, go = handling(do_nothing), threading.Event(), threading.Event()

    @registry.on_start
    def load() -> None:
        entered.set()
        assert go.wait(10)

    worker = Worker(dsn, registry, concurrency=1)
    thread = threading.Thread(target=worker.run)
    thread.start()
    assert entered.wait(10)
    stopping = threading.Thread(target=worker.stop)
    stopping.start()
    eventually(lambda: not worker._orders.empty())
    go.set()
    thread.join(10)
    stopping.join(10)
    assert not thread.is_alive() and not stopping.is_alive()
