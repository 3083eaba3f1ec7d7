"""What each check of chaos finds: by its name, changes that make a good history wrong."""

from dataclasses import replace
from typing import Any

from broken_bridges import BROKEN_BRIDGES
from broken_headers import BROKEN_HEADERS
from broken_limits import BROKEN_LIMITS
from chaos_history import (
    CALM,
    FIRST,
    GOOD,
    LEASE_ENDED,
    OUTCOME_LOST,
    RUN_AFTER_RELEASE,
    STEWARD,
    Change,
    add,
    both,
    change,
    deadlock,
    drop,
    outage,
    put,
    starts,
    step,
    waiting,
)

TROUBLE = "IN_TROUBLESHOOTING_QUEUE"


def undone_twice(**changed: object) -> Change:
    """The flow has sent another compensation of its first step."""
    steps = GOOD.processes[0].steps
    again: Any = {"number": 4, **changed}
    return change("processes", 0, steps=[*steps, replace(steps[2], **again)])


def iterated(*numbers: int, rows: int = 0) -> Change:
    """A completed command has written these of its rows."""
    id_ = GOOD.rows[0].command_id
    return both(
        change("rows", 0, type="Iterate", iterates=rows or len(numbers)),
        put(iterations={id_: numbers}),
    )


#: A call goes on after its command has ended at 105.0.
WAITS_ON = both(
    change("calls", 4, answer=None, outcome="unknown", timed_out=True, ended=106.5),
    change("moves", 7, command_id="called"),
)


class Stray:
    pid, what, seconds = 1, "an orphan", 3.0


