"""scripts/chaos: its schedule, its checks, and that a bus without its fence does not pass."""

import json
import os
import shutil
import subprocess
import tempfile
import threading
from contextlib import closing
from dataclasses import fields
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest
from eventually import eventually
from fault_injection import handlers
from fault_injection.fault_injector import singled
from fault_injection.history import (
    Call,
    Line,
    Mark,
    Recovery,
)
from fault_injection.history_reader import read_calls, read_lines, read_marks, read_server
from fault_injection.kinds import KINDS, Needs
from fault_injection.observing import workers_of
from fault_injection.pacing import Pace
from fault_injection.producers import running_after
from fault_injection.proxy import Proxy
from fault_injection.schedule import GROUPS, make
from fault_injection.undoing import RunEndsError, Undoing
from programs import SCRIPTS, WITHIN_S, databases, interrupt, run

CHAOS = SCRIPTS / "chaos"
#: One short run each. This one: one instance is frozen for longer than its leases last.
FREEZE = ["--seed", "13087", "--minutes", "0.03", "--only", "freeze-node"]
#: The smallest run: one worker process of each instance, and one producer.
KILL = ["--seed", "3", "--minutes", "0.02", "--only", "kill-worker"]
KILLS = ["--seed", "1609", "--minutes", "0.05", "--only", "kill-worker", "--only", "kill-steward"]
#: None of these faults may cost a lease.
CALM = ["--seed", "7", "--minutes", "0.25", "--only", "kill-producer"]
RELOADS = ["--seed", "7", "--minutes", "0.1", "--only", "hup"]

pytestmark = pytest.mark.skipif(not CHAOS.exists(), reason="needs the checkout's scripts")

# The schedule.


def test_the_same_seed_gives_the_same_schedule() -> None:
    assert make(7, 2) == make(7, 2)
    assert str(make(7, 2)) == str(make(7, 2))
    assert make(7, 2) != make(8, 2)
    done = run("chaos", "--seed", "7", "--minutes", "2", "--plan")
    assert done.stdout == f"{make(7, 2)}\n"


def test_producers_pause_while_many_commands_wait(tmp_path: Path) -> None:
    observer, producer, looks = Pace(tmp_path), Pace(tmp_path), 0

    def is_stopping() -> bool:
        nonlocal looks
        looks += 1
        if looks == 3:
            observer.show(200)
        return looks > 3

    observer.show(201)
    producer.keep(0.0, is_stopping)
    assert looks == 3
    producer.keep(0.0, is_stopping)
    assert looks == 3


def test_each_kind_of_fault_has_its_turn_within_two_minutes() -> None:
    for seed in range(20):
        drawn = {kind.name for kind in KINDS.values() if kind.at_failpoint}
        faults = make(seed, 2, hosts=True).faults
        assert {fault.kind for fault in faults} >= set(GROUPS["all"]) - drawn, seed
        assert not any(KINDS[fault.kind].apart for fault in faults)
        assert [fault.at for fault in faults] == sorted(fault.at for fault in faults)
        assert [fault.number for fault in faults] == [*range(len(faults))]
    needs = {KINDS[fault.kind].needs for fault in make(1, 3).faults}
    assert needs == {*Needs} - {Needs.HOSTS}
    races = make(1, 2, ["races", "exit"]).faults
    assert {fault.kind for fault in races} == {*GROUPS["races"], "exit"}


def test_a_long_run_is_for_all_domains_and_a_short_one_for_a_few() -> None:
    domains = handlers.DOMAINS
    assert len(set(domains)) == make(1, 1).domains > 64
    assert make(1, 0.05).domains < 10


def test_a_fault_that_is_apart_has_no_other_near_it() -> None:
    for seed in range(20):
        faults = make(seed, 12, ["outages", "restore"]).faults
        assert {fault.kind for fault in faults} == {"outage-70", "outage-135", "restore"}
        for one, next_ in pairwise(faults):
            assert next_.at > one.at + one.lasts + 15.0


