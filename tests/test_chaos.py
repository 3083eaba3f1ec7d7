"""scripts/chaos: its schedule, its checks, and that a bus without its fence does not pass."""

import ast
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from dataclasses import fields, replace
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any

import psycopg
import pytest
from eventually import eventually
from fault_injection import checking, handlers
from fault_injection.fault_injector import singled
from fault_injection.history import (
    Call,
    Count,
    Effect,
    Event,
    History,
    Limits,
    Line,
    Mark,
    Move,
    Recovery,
    Restore,
    Row,
    Sample,
    Stall,
)
from fault_injection.history_reader import read_calls, read_lines, read_marks, read_server
from fault_injection.kinds import KINDS, Needs
from fault_injection.proxy import Proxy
from fault_injection.schedule import GROUPS, make
from fault_injection.undoing import RunEndsError, Undoing

from cmdbus.database.session_names import session_name

SCRIPTS = Path(__file__).resolve().parent.parent / "scripts"
CHAOS = SCRIPTS / "chaos"
#: One short run each. This one: one instance is frozen for longer than its leases last.
FREEZE = ["--seed", "707", "--minutes", "0.03", "--only", "freeze-node"]
KILLS = ["--seed", "74", "--minutes", "0.05", "--only", "kill-worker", "--only", "kill-steward"]
#: None of these faults may cost a lease.
CALM = ["--seed", "7", "--minutes", "0.25", "--only", "kill-producer"]
WITHIN_S = 80

pytestmark = pytest.mark.skipif(not CHAOS.exists(), reason="needs the checkout's scripts")

# The schedule.


def test_the_same_seed_gives_the_same_schedule() -> None:
    assert make(7, 2) == make(7, 2)
    assert str(make(7, 2)) == str(make(7, 2))
    assert make(7, 2) != make(8, 2)
    done = run("--seed", "7", "--minutes", "2", "--plan")
    assert done.stdout == f"{make(7, 2)}\n"


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


def test_what_instances_are_told_is_a_ladder() -> None:
    from cmdbus import Timeouts

    for seed in range(50):
        told = make(seed, 1).options
        Timeouts(
            statement=told.statement,
            pool=told.pool,
            lease=told.lease,
            thread=told.thread,
            watchdog=told.watchdog,
        )


# The checks: a good history, and one thing wrong with it at a time.


