"""What the page makes of an audit trail: executions, and a timeline. Pure."""

from dataclasses import fields
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any
from uuid import UUID

from cmdbus.producer.records import AuditEvent, CommandRecord, Status
from cmdbus.web.views.executions import executions, value_of
from cmdbus.web.views.timeline import timeline

BEGIN = datetime(2026, 11, 20, 12, tzinfo=UTC)
ID = UUID("01a1ef5a-0994-8c8f-a75a-06db62dbaa94")
TROUBLE = "MOVED_TO_TROUBLESHOOTING_QUEUE"


def at(seconds: float) -> datetime:
    return BEGIN + timedelta(seconds=seconds)


def record(status: str, **given: Any) -> CommandRecord:
    due = given.pop("due", 0.0)
    for name in {"started_at", "finished_at"} & given.keys():
        given[name] = at(given[name])
    known: dict[str, Any] = {each.name: None for each in fields(CommandRecord)}
    known |= {"domain": "payments", "command_id": ID, "type": "Debit", "correlation_id": ID}
    known |= {"status": Status(status), "created_at": BEGIN, "due_at": at(due)}
    return CommandRecord(**{**known, **given})


def event(seconds: float, kind: str, attempt: int | None = None, **more: Any) -> AuditEvent:
    worker = more.pop("worker", "node/w1" if attempt is not None else None)
    return AuditEvent(at=at(seconds), kind=kind, attempt=attempt, worker=worker, **more)


def parts_of(of: CommandRecord, *events: AuditEvent, now: float = 1000) -> list[tuple[Any, ...]]:
    """Parts of the timeline: kind, begin and end in seconds, attempt."""
    audit = [event(0, "SENT"), *events]
    parts = timeline(of, executions(of, audit), audit, at(now))
    for before, after in pairwise(parts):
        assert before["to"] == after["from"], "a gap"

    def seconds(time: datetime | None) -> float | None:
        return None if time is None else (time - BEGIN).total_seconds()

    return [(p["kind"], seconds(p["from"]), seconds(p["to"]), p["attempt"]) for p in parts]


def test_a_command_that_runs_at_once() -> None:
    done = record("COMPLETED", started_at=1, finished_at=4)
    assert parts_of(done, event(1, "RECEIVED", 1), event(4, "COMPLETED", 1)) == [
        ("waited", 0, 1, None),
        ("ran", 1, 4, 1),
    ]
    running = record("IN_PROGRESS", started_at=1)
    assert parts_of(running, event(1, "RECEIVED", 1)) == [
        ("waited", 0, 1, None),
        ("ran", 1, None, 1),
    ]
    assert parts_of(record("PENDING")) == [("waited", 0, None, None)]
    canceled = record("CANCELED", finished_at=9)
    assert parts_of(canceled, event(9, "CANCELED")) == [("waited", 0, 9, None)]


def test_a_delayed_command_is_kept_back_until_it_is_due() -> None:
    assert parts_of(record("PENDING", due=60), now=30) == [("later", 0, None, None)]
    assert parts_of(record("PENDING", due=60), now=70) == [
        ("later", 0, 60, None),
        ("waited", 60, None, None),
    ]
    started = record("IN_PROGRESS", due=60, started_at=65)
    assert parts_of(started, event(65, "RECEIVED", 1)) == [
        ("later", 0, 60, None),
        ("waited", 60, 65, None),
        ("ran", 65, None, 1),
    ]


def test_a_retried_command_with_its_pauses() -> None:
    """Only the latest due time is on record."""
    events = [
        event(1, "RECEIVED", 1),
        event(2, "FAILED", 1, code="BUSY"),
        event(5, "RECEIVED", 2),
        event(6, "FAILED", 2, code="BUSY"),
    ]
    begin = [
        ("waited", 0, 1, None),
        ("ran", 1, 2, 1),
        ("retried", 2, 5, None),
        ("ran", 5, 6, 2),
    ]
    assert parts_of(record("PENDING", due=16), *events, now=10) == [
        *begin,
        ("retried", 6, None, None),
    ]
    done = record("COMPLETED", due=16, started_at=20, finished_at=21)
    events += [event(20, "RECEIVED", 3), event(21, "COMPLETED", 3)]
    assert parts_of(done, *events) == [
        *begin,
        ("retried", 6, 16, None),
        ("waited", 16, 20, None),
        ("ran", 20, 21, 3),
    ]


