"""What others wrote, as it reaches a terminal or a text log: shown, and never obeyed."""

import json
import logging
import time
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from uuid import uuid4

import psycopg
from cli import here
from queries import move_to_troubleshooting

from cmdbus import AuditEvent, CommandBus
from cmdbus.board.board import Board
from cmdbus.board.records import Role, SupervisorState
from cmdbus.data import Undecodable
from cmdbus.log_formats import JsonFormatter, TextFormatter
from cmdbus.printable import hanging, joined, one_line, printable
from cmdbus.supervisor.cli.output import age
from cmdbus.supervisor.runtime import board_path

#: It would clear the screen, set a title, and add a line that looks like one of the log.
EVIL = "\x1b[2J\x9d0;pwned\x07\r\nfatal  forged\u202e\u2028\x85!"
SHOWN = "\\x1b[2J\\x9d0;pwned\\x07\\r\\nfatal  forged\\u202e\\u2028\\x85!"


def assert_harmless(text: str, *, lines: bool = False) -> None:
    assert "\\x1b[2J" in text
    assert not [sign for sign in text if sign not in "\n\t" and not sign.isprintable()]
    assert lines or not [line for line in text.splitlines() if line.strip().startswith("fatal")]


def test_controls_become_escapes_and_everything_else_stays() -> None:
    assert one_line(EVIL) == SHOWN
    assert printable("a\tb\nc\x1b \ud800") == "a\tb\nc\\x1b \\ud800"
    assert hanging(f"first\n{EVIL}", "  ") == [
        "first",
        *f"  {SHOWN}".replace("\\n", "\n  ").split("\n"),
    ]
    for harmless in ("grün", "😀", "日本", "\u200d", "tab\t"):
        assert one_line(harmless) == harmless


def test_a_text_log_shows_it_and_no_line_of_it_looks_like_an_event() -> None:
    record = logging.LogRecord("cmdbus", logging.INFO, "", 0, "%s", (EVIL,), None)
    first, second = TextFormatter().format(record).split("\n")
    assert first.endswith("\\x1b[2J\\x9d0;pwned\\x07\\r")
    assert second == "    fatal  forged\\u202e\\u2028\\x85!"
    assert JsonFormatter().format(record).isascii()


def test_an_audit_event_shows_it_in_its_one_line_and_in_its_details() -> None:
    event = AuditEvent(
        at=datetime.now(UTC),
        kind="FAILED",
        code=EVIL,
        message=EVIL,
        details={EVIL: {"stack": f"File\n{EVIL}"}, "text": EVIL},
    )
    first, *rest = str(event).split("\n")
    assert_harmless(str(event), lines=True)
    assert first.count(SHOWN) == 2
    assert rest[0] == f"    {SHOWN}:" and all(line.startswith("    ") for line in rest)
    bare = str(AuditEvent(at=datetime.now(UTC), kind="FAILED", details=EVIL))
    assert all(line.startswith("    ") for line in bare.split("\n")[1:])
    unknown = str(AuditEvent(at=datetime.now(UTC), kind="FAILED", details=Undecodable(EVIL, "?")))
    assert_harmless(unknown, lines=True)


def test_ps_shows_it(tmp_path: Path) -> None:
    now = time.monotonic_ns()
    with closing(Board.create(board_path(tmp_path, "cmdbus"), 2, 2, name="cmdbus")) as board:
        state, due = SupervisorState.RUNNING, now + 60_000_000_000
        board.supervise(pid=1, state=state, since=now, due=due, wanted=1)
        seat = board.seat(0)
        seat.assign(Role.WORKER, number=0, generation=1)
        seat.enter(pid=1, generation=1, now=now)
        slot = seat.slot(0)
        slot.occupy(0, now)
        slot.begin(
            seat.command_type("payments", "\x1b[2J\nfatal"),
            priority=5,
            id=9,
            token=1,
            command_id=uuid4(),
            attempt=1,
            started=now,
            due=due,
        )
        assert_harmless(here("ps", "--runtime-dir", str(tmp_path)).stdout)


def test_every_command_shows_it(dsn: str) -> None:
    """Also in a sentence about an error, here of a trigger on the table."""
    with CommandBus(dsn) as bus, psycopg.connect(dsn, autocommit=True) as connection:
        id_ = str(bus.send("payments", "Debit", {"text": EVIL}))
        move_to_troubleshooting(dsn, EVIL, EVIL)
        for command in ("tsq list", "tsq summary", f"get payments {id_}"):
            assert_harmless(here(*command.split(), CMDBUS_DSN=dsn).stdout)
        shown = here("get", "payments", id_, "--json", CMDBUS_DSN=dsn).stdout
        assert shown.isascii() and json.loads(shown)["error_message"] == EVIL
        connection.execute(
            psycopg.sql.SQL(
                "CREATE FUNCTION evil() RETURNS trigger LANGUAGE plpgsql AS"
                " $$ BEGIN RAISE EXCEPTION '%', {}; END $$;"
                "CREATE TRIGGER evil BEFORE DELETE ON cmdbus.troubleshooting"
                " FOR EACH ROW EXECUTE FUNCTION evil()"
            ).format(psycopg.sql.Literal(EVIL))
        )
        refused = here("tsq", "retry", "payments", id_, CMDBUS_DSN=dsn)
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert_harmless(refused.stderr)
    assert_harmless(here("get", "payments", EVIL, CMDBUS_DSN=dsn).stderr)
    assert_harmless(here("ps", "--runtime-dir", f"/{EVIL}").stderr)


def test_lines_of_a_message_stay_apart_in_one() -> None:
    refused = "connection failed: Connection refused\n\tIs the server running on that host?"
    assert (
        joined(refused)
        == "connection failed: Connection refused; Is the server running on that host?"
    )
    assert joined("All failures were:\n- host: a\n\n") == "All failures were: - host: a"


def test_an_age_fits_its_column() -> None:
    ages = [0.0, 0.0004, 0.4126, 0.99951, 9.96, 119.6, 7199.0, 86_400.0 * 999]
    assert [len(age(seconds)) <= 5 for seconds in ages] == [True] * len(ages)