def good() -> Any:
    """Worker 2 (pid 20) completes a Tx in its second attempt, and a Noop with a reply."""
    moves: list[tuple[str, str, str, int, dict[str, Any]]] = [
        ("cmdbus:bus", "ready+", "tx", 0, {}),
        (session_name("cmdbus", 1), "claim", "tx", 1, {"token_before": 0, "claimer": 1}),
        (session_name("cmdbus", 1), "ready-", "tx", 1, {"claimer_before": 1}),
        (session_name("cmdbus", 1), "scheduled+", "tx", 1, {"attempts": 1, "due_at": 103.5}),
        (session_name("cmdbus", 9), "ready+", "tx", 1, {"attempts": 1, "due_at": 103.5}),
        (
            session_name("cmdbus", 2),
            "claim",
            "tx",
            2,
            {"token_before": 1, "claimer": 2, "attempts": 1},
        ),
        (session_name("cmdbus", 2), "ready-", "tx", 2, {"claimer_before": 2, "attempts": 1}),
        (session_name("cmdbus", 2), "finished+", "tx", 2, {"attempts": 2}),
        ("cmdbus:bus", "scheduled+", "noop", 0, {"due_at": 104.0}),
        (session_name("cmdbus", 9), "ready+", "noop", 0, {"due_at": 104.0}),
        (
            session_name("cmdbus", 2),
            "claim",
            "noop",
            1,
            {"token_before": 0, "claimer": 2, "due_at": 104.0},
        ),
        (session_name("cmdbus", 2), "ready-", "noop", 1, {"claimer_before": 2}),
        (session_name("cmdbus", 2), "finished+", "noop", 1, {"attempts": 1}),
    ]
    at = [100.0, 101.0, 103.0, 103.0, 103.6, 104.0, 105.0, 105.0, 100.0, 104.1, 104.2, 105.0, 105.0]
    xid = [1, 2, 3, 3, 4, 5, 6, 6, 7, 8, 9, 10, 10]
    done: dict[str, Any] = {
        "table": "finished",
        "status": "COMPLETED",
        "domain": "storm",
        "claimer": 2,
    }
    return History(
        limits=Limits(
            procs=2,
            drain=2.0,
            max_attempts=3,
            backoff=(0.5,),
            jitter=0.1,
            lease=2.0,
            domains=["storm"],
            sessions=40,
            standstill=30.0,
            recovered_within={"exit": 5.0},
        ),
        calls=[
            Call(name="c1", way="send", count=1, outcome="ok", ids=["tx"]),
            Call(name="c2", way="delayed", count=1, outcome="ok", ids=["noop"], began=100.0),
            Call(name="c3", way="rollback", count=2, outcome="fail"),
            Call(name="c4", way="many", count=2, outcome="unknown"),
        ],
        rows=[
            Row(command_id="tx", type="Tx", call="c1", index=0, attempts=2, run="20.1", **done),
            Row(
                command_id="noop",
                type="Noop",
                call="c2",
                index=0,
                attempts=1,
                run="20.2",
                reply_to="replies",
                delay=4.0,
                **done,
            ),
            Row(command_id="reply", type="Reply", answers="noop", attempts=1, **done),
        ],
        moves=[
            Move(number=n, began=t, at=t, xid=x, session=s, what=w, command_id=c, token=k, **more)
            for n, (t, x, (s, w, c, k, more)) in enumerate(zip(at, xid, moves, strict=True))
        ],
        events=[Event(command_id="tx", at=103.0, kind="FAILED", code="TRANSIENT")],
        effects=[Effect(command_id="tx", run="20.1", session=session_name("cmdbus", 2), xid=6)],
        marks=[
            Mark(at=t, what=w, run=r, pid=p, command_id=c, attempt=a)
            for t, w, r, p, c, a in (
                (101.1, "enter", "10.1", 10, "tx", 1),
                (102.9, "raised", "10.1", 10, "tx", 1),
                (104.1, "enter", "20.1", 20, "tx", 2),
                (104.9, "returned", "20.1", 20, "tx", 2),
                (104.3, "enter", "20.2", 20, "noop", 1),
                (104.4, "returned", "20.2", 20, "noop", 1),
            )
        ],
        lines=[
            Line(instance="a", at=t, pid=5, message=m)
            for t, m in (
                (99.0, "worker 0 starts, pid 10, generation 1"),
                (103.5, "worker 0, pid 10, was killed by SIGKILL"),
                (103.6, "worker 0 starts, pid 20, generation 2: crashed"),
                (110.0, "stopping within 2 s (SIGTERM)"),
            )
        ],
        samples=[
            Sample(instance="a", at=t, supervisor=5, workers=w, wanted=2, counters={"x": x})
            for t, w, x in ((100.0, 2, 1), (100.2, 3, 1), (100.4, 2, 2))
        ],
        counts=[Count(at=101.0, commands=2, rows=2, sessions=20)],
        recoveries=[Recovery(fault=0, kind="exit", began=103.0, ended=103.0, seconds=1.0)],
        workers={1: "host:10", 2: "host:20", 9: "steward:7"},
        server=[(101.0, "57P01", "FATAL:  terminating connection")],
        drained=3.0,
    )


def violated(history: Any) -> set[str]:
    return {f.name for f in checking.check(history) if f.violations}


def test_a_good_history_passes() -> None:
    findings = checking.check(good())
    assert [(f.name, f.violations) for f in findings if f.violations] == []
    assert len(findings) == len(checking.CHECKS) > 25


def row(history: Any, number: int, **changed: object) -> Any:
    rows = [*history.rows]
    rows[number] = replace(rows[number], **changed)
    return replace(history, rows=rows)


