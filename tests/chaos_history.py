"""A good history of chaos, and changes of it: each makes a history of a history."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from fault_injection.group_history import Batch, Process, Step
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
    Probe,
    Recovery,
    Row,
    Sample,
    Tick,
)

from cmdbus.database.session_names import session_name

Change = Callable[[Any], Any]

_BUS = "cmdbus:bus"
FIRST, SECOND, STEWARD = (session_name("cmdbus", number) for number in (1, 2, 9))

_MOVES: list[tuple[float, int, str, str, str, int, dict[str, Any]]] = [
    (100.0, 1, _BUS, "ready+", "tx", 0, {}),
    (101.0, 2, FIRST, "claim", "tx", 1, {"token_before": 0, "claimer": 1}),
    (103.0, 3, FIRST, "ready-", "tx", 1, {"claimer_before": 1}),
    (103.0, 3, FIRST, "scheduled+", "tx", 1, {"attempts": 1, "due_at": 103.5}),
    (103.6, 4, STEWARD, "ready+", "tx", 1, {"attempts": 1, "due_at": 103.5}),
    (104.0, 5, SECOND, "claim", "tx", 2, {"token_before": 1, "claimer": 2, "attempts": 1}),
    (105.0, 6, SECOND, "ready-", "tx", 2, {"claimer_before": 2, "attempts": 1}),
    (105.0, 6, SECOND, "finished+", "tx", 2, {"attempts": 2}),
    (100.0, 7, _BUS, "scheduled+", "noop", 0, {"due_at": 104.0}),
    (104.1, 8, STEWARD, "ready+", "noop", 0, {"due_at": 104.0}),
    (104.2, 9, SECOND, "claim", "noop", 1, {"token_before": 0, "claimer": 2, "due_at": 104.0}),
    (105.0, 10, SECOND, "ready-", "noop", 1, {"claimer_before": 2}),
    (105.0, 10, SECOND, "finished+", "noop", 1, {"attempts": 1}),
    (106.0, 11, SECOND, "finished+", "first", 0, {}),
    (106.1, 12, SECOND, "finished+", "second", 0, {}),
    (106.2, 13, SECOND, "ready+", "undo", 0, {}),
]
_MARKS = (
    (101.1, "enter", "10.1", 10, "tx", 1),
    (102.9, "raised", "10.1", 10, "tx", 1),
    (104.1, "enter", "20.1", 20, "tx", 2),
    (104.9, "returned", "20.1", 20, "tx", 2),
    (104.3, "enter", "20.2", 20, "noop", 1),
    (104.4, "returned", "20.2", 20, "noop", 1),
)
_LINES = (
    (99.0, "worker 0 starts, pid 10, generation 1"),
    (103.5, "worker 0, pid 10, was killed by SIGKILL"),
    (103.6, "worker 0 starts, pid 20, generation 2: crashed"),
    (110.0, "stopping within 2 s (SIGTERM)"),
)
_SAMPLES = ((100.0, 2, 1), (100.2, 3, 1), (100.4, 2, 2))
_DONE: dict[str, Any] = dict(table="finished", status="COMPLETED", domain="storm", claimer=2)
_NOOP: dict[str, Any] = dict(command_id="noop", type="Noop", call="c2", index=0, attempts=1)

#: Ended in one step each; the run of each is its command's name.
_SIMPLE: dict[str, dict[str, Any]] = {
    "called": {"call": "c5", "index": 0},
    "adds": {"call": "c6", "index": 0, "adds": 1, "batch": "b1"},
    "added": {"added_by": "adds", "batch": "b1"},
    "first": {"process": "c7"},
    "undo": {"process": "c7"},
    "tick1": {},
    "tick2": {},
}
_RULE: dict[str, Any] = dict(type="Rule", code="RULE", table="finished", status="FAILED")

#: Its second step fails, and the first one is undone.
_FLOW = Process(
    process_id="flow",
    call="c7",
    status="COMPENSATED",
    listed=[False, False, False],
    undone=[True, True, False],
    seen=[("FIRST", "SUCCESS"), ("SECOND", "FAILED")],
    signals=["c8"],
    steps=[
        Step(number=1, step="FIRST", command_id="first", type="Noop", outcome="SUCCESS"),
        Step(number=2, step="SECOND", command_id="second", type="Rule", outcome="FAILED"),
        Step(number=3, undoes=1, step="FIRST", command_id="undo", type="Noop", outcome="SUCCESS"),
    ],
    events=["SIGNALED"],
)

#: Worker 2 (pid 20) completes a Tx in its second attempt, and a Noop with a reply; and what is
#: above.
GOOD = History(
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
        schedules={"often": 1},
        recovered_within={"exit": 5.0},
    ),
    calls=[
        Call(name="c1", way="send", count=1, outcome="ok", ids=["tx"]),
        Call(name="c2", way="delayed", count=1, outcome="ok", ids=["noop"], began=100.0),
        Call(name="c3", way="rollback", count=2, outcome="fail"),
        Call(name="c4", way="many", count=2, outcome="unknown"),
        Call(
            name="c5",
            way="call",
            count=1,
            outcome="ok",
            answer={"status": "COMPLETED", "run": "called"},
        ),
        Call(name="c6", way="batch", count=1, outcome="ok"),
        Call(name="c7", way="process", count=0, outcome="ok", ids=["flow"]),
        Call(name="c8", way="signal", count=0, outcome="ok", ids=["flow"]),
        Call(name="c9", way="batch", count=0, outcome="unknown"),
        Call(name="c10", way="cancel-batch", count=0, outcome="ok", ids=["b2"]),
    ],
    rows=[
        Row(command_id="tx", type="Tx", call="c1", index=0, attempts=2, run="20.1", **_DONE),
        Row(run="20.2", reply_to="replies", delay=4.0, **_NOOP, **_DONE),
        Row(command_id="reply", type="Reply", answers="noop", attempts=1, **_DONE),
        *(Row(command_id=i, type="Noop", run=i, **more, **_DONE) for i, more in _SIMPLE.items()),
        Row(command_id="second", process="c7", **_RULE),
    ],
    moves=[
        Move(number=n, began=t, at=t, xid=x, session=s, what=w, command_id=c, token=k, **more)
        for n, (t, x, s, w, c, k, more) in enumerate(_MOVES)
    ],
    events=[Event(command_id="tx", at=103.0, kind="FAILED", code="TRANSIENT")],
    ticks=[
        Tick(schedule="often", at=101.0, command_id="tick1", sent_at=101.02),
        Tick(schedule="often", at=102.0, command_id="tick2", sent_at=102.03),
    ],
    paused_at=102.5,
    probes=[
        Probe(at=103.0, breaker="side", held=1, most=2),
        Probe(at=103.1, breaker="side", held=2, most=2),
    ],
    batches=[
        Batch(
            batch_id="b1",
            name="c6",
            status="COMPLETED_WITH_FAILURES",
            total=2,
            completed=1,
            failed=1,
            canceled=0,
            rows={"COMPLETED": 1, "FAILED": 1},
            on_complete=1,
            on_cancel=0,
        ),
        Batch(
            batch_id="b2",
            name="c9",
            status="CANCELED",
            total=1,
            completed=0,
            failed=0,
            canceled=1,
            rows={"CANCELED": 1},
            on_complete=0,
            on_cancel=1,
        ),
    ],
    processes=[_FLOW],
    effects=[Effect(command_id="tx", run="20.1", session=SECOND, xid=6)],
    marks=[
        Mark(at=t, what=w, run=r, pid=p, command_id=c, attempt=a)
        for t, w, r, p, c, a in (
            *_MARKS,
            *((105.9, "returned", name, 20, name, 1) for name in _SIMPLE),
        )
    ],
    lines=[Line(instance="a", at=at, pid=5, message=message) for at, message in _LINES],
    samples=[
        Sample(instance="a", at=t, supervisor=5, workers=w, wanted=2, counters={"x": x})
        for t, w, x in _SAMPLES
    ],
    counts=[Count(at=101.0, commands=2, rows=2, sessions=20)],
    recoveries=[Recovery(fault=0, kind="exit", began=103.0, ended=103.0, seconds=1.0)],
    workers={1: "host:10", 2: "host:20", 9: "steward:7"},
    server=[(101.0, "57P01", "FATAL:  terminating connection")],
    drained=3.0,
)


def put(**changed: object) -> Change:
    """Other values of a history's own fields."""
    return lambda history: replace(history, **changed)


