"""A sentence that says why a command does not run now."""

import json
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from batches import RETRY, TROUBLE
from claiming import Claimer, ended
from cli import done, here
from handlers import found
from queries import scalar
from roles import role

from cmdbus import CommandBus, CommandNotFoundError
from cmdbus.producer.explaining import Facts, sentence
from cmdbus.retry import SUSPECT_LOSSES

pytestmark = pytest.mark.new_database

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
SOON = datetime(2026, 3, 1, 12, 0, 30, 999_999, tzinfo=UTC)
AGO = datetime(2026, 3, 1, 11, 59, 30, tzinfo=UTC)
READY = Facts(
    source="ready",
    type="Debit",
    status="PENDING",
    error_code=None,
    attempts=0,
    losses=0,
    worker=None,
    claimed_at=None,
    due_at=AGO,
    ended_at=None,
    expires_at=None,
    present=NOW,
    paused=False,
    nodes=2,
    handlers=1,
    claimers=1,
    missing_tags=None,
    priority=5,
    ahead=0,
    many=False,
)


@pytest.mark.parametrize(
    ("source", "changes", "expected"),
    [
        (
            "finished",
            {"status": "COMPLETED", "ended_at": AGO},
            "It is COMPLETED since 2026-03-01 11:59:30+00:00.",
        ),
        (
            "finished",
            {"status": "CANCELED", "error_code": "EXPIRED", "ended_at": AGO},
            "It is CANCELED (EXPIRED) since 2026-03-01 11:59:30+00:00.",
        ),
        (
            "troubleshooting",
            {"status": "IN_TROUBLESHOOTING_QUEUE", "error_code": "GONE", "ended_at": AGO},
            "It waits for an operator in the troubleshooting queue (GONE) since 2026-03-01"
            " 11:59:30+00:00: cmdbus tsq retries, cancels or completes it.",
        ),
        (
            "ready",
            {"status": "IN_PROGRESS", "worker": "host:7", "claimed_at": AGO, "paused": True},
            "It is in progress, claimed by worker host:7 at 2026-03-01 11:59:30+00:00.",
        ),
        (
            "ready",
            {"status": "IN_PROGRESS", "claimed_at": AGO},
            "It is in progress, claimed at 2026-03-01 11:59:30+00:00.",
        ),
        ("ready", {}, "It waits: it is the next one that a free thread claims."),
        (
            "ready",
            {"ahead": 1},
            "It waits: 1 command of its domain is claimed before it.",
        ),
        (
            "ready",
            {"ahead": 1000, "many": True, "expires_at": SOON},
            "It waits: 1000 or more commands of its domain are claimed before it; it expires at"
            " 2026-03-01 12:00:30+00:00.",
        ),
        (
            "ready",
            {"expires_at": SOON, "claimed_at": AGO},
            "It waits: it is the next one that a free thread claims.",
        ),
        ("ready", {"paused": True, "ahead": 5}, "It waits: domain payments is paused."),
        (
            "ready",
            {"paused": True, "nodes": 0, "handlers": 0},
            "It waits: domain payments is paused, and no node is alive.",
        ),
        ("ready", {"handlers": 0}, "It waits: no living node handles payments/Debit."),
        (
            "limited",
            {"handlers": 0, "missing_tags": ["gpu"]},
            "It waits: no living node has the tag gpu, which payments/Debit needs.",
        ),
        (
            "ready",
            {"handlers": 0, "missing_tags": ["eu", "gpu"]},
            "It waits: no living node has the tags eu and gpu, which payments/Debit needs.",
        ),
        (
            "ready",
            {"claimers": 0},
            "It waits: no living node claims priority 5 of payments/Debit.",
        ),
        (
            "ready",
            {"losses": SUSPECT_LOSSES},
            "It waits: it runs next in a process of its own, because 2 processes ended while it"
            " ran.",
        ),
        (
            "ready",
            {"expires_at": AGO},
            "It expired at 2026-03-01 11:59:30+00:00, and a node is about to cancel it.",
        ),
        (
            "ready",
            {"expires_at": AGO, "nodes": 0},
            "It expired at 2026-03-01 11:59:30+00:00, and no living node can cancel it.",
        ),
        (
            "scheduled",
            {"due_at": SOON},
            "It waits: it is due at 2026-03-01 12:00:30+00:00.",
        ),
        (
            "scheduled",
            {"due_at": SOON, "error_code": "BUSY", "claimed_at": AGO, "paused": True},
            "It waits: its next attempt (after BUSY) is due at 2026-03-01 12:00:30+00:00, and"
            " domain payments is paused.",
        ),
        (
            "scheduled",
            {"nodes": 0},
            "It waits: it is due since 2026-03-01 11:59:30+00:00 and comes into the queue next,"
            " and no node is alive.",
        ),
        ("limited", {}, "It waits: it is the next one that a free thread claims."),
    ],
)
def test_a_sentence_names_all_that_keeps_a_command_from_running(
    source: str, changes: dict[str, Any], expected: str
) -> None:
    assert sentence("payments", READY._replace(source=source, **changes)) == expected


def node(connection: psycopg.Connection, *types: str, lives: bool = True) -> None:
    """One that handles these types of payments; it renewed a minute ago unless it `lives`."""
    connection.execute(
        "INSERT INTO cmdbus.node"
        " VALUES (%s, '30 s', clock_timestamp() - %s * interval '1 min', %s)",
        (uuid4().int % 2**62, 0 if lives else 1, [f"payments {type_}" for type_ in types]),
    )