def move(history: Any, number: int, **changed: object) -> Any:
    moves = [*history.moves]
    moves[number] = replace(moves[number], **changed)
    return replace(history, moves=moves)


def without(history: Any, name: str, number: int) -> Any:
    kept = [*getattr(history, name)]
    del kept[number]
    return replace(history, **{name: kept})


def added(history: Any, name: str, index: int, **changed: object) -> Any:
    one = getattr(history, name)[index]
    return replace(history, **{name: [*getattr(history, name), replace(one, **changed)]})


def call(history: Any, number: int, **changed: object) -> Any:
    calls = [*history.calls]
    calls[number] = replace(calls[number], **changed)
    return replace(history, calls=calls)


def deadlock(*tables: str) -> list[tuple[float, str, str]]:
    """As the server says it."""
    waits = [f"Process {n}: UPDATE {table} SET n = 1" for n, table in enumerate(tables)]
    detail = "\n".join(["DETAIL:  Process 0 waits for ShareLock", *waits])
    return [(101.0, "40P01", "ERROR:  deadlock detected"), (101.0, "40P01", detail)]


class Stray:
    pid, what, seconds = 1, "an orphan", 3.0


TROUBLE = "IN_TROUBLESHOOTING_QUEUE"
STARTED_AGAIN = "worker 0 starts, pid 20, generation 2"


def taken_over(history: Any) -> Any:
    """The second claim finds the first one with a lease that has ended."""
    events = [replace(history.events[0], code="LEASE_ENDED", token=1)]
    return replace(move(history, 5, claimer_before=1, lease_before=103.9), events=events)


def run_again(history: Any, *, released: bool) -> Any:
    """After its only claim: only a claim explains an execution."""
    what = "release" if released else "claim"
    again = added(history, "marks", 4, at=104.6, run="20.3")
    return added(again, "moves", 10, number=99, at=104.5, what=what, token_before=1, token=2)


def waiting(history: Any, pending: list[str]) -> Any:
    """The Noop is of a type that no instance handles."""
    unhandled = row(history, 1, type="Unhandled", table="ready", status="PENDING")
    return replace(unhandled, pending=pending)


def outage(history: Any, *, ended: float, answered: float) -> Any:
    """Worker 2 claims at 104.0 and 104.2 and, once before it; p1 sends before it, too."""
    sent = ((1, 100.1), (2, answered))
    over = replace(history.recoveries[0], kind="outage-70", began=100.5, ended=ended)
    early = added(history, "moves", 5, number=99, at=100.2)
    calls = [replace(history.calls[0], name=f"p1.{n}-1", ended=at) for n, at in sent]
    return replace(early, calls=[*history.calls, *calls], recoveries=[over])


def calm(history: Any) -> Any:
    return replace(history, recoveries=[replace(history.recoveries[0], began=50.0, ended=50.0)])