def test_the_timeouts_of_instances_are_a_ladder() -> None:
    from cmdbus import Timeouts

    drains = set()
    for seed in range(50):
        options = make(seed, 1).options
        drains.add(options.drain > options.watchdog)
        Timeouts(
            statement=options.statement,
            pool=options.pool,
            lease=options.lease,
            thread=options.thread,
            watchdog=options.watchdog,
        )
    assert drains == {False, True}


# What is read, undone and singled out.


def test_only_what_has_another_fault_near_is_not_single() -> None:
    recovery = Recovery
    times = ((0.0, 1.0), (2.0, 2.0), (20.0, 21.0))
    given = [
        recovery(fault=n, kind="exit", began=began, ended=ended, seconds=0.5)
        for n, (began, ended) in enumerate(times)
    ]
    found = singled(given)
    assert [one.single for one in found] == [False, False, True]
    assert {f.name for f in fields(recovery)} == set(recovery.__slots__)


def test_what_was_written_is_read(tmp_path: Path) -> None:
    """A journal whose writer was killed, marks, a supervisor's log and the server's."""
    (tmp_path / "journal").write_text(
        '{"what": "invoke", "call": "c1", "at": 5.0, "way": "many", "count": 2}\n'
        '{"what": "ok", "call": "c1", "at": 5.1, "ids": ["a", "b"]}\n'
        '{"what": "invoke", "call": "c2", "at": 6.0, "way": "own", "count": 1, "ids": ["c"]}\n'
        '{"what": "again", "call": "c2", "at": 6.1}\n'
        '{"what": "invoke", "call": "c4", "at": 7.0, "way": "pgmq", "count": 2}\n'
        '{"what": "ok", "call": "c4", "at": 7.1, "messages": [8, 9]}\n'
        '{"what": "invoke", "call": "c3", "at'
    )
    assert read_calls([tmp_path / "journal"]) == [
        Call(name="c1", way="many", count=2, began=5.0, ended=5.1, outcome="ok", ids=["a", "b"]),
        Call(name="c2", way="own", count=1, began=6.0, ended=6.1, outcome="unknown", ids=["c"]),
        Call(name="c4", way="pgmq", count=2, began=7.0, ended=7.1, outcome="ok", messages=[8, 9]),
    ]
    (tmp_path / "marks").write_text('[1.5, "enter", "9.0", 9, "a", 1]\n')
    assert read_marks(tmp_path / "marks") == [
        Mark(at=1.5, what="enter", run="9.0", pid=9, command_id="a", attempt=1)
    ]
    assert read_marks(tmp_path / "none") == []
    (tmp_path / "log").write_text(
        '{"time": "1970-01-01T00:00:02.000Z", "pid": 5, "logger": "cmdbus.supervisor.loop",'
        ' "message": "m"}\n{"time": "1970-01-01T00:00:02.000Z", "pid": 6,'
        ' "logger": "cmdbus.worker", "message": "of another one"}\nnot of the log\n'
    )
    assert read_lines("a", tmp_path / "log") == [Line(instance="a", at=2.0, pid=5, message="m")]
    server = tmp_path / "server"
    server.mkdir()
    (server / "log.1").write_text(
        "1970-01-01 00:00:02.900 GMT [7] 00000 LOG:  before\n"
        "1970-01-01 00:00:03.000 GMT [7] 00000 LOG:  then it was restarted\n"
    )
    (server / "log").write_text(
        "1970-01-01 00:00:03.500 GMT [7] 40P01 ERROR:  deadlock detected\n\tmore\n"
    )
    assert read_server(server / "log", 3.0) == [
        (3.0, "00000", "LOG:  then it was restarted"),
        (3.5, "40P01", "ERROR:  deadlock detected\nmore"),
    ]