def change(name: str, index: int, /, **changed: object) -> Change:
    """Of one record of the list `name`."""

    def changed_history(history: Any) -> Any:
        records = [*getattr(history, name)]
        records[index] = replace(records[index], **changed)
        return replace(history, **{name: records})

    return changed_history


def step(index: int, /, **changed: object) -> Change:
    """Of one step of the process."""

    def changed_history(history: Any) -> Any:
        steps = [*history.processes[0].steps]
        steps[index] = replace(steps[index], **changed)
        return change("processes", 0, steps=steps)(history)

    return changed_history


def drop(name: str, index: int) -> Change:
    def without(history: Any) -> Any:
        records = [*getattr(history, name)]
        del records[index]
        return replace(history, **{name: records})

    return without


def add(name: str, index: int, /, **changed: object) -> Change:
    """Another record like that one."""

    def added(history: Any) -> Any:
        records = getattr(history, name)
        return replace(history, **{name: [*records, replace(records[index], **changed)]})

    return added


def both(*changes: Change) -> Change:
    def changed(history: Any) -> Any:
        for each in changes:
            history = each(history)
        return history

    return changed


def deadlock(*tables: str) -> Change:
    """As the server's log has it."""
    waits = [f"Process {n}: UPDATE {table} SET n = 1" for n, table in enumerate(tables)]
    detail = "\n".join(["DETAIL:  Process 0 waits for ShareLock", *waits])
    error = "ERROR:  deadlock detected"
    return put(server=[(101.0, "40P01", error), (101.0, "40P01", detail)])


