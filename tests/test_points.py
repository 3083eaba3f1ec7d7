"""The named points of the code: whatever is killed or stopped there, nothing is lost and nothing
is done twice."""

import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from uuid import UUID

import psutil
import pytest
from eventually import eventually
from fault_injection.failpoints import DIRECTORY, NAME, OF_WORKERS, Failpoints, pid_of
from fleet import Fleet, kill, unstarted

from cmdbus import CommandBus
from cmdbus import failpoints as points
from cmdbus.board.board import Board
from cmdbus.board.records import Role
from cmdbus.errors import BoardError

SCRIPTS = Path(__file__).resolve().parent.parent / "scripts"
PROGRAM = (
    f"import sys; sys.path.insert(0, {str(SCRIPTS)!r});"
    " from fault_injection.failpoints import activate; activate();"
    " from cmdbus.supervisor.cli.supervise import main; main()"
)
OF_SUPERVISORS = (points.BEFORE_FORK, points.IN_CHILD, points.AFTER_FORK, points.IN_REAP)
OF_STEWARDS = (
    *(points.ARMED, points.PROMOTED, points.IN_RESCUE, points.AFTER_RESCUE),
    *(points.BEFORE_TICK, points.AFTER_TICK, points.BEFORE_MOVE, points.AFTER_MOVE),
)
#: Failpoints that need no process to die.
UNPROVOKED = {*OF_WORKERS, points.PROMOTED, points.BEFORE_TICK, points.AFTER_TICK}
UNPROVOKED |= {points.BEFORE_MOVE, points.AFTER_MOVE}
#: The priority of the commands of a schedule, which has a tick each second.
OF_TICKS = 9
#: The queue of a bridge, and the domain of its commands, which wait there for ever.
MOVED = "moved"
QUEUED = "SELECT count(*) FROM pgmq.q_moved"
WRITTEN = (
    "SELECT (SELECT last_value FROM pgmq.q_moved_msg_id_seq),"
    " count(DISTINCT headers ->> 'pgmq_msg_id'), count(*) FROM cmdbus.ready WHERE domain = %s"
)
WITHIN_S = 60.0

pytestmark = [
    pytest.mark.fleet,
    pytest.mark.timeout(120),
]


@pytest.fixture
def fleet(pgmq_dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Fleet]:
    monkeypatch.setenv(DIRECTORY, str(tmp_path))
    monkeypatch.setenv(NAME, "cmdbus")
    with unstarted(pgmq_dsn, tmp_path, procs=1, threads=2) as fleet:
        fleet.program = [sys.executable, "-c", PROGRAM]
        fleet.start()
        fleet.wait_until_ready()
        fleet.query("SELECT true FROM pgmq.create(%s)", MOVED)
        with CommandBus(pgmq_dsn) as bus:
            bus.bridges.add(MOVED, MOVED, "Noop")
            often = "often", "shop", "Noop"
            bus.schedules.add(*often, every="1s", missed="all", priority=OF_TICKS)
        yield fleet
        if not fleet.running:
            fleet.start()
            fleet.wait_until_ready()
        assert fleet.stop() == 0
        fleet.assert_nothing_left()


