"""The life of a worker in a program's own process: runs after each other, and who may stop it."""

import os
import threading

import pytest
from forks import forked
from handlers import Gate, found, handling, running

from cmdbus import Command, CommandBus, Context, HandlerRegistry
from cmdbus.worker import Worker


def test_a_worker_that_runs_is_not_run_again(dsn: str, bus: CommandBus) -> None:
    with running(dsn, handling()) as worker:
        with pytest.raises(RuntimeError, match="this Worker runs: stop it first"):
            worker.run()
        assert bus.wait("payments", bus.send("payments", "Debit")).status == "COMPLETED"


def test_a_worker_runs_again_after_its_end_and_is_waited_for_as_before(
    dsn: str, bus: CommandBus
) -> None:
    """An order of which it took no notice is none for the next run."""
    gate = Gate()
    worker = Worker(dsn, handling(gate))
    for _ in range(2):
        gate.open.clear()
        thread = threading.Thread(target=worker.run)
        thread.start()
        sent = bus.send("payments", "Debit")
        gate.wait_for(1)
        stop = threading.Thread(target=worker.stop)
        stop.start()
        worker.request_stop(float("inf"))
        gate.open.set()
        for each in (stop, thread):
            each.join(20)
        assert not thread.is_alive()
        assert found(bus, sent).status == "COMPLETED"


def test_a_handler_that_stops_its_worker_does_not_wait_for_itself(
    dsn: str, bus: CommandBus
) -> None:
    def stop(command: Command, context: Context) -> None:
        worker.stop()

    worker = Worker(dsn, handling(stop))
    thread = threading.Thread(target=worker.run)
    thread.start()
    sent = bus.send("payments", "Debit")
    thread.join(10)
    assert not thread.is_alive()
    assert found(bus, sent).status == "COMPLETED"


def test_a_stop_in_a_forked_process_stops_nothing(dsn: str, bus: CommandBus) -> None:
    with running(dsn, handling()) as worker:
        with forked(worker.stop) as pid:
            assert os.waitpid(pid, 0)[1] == 0
        assert bus.wait("payments", bus.send("payments", "Debit")).status == "COMPLETED"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((None,), "registry must be a HandlerRegistry, not None"),
        ((HandlerRegistry(),), "the registry has no handlers"),
        ((handling(), "payments"), "domains must be a list of names, not 'payments'"),
    ],
)
def test_wrong_arguments_are_one_sentence(
    dsn: str, arguments: tuple[object, ...], sentence: str
) -> None:
    registry, *domains = arguments
    with pytest.raises(ValueError, match=sentence):
        Worker(dsn, registry, domains=domains[0] if domains else None)  # type: ignore[arg-type]