SOURCES = ("calls", "rows", "moves", "marks", "lines", "samples", "counts", "recoveries")
#: By the check that finds it: what is wrong, and the change that makes it so.
BROKEN: dict[str, dict[str, Change]] = {
    "no-loss": {
        "an accepted command is nowhere": change("calls", 3, outcome="ok"),
        "it has not ended": change("rows", 1, table="ready", status="PENDING"),
    },
    "unhandled-waits": {
        "it has ended without a handler": change("rows", 0, type="Unhandled"),
        "it was claimed without a handler": change(
            "rows", 1, type="Unhandled", table="ready", status="PENDING", token=1
        ),
        "it is not listed": waiting([]),
    },
    "only-selected-instances-claim": {
        "a type without its tag": change("rows", 0, type="Tagged"),
        "a priority that is left to another": change("rows", 0, priority=10),
    },
    "rows-of-iterations-are-there-once": {
        "a row twice": iterated(1, 0, 1),
        "a row is missing in the middle": iterated(0, 2),
        "not all rows": iterated(0, rows=2),
        "of a command that is nowhere": put(iterations={"nowhere": [0]}),
    },
    "no-invention": {
        "it was never sent": drop("calls", 0),
        "more than were sent": change("rows", 0, index=1),
    },
    "all-or-nothing": {
        "a half of what is unknown": add("rows", 0, call="c4", command_id="n"),
        "refused, and there": add("rows", 0, call="c3", command_id="n"),
        "another id than was returned": change("calls", 0, ids=["other"]),
    },
    "one-end": {
        "two rows": add("rows", 0),
        "it goes on after its end": add("moves", 5, number=99, xid=99),
        "finished twice": add("moves", 7, number=99),
        "two replies": add("rows", 2, command_id="again"),
        "no reply": drop("rows", 2),
        "canceled, and no cancel was sent": change("rows", 0, status="CANCELED"),
        "a cancel that was not": change("calls", 0, way="cancel"),
    },
    "batches-count-their-commands": {
        "one is not counted": change("batches", 0, rows={"COMPLETED": 2, "FAILED": 1}),
        "one is counted twice": change("batches", 0, completed=2, total=3),
        "one is missing": change("batches", 0, total=3),
    },
    "batches-end-once": {
        "over too early": both(
            change("batches", 0, total=3, rows={"COMPLETED": 1, "FAILED": 1, "PENDING": 1})
        ),
        "nothing sent": change("batches", 0, on_complete=0),
        "sent twice": change("batches", 0, on_complete=2),
        "sent as canceled": change("batches", 0, on_complete=0, on_cancel=1),
        "not over": change("batches", 0, status="IN_PROGRESS", on_complete=0),
    },
    "batches-end-as-their-commands": {
        "canceled without a request": drop("calls", 9),
        "canceled, and completed": change("batches", 1, status="COMPLETED_WITH_FAILURES"),
        "completed with a failure": change("batches", 0, status="COMPLETED"),
    },
    "commands-are-added-with-the-end-of-the-handler": {
        "added by one that has failed": change("rows", 4, status="FAILED", code="RULE"),
        "not added": drop("rows", 5),
        "added to another batch": change("rows", 5, batch="b2"),
    },
    "calls-return-what-their-commands-did": {
        "another result": change("rows", 3, run="another"),
        "a failure of what was completed": change(
            "calls", 4, answer={"status": "FAILED", "code": "RULE"}
        ),
    },
    "calls-end-with-their-commands": {"it waits on": WAITS_ON},
    "processes-are-those-that-were-started": {
        "it is nowhere": put(processes=[]),
        "it was refused": change("calls", 6, outcome="fail"),
        "two of them": add("processes", 0),
        "it was never started": drop("calls", 6),
        "another id": change("processes", 0, process_id="other"),
    },
    "processes-have-ended": {
        "it waits": change("processes", 0, status="WAITING_FOR_REPLY"),
        "it has not got a reply": step(2, outcome=None),
    },
    "steps-are-taken-once": {
        "a line of the audit trail twice": step(1, number=1),
        "a step twice": step(1, step="FIRST"),
        "a step is left out": step(1, step="THIRD"),
        "a reply twice": change("processes", 0, seen=[*GOOD.processes[0].seen] * 2),
        "a reply was dropped": change("processes", 0, seen=[]),
    },
    "signals-come-once": {
        "a signal twice": change("processes", 0, signals=["c8"] * 2, events=["SIGNALED"] * 2),
        "an event is missing": change("processes", 0, events=[]),
        "it was never sent": drop("calls", 7),
    },
    "steps-end-as-their-commands": {
        "the reply says the opposite": step(1, outcome="SUCCESS"),
        "a batch that has failed": step(0, type="process:batch", command_id="b1"),
        "its command is nowhere": step(1, command_id="other"),
        "a command twice": add("rows", 6, command_id="again"),
    },
    "processes-end-as-their-steps": {
        "another end": change("processes", 0, status="CANCELED"),
        "completed with a failure": change("processes", 0, status="COMPLETED"),
        "canceled without a request": change(
            "processes", 0, events=["SIGNALED", "CANCEL_REQUESTED"]
        ),
        "a compensation has failed": step(2, outcome="FAILED"),
        "it has ended too early": both(
            change("processes", 0, status="COMPLETED"), step(1, outcome="SUCCESS")
        ),
    },
    "deadlines-fire-in-time": {
        "a step without one": step(1, outcome="CANCELED"),
        "before it has passed": step(1, outcome="CANCELED", deadline_at=106.2),
    },
    "what-was-done-is-undone-once": {
        "it is not undone": step(2, undoes=2),
        "what has failed is undone": step(1, outcome="FAILED", number=1),
        "it is undone twice": undone_twice(),
        "the first one first": undone_twice(undoes=2),
    },
    "nothing-is-undone-too-early": {
        "the step before it goes on": change("moves", 14, number=99),
        "a command of a list goes on": both(
            step(1, command_id="b3"), change("rows", 1, batch="b3"), change("moves", 12, number=99)
        ),
    },
    "ends-as-its-handler-says": {
        "another end than its handler's": change("rows", 0, status="FAILED", code="RULE"),
        "lost without a loss": change(
            "rows", 1, table="troubleshooting", status=TROUBLE, code="LOST"
        ),
    },
    "tokens-count-up": {
        "a token is left out": change("moves", 5, token=3),
        "a token comes again": change("moves", 5, token_before=0, token=1),
    },
    "only-the-claimer-ends-a-claim": {
        "settled by a worker that had lost it": change("moves", 6, session=FIRST),
        "released by a stranger": change("moves", 2, what="release", session="psql"),
        "an effect of another one": change("effects", 0, session=FIRST),
        "a result of another one": change("rows", 0, run="10.1"),
    },
    "claims-do-not-overlap": {
        "claimed before the lease ended": change("moves", 5, claimer_before=1, lease_before=104.5),
    },
    "each-execution-has-a-claim": {
        "an execution without a claim": add("marks", 2, run="20.9"),
        "run again after a release": RUN_AFTER_RELEASE,
    },
    "effects-are-there-once": {
        "an effect twice": add("effects", 0),
        "no effect": drop("effects", 0),
        "an effect of what failed": add("effects", 0, command_id="noop"),
    },
    "runs-are-explained": {
        "completed and never returned": drop("marks", 3),
        "more often than it was claimed": lambda h: replace(h, marks=[*h.marks, *[h.marks[2]] * 3]),
        "given back as if it had not begun": change("moves", 2, what="release", session=STEWARD),
    },
    "effects-are-of-what-was-settled": {
        "an effect of another run": change("effects", 0, run="20.9"),
        "an effect in another transaction": change("effects", 0, xid=10),
        "a thread that wrote with another command": add("effects", 0, run="20.1.kept", xid=10),
    },
    "leases-of-the-living-are-renewed": {
        "a living worker's lease ended": both(LEASE_ENDED, drop("lines", 1)),
    },
    "ended-leases-are-recorded": {
        "a lease that ended without an event": change("moves", 5, claimer_before=1),
    },
    "stops-lose-no-outcome": {"a handler had returned": OUTCOME_LOST},
    "attempts-are-bounded": {
        "too many attempts": change("rows", 0, max_attempts=1),
        "a claim charges": change("moves", 5, attempts=2),
        "charged for what is none of its doing": add("events", 0, code="ReadOnlySqlTransaction"),
    },
    "not-before-its-time": {
        "claimed before it was due": change("moves", 10, due_at=104.3),
        "again too soon": change("moves", 3, due_at=103.2),
        "again too soon by a little": change("moves", 3, due_at=103.44),
        "delayed too little": change("moves", 8, due_at=102.0),
    },
    "probes-are-never-exceeded": {"one more": change("probes", 1, held=3)},
    "ticks-are-sent-once": {
        "a tick twice": add("ticks", 0, command_id="tick2"),
        "a command is gone": change("ticks", 0, command_id="nowhere"),
    },
    "no-tick-is-missing": {
        "one between two": add("ticks", 1, at=104.0),
        "none at all": put(ticks=[]),
        "none any more": put(paused_at=106.5),
    },
    "ticks-are-in-time": {"late": both(CALM, change("ticks", 1, sent_at=104.5))},
    "delayed-start-in-time": {
        "promoted late": both(CALM, change("moves", 9, at=106.5)),
        "claimed late": both(CALM, change("moves", 10, at=114.5)),
    },
    "counts-agree": {"a row is missing in a snapshot": change("counts", 0, rows=1)},
    "counters-never-fall": {"a counter falls": add("samples", 0, at=101.0, counters={"x": 1})},
    "restarts-have-causes": {
        "a restart for nothing": drop("lines", 1),
        "a supervisor ended": put(wrong=["the supervisor a ended with 1"]),
    },
    "starts-are-bounded": {"three processes a second that run nothing": starts(0.3)},
    "fleets-are-bounded": {
        "too many processes for long": lambda h: replace(
            h, samples=[replace(s, workers=4) for s in h.samples]
        ),
    },
    "connections-are-bounded": {"too many sessions": change("counts", 0, sessions=41)},
    "none-claims-after-its-stop": {"a claim after the stop": change("moves", 5, at=112.0)},
    "everything-works-again": {
        "not drained": put(drained=None),
        "never again": change("recoveries", 0, seconds=None),
        "too late": change("recoveries", 0, seconds=9.0),
        "a promise that is broken meanwhile": change("recoveries", 0, broken="unnoticed"),
    },
    "outages-are-over-in-time": {
        "no claim after an outage": outage(ended=104.5, answered=105.0),
        "no answer after an outage": outage(ended=103.8, answered=106.0),
    },
    "the-server-is-content": {
        "a deadlock of the bus": deadlock("cmdbus.ready"),
        "a deadlock of the bus with a handler": deadlock("chaos.twin", "cmdbus.ready"),
        "a panic": put(server=[(101.0, "XX000", "PANIC:  could not")]),
        "a session that was idle for too long": put(
            server=[(101.0, "25P03", "FATAL:  terminating connection")]
        ),
        "a timeout without a cause": put(server=[(101.0, "57014", "ERROR:  canceling statement")]),
    },
    "every-source-was-heard": {
        **{f"no {name}": put(**{name: []}) for name in SOURCES},
        "a domain of which nothing has ended": lambda h: replace(
            h, limits=replace(h.limits, domains=["storm", "storm.01"])
        ),
        "no log": put(server=[]),
    },
    "no-secret-is-printed": {"the password in a log": put(leaks=["log"])},
    "no-process-is-left": {"a process that is left": put(strays=[Stray()])},
}
for name, changes in (
    *BROKEN_LIMITS.items(),
    *BROKEN_HEADERS.items(),
    *BROKEN_BRIDGES.items(),
):
    BROKEN.setdefault(name, {}).update(changes)