BROKEN: list[tuple[str, str, Callable[[Any], Any]]] = [
    ("no-loss", "an accepted command is nowhere", lambda h: call(h, 3, outcome="ok")),
    ("no-loss", "it has not ended", lambda h: row(h, 1, table="ready", status="PENDING")),
    ("unhandled-waits", "it has ended without a handler", lambda h: row(h, 0, type="Unhandled")),
    (
        "unhandled-waits",
        "it was claimed without a handler",
        lambda h: row(h, 1, type="Unhandled", table="ready", status="PENDING", token=1),
    ),
    ("unhandled-waits", "it is not listed", lambda h: waiting(h, pending=[])),
    ("no-invention", "nobody sent it", lambda h: without(h, "calls", 0)),
    ("no-invention", "more than were sent", lambda h: row(h, 0, index=1)),
    (
        "all-or-nothing",
        "a half of what is unknown",
        lambda h: added(h, "rows", 0, call="c4", command_id="n"),
    ),
    (
        "all-or-nothing",
        "refused, and there",
        lambda h: added(h, "rows", 0, call="c3", command_id="n"),
    ),
    ("all-or-nothing", "another id than was told", lambda h: call(h, 0, ids=["other"])),
    ("one-end", "two rows", lambda h: added(h, "rows", 0)),
    ("one-end", "it goes on after its end", lambda h: added(h, "moves", 5, number=99, xid=99)),
    ("one-end", "finished twice", lambda h: added(h, "moves", 7, number=99)),
    ("one-end", "two replies", lambda h: added(h, "rows", 2, command_id="again")),
    ("one-end", "no reply", lambda h: without(h, "rows", 2)),
    ("one-end", "canceled, and no cancel was sent", lambda h: row(h, 0, status="CANCELED")),
    ("one-end", "a cancel that was not", lambda h: call(h, 0, way="cancel")),
    (
        "ends-as-its-handler-says",
        "another end than its handler's",
        lambda h: row(h, 0, status="FAILED", code="RULE"),
    ),
    (
        "ends-as-its-handler-says",
        "lost without a loss",
        lambda h: row(h, 1, table="troubleshooting", status=TROUBLE, code="LOST"),
    ),
    ("tokens-count-up", "a token is left out", lambda h: move(h, 5, token=3)),
    ("tokens-count-up", "a token comes again", lambda h: move(h, 5, token_before=0, token=1)),
    (
        "only-the-claimer-ends-a-claim",
        "settled by who had lost it",
        lambda h: move(h, 6, session=session_name("cmdbus", 1)),
    ),
    (
        "only-the-claimer-ends-a-claim",
        "released by a stranger",
        lambda h: move(h, 2, what="release", session="psql"),
    ),
    (
        "only-the-claimer-ends-a-claim",
        "an effect of another one",
        lambda h: replace(h, effects=[replace(h.effects[0], session=session_name("cmdbus", 1))]),
    ),
    ("only-the-claimer-ends-a-claim", "a result of another one", lambda h: row(h, 0, run="10.1")),
    (
        "claims-do-not-overlap",
        "claimed before the lease ended",
        lambda h: move(h, 5, claimer_before=1, lease_before=104.5),
    ),
    (
        "each-execution-has-a-claim",
        "an execution without a claim",
        lambda h: added(h, "marks", 2, run="20.9"),
    ),
    ("effects-are-there-once", "an effect twice", lambda h: added(h, "effects", 0)),
    ("effects-are-there-once", "no effect", lambda h: without(h, "effects", 0)),
    (
        "effects-are-there-once",
        "an effect of what failed",
        lambda h: added(h, "effects", 0, command_id="noop"),
    ),
    ("runs-are-explained", "completed and never returned", lambda h: without(h, "marks", 3)),
    (
        "each-execution-has-a-claim",
        "run again after a release",
        lambda h: run_again(h, released=True),
    ),
    (
        "effects-are-of-what-was-settled",
        "an effect of another run",
        lambda h: replace(h, effects=[replace(h.effects[0], run="20.9")]),
    ),
    (
        "effects-are-of-what-was-settled",
        "an effect in another transaction",
        lambda h: replace(h, effects=[replace(h.effects[0], xid=10)]),
    ),
    (
        "effects-are-of-what-was-settled",
        "a thread that wrote with another command",
        lambda h: added(h, "effects", 0, run="20.1.kept", xid=10),
    ),
    (
        "leases-of-the-living-are-renewed",
        "a living worker's lease ended",
        lambda h: without(taken_over(h), "lines", 1),
    ),
    (
        "runs-are-explained",
        "more often than it was claimed",
        lambda h: replace(h, marks=[*h.marks, *([h.marks[2]] * 3)]),
    ),
    (
        "runs-are-explained",
        "given back as if it had not begun",
        lambda h: move(h, 2, what="release", session=session_name("cmdbus", 9)),
    ),
    (
        "ended-leases-are-told",
        "a lease that ended without an event",
        lambda h: move(h, 5, claimer_before=1),
    ),
    ("attempts-are-bounded", "too many attempts", lambda h: row(h, 0, max_attempts=1)),
    ("attempts-are-bounded", "a claim charges", lambda h: move(h, 5, attempts=2)),
    ("not-before-its-time", "claimed before it was due", lambda h: move(h, 10, due_at=104.3)),
    ("not-before-its-time", "again too soon", lambda h: move(h, 3, due_at=103.2)),
    ("not-before-its-time", "again too soon by a little", lambda h: move(h, 3, due_at=103.44)),
    ("not-before-its-time", "delayed too little", lambda h: move(h, 8, due_at=102.0)),
    ("delayed-start-in-time", "promoted late", lambda h: move(calm(h), 9, at=106.5)),
    ("delayed-start-in-time", "claimed late", lambda h: move(calm(h), 10, at=114.5)),
    (
        "counts-agree",
        "a row is missing in a snapshot",
        lambda h: replace(h, counts=[replace(h.counts[0], rows=1)]),
    ),
    (
        "counters-never-fall",
        "a counter falls",
        lambda h: added(h, "samples", 0, at=101.0, counters={"x": 1}),
    ),
    ("restarts-have-causes", "a restart for nothing", lambda h: without(h, "lines", 1)),
    (
        "restarts-have-causes",
        "a supervisor ended",
        lambda h: replace(h, wrong=["the supervisor a ended with 1"]),
    ),
    (
        "fleets-are-bounded",
        "too many processes for long",
        lambda h: replace(h, samples=[replace(s, workers=4) for s in h.samples]),
    ),
    (
        "connections-are-bounded",
        "too many sessions",
        lambda h: replace(h, counts=[replace(h.counts[0], sessions=41)]),
    ),
    ("none-claims-after-its-stop", "a claim after the stop", lambda h: move(h, 5, at=112.0)),
    ("everything-works-again", "not drained", lambda h: replace(h, drained=None)),
    (
        "everything-works-again",
        "never again",
        lambda h: replace(h, recoveries=[replace(h.recoveries[0], seconds=None)]),
    ),
    (
        "everything-works-again",
        "too late",
        lambda h: replace(h, recoveries=[replace(h.recoveries[0], seconds=9.0)]),
    ),
    (
        "attempts-are-bounded",
        "charged for what is none of its doing",
        lambda h: added(h, "events", 0, code="ReadOnlySqlTransaction"),
    ),
    (
        "everything-works-again",
        "a promise that is broken meanwhile",
        lambda h: replace(h, recoveries=[replace(h.recoveries[0], broken="nobody noticed")]),
    ),
    (
        "outages-are-over-in-time",
        "no claim after an outage",
        lambda h: outage(h, ended=104.5, answered=105.0),
    ),
    (
        "outages-are-over-in-time",
        "no answer after an outage",
        lambda h: outage(h, ended=103.8, answered=106.0),
    ),
    (
        "the-server-is-content",
        "a deadlock of ours",
        lambda h: replace(h, server=deadlock("cmdbus.ready")),
    ),
    (
        "the-server-is-content",
        "a deadlock of ours with a handler",
        lambda h: replace(h, server=deadlock("chaos.twin", "cmdbus.ready")),
    ),
    (
        "the-server-is-content",
        "a panic",
        lambda h: replace(h, server=[(101.0, "XX000", "PANIC:  could not")]),
    ),
    (
        "the-server-is-content",
        "a session that was idle for too long",
        lambda h: replace(h, server=[(101.0, "25P03", "FATAL:  terminating connection")]),
    ),
    (
        "the-server-is-content",
        "a timeout that nobody caused",
        lambda h: replace(h, server=[(101.0, "57014", "ERROR:  canceling statement")]),
    ),
    *[
        ("every-source-was-heard", f"no {name}", lambda h, name=name: replace(h, **{name: []}))
        for name in ("calls", "rows", "moves", "marks", "lines", "samples", "counts", "recoveries")
    ],
    (
        "every-source-was-heard",
        "a domain of which nothing has ended",
        lambda h: replace(h, limits=replace(h.limits, domains=["storm", "storm.01"])),
    ),
    ("every-source-was-heard", "no log", lambda h: replace(h, server=[])),
    ("no-secret-is-told", "the password in a log", lambda h: replace(h, leaks=["log"])),
    ("no-process-is-left", "a process that is left", lambda h: replace(h, strays=[Stray()])),
]


