"""What a worker measures of itself to choose its number of threads."""

import os
from contextlib import closing
from pathlib import Path

import pytest
from eventually import eventually
from handlers import Gate, handling, running

from cmdbus import CommandBus, SendRequest
from cmdbus.board.board import Board
from cmdbus.board.counters import Counter, LoadView, OutcomeLabel
from cmdbus.board.records import Role
from cmdbus.proc import CpuLoad
from cmdbus.worker.load_meter import LoadMeter
from cmdbus.worker.load_sample import LoadSample


@pytest.mark.parametrize("types", [0, 1, 3, 9])
def test_the_load_of_a_seat_is_that_of_all_its_threads_and_types(types: int) -> None:
    """Also of types beyond the size of the table, which has four rows and one for all others."""
    with closing(Board.in_memory(2, 3, command_types=4)) as board:
        for index in range(2):
            board.seat(index).assign(Role.WORKER, number=index, generation=1)
        seat = board.seat(1)
        for number in range(types):
            row = seat.command_type("payments", f"Type{number}").index
            for slot in (0, 2):
                counters = seat.slot(slot).counters
                counters.ended(row, OutcomeLabel.COMPLETED, 5)
                counters.ended(row, OutcomeLabel.CANCELED, 2)
                counters.handler_duration.observe(row, [0.25, 1.5])
        seat.slot(0).counters.add(Counter.BATCHES_PROCESSED, 7)
        seat.slot(2).counters.add(Counter.EMPTY_RECEIVES, 3)
        assert board.load(1) == LoadView(14 * types, 3.5 * types, 10, 3)
        assert board.load(0) == LoadView(0, 0.0, 0, 0)


def test_handlers_count_while_they_run_and_once_they_have_ended(
    dsn: str, bus: CommandBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate()
    with running(dsn, handling(gate), concurrency=3) as worker:
        threads = eventually(lambda: worker._concurrency.threads)
        assert threads is not None
        meter = LoadMeter(threads, worker._telemetry)
        monkeypatch.setattr("cmdbus.worker.load_meter._READ_SECONDS", 60)
        assert meter.sample() is None, "it is not time yet"
        monkeypatch.setattr("cmdbus.worker.load_meter._READ_SECONDS", 0.1)
        ids = bus.send_many([SendRequest("payments", "Debit")] * 3)
        gate.wait_for(3)
        eventually(meter.sample)
        sample = eventually(meter.sample)
        assert sample is not None
        assert 2.9 < sample.busy_threads < 3.1
        gate.open.set()
        for command_id in ids:
            bus.wait("payments", command_id)
        while sample.ended < 3:
            sample += eventually(meter.sample) or LoadSample()
        assert sample.ended == 3
        eventually(lambda: (idle := meter.sample()) and (idle.ended, idle.busy) == (0, 0.0))


def test_busy_cpus_are_those_of_the_machine_that_the_process_may_use(tmp_path: Path) -> None:
    stat, allowed = tmp_path / "stat", min(os.sched_getaffinity(0))
    others = max(os.sched_getaffinity(0)) + 1

    def show(busy: int, idle: int) -> None:
        stat.write_text(
            f"cpu  9 9 9 9 9 9 9 0 0 0\n"
            f"cpu{allowed} {busy} 0 0 {idle} 0 0 0 0 7 7\ncpu{others} 9 9 9 9 9 9 9 9 9 9\nintr 1\n"
        )

    show(100, 100)
    load = CpuLoad(tmp_path / "none", stat)
    show(175, 125)
    assert load.share() == 0.75
    assert load.share() == 0.0
    stat.unlink()
    assert load.share() == 0.0


def test_a_control_group_that_has_used_its_quota_is_busy_on_an_idle_machine(
    tmp_path: Path,
) -> None:
    stat = tmp_path / "cpu.stat"

    def use(seconds: float) -> None:
        stat.write_text(f"usage_usec {int(seconds * 1e6)}\nuser_usec 5\n")

    (tmp_path / "cpu.max").write_text("50000 100000\n")
    use(10.0)
    load = CpuLoad(tmp_path, tmp_path / "no stat")
    use(10.0)
    assert load.share() == 0.0
    use(20.0)
    assert load.share() == 1.0
    (tmp_path / "cpu.max").write_text("max 100000\n")
    use(30.0)
    assert load.share() == 0.0