def test_what_was_done_is_undone_once_by_whoever_comes_first() -> None:
    """A fault's own end, the end of the run, or both; and after that nothing is done."""
    undoing, text = Undoing(), list[str]()
    with undoing(lambda: text.append("do 1"), lambda: text.append("undo 1")):
        pass
    with (
        undoing(lambda: text.append("do 2"), lambda: text.append("undo 2")),
        undoing(lambda: text.append("do 3"), lambda: text.append("undo 3")),
    ):
        undoing.close()
        assert text[-4:] == ["do 2", "do 3", "undo 3", "undo 2"]
    with (
        pytest.raises(RunEndsError),
        undoing(lambda: text.append("do 4"), lambda: text.append("undo 4")),
    ):
        pass
    assert text == ["do 1", "undo 1", "do 2", "do 3", "undo 3", "undo 2"]


@pytest.mark.process
def test_each_producer_is_reaped_though_another_one_goes_on() -> None:
    # What goes on ends with its input.
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as goes_on:
        ended = subprocess.Popen(["true"])
        os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
        assert running_after(0.5, [goes_on, ended]) == [goes_on]
        assert not psutil.pid_exists(ended.pid)


def test_a_quarantine_process_is_no_worker_also_as_it_leaves(tmp_path: Path) -> None:
    from cmdbus.board.board import Board
    from cmdbus.board.records import Role

    with closing(Board.create(tmp_path / "board", seats=3, slots=1)) as board:
        for index, role in enumerate((Role.WORKER, Role.WORKER, Role.QUARANTINE)):
            seat = board.seat(index)
            seat.assign(role, number=index, generation=1)
            seat.enter(pid=100 + index, generation=1, now=1)
            if index:
                seat.order_to_stop(index, 1, by=3)
        assert workers_of(board.snapshot(claims=False)) == [100, 101]


# The network.


def test_a_reply_that_is_lost_belongs_to_a_request_that_was_carried_out(
    tmp_path_factory: pytest.TempPathFactory, dsn: str
) -> None:
    with tempfile.TemporaryDirectory(prefix="p") as directory:
        proxy = Proxy(dsn, Path(directory))
        try:
            with psycopg.connect(dsn, autocommit=True) as direct:
                direct.execute("CREATE TABLE t (n int)")
                for before in (0, 10):  # later only the name of a prepared statement goes
                    with psycopg.connect(proxy.dsn, autocommit=True) as client:
                        for _ in range(before):
                            client.execute("INSERT INTO t SELECT %s", (0,))
                        proxy.lose_replies("insert", b"INSERT INTO t")
                        with pytest.raises(psycopg.OperationalError):
                            client.execute("INSERT INTO t SELECT %s", (1,))
                counts = direct.execute("SELECT n, count(*) FROM t GROUP BY 1 ORDER BY 1")
                assert counts.fetchall() == [(0, 10), (1, 2)]
            assert proxy.lost == {"insert": 2}
            assert not is_late(proxy.listen("127.0.0.1"), 20)
            with proxy.trickling():
                assert is_late(proxy.dsn, 2)
        finally:
            proxy.close()
        eventually(lambda: not [t for t in threading.enumerate() if "_accept" in t.name])


def is_late(dsn: str, seconds: int) -> bool:
    """The server's answer to nothing but a new client."""
    try:
        psycopg.connect(dsn, connect_timeout=seconds).close()
    except psycopg.OperationalError:
        return True
    return False


# Whole runs.


@pytest.mark.process
@pytest.mark.timeout(WITHIN_S + 10)
@pytest.mark.parametrize("faults", [KILL, pytest.param(KILLS, marks=pytest.mark.long)])
def test_a_bus_survives_a_short_run(dsn: str, faults: list[str]) -> None:
    found = the_object_of(run("chaos", *faults, "--dsn", dsn, "--json"), 0)
    assert (found["ok"], found["violations"], found["skipped"]) == (True, {}, [])
    assert found["commands"] > 100 and found["messages"] > 0
    assert set(found["recoveries_s"]) == {*faults[5::2]}
    assert all(found["recoveries_s"].values())
    assert {
        "no-loss",
        "effects-are-there-once",
        "messages-become-one-command",
        "replies-come-back-as-one-message",
        "headers-are-passed-on",
        "everything-works-again",
        "no-process-is-left",
    } <= set(found["checked"])