@pytest.mark.parametrize(
    ("name", "break_it"),
    [(name, function) for name, _, function in BROKEN],
    ids=[f"{name}: {what}" for name, what, _ in BROKEN],
)
def test_each_invariant_can_be_broken(name: str, break_it: Callable[[Any], Any]) -> None:
    assert name in violated(break_it(good()))


def test_each_type_has_an_end_that_it_must_come_to() -> None:
    history = good()
    for type_ in handlers.BODIES:
        wrong = row(history, 1, type=type_, status="FAILED", code="ANOTHER")
        assert "ends-as-its-handler-says" in violated(wrong), type_


def test_an_outage_that_is_over_in_time_is_none() -> None:
    over = outage(good(), ended=103.8, answered=104.0)
    assert "outages-are-over-in-time" not in violated(over)


def test_a_command_may_wait_for_its_turn_in_a_backlog() -> None:
    late = move(calm(good()), 10, at=114.5)
    claims = [replace(late.moves[5], number=100 + n, command_id=f"c{n}") for n in range(20)]
    moves = [*late.moves, *[replace(claim, at=110.0) for claim in claims]]
    assert "delayed-start-in-time" not in violated(replace(late, moves=moves))


def test_a_command_without_a_handler_waits() -> None:
    assert "unhandled-waits" not in violated(waiting(good(), pending=["noop"]))