#: The second claim finds the first one with a lease that has ended.
LEASE_ENDED = both(
    change("moves", 5, claimer_before=1, lease_before=103.9),
    change("events", 0, code="LEASE_ENDED", token=1),
)
#: Only a claim explains an execution: after a release that of the Noop has none.
_AGAIN = add("marks", 4, at=104.6, run="20.3")
_BEFORE: dict[str, Any] = dict(number=99, at=104.5, token_before=1, token=2)
RUN_AFTER_RELEASE = both(_AGAIN, add("moves", 10, what="release", **_BEFORE))
RUN_AFTER_CLAIM = both(_AGAIN, add("moves", 10, what="claim", **_BEFORE))
#: Worker 2 stops in order, and its Noop is released although it had returned.
OUTCOME_LOST = both(
    add("lines", 0, at=107.0, message="worker 0 has stopped, pid 20"),
    add("events", 0, command_id="noop", at=107.0, kind="LOST", code="STOPPED", token=1, claimer=2),
)
CALM = change("recoveries", 0, began=50.0, ended=50.0)


def starts(pause: float) -> Change:
    """Of quarantine processes that run nothing."""
    return lambda history: replace(
        history,
        lines=[
            *history.lines,
            *(
                replace(
                    history.lines[0],
                    at=at * pause,
                    message=f"quarantine starts, pid {at}, generation 1",
                )
                for at in range(100, 200)
            ),
        ],
    )


def waiting(pending: list[str]) -> Change:
    """The Noop is of a type that no instance handles."""
    unhandled = change("rows", 1, type="Unhandled", table="ready", status="PENDING")
    return both(unhandled, put(pending=pending))


def outage(*, ended: float, answered: float) -> Change:
    """Worker 2 claims at 104.0 and 104.2 and, once before it; p1 sends before it, too."""
    return both(
        change("recoveries", 0, kind="outage-70", began=100.5, ended=ended),
        add("moves", 5, number=99, at=100.2),
        add("calls", 0, name="p1.1-1", ended=100.1),
        add("calls", 0, name="p1.2-1", ended=answered),
    )