@pytest.mark.long
@pytest.mark.process
@pytest.mark.timeout(3 * WITHIN_S)
@pytest.mark.parametrize(
    ("sabotage", "faults", "check", "text"),
    [
        ("fence", FREEZE, "only-the-claimer-ends-a-claim", " did ready- on the claim of "),
        ("losses", KILLS, "runs-are-explained", " times, and "),
        ("renewals", CALM, "leases-of-the-living-are-renewed", "and its steward lived"),
        ("stops", RELOADS, "stops-lose-no-outcome", ", which stopped in order, had "),
        ("tally", CALM, "batches-count-their-commands", " as completed, and "),
        ("closings", CALM, "batches-end-once", " and has sent (0, 0) commands"),
        ("places", CALM, "places-are-never-exceeded", " were claimed, and "),
        ("turns", CALM, "no-loss", " has not ended: it is in limited"),
        ("probes", CALM, "probes-are-never-exceeded", " probes through at "),
        ("ticks", CALM, "no-tick-is-missing", " has sent nothing from "),
        ("bridges", CALM, "messages-become-one-command", " is nowhere"),
        ("checkpoints", CALM, "rows-of-iterations-are-there-once", " has written the rows "),
        ("deadlines", CALM, "nothing-is-undone-too-early", " was sent before command "),
    ],
    ids=[
        *("fence", "losses", "renewals", "stops", "tally"),
        *("closings", "places", "turns", "probes", "ticks", "bridges", "checkpoints", "deadlines"),
    ],
)
def test_a_bus_with_a_defect_does_not_pass(
    dsn: str, sabotage: str, faults: list[str], check: str, text: str
) -> None:
    """Without a fence each settlement, release and renewal loses its comparisons of tokens and
    claimers: a frozen instance comes back when others have its commands. Without losses, what ran
    in a killed process is released as if it had not begun. Without renewals, leases end of claims
    whose processes, stewards and database all work. With the stops, some outcomes are never
    settled, and their claims are released when their workers stop. Without the tally, batches miss
    some of their commands, without closings they do not say that they are over, and deadlines that
    cancel nothing let processes undo what goes on. Without places more run at once than limits
    allow, without turns no claim looks where one is free, more probes than breakers allow are let
    through, and without ticks some are left out. Some checkpoints are not those that handlers have
    given. Bridges lose some messages."""
    for _ in range(3):  # on a busy machine the faults may hit an instance that holds nothing
        done = run("chaos", *faults, "--dsn", dsn, "--sabotage", sabotage, "--json")
        if done.returncode != 0:
            break
    found = the_object_of(done, 1)
    assert any(text in each for each in found["violations"][check])
    assert found["ok"] is False
    [kept] = Path(tempfile.gettempdir()).glob("cmdbus-chaos-*")
    assert (kept / "history.pickle").exists()
    shutil.rmtree(kept)


@pytest.mark.process
@pytest.mark.timeout(WITHIN_S + 10)
def test_an_interrupted_run_leaves_nothing(dsn: str) -> None:
    def await_fault(process: "subprocess.Popen[bytes]") -> None:
        assert process.stderr is not None
        next(line for line in process.stderr if b"SIGSTOP" in line)

    arguments = ["--dsn", dsn, "--seed", "1600", "--minutes", "0.02", "--only", "stop-worker"]
    pid, _ = interrupt("chaos", *arguments, when=await_fault)
    assert databases(dsn, f"cmdbus_chaos_{pid}_%") == []


def the_object_of(done: "subprocess.CompletedProcess[str]", code: int) -> Any:
    assert done.returncode == code, done.stderr + done.stdout
    return json.loads(done.stdout.splitlines()[-1])