def test_an_execution_after_a_second_claim_is_explained() -> None:
    assert "each-execution-has-a-claim" not in violated(run_again(good(), released=False))


def test_the_lease_of_a_process_that_has_exited_or_was_kept_away_may_end() -> None:
    history = taken_over(good())
    assert "leases-of-the-living-are-renewed" not in violated(history)
    alive = without(history, "lines", 1)
    stopped = replace(alive.recoveries[0], kind="stop-steward", instances=["a"])
    assert "leases-of-the-living-are-renewed" not in violated(replace(alive, recoveries=[stopped]))
    elsewhere = replace(stopped, instances=["b"])
    assert "leases-of-the-living-are-renewed" in violated(replace(alive, recoveries=[elsewhere]))
    over = replace(stopped, began=90.0, ended=91.0)
    assert "leases-of-the-living-are-renewed" in violated(replace(alive, recoveries=[over]))
    stall = Stall(began=102.5, ended=103.5)
    assert "leases-of-the-living-are-renewed" not in violated(replace(alive, stalls=[stall]))


def test_a_delay_may_be_late_while_every_steward_is_kept_away() -> None:
    history = move(calm(good()), 9, at=106.5)
    fault = replace(history.recoveries[0], began=104.0, ended=106.0)
    for kind, instance, is_late in (
        ("stop-steward", "a", False),
        ("hup", "a", False),
        ("stop-steward", "b", True),
        ("ttin", "a", True),
    ):
        recoveries = [replace(fault, kind=kind, instances=[instance])]
        late = "delayed-start-in-time" in violated(replace(history, recoveries=recoveries))
        assert late == is_late


def test_only_what_came_after_the_copy_is_excused_by_a_restore() -> None:
    lost = call(good(), 3, outcome="ok", began=200.0, ended=200.1)
    for copied_at, restored_at, is_lost in ((199.0, 205.0, False), (201.0, 205.0, True)):
        restore = Restore(copied_at=copied_at, restored_at=restored_at)
        assert ("no-loss" in violated(replace(lost, restores=[restore]))) == is_lost
    again = run_again(good(), released=True)
    # It enters at 104.6, and has no exit.
    for restored_at, is_found in ((104.0, False), (90.0, True)):
        restore = Restore(copied_at=89.0, restored_at=restored_at)
        assert (
            "each-execution-has-a-claim" in violated(replace(again, restores=[restore]))
        ) == is_found
    unsettled = without(good(), "moves", 11)
    for copied_at, is_found in ((104.8, False), (106.0, True)):
        restore = Restore(copied_at=copied_at, restored_at=107.0)
        assert (
            "runs-are-explained" in violated(replace(unsettled, restores=[restore]))
        ) == is_found