@pytest.fixture
def handled(connection: psycopg.Connection) -> None:
    """By a living node."""
    node(connection, "Debit")


@pytest.mark.usefixtures("handled")
def test_a_command_waits_behind_those_that_are_claimed_before_it(
    bus: CommandBus, claimer: Claimer
) -> None:
    """Not those that run, that come later, or that no living node handles."""
    running, ahead = (bus.send("payments", "Debit") for _ in range(2))
    claimer.claim_one()
    bus.send("payments", "Unknown", priority="high")
    bus.send("payments", "Debit", priority="low")
    own = bus.send("payments", "Debit")
    bus.send("payments", "Debit")
    one = "It waits: 1 command of its domain is claimed before it."
    assert bus.explain("payments", own) == one
    assert (
        bus.explain("payments", ahead) == "It waits: it is the next one that a free thread claims."
    )
    claimed = found(bus, running).started_at
    assert claimed is not None
    assert bus.explain("payments", str(running)) == (
        f"It is in progress, claimed by worker tester at {claimed:%Y-%m-%d %H:%M:%S}+00:00."
    )


@pytest.mark.usefixtures("handled")
def test_a_command_is_explained_wherever_it_is(
    bus: CommandBus, connection: psycopg.Connection, claimer: Claimer
) -> None:
    retried, troubled, over = (bus.send("payments", "Debit") for _ in range(3))
    claims = claimer.claim(3)
    outcomes = [RETRY, TROUBLE, None]
    claimer.settle(*(ended(claim, end) for claim, end in zip(claims, outcomes, strict=True)))
    connection.execute("UPDATE cmdbus.scheduled SET due_at = '2126-01-01 00:00+00'")
    assert bus.explain("payments", retried) == (
        "It waits: its next attempt (after AWAY) is due at 2126-01-01 00:00:00+00:00."
    )
    assert bus.explain("payments", troubled).startswith(
        "It waits for an operator in the troubleshooting queue (GONE) since 2"
    )
    assert bus.explain("payments", over).startswith("It is COMPLETED since 2")
    bus.pause("payments")
    bus.configure("payments", accepting=False)
    assert bus.explain("payments", retried).endswith("+00:00, and domain payments is paused.")
    with pytest.raises(CommandNotFoundError):
        bus.explain("payments", uuid4())
    with pytest.raises(CommandNotFoundError):
        bus.explain("orders", over)


def test_a_node_lives_while_it_renews_leases_or_waits_for_work(
    bus: CommandBus, connection: psycopg.Connection
) -> None:
    own = bus.send("payments", "Debit")
    assert bus.explain("payments", own) == "It waits: no node is alive."
    node(connection, "Debit", lives=False)
    assert bus.explain("payments", own) == "It waits: no node is alive."
    node(connection, "Credit")
    unhandled = "It waits: no living node handles payments/Debit."
    assert bus.explain("payments", own) == unhandled
    connection.execute(
        "INSERT INTO cmdbus.waiter SELECT id, 0, now(), now() + '1 min'::interval"
        " FROM cmdbus.node WHERE types = '{payments Debit}'"
    )
    assert bus.explain("payments", own) == "It waits: it is the next one that a free thread claims."


def test_what_has_lost_processes_waits_for_one_of_its_own(
    bus: CommandBus, connection: psycopg.Connection, claimer: Claimer
) -> None:
    own = bus.send("payments", "Debit")
    node(connection, "Debit")
    for _ in range(2):
        claimer.statements.release(connection, [claimer.claim_one()], [1], "it was killed")
    assert bus.explain("payments", own) == (
        "It waits: it runs next in a process of its own, because 2 processes ended while it ran."
    )


@pytest.mark.parametrize("kind", ["operator", "monitor", "worker"])
def test_those_who_watch_may_have_a_command_explained(dsn: str, bus: CommandBus, kind: str) -> None:
    own = bus.send("payments", "Debit")
    with role(dsn, kind) as connection:
        assert bus.explain("payments", own, connection=connection) == "It waits: no node is alive."


def test_an_explanation_reads_a_bounded_number_of_rows(
    bus: CommandBus, connection: psycopg.Connection
) -> None:
    connection.execute(
        "INSERT INTO cmdbus.ready (domain, priority, command_id, correlation_id, type, data)"
        " SELECT 'payments', 5, gen_random_uuid(), gen_random_uuid(), 'Debit', '1'"
        " FROM generate_series(1, 5000)"
    )
    node(connection, "Debit")
    own = bus.send("payments", "Debit")
    read = (
        "SELECT idx_tup_fetch + seq_tup_read FROM pg_stat_xact_user_tables WHERE relname = 'ready'"
    )
    with connection.transaction():
        before = scalar(connection, read)
        assert bus.explain("payments", own, connection=connection) == (
            "It waits: 1000 or more commands of its domain are claimed before it."
        )
        assert scalar(connection, read) - before < 1_100


def test_get_shows_why_a_command_that_has_not_ended_does_not_run(dsn: str, bus: CommandBus) -> None:
    def got(*options: str) -> str:
        return done(here("get", "payments", str(own), "--dsn", dsn, *options))

    own = bus.send("payments", "Debit")
    assert "  why             It waits: no node is alive.\n" in got()
    assert json.loads(got("--json"))["why"] == "It waits: no node is alive."
    bus.cancel("payments", own)
    assert "  why " not in got()
    assert json.loads(got("--json"))["why"] is None
