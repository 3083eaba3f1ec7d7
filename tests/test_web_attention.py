"""What the overview of the page puts on top, as values."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from cmdbus.breakers import BreakerState, BreakerTerms
from cmdbus.producer.breakers import BreakerRecord
from cmdbus.producer.bridges import BridgeRecord
from cmdbus.producer.history import HistoryPoint
from cmdbus.producer.node_records import NodeExit, NodeRecord, NodeSeat
from cmdbus.producer.records import AuditEvent, DomainRecord, Waiting
from cmdbus.producer.schedules import ScheduleRecord
from cmdbus.rollups import Figures
from cmdbus.web.views.attention import Attention, Observed, attention

NOW = datetime(2026, 6, 1, 12, tzinfo=UTC)
WEEK = timedelta(days=7)
TERMS = BreakerTerms(failures=3, window=60.0, cooldown=10.0, probes=1)


def domain(waiting: Waiting | None = None, type_: str = "Debit", **fields: Any) -> DomainRecord:
    counts = waiting or Waiting()
    record = DomainRecord(
        *("payments", False, True, None, None, None, WEEK, counts, {type_: counts}, [], {}, {})
    )
    return replace(record, **fields)


def seat(**fields: Any) -> NodeSeat:
    none = dict.fromkeys(("pid", "since", "memory", "threads", "min_threads", "max_threads"))
    values: dict[str, Any] = {**none, "seat": 0, "generation": 1, "health": "HEALTHY"}
    return NodeSeat(**{**values, "reasons": [], "slots": [], **fields})


def node(**fields: Any) -> NodeRecord:
    none = dict.fromkeys(("pid", "state", "python", "schema", "postgresql", "steward"))
    values: dict[str, Any] = {
        **none,
        **{"node": 1, "name": "shop", "host": "a", "published_at": NOW, "gone": False},
        **{"stopped": False, "started_at": NOW, "version": "1", "tags": [], "seats": [seat()]},
        **{"priorities": (0, 10), "age_share": 10, "wanted": 1, "memory": 1, "restarts": {}},
        **{"undead": 0, "quarantine": None, "exits": [], "cut": False},
    }
    return NodeRecord(**{**values, **fields})


def breaker(state: BreakerState, retry_at: datetime | None = NOW) -> BreakerRecord:
    opened = NOW - timedelta(minutes=5)
    return BreakerRecord(
        name="bank",
        state=state,
        changed_at=opened,
        opened_at=opened,
        failures=3,
        retry_at=retry_at,
        probing=0,
        covers=["payments/Debit"],
        in_force=TERMS,
        declared=[],
        set=None,
    )


def schedule(**fields: Any) -> ScheduleRecord:
    none = dict.fromkeys(
        ["cron", "max_attempts", "key", "next_tick", "last_tick", "last_command_id"]
    )
    values: dict[str, Any] = {
        **none,
        **{"name": "nightly", "domain": "payments", "type": "Close", "every": 60},
        **{"timezone": "UTC", "missed": "one", "jitter": 0.0, "priority": 5, "paused": False},
        **{"left_out": 0, "left_out_at": None, "last_error": None, "added": None},
        **{"declared_by": ["shop"], "handled": True},
    }
    return ScheduleRecord(**{**values, **fields})


def bridge(failing: float | None = None) -> BridgeRecord:
    """`failing`: for so many seconds."""
    none = dict.fromkeys(["reply_to", "moved_at", "operator", "reason"])
    values: dict[str, Any] = {
        **none,
        **{"name": "orders-in", "queue": "orders", "direction": "in", "domain": "payments"},
        **{"type": "Debit", "batch_size": 100, "moved": 7, "refused": 0, "added_at": NOW},
        "error": None if failing is None else "the queue 'orders' does not exist",
        "failed_at": None if failing is None else NOW - timedelta(seconds=failing),
    }
    return BridgeRecord(**values)


def minutes(*ages: float | None, ended: Figures | None = None) -> dict[str, list[HistoryPoint]]:
    begin = NOW - timedelta(minutes=len(ages))
    depths = None, None, None, None
    points = [
        HistoryPoint(begin + timedelta(minutes=n), ended or Figures(), None, None, age, *depths)
        for n, age in enumerate(ages)
    ]
    return {"payments": points}


def found(**seen: Any) -> list[Attention]:
    return attention(Observed(**{"now": NOW, "nodes": [node()], **seen}))


def one(**seen: Any) -> tuple[str, str]:
    [entry] = found(**seen)
    return entry.level, entry.what


def test_nothing_needs_an_operator_while_all_is_well() -> None:
    busy = domain(Waiting(ready=500, in_progress=8, scheduled=3, oldest_age=2.0))
    assert found(domains=[busy], schedules=[schedule()], bridges=[bridge()]) == []
    assert found(breakers=[breaker(BreakerState.CLOSED)], nodes=[]) == []


#: Level and heading of an entry, and what leads to it.
Case = tuple[str, str, dict[str, Any]]
LATE, LATER = Waiting(ready=2, oldest_age=90.0), Waiting(ready=2, oldest_age=400.0)


def of(record: DomainRecord, **more: Any) -> dict[str, Any]:
    return {"domains": [record], **more}


def cases_of_domains() -> Iterator[Case]:
    yield (
        "bad",
        "payments: 3 commands in troubleshooting",
        of(domain(Waiting(troubleshooting=3))),
    )
    yield (
        "bad",
        "payments/Debit: 1 command waits",
        of(domain(Waiting(ready=1, oldest_age=90), unhandled=["Debit"])),
    )
    yield (
        "bad",
        "No fleet runs, and 2 commands wait",
        of(domain(Waiting(ready=2)), nodes=[node(gone=True, stopped=True)]),
    )
    yield "warn", "payments is paused", of(domain(Waiting(ready=2), paused=True))
    yield "warn", "payments refuses sends", of(domain(accepting=False))
    yield "bad", "payments is full", of(domain(Waiting(ready=10), max_depth=10))
    yield "warn", "payments is nearly full", of(domain(Waiting(ready=8), max_depth=10))
    yield (
        "warn",
        "payments has many commands waiting",
        of(domain(Waiting(scheduled=5), warn_depth=5)),
    )


def cases_of_ages() -> Iterator[Case]:
    yield (
        "warn",
        "payments: the oldest command has waited 90 s",
        of(domain(LATE), minutes=minutes(10.0, 50.0, 80.0)),
    )
    yield (
        "bad",
        "payments: the oldest command has waited 6 min",
        of(domain(LATER), minutes=minutes(10.0, 50.0, 80.0)),
    )
    yield (
        "warn",
        "payments: the oldest command has waited 6 min",
        of(domain(LATER), minutes=minutes(None, 500.0, 450.0)),
    )
    yield (
        "warn",
        "payments/Debit: 4 commands wait at a limit, and none runs",
        of(domain(Waiting(limited=4, oldest_age=900.0)), minutes=minutes(500.0, 600.0, 700.0)),
    )
    yield (
        "warn",
        "payments: the oldest command has waited 15 min",
        of(
            domain(Waiting(limited=4, in_progress=1, oldest_age=900.0)),
            minutes=minutes(500.0, 600.0, 700.0),
        ),
    )


def cases_of_breakers_and_schedules() -> Iterator[Case]:
    open_ = [breaker(BreakerState.OPEN)]
    yield "bad", "Breaker bank is open", of(domain(LATER), breakers=open_)
    yield (
        "warn",
        "payments: 30 of 40 executions failed in the last 5 minutes",
        of(domain(), minutes=minutes(0.0, ended=Figures(completed=10, retry=20, trouble=10))),
    )
    yield "bad", "Breaker bank is open", {"breakers": [breaker(BreakerState.OPEN)]}
    yield "warn", "Breaker bank is kept open", {"breakers": [breaker(BreakerState.OPEN, None)]}
    yield "bad", "Schedule nightly fails", {"schedules": [schedule(last_error="no such zone")]}
    yield (
        "warn",
        "Schedule nightly sends what is not handled",
        {"schedules": [schedule(handled=False)]},
    )


def cases_of_nodes() -> Iterator[Case]:
    failing = "Bridge orders-in has been failing for"
    yield "warn", f"{failing} 60 s", {"bridges": [bridge(60)]}
    yield "bad", f"{failing} 5 min", {"bridges": [bridge(300)]}
    silent = NOW - timedelta(minutes=10)
    yield (
        "bad",
        "Node shop on a has gone",
        {"nodes": [node(gone=True, published_at=silent)]},
    )
    yield (
        "warn",
        "Node shop on a: 1 process is degraded",
        {"nodes": [node(seats=[seat(), seat(health="DEGRADED", reasons=["it failed"])])]},
    )
    yield (
        "bad",
        "Node shop on a: 2 processes are critical",
        {"nodes": [node(seats=[seat(health="CRITICAL")] * 2)]},
    )
    yield "bad", "Node shop on a: A process survived SIGKILL", {"nodes": [node(undead=1)]}
    yield (
        "warn",
        "Nodes run different versions of cmdbus: 1, 2",
        {"nodes": [node(), node(version="2")]},
    )


CASES = [
    *cases_of_domains(),
    *cases_of_ages(),
    *cases_of_breakers_and_schedules(),
    *cases_of_nodes(),
]


@pytest.mark.parametrize(("level", "what", "seen"), CASES, ids=lambda _: None)
def test_what_needs_an_operator_is_said_in_one_entry(
    level: str, what: str, seen: dict[str, Any]
) -> None:
    assert one(**seen) == (level, what)


def test_a_node_that_stopped_in_order_or_long_ago_is_no_matter() -> None:
    long_ago = NOW - timedelta(hours=2)
    assert found(nodes=[node(), node(gone=True, published_at=long_ago)]) == []
    assert found(nodes=[node(), node(gone=True, stopped=True)]) == []


def test_recent_kills_are_told_with_the_latest_reason() -> None:
    none = dict.fromkeys(("signal", "code"))
    fields: dict[str, Any] = {"role": "worker", "seat": 0, "pid": 1, "generation": 1}
    exits = [
        NodeExit(
            **{"number": n, "at": NOW - timedelta(minutes=age), "verdict": "stuck", **fields},
            **none,  # type: ignore[arg-type]
            reason=f"was killed for reason {n}",
            commands=[],
        )
        for n, age in ((3, 1), (2, 14), (1, 16))
    ]
    [entry] = found(nodes=[node(exits=exits)])
    assert entry.what.endswith("2 processes crashed or had to be killed in the last 15 minutes")
    assert entry.why == "The latest was killed for reason 3."


def test_a_paused_domain_says_by_whom_and_can_be_resumed() -> None:
    pause = AuditEvent(
        at=NOW - timedelta(hours=3), kind="PAUSED", operator="ann", message="bank is down"
    )
    record = domain(Waiting(ready=2, oldest_age=9000.0), paused=True)
    [entry] = found(domains=[record], pauses={"payments": pause})
    assert entry.why == "Paused 3 h ago by ann: bank is down. 2 commands wait."
    assert entry.link == "#/domain/payments"
    assert entry.action == {
        "name": "resume",
        "label": "Resume",
        "body": {"target": {"domain": "payments"}},
    }


def test_the_worst_comes_first() -> None:
    entries = found(
        domains=[domain(accepting=False)], breakers=[breaker(BreakerState.OPEN)], nodes=[]
    )
    assert [each.level for each in entries] == ["bad", "warn"]


def test_links_lead_to_names_with_any_characters() -> None:
    record = replace(domain(Waiting(troubleshooting=1)), domain="a/b ?&")
    [entry] = found(domains=[record])
    assert entry.link == "#/troubleshooting?domain=a%2Fb+%3F%26"