def test_a_slow_settlement_does_not_make_a_retry_early() -> None:
    """The statement began at 103.0 and computed the due time at 103.1; meanwhile the journal
    got a mark of an earlier execution, which had lost its lease."""
    late = move(good(), 3, at=103.6, due_at=103.6)
    marks = [*late.marks, replace(late.marks[1], at=103.5)]
    assert "not-before-its-time" not in violated(replace(late, marks=marks))


def test_a_seat_may_be_taken_again_after_the_fleet_was_resized() -> None:
    history = good()
    resized = replace(history.lines[1], message="1 worker process from now on")
    lines = [history.lines[0], resized, replace(history.lines[2], message=STARTED_AGAIN)]
    assert "restarts-have-causes" not in violated(replace(history, lines=lines))
    assert "restarts-have-causes" in violated(replace(history, lines=[lines[0], lines[2]]))


def test_handlers_may_deadlock_by_rows_of_the_application() -> None:
    server = deadlock("chaos.twin", "chaos.twin")
    assert violated(replace(good(), server=server)) == set()


def test_each_sentence_that_a_check_can_say_is_planted() -> None:
    """A check that cannot fail proves nothing."""
    passed: set[tuple[str, int]] = set()
    wanted: dict[tuple[str, int], str] = {}
    for name in ("command_checks", "fleet_checks", "time_checks"):
        path = str(SCRIPTS / "fault_injection" / f"{name}.py")
        tree = ast.parse(Path(path).read_text())
        found = [node for node in ast.walk(tree) if isinstance(node, ast.Yield)]
        wanted |= {(path, node.lineno): ast.unparse(node) for node in found}
    paths = {path for path, _ in wanted}

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        if frame.f_code.co_filename not in paths:
            return None
        passed.add((frame.f_code.co_filename, frame.f_lineno))
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        for _, _, break_it in BROKEN:
            checking.check(break_it(good()))
    finally:
        sys.settrace(before)
    assert [sentence for place, sentence in wanted.items() if place not in passed] == []