def test_time_in_troubleshooting_until_an_operator_decides() -> None:
    events = [event(1, "RECEIVED", 1), event(2, TROUBLE, 1)]
    assert parts_of(record("IN_TROUBLESHOOTING_QUEUE"), *events) == [
        ("waited", 0, 1, None),
        ("ran", 1, 2, 1),
        ("trouble", 2, None, None),
    ]
    retried = event(50, "OPERATOR_RETRY", operator="ann")
    assert parts_of(record("PENDING", due=49.9999), *events, retried)[2:] == [
        ("trouble", 2, 50, None),
        ("waited", 50, None, None),
    ]
    completed = event(50, "OPERATOR_COMPLETE", operator="ann")
    done = record("COMPLETED", finished_at=50.001)
    assert parts_of(done, *events, completed)[2:] == [("trouble", 2, 50, None)]


def test_a_loss_that_is_noticed_after_the_next_execution_has_begun() -> None:
    audit = [
        event(1, "RECEIVED", 1, worker="a/w1"),
        event(40, "RECEIVED", 1, worker="b/w1"),
        event(40.001, "LOST", 1, worker="a/w1", code="LEASE_ENDED"),
        event(41, "COMPLETED", 1, worker="b/w1"),
    ]
    done = record("COMPLETED", started_at=40, finished_at=41)
    assert [(run.worker, run.event and run.event.kind) for run in executions(done, audit)] == [
        ("a/w1", "LOST"),
        ("b/w1", "COMPLETED"),
    ]
    assert parts_of(done, *audit) == [("waited", 0, 1, None), ("ran", 1, 40, 1), ("ran", 40, 41, 1)]


def test_a_claim_that_was_given_back_leaves_no_event() -> None:
    audit = [event(1, "RECEIVED", 1)]
    back = record("PENDING", started_at=1, due=30)
    [run] = executions(back, audit)
    assert (run.running, value_of(run)["outcome"]) == (False, None)
    assert parts_of(back, *audit, now=10) == [
        ("waited", 0, 1, None),
        ("ran", 1, 1, 1),
        ("retried", 1, None, None),
    ]


def test_a_command_that_never_ran_may_be_in_trouble() -> None:
    audit = [event(3, TROUBLE, code="NOT_CLAIMABLE", details={"reason": "NOT_CLAIMABLE"})]
    held = record("IN_TROUBLESHOOTING_QUEUE")
    assert executions(held, audit) == []
    assert parts_of(held, *audit) == [("waited", 0, 3, None), ("trouble", 3, None, None)]


def test_an_execution_shows_what_its_event_has_kept() -> None:
    details = {
        "reason": "TRANSIENT",
        "exception": "shop.errors.BusyError",
        "traceback": "Traceback ...",
        "details": {
            "stack": "File ...",
            "statement": "active: UPDATE account",
            "blocked_by": ["pid 7 (psql)"],
            "pid": 9,
        },
    }
    audit = [
        event(1, "RECEIVED", 1),
        event(2, "FAILED", 1, code="TIMEOUT", message="gave up", details=details),
    ]
    [run] = executions(record("PENDING"), audit)
    value = value_of(run)
    assert (value["outcome"], value["code"], value["message"]) == ("FAILED", "TIMEOUT", "gave up")
    assert (value["reason"], value["exception"]) == ("TRANSIENT", "shop.errors.BusyError")
    assert (value["traceback"], value["stack"]) == ("Traceback ...", "File ...")
    assert (value["sql"], value["blocked_by"]) == ("active: UPDATE account", ["pid 7 (psql)"])
    assert value["details"] is not None and value["details"]["text"] == '{"pid":9}'


def test_details_of_any_shape_are_shown() -> None:
    """An application's own details, or those that another program wrote."""
    for details in (None, 7, "text", [1], {"details": ["a"]}, {"details": {"stack": 7}}, {"x": 1}):
        [run] = executions(
            record("PENDING"),
            [event(1, "RECEIVED", 1), event(2, "FAILED", 1, details=details)],
        )
        value = value_of(run)
        assert {"reason", "traceback", "stack", "sql", "blocked_by"} <= value.keys()
        assert value["stack"] is None or isinstance(value["stack"], str)