class BusyFleet:
    """A fleet with enough to do, some of whose failpoints are armed."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.failpoints = Failpoints(fleet.place)
        self.sent: list[UUID] = []
        self.freed = 0

    def hit(self, what: str, *names: str) -> None:
        """Until a process has hit each of them."""
        left = [self.failpoints.arm("cmdbus", name, what) for name in names]
        deadline = time.monotonic() + WITHIN_S
        while left:
            assert time.monotonic() < deadline, f"no process came to {[path.name for path in left]}"
            self._tend()
            with suppress(AssertionError):
                eventually(partial(any_hit, left), 0.2)
            if not any_hit(left):
                self._lure({path.suffix[1:] for path in left})
            left = [path for path in left if path.exists()]
        self._tend()

    def _tend(self) -> None:
        """Starts it again, lets go the process that was stopped, and sends for all ways to end."""
        victims = self.failpoints.victims("cmdbus", what="freeze")
        for victim in victims[self.freed :]:
            self.failpoints.release(victim)
        self.freed = len(victims)
        killed = {pid_of(name) for name in self.failpoints.victims("cmdbus", what="kill")}
        if self.fleet.pid in killed:
            self.fleet.wait()  # It has hit its failpoint, and may not be dead yet.
        if not self.fleet.running:
            self.fleet.start()
        self.sent += self.fleet.send("Debit", 3)
        self.sent += self.fleet.send("Noop", 3)
        self.sent += self.fleet.send("Noop", 2, delay=0.05)
        self.fleet.query("SELECT pgmq.send(%s, '{}')", MOVED)

    def _lure(self, left: set[str]) -> None:
        """A steward that begins arms; a process that dies is reaped, rescued, and replaced."""
        wanted = Role.STEWARD if points.ARMED in left else Role.WORKER
        if not left - UNPROVOKED or not self.fleet.running:
            return
        with suppress(BoardError):
            board = Board.open(self.fleet.board_path)
            view = board.snapshot(claims=False)
            board.close()
            ready = [seat for seat in view.seats if seat.ready and seat.role is not Role.DEAD]
            if view.pid == self.fleet.pid and len(ready) >= view.wanted + 1 and view.listening:
                pids = {seat.pid for seat in ready if seat.role is wanted}
                children = psutil.Process(view.pid).children()
                kill([child.pid for child in children if child.pid in pids][:1])

    def ended(self) -> Counter[str]:
        """What all of them came to; what was caught three times waits for an operator."""
        self.fleet.wait_until_ready()
        ids = self.sent

        def statuses() -> Counter[str]:
            found: Counter[str] = Counter()
            for (status, _), count in self.fleet.outcomes(ids).items():
                found[status] += count
            return found

        over = ("COMPLETED", "IN_TROUBLESHOOTING_QUEUE")
        eventually(lambda: sum(statuses()[name] for name in over) == len(ids), 30)
        return statuses()


def any_hit(armed: list[Path]) -> bool:
    return not all(path.exists() for path in armed)


def assert_nothing_lost_or_doubled(fleet: Fleet, ids: list[UUID]) -> None:
    rows = fleet.query(
        "SELECT type, status, error_code, count(*), sum(effects)::int, max(effects) FROM ("
        " SELECT c.*, (SELECT count(*) FROM effect e WHERE e.command_id = c.command_id) effects"
        " FROM cmdbus.command c WHERE priority <> %s AND domain <> %s) c GROUP BY 1, 2, 3",
        OF_TICKS,
        MOVED,
    )
    assert sum(row[3] for row in rows) == len(ids) == len(set(ids))
    for type, status, code, count, effects, most in rows:
        done = status == "COMPLETED" and type == "Debit"
        assert (effects, most) == ((count, 1) if done else (0, 0)), (type, status, code)
        assert code is None or (code == "LOST" and count < 10), rows
    waiting = "SELECT count(*) FROM cmdbus.ready WHERE priority <> %s AND domain <> %s"
    assert fleet.query(waiting, OF_TICKS, MOVED) == [(0,)]
    [(ticks, commands, seconds)] = fleet.query(
        "SELECT count(DISTINCT tick), count(*), extract(epoch FROM max(tick) - min(tick)) + 1 FROM"
        " (SELECT (details ->> 'tick')::timestamptz AS tick FROM cmdbus.event"
        " WHERE kind = 'SENT_BY_SCHEDULE') e"
    )
    assert ticks == commands == seconds
    eventually(lambda: fleet.query(QUEUED) == [(0,)])
    [(written, numbers, commands)] = fleet.query(WRITTEN, MOVED)
    assert written == numbers == commands


def test_a_process_killed_at_a_failpoint_loses_and_doubles_nothing(fleet: Fleet) -> None:
    """No end is counted twice; a killed process loses the counts of its last round trip."""
    busy = BusyFleet(fleet)
    busy.hit("kill", *OF_WORKERS, *OF_STEWARDS)
    ended = busy.ended()
    assert_nothing_lost_or_doubled(fleet, busy.sent)

    def counted() -> bool:
        board = Board.open(fleet.board_path)
        try:
            ends = board.counters().commands.items()
        finally:
            board.close()
        query = "SELECT count(*) FROM cmdbus.finished WHERE priority = %s"
        [(of_ticks,)] = fleet.query(query, OF_TICKS)
        completed: int = ended["COMPLETED"] + of_ticks
        return sum(n for (*_, end), n in ends if end == "completed") <= completed

    assert counted()
    busy.hit("kill", *OF_SUPERVISORS)
    busy.ended()
    assert_nothing_lost_or_doubled(fleet, busy.sent)


def test_a_process_frozen_at_a_failpoint_goes_on_there(fleet: Fleet) -> None:
    busy = BusyFleet(fleet)
    busy.hit("freeze", *OF_WORKERS, *OF_STEWARDS, *OF_SUPERVISORS)
    busy.ended()
    assert_nothing_lost_or_doubled(fleet, busy.sent)


def test_each_failpoint_is_tried() -> None:
    named = {value for name, value in vars(points).items() if name.isupper()}
    assert named == {*OF_WORKERS, *OF_STEWARDS, *OF_SUPERVISORS}