def test_each_check_is_broken_by_some_history() -> None:
    assert {name for name, _, _ in BROKEN} == {
        checking.name_of(function) for _, function in checking.CHECKS
    }


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
        '{"what": "invoke", "call": "c3", "at'
    )
    assert read_calls([tmp_path / "journal"]) == [
        Call(name="c1", way="many", count=2, began=5.0, ended=5.1, outcome="ok", ids=["a", "b"]),
        Call(name="c2", way="own", count=1, began=6.0, ended=6.1, outcome="unknown", ids=["c"]),
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
    (tmp_path / "server").write_text(
        "before\n1970-01-01 00:00:03.500 GMT [7] 40P01 ERROR:  deadlock detected\n\tmore\n"
    )
    assert read_server(tmp_path / "server", 7) == [
        (3.5, "40P01", "ERROR:  deadlock detected\nmore")
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


# The network.


def test_a_reply_that_is_lost_belongs_to_a_request_that_was_carried_out(
    tmp_path_factory: pytest.TempPathFactory, dsn: str
) -> None:
    """As prepared and as plain statements."""
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
            assert not is_late(proxy, proxy.listen("127.0.0.1"))
            with proxy.trickling():
                assert is_late(proxy, proxy.dsn)
        finally:
            proxy.close()
        eventually(lambda: not [t for t in threading.enumerate() if "_accept" in t.name])


def is_late(proxy: Any, dsn: str) -> bool:
    """The server's answer to nothing but a new client."""
    try:
        psycopg.connect(dsn, connect_timeout=2).close()
    except psycopg.OperationalError:
        return True
    return False


# Whole runs.


@pytest.mark.db
@pytest.mark.process
@pytest.mark.timeout(WITHIN_S + 10)
def test_a_bus_survives_a_short_run(dsn: str) -> None:
    found = the_object_of(run(*KILLS, "--dsn", dsn, "--json"), 0)
    assert (found["ok"], found["violations"], found["skipped"]) == (True, {}, [])
    assert found["commands"] > 100
    assert set(found["recoveries_s"]) == {"kill-worker", "kill-steward"}
    assert all(found["recoveries_s"].values())
    assert {
        "no-loss",
        "effects-are-there-once",
        "everything-works-again",
        "no-process-is-left",
    } <= set(found["checked"])


@pytest.mark.db
@pytest.mark.process
@pytest.mark.timeout(WITHIN_S + 10)
def test_a_bus_without_its_fence_does_not_pass(dsn: str) -> None:
    """Each settlement, release and renewal loses its comparisons of tokens and claimers; a
    frozen instance comes back when others have its commands."""
    found = the_object_of(run(*FREEZE, "--dsn", dsn, "--sabotage", "fence", "--json"), 1)
    assert set(found["violations"]) >= {"only-the-claimer-ends-a-claim"}
    assert any(
        " did ready- on the claim of " in text
        for text in found["violations"]["only-the-claimer-ends-a-claim"]
    )
    assert found["ok"] is False
    [kept] = Path(tempfile.gettempdir()).glob("cmdbus-chaos-*")
    assert (kept / "history.pickle").exists()
    shutil.rmtree(kept)


@pytest.mark.long
@pytest.mark.db
@pytest.mark.process
@pytest.mark.timeout(WITHIN_S + 10)
def test_a_bus_that_counts_no_losses_does_not_pass(dsn: str) -> None:
    """What ran in a killed process is released as if it had not begun."""
    found = the_object_of(run(*KILLS, "--dsn", dsn, "--sabotage", "losses", "--json"), 1)
    assert any(" times, and " in text for text in found["violations"]["runs-are-explained"])
    for kept in Path(tempfile.gettempdir()).glob("cmdbus-chaos-*"):
        shutil.rmtree(kept)


@pytest.mark.long
@pytest.mark.db
@pytest.mark.process
@pytest.mark.timeout(WITHIN_S + 10)
def test_a_bus_that_forgets_renewals_does_not_pass(dsn: str) -> None:
    """Of claims whose processes, stewards and database all work."""
    found = the_object_of(run(*CALM, "--dsn", dsn, "--sabotage", "renewals", "--json"), 1)
    assert any(
        "and its steward lived" in text
        for text in found["violations"]["leases-of-the-living-are-renewed"]
    )
    for kept in Path(tempfile.gettempdir()).glob("cmdbus-chaos-*"):
        shutil.rmtree(kept)


@pytest.mark.db
@pytest.mark.process
@pytest.mark.timeout(WITHIN_S + 10)
def test_an_interrupted_run_leaves_nothing(dsn: str) -> None:
    arguments = ["--dsn", dsn, "--seed", "5", "--minutes", "5", "--only", "stop-worker"]
    with subprocess.Popen(
        [sys.executable, CHAOS, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    ) as process:
        try:
            assert process.stderr is not None
            resolution = next(line for line in process.stderr if b"SIGSTOP" in line)
            process.send_signal(signal.SIGINT)
            resolution += process.communicate(timeout=WITHIN_S)[1]
        finally:
            process.kill()
    assert process.returncode == 130, resolution.decode()
    with psycopg.connect(dsn) as connection:
        like = f"cmdbus_chaos_{process.pid}_%"
        left = connection.execute("SELECT FROM pg_database WHERE datname LIKE %s", (like,))
        assert left.fetchall() == []


def the_object_of(done: "subprocess.CompletedProcess[str]", code: int) -> Any:
    assert done.returncode == code, done.stderr + done.stdout
    return json.loads(done.stdout.splitlines()[-1])


def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, CHAOS, *arguments],
        cwd=os.sep,
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
        check=False,
    )
